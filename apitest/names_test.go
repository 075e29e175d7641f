// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
)

// The names, UIDs and resourceVersions of a server repeat with its seed. Those of another seed
// are others, in another order.
func TestSeed(t *testing.T) {
	made := func(seed uint64) (names, uids []string, rv string) {
		maps := apitest.New(apitest.Options{Seed: seed}).Client(apitest.User{}).CoreV1().ConfigMaps("default")
		for range 20 {
			m, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "m-"}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			names, uids, rv = append(names, m.Name), append(uids, string(m.UID)), m.ResourceVersion
		}
		return names, uids, rv
	}
	// order returns the positions of sorted names.
	order := func(names []string) (order []int) {
		for _, n := range slices.Sorted(slices.Values(names)) {
			order = append(order, slices.Index(names, n))
		}
		return order
	}
	names, uids, rv := made(0)
	for _, seed := range []uint64{1, 2} {
		n, u, r := made(seed)
		if slices.Equal(order(n), order(names)) || slices.Equal(order(u), order(uids)) || r == rv {
			t.Errorf("seed %d: %q %q %s, the seed 0 has %q %q %s", seed, n, u, r, names, uids, rv)
		}
		if len(slices.Compact(slices.Sorted(slices.Values(slices.Concat(names, n))))) != 40 {
			t.Errorf("seed %d: names of another one: %q, %q", seed, n, names)
		}
		if again, _, _ := made(seed); !slices.Equal(again, n) {
			t.Errorf("seed %d: %q and then %q", seed, n, again)
		}
	}
}
