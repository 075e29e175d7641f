// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Each part that the API server would refuse is left out with its own reason, and all
// others stay.
func TestWhatIsLeftOut(t *testing.T) {
	long := strings.Repeat("a", 252)
	for name, tc := range map[string]struct {
		edit        func(n *corev1.Node)
		credentials bool
		want        string // in the only problem; empty: none
	}{
		"nothing":                {func(*corev1.Node) {}, true, ""},
		"a label's key":          {func(n *corev1.Node) { n.Labels["no key!"] = "" }, false, `label "no key!"`},
		"a label's value":        {func(n *corev1.Node) { n.Labels["a"] = "no value!" }, false, `label "a"`},
		"a label of credentials": {func(n *corev1.Node) { n.Labels["kubernetes.io/role"] = "" }, true, "see MayLabel"},
		"the same without them":  {func(n *corev1.Node) { n.Labels["kubernetes.io/role"] = "" }, false, ""},
		"an annotation's key":    {func(n *corev1.Node) { n.Annotations = map[string]string{"no key!": ""} }, false, `annotation "no key!"`},
		"one in capitals":        {func(n *corev1.Node) { n.Annotations = map[string]string{"Example.com/Fine": ""} }, false, ""},
		"a negative capacity":    {func(n *corev1.Node) { n.Status.Capacity["memory"] = resource.MustParse("-1") }, false, "capacity of memory: is negative"},
		"a capacity of nothing":  {func(n *corev1.Node) { n.Status.Capacity["memory"] = resource.MustParse("0") }, false, ""},
		"half a pod":             {func(n *corev1.Node) { n.Status.Allocatable["pods"] = resource.MustParse("500m") }, false, "allocatable of pods: must be an integer"},
		"an address twice": {func(n *corev1.Node) {
			n.Status.Addresses = []corev1.NodeAddress{{Type: "Hostname", Address: "a"}, {Type: "Hostname", Address: "a"}}
		}, false, `address Hostname "a": is there twice`},
		"two addresses of a type": {func(n *corev1.Node) {
			n.Status.Addresses = []corev1.NodeAddress{{Type: "Hostname", Address: "a"}, {Type: "Hostname", Address: "b"}}
		}, false, ""},
		"a feature":                {func(n *corev1.Node) { n.Status.DeclaredFeatures = []string{"lower"} }, false, `declared feature "lower"`},
		"a feature that is long":   {func(n *corev1.Node) { n.Status.DeclaredFeatures = []string{"A" + long} }, false, ""},
		"a feature that is longer": {func(n *corev1.Node) { n.Status.DeclaredFeatures = []string{"Aa" + long} }, false, "declared feature"},
		"a taint's key":            {func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "no key!", Effect: "NoSchedule"}} }, false, "taint no key!"},
		"a taint's value": {func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "a", Value: "no value!", Effect: "NoSchedule"}}
		}, false, "taint a="},
		"a taint's effect": {func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: "None"}} }, false, `has the effect "None"`},
		"a taint twice": {func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: "NoSchedule"}, {Key: "a", Value: "b", Effect: "NoSchedule"}}
		}, false, "is there twice"},
		"a taint with two effects": {func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: "NoExecute"}, {Key: "a", Effect: "PreferNoSchedule"}}
		}, false, ""},
	} {
		node, all := template(), template()
		tc.edit(node)
		tc.edit(all)
		problems := DropInvalid(node, tc.credentials)
		parts := func(n *corev1.Node) int {
			return len(partsOf(n)) + len(n.Status.Addresses) + len(n.Status.DeclaredFeatures) + len(n.Spec.Taints)
		}
		switch {
		case tc.want == "" && len(problems) == 0:
			if parts(node) != parts(all) {
				t.Errorf("%s: something is left out", name)
			}
		case tc.want == "" || len(problems) != 1 || !strings.Contains(problems[0], tc.want):
			t.Errorf("%s: problems %q, want %q", name, problems, tc.want)
		case parts(node) >= parts(all):
			t.Errorf("%s: nothing is left out", name)
		}
	}
}

// The API server refuses features that are not in order, or there twice.
func TestDeclaredFeaturesAreInOrder(t *testing.T) {
	node := template()
	node.Status.DeclaredFeatures = []string{"B", "A/b1", "B", "A"}
	if problems := DropInvalid(node, false); len(problems) > 0 || !slices.Equal(node.Status.DeclaredFeatures, []string{"A", "A/b1", "B"}) {
		t.Errorf("%q, problems %q", node.Status.DeclaredFeatures, problems)
	}
}

// A taint that must be there is another one with another value.
func TestMissingTaints(t *testing.T) {
	keep := []corev1.Taint{{Key: "a", Value: "1", Effect: "NoSchedule"}}
	for _, tc := range []struct {
		have    corev1.Taint
		missing int
	}{
		{keep[0], 0}, {corev1.Taint{Key: "a", Value: "2", Effect: "NoSchedule"}, 1},
		{corev1.Taint{Key: "a", Value: "1", Effect: "NoExecute"}, 1}, {corev1.Taint{Key: "b", Value: "1", Effect: "NoSchedule"}, 1},
	} {
		if got := MissingTaints(keep, []corev1.Taint{tc.have}); len(got) != tc.missing {
			t.Errorf("%v: %v is missing", tc.have, got)
		}
	}
}

func TestMayLabel(t *testing.T) {
	for key, want := range map[string]bool{
		"pool":                                     true,
		"example.com/pool":                         true,
		"notkubernetes.io/x":                       true,
		"kubernetes.io":                            true, // a name, and no namespace
		"kubernetes.io/hostname":                   true,
		"kubernetes.io/os":                         true,
		"kubernetes.io/arch":                       true,
		"beta.kubernetes.io/os":                    true,
		"topology.kubernetes.io/zone":              true,
		"failure-domain.beta.kubernetes.io/zone":   true,
		"node.kubernetes.io/instance-type":         true,
		"node.kubernetes.io/anything":              true,
		"sub.kubelet.kubernetes.io/anything":       true,
		"beta.kubernetes.io/fluentd-ds-ready":      false,
		"beta.kubernetes.io/arch":                  true,
		"beta.kubernetes.io/instance-type":         true,
		"topology.kubernetes.io/region":            true,
		"failure-domain.beta.kubernetes.io/region": true,
		"kubelet.kubernetes.io/x":                  true,
		"node.k8s.io/x":                            false,
		"kubernetes.io/role":                       false,
		"node-role.kubernetes.io/control-plane":    false,
		"topology.kubernetes.io/rack":              false,
		"k8s.io/x":                                 false,
		"cloud.k8s.io/x":                           false,
		"node-restriction.kubernetes.io/x":         false,
		"example.node-restriction.kubernetes.io/x": false,
	} {
		if got := MayLabel(key); got != want {
			t.Errorf("MayLabel(%q) = %v, want %v", key, got, want)
		}
	}
}
