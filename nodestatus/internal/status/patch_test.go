// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"encoding/json"
	"hash/maphash"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// said returns a composed node, as collect makes it.
func said(edit func(*corev1.Node)) *corev1.Node {
	n := template()
	n.Name = node1
	if edit != nil {
		edit(n)
	}
	complementConditions(&n.Status, nil, true)
	return n
}

// apply applies a patch as the API server does.
func apply(t *testing.T, n *corev1.Node, patch []byte) *corev1.Node {
	t.Helper()
	old, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	patched, err := strategicpatch.StrategicMergePatch(old, patch, corev1.Node{})
	if err != nil {
		t.Fatalf("%v: %s", err, patch)
	}
	out := &corev1.Node{}
	if err := json.Unmarshal(patched, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestPatch takes a Node from an earlier status to a new one, with
// another client's additions on it, and compares the result.
func TestPatch(t *testing.T) {
	now := metav1.NewTime(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	for _, tc := range []struct {
		name   string
		before func(*corev1.Node)
		edit   func(*corev1.Node) // by another client
		after  func(*corev1.Node)
		want   func(*corev1.Node) // the parts of the result that after does not have
		has    []string           // in the patch
		hasNot []string
	}{
		{
			name:   "nothing changed: all conditions whole, and nothing else",
			has:    []string{`"uid":"u1"`, `"MemoryPressure"`, `"DiskPressure"`, `"PIDPressure"`, `"Ready"`},
			hasNot: []string{"capacity", "addresses", "labels", "annotations", "nodeInfo", "daemonEndpoints"},
		},
		{
			name: "two internal addresses in another order",
			before: func(n *corev1.Node) {
				n.Status.Addresses = []corev1.NodeAddress{{Type: "InternalIP", Address: "1.1.1.1"}, {Type: "InternalIP", Address: "2.2.2.2"}}
			},
			after: func(n *corev1.Node) {
				n.Status.Addresses = []corev1.NodeAddress{{Type: "InternalIP", Address: "2.2.2.2"}, {Type: "InternalIP", Address: "1.1.1.1"}}
			},
			has: []string{`{"$patch":"replace"}`},
		},
		{
			name: "two internal addresses become one",
			before: func(n *corev1.Node) {
				n.Status.Addresses = []corev1.NodeAddress{{Type: "InternalIP", Address: "1.1.1.1"}, {Type: "InternalIP", Address: "2.2.2.2"}}
			},
			after: func(n *corev1.Node) {
				n.Status.Addresses = []corev1.NodeAddress{{Type: "InternalIP", Address: "2.2.2.2"}}
			},
		},
		{name: "no addresses any more", after: func(n *corev1.Node) { n.Status.Addresses = nil }},
		{
			name:   "resources change, come and go; others' stay",
			before: func(n *corev1.Node) { n.Status.Capacity["example.com/gpu"] = resource.MustParse("2") },
			edit:   func(n *corev1.Node) { n.Status.Capacity["example.com/dongle"] = resource.MustParse("4") },
			after: func(n *corev1.Node) {
				n.Status.Capacity["cpu"] = resource.MustParse("8")
				n.Status.Capacity["example.com/nic"] = resource.MustParse("1")
			},
			want:   func(n *corev1.Node) { n.Status.Capacity["example.com/dongle"] = resource.MustParse("4") },
			has:    []string{`"example.com/gpu":null`, `"cpu":"8"`},
			hasNot: []string{`"memory"`, "allocatable"},
		},
		{
			name:   "the same amount in other words",
			after:  func(n *corev1.Node) { n.Status.Capacity["cpu"] = resource.MustParse("4000m") },
			hasNot: []string{"capacity"},
		},
		{
			name:   "labels and annotations change, come and go; others' stay",
			before: func(n *corev1.Node) { n.Labels["old"], n.Annotations["old"] = "x", "x" },
			edit:   func(n *corev1.Node) { n.Labels["admin"], n.Annotations["admin"] = "y", "y" },
			after:  func(n *corev1.Node) { n.Labels["example.com/pool"], n.Annotations["new"] = "b", "z" },
			want:   func(n *corev1.Node) { n.Labels["admin"], n.Annotations["admin"] = "y", "y" },
			has:    []string{`"old":null`},
		},
		{
			name: "a condition comes, and Ready stays the last",
			after: func(n *corev1.Node) {
				SetCondition(n, corev1.NodeCondition{Type: "Later", Status: corev1.ConditionTrue})
			},
		},
		{
			name: "a condition is dropped; others' stay",
			before: func(n *corev1.Node) {
				SetCondition(n, corev1.NodeCondition{Type: "Gone", Status: corev1.ConditionTrue})
			},
			edit: func(n *corev1.Node) {
				SetCondition(n, corev1.NodeCondition{Type: "KernelDeadlock", Status: corev1.ConditionFalse, Reason: "NPD"})
			},
			want: func(n *corev1.Node) {
				n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "KernelDeadlock", Status: corev1.ConditionFalse, Reason: "NPD"})
			},
			has: []string{`{"$patch":"delete","type":"Gone"}`},
		},
		{
			name: "a condition without reason and message clears those of another writer",
			before: func(n *corev1.Node) {
				SetCondition(n, corev1.NodeCondition{Type: "Bare", Status: corev1.ConditionTrue})
			},
			edit: func(n *corev1.Node) {
				SetCondition(n, corev1.NodeCondition{Type: "Bare", Status: corev1.ConditionUnknown, Reason: "R", Message: "M"})
			},
			after: func(n *corev1.Node) {
				SetCondition(n, corev1.NodeCondition{Type: "Bare", Status: corev1.ConditionTrue})
			},
			has: []string{`"reason":""`, `"message":""`},
		},
		{
			name: "a condition that was removed by another writer comes back in its place",
			edit: func(n *corev1.Node) { n.Status.Conditions = n.Status.Conditions[1:] },
			has:  []string{"$setElementOrder/conditions"},
		},
		{
			name: "structs change as a whole",
			before: func(n *corev1.Node) {
				n.Status.NodeInfo = corev1.NodeSystemInfo{KernelVersion: "6.1", KubeletVersion: "v1", Swap: &corev1.NodeSwapStatus{Capacity: new(int64(1))}}
				n.Status.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: new(true)}
			},
			after: func(n *corev1.Node) {
				n.Status.NodeInfo = corev1.NodeSystemInfo{KernelVersion: "6.2", KubeletVersion: "v1"}
				n.Status.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: new(false)}
			},
			has:    []string{`"nodeInfo":{"$patch":"replace"`, `"features":{"$patch":"replace"`},
			hasNot: []string{"swap"},
		},
		{
			name: "structs come",
			after: func(n *corev1.Node) {
				n.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
				n.Status.Config = &corev1.NodeConfigStatus{Error: "x"}
			},
		},
		{
			name: "structs go",
			before: func(n *corev1.Node) {
				n.Status.NodeInfo.KernelVersion = "6.1"
				n.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
				n.Status.Config = &corev1.NodeConfigStatus{Error: "x"}
			},
			has: []string{`"nodeInfo":null`, `"daemonEndpoints":null`, `"config":null`},
		},
		{
			name: "lists are replaced; others' fields stay",
			before: func(n *corev1.Node) {
				n.Status.Images = []corev1.ContainerImage{{Names: []string{"a"}, SizeBytes: 1}, {Names: []string{"b"}, SizeBytes: 2}}
				n.Status.VolumesInUse = []corev1.UniqueVolumeName{"v"}
			},
			edit: func(n *corev1.Node) {
				n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "v", DevicePath: "/dev/v"}}
			},
			after: func(n *corev1.Node) {
				n.Status.Images = []corev1.ContainerImage{{Names: []string{"b"}, SizeBytes: 2}}
			},
			want: func(n *corev1.Node) {
				n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "v", DevicePath: "/dev/v"}}
			},
			has: []string{`"volumesInUse":null`},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			first := said(tc.before)
			owned := ownershipOf(first)
			shown := first.DeepCopy()
			shown.UID = "u1"
			shown.Status.Conditions = stamp(shown.Status.Conditions, nil, metav1.NewTime(now.Add(-time.Hour)))
			if tc.edit != nil {
				tc.edit(shown)
			}
			then := said(tc.after)
			conditions := stamp(then.Status.Conditions, shown.Status.Conditions, now)
			patch := encodePatch("u1", "", compare(then, shown, decodeOwnership(encode(owned))), conditions)
			for _, text := range tc.has {
				if !strings.Contains(string(patch), text) {
					t.Errorf("the patch lacks %s: %s", text, patch)
				}
			}
			for _, text := range tc.hasNot {
				if strings.Contains(string(patch), text) {
					t.Errorf("the patch has %s: %s", text, patch)
				}
			}

			want := then.DeepCopy()
			want.UID = "u1"
			want.Status.Conditions = conditions
			if tc.want != nil {
				tc.want(want)
			}
			if diff := cmp.Diff(want, apply(t, shown, patch)); diff != "" {
				t.Errorf("after the patch (-want +got):\n%s\n%s", diff, patch)
			}

			// A written value is no longer a difference.
			if d := compare(then, apply(t, shown, patch), ownershipOf(then)); len(d) > 0 {
				t.Errorf("there is still a difference: %+v", d)
			}
		})
	}
}

