// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/examples/internal/exampletest"
	"github.com/kubewright/kubewright/podsync"
)

func newPod(name string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid},
		Spec:       corev1.PodSpec{NodeName: "vk", RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
}

func TestPodsOfAVirtualKubeletProvider(t *testing.T) {
	for name, tc := range map[string]struct {
		user apitest.User
		args []string
	}{
		"ServiceAccount": {apitest.ServiceAccountUser("kubewright", "virtual-node"), nil},
		"Node":           {apitest.NodeUser("vk"), []string{"--node-credentials"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := exampletest.Server(t, "../rbac/lease.yaml", "../rbac/nodestatus.yaml", "../rbac/podsync.yaml", "../rbac/podenv.yaml")
			program := exampletest.Start(t, run, append(tc.args, "--kubeconfig", exampletest.Kubeconfig(t, s, tc.user), "--node-name", "vk", "--port=0", "--lock-dir", t.TempDir())...)
			s.Put(newPod("web", "1"))
			exampletest.Eventually(t, s, "the pod to run and be ready", func() bool {
				pod := apitest.Get[*corev1.Pod](s, "default", "web")
				for _, c := range pod.Status.Conditions {
					if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
						return pod.Status.Phase == corev1.PodRunning
					}
				}
				return false
			})
			if err := s.Client(apitest.User{}).CoreV1().Pods("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			exampletest.Eventually(t, s, "the pod to be gone", func() bool {
				return apitest.Get[*corev1.Pod](s, "default", "web") == nil
			})
			last := ""
			for _, r := range s.Requests(apitest.Match{Verb: "patch", Resource: "pods/status"}) {
				last = string(r.Body)
			}
			if !strings.Contains(last, "Completed") || !strings.Contains(last, string(corev1.PodSucceeded)) {
				t.Errorf("the last status was %s, want what the provider told when it deleted the pod", last)
			}
			if err := program.Stop(); err != nil {
				t.Errorf("the program ended with %v", err)
			}
			exampletest.NothingRefused(t, s)
		})
	}
}

// The second process of a node name waits and says so, and goes on when the first has
// ended; one with another name runs beside it.
func TestTheSecondProcessOfANodeWaits(t *testing.T) {
	s := exampletest.Server(t, "../rbac/lease.yaml", "../rbac/nodestatus.yaml", "../rbac/podsync.yaml", "../rbac/podenv.yaml")
	args := []string{"--kubeconfig", exampletest.Kubeconfig(t, s, apitest.ServiceAccountUser("kubewright", "virtual-node")), "--port=0", "--lock-dir", t.TempDir()}
	start := func(name string) *exampletest.Program {
		return exampletest.Start(t, run, append(slices.Clone(args), "--node-name", name)...)
	}
	registered := func(name string) func() bool {
		return func() bool { return apitest.Get[*corev1.Node](s, "", name) != nil }
	}
	first := start("vk")
	exampletest.Eventually(t, s, "the node to be registered", registered("vk"))
	second, other := start("vk"), start("vk-2")
	exampletest.Eventually(t, s, "the second process to say that it waits", func() bool {
		return strings.Contains(second.Output(), "another process manages node vk")
	})
	exampletest.Eventually(t, s, "the other node to be registered", registered("vk-2"))
	if err := errors.Join(first.Stop(), other.Stop()); err != nil {
		t.Error(err)
	}
	s.Put(newPod("web", "1"))
	exampletest.Eventually(t, s, "the second process to run the pod", func() bool {
		pod := apitest.Get[*corev1.Pod](s, "default", "web")
		return pod.Status.Phase == corev1.PodRunning
	})
	if err := second.Stop(); err != nil {
		t.Error(err)
	}
}

func TestAdapterTellsPodsOfOneNameApart(t *testing.T) {
	ctx := t.Context()
	cloud := newCloud("vk")
	provider := Adapt(cloud, nil)
	first, second := newPod("web", "1"), newPod("web", "2")
	if _, err := provider.Start(ctx, first); err != nil {
		t.Fatal(err)
	}
	if st, err := provider.Start(ctx, first); err != nil || st.UID != "1" || st.Stopped {
		t.Errorf("second Start = %+v, %v, want the running pod", st, err)
	}
	if _, err := provider.Start(ctx, second); !errors.Is(err, errOtherPod) {
		t.Errorf("Start of another pod of the name = %v, want %v", err, errOtherPod)
	}
	if st, err := provider.Stop(ctx, podsync.RefOf(second), podsync.StopOptions{}); err != nil || !st.Stopped {
		t.Errorf("Stop of a pod that does not run = %+v, %v, want it to be stopped", st, err)
	}
	if _, err := provider.(podsync.Inspector).Inspect(ctx, podsync.RefOf(second)); !errors.Is(err, podsync.ErrNotFound) {
		t.Errorf("Inspect of a pod that is not held = %v, want ErrNotFound", err)
	}
	if _, err := provider.(podsync.Inspector).Inspect(ctx, podsync.RefOf(first)); err != nil {
		t.Errorf("the first pod was harmed: %v", err)
	}
}

// broken is a provider whose backend does not answer.
type broken struct{ *cloud }

var errBackend = errors.New("backend is away")

func (broken) GetPod(context.Context, string, string) (*corev1.Pod, error) { return nil, errBackend }

func TestAdapterConcludesNothingFromErrors(t *testing.T) {
	provider := Adapt(broken{newCloud("vk")}, nil)
	ref := podsync.RefOf(newPod("web", "1"))
	if st, err := provider.Stop(t.Context(), ref, podsync.StopOptions{}); !errors.Is(err, errBackend) || st.Stopped {
		t.Errorf("Stop = %+v, %v, want the error of the backend", st, err)
	}
	if _, err := provider.Start(t.Context(), newPod("web", "1")); !errors.Is(err, errBackend) {
		t.Errorf("Start = %v, want the error of the backend", err)
	}
	if err := provider.(podsync.Releaser).Release(t.Context(), ref); !errors.Is(err, errBackend) {
		t.Errorf("Release = %v, want the error of the backend", err)
	}
	if _, err := provider.(podsync.Inspector).Inspect(t.Context(), ref); !errors.Is(err, errBackend) {
		t.Errorf("Inspect = %v, want the error of the backend", err)
	}
}

// silent hides NotifyPods.
type silent struct{ LifecycleHandler }

func TestAdapterWatchesOnlyWhoNotifies(t *testing.T) {
	if _, ok := Adapt(newCloud("vk"), nil).(podsync.Watcher); !ok {
		t.Error("a provider with NotifyPods does not become a Watcher")
	}
	if _, ok := Adapt(silent{newCloud("vk")}, nil).(podsync.Watcher); ok {
		t.Error("a provider without NotifyPods became a Watcher")
	}
}
