// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"testing"
)

// A kube-apiserver renews its own Lease between a write of a case and its list.
func TestAListIsAsOldAsTheNewestWriteIfOthersWriteToo(t *testing.T) {
	written := func(rv string) object { return object{"metadata": object{"name": "a", "resourceVersion": rv}} }
	list := func(rv string) object {
		return object{"items": []any{}, "metadata": object{"resourceVersion": rv}}
	}
	for _, tc := range []struct {
		shared bool
		want   []string
	}{
		{true, []string{"<rv 1>", "<rv 2>", "<rv 2>", "<rv 2>", "<rv 1>", "<rv 3>"}},
		{false, []string{"<rv 1>", "<rv 2>", "<rv 2>", "<rv 3>", "<rv 1>", "<rv 4>"}},
	} {
		n := newNormalizer(tc.shared)
		var got []string
		for _, o := range []object{written("98"), written("103"), list("103"), list("104"), list("98"), written("105")} {
			got = append(got, n.value("", o).(object)["metadata"].(object)["resourceVersion"].(string))
		}
		if fmt.Sprint(got) != fmt.Sprint(tc.want) {
			t.Errorf("shared %v: %v, want %v", tc.shared, got, tc.want)
		}
	}
}
