// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
)

// A fault of the caller's own: before each write, another client closes the shop. The
// program looks only once, and sells in a closed shop.
func ExampleFault() {
	const name = "shop"
	closed := explore.Fault{Name: "close the shop", World: true, Do: func(w *explore.World) {
		apitest.Edit(w.Server, "default", name, func(m *corev1.ConfigMap) { m.Data["open"] = "no" })
	}}
	sell := func(ctx context.Context, p *explore.Process) error {
		shop := kubernetes.NewForConfigOrDie(p.Config).CoreV1().ConfigMaps("default")
		m, err := shop.Get(ctx, name, metav1.GetOptions{})
		for err == nil && m.Data["open"] == "yes" && m.Data["sold"] == "" {
			time.Sleep(time.Second)
			_, err = shop.Patch(ctx, name, "application/merge-patch+json", []byte(`{"data":{"sold":"1"}}`), metav1.PatchOptions{})
			m.Data["sold"] = "1"
		}
		<-ctx.Done()
		return nil
	}
	scenario := func(w *explore.World) explore.Scenario {
		w.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{"open": "yes"}})
		get := func() *corev1.ConfigMap { return apitest.Get[*corev1.ConfigMap](w.Server, "default", name) }
		return explore.Scenario{
			Programs: []explore.Program{{Name: "seller", Run: sell}},
			Steps:    []explore.Step{{Name: "sold", Until: func() bool { return get().Data["sold"] == "1" }}},
			Always: []explore.Invariant{{Name: "sells only while open", Holds: func() error {
				if m := get(); m.Data["open"] == "no" && m.Data["sold"] != "" {
					return errors.New("sold in a closed shop")
				}
				return nil
			}}},
		}
	}
	inTest(func(t *testing.T) {
		for _, f := range explore.Find(t, explore.Config{Faults: []explore.Fault{closed}, InProcess: true}, scenario).Findings {
			fmt.Println(f.Plan)
			fmt.Println(f.Problem)
		}
	})
	// Output:
	// close the shop @ seller: patch configmaps default/shop #1
	// invariant "sells only while open" is broken: sold in a closed shop
}
