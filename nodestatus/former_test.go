// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
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

// A restart removes what the process no longer sets, and nothing of other clients. The
// managedFields are those that the server computes of the requests of both processes, not
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