func hashOf(seed maphash.Seed, n *corev1.Node) uint64 {
	return fingerprint(seed, n, corev1.NodeSpec{})
}

func TestFingerprint(t *testing.T) {
	seed := maphash.MakeSeed()
	base := hashOf(seed, said(nil))
	if again := hashOf(seed, said(nil)); again != base {
		t.Error("the same node has another fingerprint")
	}
	if other := hashOf(seed, said(func(n *corev1.Node) { n.Status.Capacity["cpu"] = resource.MustParse("4000m") })); other != base {
		t.Error("the same amount in other words has another fingerprint")
	}
	if other := hashOf(seed, said(func(n *corev1.Node) { n.Spec.Unschedulable = true })); other != base {
		t.Error("the spec, which is never patched, changes the fingerprint")
	}
	for name, edit := range map[string]func(*corev1.Node){
		"label":      func(n *corev1.Node) { n.Labels["x"] = "" },
		"annotation": func(n *corev1.Node) { n.Annotations["x"] = "" },
		"capacity":   func(n *corev1.Node) { delete(n.Status.Capacity, "pods") },
		"amount":     func(n *corev1.Node) { n.Status.Capacity["cpu"] = resource.MustParse("4001m") },
		"condition":  func(n *corev1.Node) { SetCondition(n, corev1.NodeCondition{Type: "X", Status: "True"}) },
		"image":      func(n *corev1.Node) { n.Status.Images = []corev1.ContainerImage{{SizeBytes: 1}} },
		"port":       func(n *corev1.Node) { n.Status.DaemonEndpoints.KubeletEndpoint.Port = 1 },
	} {
		if hashOf(seed, said(edit)) == base {
			t.Errorf("another %s has the same fingerprint", name)
		}
	}
}

