// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"testing"
	"unique"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
)

func TestOwnershipSurvivesItsEncoding(t *testing.T) {
	n := said(func(n *corev1.Node) {
		n.Status.Images = []corev1.ContainerImage{{SizeBytes: 1}}
		n.Status.NodeInfo.OSImage = "x"
		n.Status.VolumesInUse = []corev1.UniqueVolumeName{"v"}
	})
	owned := ownershipOf(n)
	if diff := cmp.Diff(owned, decodeOwnership(encode(owned))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if owned.Has("daemonEndpoints") || owned.Has("conditions") || owned.Has("capacity") || !owned.Has("nodeInfo") || !owned.Has("images") {
		t.Errorf("fields are %v", sets.List(owned))
	}
	if encode(ownershipOf(n.DeepCopy())) != encode(owned) {
		t.Error("the same ownership has two encodings")
	}
	nothing := decodeOwnership(unique.Handle[string]{})
	if nothing.Len() != 0 || nothing.Has("capacity/cpu") {
		t.Errorf("the zero handle is %v", nothing)
	}
}

func TestNoOwnershipSurvivesItsEncoding(t *testing.T) {
	if o := decodeOwnership(encode(ownership{})); o.Len() != 0 {
		t.Errorf("%q", o.UnsortedList())
	}
}

func TestAContributionIsWhatASetterHasChanged(t *testing.T) {
	before := said(func(n *corev1.Node) {
		n.Status.NodeInfo = corev1.NodeSystemInfo{OSImage: "Linux", KubeletVersion: "v1"}
		SetCondition(n, corev1.NodeCondition{Type: "Theirs", Status: corev1.ConditionTrue, Reason: "R"})
	})
	after := before.DeepCopy()
	after.Labels["example.com/pool"] = "b"
	after.Spec.ProviderID = "example://other"
	after.Status.Capacity["example.com/gpu"] = resource.MustParse("2")
	after.Status.Capacity["cpu"] = resource.MustParse("4000m") // the same amount
	after.Status.NodeInfo.KubeletVersion = "v2"
	after.Status.Images = []corev1.ContainerImage{{Names: []string{"a"}, SizeBytes: 1}}
	after.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	after.Status.Addresses[0].Address = "10.0.0.9"
	SetCondition(after, corev1.NodeCondition{Type: "Mine", Status: corev1.ConditionTrue, Reason: "R"})

	got := contribution(before, after)
	want := &corev1.Node{}
	want.Labels = map[string]string{"example.com/pool": "b"}
	want.Spec.ProviderID = "example://other"
	want.Status.Capacity = corev1.ResourceList{"example.com/gpu": resource.MustParse("2")}
	want.Status.NodeInfo.KubeletVersion = "v2"
	want.Status.Images = []corev1.ContainerImage{{Names: []string{"a"}, SizeBytes: 1}}
	want.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	want.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.9"}}
	want.Status.Conditions = []corev1.NodeCondition{{Type: "Mine", Status: corev1.ConditionTrue, Reason: "R"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Laid over the values of the setters before it, it makes the Node that the setter would.
	now := before.DeepCopy()
	now.Labels["example.com/more"] = "c"
	now.Status.NodeInfo.OSImage = "Linux 2"
	overlay(now, got)
	if now.Labels["example.com/more"] != "c" || now.Labels["example.com/pool"] != "b" || now.Status.NodeInfo != (corev1.NodeSystemInfo{OSImage: "Linux 2", KubeletVersion: "v2"}) {
		t.Errorf("labels %v, info %v", now.Labels, now.Status.NodeInfo)
	}
	if diff := cmp.Diff([]corev1.NodeAddress{{Type: corev1.NodeHostName, Address: node1}, {Type: corev1.NodeInternalIP, Address: "10.0.0.9"}}, now.Status.Addresses); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if FindCondition(now.Status.Conditions, "Mine") == nil || FindCondition(now.Status.Conditions, "Theirs") == nil {
		t.Errorf("conditions are %v", now.Status.Conditions)
	}
}
