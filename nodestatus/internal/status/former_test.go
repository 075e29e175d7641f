// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

const (
	node1        = "n1"
	fieldManager = FieldManager
)

// template is a node as a virtual kubelet would describe it.
func template() *corev1.Node {
	n := &corev1.Node{}
	n.Labels = map[string]string{"kubernetes.io/hostname": node1, "example.com/pool": "a"}
	n.Annotations = map[string]string{"example.com/build": "7"}
	n.Spec.ProviderID = "example://n1"
	n.Spec.Taints = []corev1.Taint{{Key: "example.com/virtual", Effect: corev1.TaintEffectNoSchedule}}
	n.Status.Capacity = corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse("8Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeHostName, Address: node1}}
	return n
}

// The managedFields of a Node that an earlier process has created and written since.
// kube-apiserver records no writer for the status with which a Node is created.
var (
	entryOfCreation = managed(fieldManager, "", `{"f:metadata":{"f:annotations":{".":{},"f:example.com/old":{}},
		"f:labels":{".":{},"f:example.com/pool":{},"f:example.com/old":{}}},"f:spec":{"f:providerID":{}}}`)
	entryOfUpdates = managed(fieldManager, "status", `{"f:status":{"f:capacity":{"f:example.com/gpu":{}},"f:conditions":{
		"k:{\"type\":\"ExampleOld\"}":{"f:lastHeartbeatTime":{}},"k:{\"type\":\"Ready\"}":{"f:lastHeartbeatTime":{},"f:status":{}}}}}`)
	entryOfOthers = managed("other", "status", `{"f:metadata":{"f:labels":{"f:example.com/theirs":{}}},"f:status":{"f:volumesInUse":{},
		"f:capacity":{"f:example.com/dongle":{}},"f:conditions":{"k:{\"type\":\"KernelDeadlock\"}":{".":{},"f:lastHeartbeatTime":{},"f:type":{}}}}}`)
)

func managed(manager, subresource, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1",
		Subresource: subresource, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
	}
}

// left is the Node that those entries are about.
func left(entries ...metav1.ManagedFieldsEntry) *corev1.Node {
	n := template()
	n.Name, n.ManagedFields = node1, entries
	n.Labels = map[string]string{"example.com/pool": "a", "example.com/old": "x", "example.com/theirs": "1"}
	n.Annotations = map[string]string{"example.com/old": "y"}
	n.Status.Capacity["example.com/gpu"] = resource.MustParse("7")
	n.Status.Capacity["example.com/fpga"] = resource.MustParse("2")
	n.Status.Capacity["example.com/dongle"] = resource.MustParse("3")
	n.Status.Allocatable["example.com/fpga"] = resource.MustParse("2")
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"registry.example/a:1"}, SizeBytes: 7}}
	n.Status.VolumesInUse = []corev1.UniqueVolumeName{"kubernetes.io/csi/theirs^1"}
	n.Status.Conditions = []corev1.NodeCondition{
		{Type: "ExampleOld", Status: corev1.ConditionFalse},
		{Type: "KernelDeadlock", Status: corev1.ConditionFalse},
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
	}
	return n
}

func TestFormerOwnership(t *testing.T) {
	none := ""
	all := "addresses allocatable/cpu allocatable/example.com/fpga allocatable/memory allocatable/pods annotations/example.com/old " +
		"capacity/cpu capacity/example.com/fpga capacity/example.com/gpu capacity/memory capacity/pods " +
		"conditions/ExampleOld conditions/Ready images labels/example.com/old labels/example.com/pool"
	unreadable := managed("other", "", `{`)
	foreignCreation := entryOfCreation
	foreignCreation.Manager = "kubectl"
	metadata := managed(fieldManager, "status", `{"f:metadata":{"f:labels":{"f:example.com/pool":{}},"f:annotations":{"f:example.com/old":{}}},"f:spec":{"f:taints":{}}}`)
	installer := managed("installer", "", `{"f:metadata":{"f:labels":{"f:a":{}}}}`)
	patched := managed(fieldManager, "status", `{"f:status":{"f:conditions":{"k:{\"type\":\"Mine\"}":{"f:lastHeartbeatTime":{},"f:status":{}},"k:{\"type\":\"Theirs\"}":{"f:status":{},"f:reason":{}}}}}`)
	images := managed(fieldManager, "status", `{"f:status":{".":{},"f:images":{},"f:phase":{}}}`)
	noFields, noType, noJSON := images, images, images
	noFields.FieldsV1, noType.FieldsType, noJSON.FieldsV1 = nil, "FieldsV9", metav1.NewFieldsV1("x")
	takenOver := managed("other", "status", `{"f:status":{"f:conditions":{"k:{\"type\":\"ExampleOld\"}":{"f:lastHeartbeatTime":{}}}}}`)
	for _, tc := range []struct {
		name    string
		entries []metav1.ManagedFieldsEntry
		want    string
	}{
		{"nothing recorded", nil, none},
		{"another client's only", []metav1.ManagedFieldsEntry{entryOfOthers}, none},
		{"created and updated", []metav1.ManagedFieldsEntry{entryOfCreation, entryOfUpdates, entryOfOthers}, all},
		{"updated only", []metav1.ManagedFieldsEntry{foreignCreation, entryOfUpdates, entryOfOthers}, "capacity/example.com/gpu conditions/ExampleOld conditions/Ready"},
		{"created, and no field that only a creation writes", []metav1.ManagedFieldsEntry{managed(fieldManager, "", `{"f:metadata":{"f:labels":{}},"f:spec":{}}`)}, none},
		{"one entry can't be read", []metav1.ManagedFieldsEntry{entryOfCreation, unreadable}, none},
		{"a condition that another client has written last", []metav1.ManagedFieldsEntry{foreignCreation, takenOver, entryOfOthers}, none},
		{"updates of the status, which write metadata too", []metav1.ManagedFieldsEntry{metadata}, "annotations/example.com/old labels/example.com/pool"},
		{"an installer's", []metav1.ManagedFieldsEntry{installer}, none},
		{"a condition of which another client has written the heartbeat", []metav1.ManagedFieldsEntry{patched}, "conditions/Mine"},
		{"the entry of a whole struct is no part", []metav1.ManagedFieldsEntry{images}, "images"},
		{"one without fields", []metav1.ManagedFieldsEntry{images, noFields}, none},
		{"one of another type", []metav1.ManagedFieldsEntry{images, noType}, none},
		{"one that is no JSON", []metav1.ManagedFieldsEntry{images, noJSON}, none},
	} {
		t.Run(tc.name, func(t *testing.T) {
			former := formerOwnership(left(tc.entries...))
			if diff := cmp.Diff(tc.want, strings.Join(sets.List(former), " ")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	// Each part of what only a creation writes is a sign of one.
	for _, fields := range []string{`{"f:metadata":{"f:labels":{"f:a":{}}}}`, `{"f:metadata":{"f:annotations":{"f:a":{}}}}`, `{"f:spec":{"f:taints":{}}}`} {
		if former := formerOwnership(left(managed(fieldManager, "", fields))); !former.Has("images") {
			t.Errorf("%s: the status of the creation is another client's", fields)
		}
	}
}
