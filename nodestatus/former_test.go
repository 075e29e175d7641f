// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

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

func TestARestartRemovesWhatItNoLongerSets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		s.Put(left(entryOfCreation, entryOfUpdates, entryOfOthers))
		w := start(t, s, Config{})
		w.pass(time.Second)
		n := w.node()
		for _, gone := range []corev1.ResourceName{"example.com/gpu", "example.com/fpga"} {
			if _, there := n.Status.Capacity[gone]; there {
				t.Errorf("the capacity of %s is still there", gone)
			}
		}
		if _, there := n.Status.Allocatable["example.com/fpga"]; there {
			t.Error("what is allocatable of example.com/fpga is still there")
		}
		if diff := cmp.Diff(map[string]string{"kubernetes.io/hostname": node1, "example.com/pool": "a", "example.com/theirs": "1"}, n.Labels); diff != "" {
			t.Errorf("labels (-want +got):\n%s", diff)
		}
		if _, there := n.Annotations["example.com/old"]; there || len(n.Status.Images) != 0 || status.FindCondition(n.Status.Conditions, "ExampleOld") != nil {
			t.Errorf("left of the earlier process: annotations %v, images %v, conditions %v", n.Annotations, n.Status.Images, n.Status.Conditions)
		}
		dongle := n.Status.Capacity["example.com/dongle"]
		if dongle.Value() != 3 || len(n.Status.VolumesInUse) != 1 || status.FindCondition(n.Status.Conditions, "KernelDeadlock") == nil {
			t.Errorf("another client's: %+v", n.Status)
		}
		if cpu := n.Status.Capacity[corev1.ResourceCPU]; cpu.Value() != 4 {
			t.Errorf("capacity is %v", n.Status.Capacity)
		}
	})
}

// The managedFields are those that the server computes of the requests of both processes, not
// entries that a test has written.
func TestARestartRemovesByTheManagedFieldsOfTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{ManagedFields: true})
		withGPU := template()
		withGPU.Labels["example.com/old"] = "x"
		withGPU.Status.Conditions = []corev1.NodeCondition{{Type: "ExampleOld", Status: corev1.ConditionFalse}}
		gpus := &knob[resource.Quantity]{value: resource.MustParse("7")}
		first := start(t, s, Config{Template: withGPU, Setters: []Setter{func(_ context.Context, n *corev1.Node) error {
			n.Status.Capacity["example.com/gpu"] = gpus.get()
			return nil
		}}})
		first.pass(time.Second)
		gpus.set(resource.MustParse("8")) // a write of the status: nobody owns the one with which a Node is created
		first.pass(DefaultSyncInterval)
		if err := first.stop(); err != nil {
			t.Fatal(err)
		}
		_, err := s.Client(apitest.User{}).CoreV1().Nodes().Patch(t.Context(), node1, types.StrategicMergePatchType,
			[]byte(`{"metadata":{"labels":{"example.com/theirs":"1"}},"status":{"capacity":{"example.com/dongle":"3"}}}`), metav1.PatchOptions{FieldManager: "other"}, "status")
		if err != nil {
			t.Fatal(err)
		}
		second := start(t, s, Config{})
		second.pass(time.Second)
		n := second.node()
		gpu, gpuThere := n.Status.Capacity["example.com/gpu"]
		dongle := n.Status.Capacity["example.com/dongle"]
		if gpuThere || dongle.Value() != 3 {
			t.Errorf("gpu %v, dongle %v, by %v", gpu.String(), dongle.String(), n.ManagedFields)
		}
		if diff := cmp.Diff(map[string]string{"kubernetes.io/hostname": node1, "example.com/pool": "a", "example.com/theirs": "1"}, n.Labels); diff != "" {
			t.Errorf("labels (-want +got):\n%s", diff)
		}
		if status.FindCondition(n.Status.Conditions, "ExampleOld") != nil {
			t.Errorf("conditions %v", n.Status.Conditions)
		}
	})
}

// One setter that has not succeeded may be the one that sets it.
func TestARestartRemovesNothingBeforeEverySetterHasSucceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		s.Put(left(entryOfCreation, entryOfUpdates, entryOfOthers))
		failing := &knob[error]{value: errors.New("not yet")}
		w := start(t, s, Config{Setters: []Setter{func(_ context.Context, n *corev1.Node) error {
			n.Status.Capacity["example.com/gpu"] = resource.MustParse("7")
			return failing.get()
		}}, ErrorHandler: func(context.Context, error, string) {}})
		w.pass(2 * time.Minute)
		if n := w.node(); len(n.Status.Images) != 1 || n.Status.Capacity["example.com/gpu"] != resource.MustParse("7") || n.Labels["example.com/old"] != "x" {
			t.Errorf("the Node lost something: %v, %+v", n.Labels, n.Status)
		}
		failing.set(nil)
		w.pass(DefaultSyncInterval + time.Second)
		n := w.node()
		if gpu := n.Status.Capacity["example.com/gpu"]; gpu.Value() != 7 || len(n.Status.Images) != 0 || n.Labels["example.com/old"] != "" {
			t.Errorf("labels %v, status %+v", n.Labels, n.Status)
		}
	})
}