func TestAForeignReasonIsADifference(t *testing.T) {
	for name, edit := range map[string]func(*corev1.NodeCondition){
		"status":  func(c *corev1.NodeCondition) { c.Status = corev1.ConditionUnknown },
		"reason":  func(c *corev1.NodeCondition) { c.Reason = "Theirs" },
		"message": func(c *corev1.NodeCondition) { c.Message = "theirs" },
	} {
		shown := said(nil)
		edit(FindCondition(shown.Status.Conditions, corev1.NodeReady))
		if len(compare(said(nil), shown, nil)) == 0 {
			t.Errorf("another %s is no difference", name)
		}
	}
	shown := said(nil)
	FindCondition(shown.Status.Conditions, corev1.NodeReady).LastHeartbeatTime = metav1.Now()
	if d := compare(said(nil), shown, nil); len(d) > 0 {
		t.Errorf("another heartbeat is a difference: %+v", d)
	}
}

// The two structs that JSON can't omit are removed once, and then are empty for good.
func TestAnEmptyStructIsNotRemovedAgain(t *testing.T) {
	full := said(func(n *corev1.Node) {
		n.Status.NodeInfo.OSImage = "x"
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	})
	owned := ownershipOf(full)
	if d := compare(said(nil), full, owned); len(d) != 2 {
		t.Errorf("the first time %v are removed, want nodeInfo and daemonEndpoints", d)
	}
	if d := compare(said(nil), said(nil), owned); len(d) > 0 {
		t.Errorf("removed again: %v", d)
	}
}
