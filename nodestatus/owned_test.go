// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"testing"
	"unique"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestOwnershipSurvivesItsEncoding(t *testing.T) {
	n := said(func(n *corev1.Node) {
		n.Status.Images = []corev1.ContainerImage{{SizeBytes: 1}}
		n.Status.NodeInfo.OSImage = "x"
		n.Status.VolumesInUse = []corev1.UniqueVolumeName{"v"}
	})
	owned, err := ownershipOf(n)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(owned, decodeOwnership(owned.encode()), cmp.AllowUnexported(ownership{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if owned.fields.Has("daemonEndpoints") || owned.fields.Has("conditions") || owned.fields.Has("capacity") || !owned.fields.Has("nodeInfo") || !owned.fields.Has("images") {
		t.Errorf("fields are %v", owned.fields.UnsortedList())
	}
	again, err := ownershipOf(n.DeepCopy())
	if err != nil || again.encode() != owned.encode() {
		t.Errorf("the same ownership has two encodings (%v)", err)
	}
	nothing := decodeOwnership(unique.Handle[string]{})
	if nothing.conditions.Len()+nothing.labels.Len()+nothing.fields.Len() != 0 || nothing.capacity.Has("cpu") {
		t.Errorf("the zero handle is %+v", nothing)
	}
}

func TestKeepLast(t *testing.T) {
	last := said(func(n *corev1.Node) {
		n.Status.Capacity["example.com/gpu"] = resource.MustParse("2")
		n.Status.NodeInfo = corev1.NodeSystemInfo{OSImage: "Linux", KubeletVersion: "v1"}
		n.Status.Images = []corev1.ContainerImage{{Names: []string{"a"}, SizeBytes: 1}}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
		SetCondition(n, corev1.NodeCondition{Type: "Mine", Status: corev1.ConditionTrue, Reason: "R"})
		SetCondition(n, corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue, Reason: "Full"})
	})
	owned, err := ownershipOf(last)
	if err != nil {
		t.Fatal(err)
	}
	// Somebody else's additions, and what kube-controller-manager has written.
	last.Labels["admin"] = "x"
	last.Status.Capacity["example.com/dongle"] = resource.MustParse("1")
	last.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "v"}}
	SetCondition(last, corev1.NodeCondition{Type: "KernelDeadlock", Status: corev1.ConditionFalse})
	SetCondition(last, corev1.NodeCondition{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown"})

	n := &corev1.Node{}
	n.Name = node1
	n.Labels = map[string]string{"example.com/pool": "b"}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.2"}}
	n.Status.NodeInfo.KubeletVersion = "v2"
	if err := keepLast(n, last, owned); err != nil {
		t.Fatal(err)
	}
	want := &corev1.Node{}
	want.Name = node1
	want.Labels = map[string]string{"example.com/pool": "b", "kubernetes.io/hostname": node1}
	want.Annotations = map[string]string{"example.com/build": "7"}
	want.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("110"), "example.com/gpu": resource.MustParse("2")}
	want.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("110")}
	want.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.2"}, {Type: corev1.NodeHostName, Address: node1}}
	want.Status.NodeInfo = corev1.NodeSystemInfo{OSImage: "Linux", KubeletVersion: "v2"}
	want.Status.Images = []corev1.ContainerImage{{Names: []string{"a"}, SizeBytes: 1}}
	want.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	want.Status.Conditions = []corev1.NodeCondition{
		{Type: "Mine", Status: corev1.ConditionTrue, Reason: "R"},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue, Reason: "Full"},
		{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: ReasonNoPressure, Message: "nothing has reported PID pressure"},
	}
	if diff := cmp.Diff(want, n); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := keepLast(n, nil, owned); err != nil {
		t.Errorf("without a last view: %v", err)
	}
}
