// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"encoding/json"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubewright/kubewright/apitest"
)

// gadget is a custom resource that counts its conversions.
type gadget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Size              counted `json:"size,omitempty"`
}

type counted string

var conversions atomic.Int64

// UnmarshalJSON implements json.Unmarshaler.
func (c *counted) UnmarshalJSON(b []byte) error {
	conversions.Add(1)
	return json.Unmarshal(b, (*string)(c))
}

// DeepCopyObject implements runtime.Object.
func (g *gadget) DeepCopyObject() runtime.Object {
	out := *g
	g.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

func TestCustomObjectsAreConvertedOnce(t *testing.T) {
	bubble(func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		s.Register(apitest.Kind{GroupVersionKind: widgetKind, Type: &gadget{}})
		s.Put(&gadget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", Labels: map[string]string{"x": "y"}}, Size: "small"})
		conversions.Store(0)
		for range 3 {
			g := apitest.Get[*gadget](s, "default", "a")
			if g.Size != "small" || g.Labels["x"] != "y" {
				t.Fatalf("%+v", g)
			}
			g.Labels["x"], g.Size = "changed", "changed" // a private copy
			for _, g := range append(s.Objects(), runtime.Object(apitest.List[*gadget](s, "")[0])) {
				if g, ok := g.(*gadget); ok && g.Labels["x"] != "y" {
					t.Fatalf("%+v", g)
				}
			}
		}
		if n := conversions.Load(); n > 1 {
			t.Errorf("one version was converted %d times", n)
		}
		if g := apitest.Edit(s, "default", "a", func(g *gadget) { g.Size = "big" }); g.Size != "big" || apitest.Get[*gadget](s, "default", "a").Size != "big" {
			t.Errorf("edited: %+v", g)
		}
	})(t)
}
