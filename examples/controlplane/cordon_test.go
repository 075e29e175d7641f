// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

// cluster is the control plane that the tests share. It starts with the first
// test that asks for it. In a single process it needs 340 MB of memory.
var cluster = harness.Shared{Options: harness.Options{SingleProcess: true}}

func TestMain(m *testing.M) { os.Exit(cluster.Run(m)) }

// testCordon checks the promises of Cordon on any API server.
func testCordon(t *testing.T, config *rest.Config) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cordoned"}}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, true, false} {
		if err := Cordon(t.Context(), client.CoreV1(), "cordoned", want); err != nil {
			t.Fatal(err)
		}
		got, err := client.CoreV1().Nodes().Get(t.Context(), "cordoned", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Spec.Unschedulable != want {
			t.Errorf("unschedulable is %t, want %t", got.Spec.Unschedulable, want)
		}
	}
	if err := Cordon(t.Context(), client.CoreV1(), "absent", true); !apierrors.IsNotFound(err) {
		t.Errorf("a Node that does not exist: %v, want 404", err)
	}
}

func TestCordonInMemory(t *testing.T) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		testCordon(t, s.Config(apitest.User{}))
	})
}

func TestCordonOnTheRealServer(t *testing.T) {
	testCordon(t, cluster.Cluster(t).AdminConfig())
}

// TestNoPodIsScheduledToACordonedNode needs the real scheduler.
func TestNoPodIsScheduledToACordonedNode(t *testing.T) {
	client, err := kubernetes.NewForConfig(cluster.Cluster(t).AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "worker", Labels: map[string]string{"example.com/worker": "true"}},
		Status: corev1.NodeStatus{
			Capacity:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("4Gi"), corev1.ResourcePods: resource.MustParse("10")},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}},
		},
	}
	if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := Cordon(ctx, client.CoreV1(), "worker", true); err != nil {
		t.Fatal(err)
	}
	pods := client.CoreV1().Pods(metav1.NamespaceDefault)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec:       corev1.PodSpec{NodeSelector: node.Labels, Containers: []corev1.Container{{Name: "c", Image: "example.com/image"}}},
	}
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	scheduled := func(want corev1.ConditionStatus) {
		t.Helper()
		var last *corev1.Pod
		err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (_ bool, err error) {
			if last, err = pods.Get(ctx, "p", metav1.GetOptions{}); err != nil {
				return false, err
			}
			for _, c := range last.Status.Conditions {
				if c.Type == corev1.PodScheduled {
					return c.Status == want, nil
				}
			}
			return false, nil
		})
		if err != nil {
			t.Fatalf("PodScheduled=%s: %v; the pod is on node %q with %+v", want, err, last.Spec.NodeName, last.Status.Conditions)
		}
	}
	scheduled(corev1.ConditionFalse)
	if err := Cordon(ctx, client.CoreV1(), "worker", false); err != nil {
		t.Fatal(err)
	}
	scheduled(corev1.ConditionTrue)
}
