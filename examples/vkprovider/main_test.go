// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/examples/internal/exampletest"
)

func newPod(name string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid},
		Spec:       corev1.PodSpec{NodeName: "vk", RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
}

func program(ctx context.Context, args []string, _ io.Writer) error { return run(ctx, args) }

func TestPodsOfAVirtualKubeletProvider(t *testing.T) {
	for name, tc := range map[string]struct {
		user apitest.User
		args []string
	}{
		"ServiceAccount": {apitest.ServiceAccountUser("kubewright", "virtual-node"), nil},
		"Node":           {apitest.NodeUser("vk"), []string{"--node-credentials"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := exampletest.Server(t, "../rbac/lease.yaml", "../rbac/nodestatus.yaml", "../rbac/podsync.yaml", "../rbac/podenv.yaml", "../rbac/nodeapi.yaml")
			probes := exampletest.FreeAddress(t)
			running := exampletest.Start(t, program, append(tc.args, "--probe-address", probes, "--kubeconfig", exampletest.Kubeconfig(t, s, tc.user), "--node-name", "vk", "--address=127.0.0.1:0", "--lock-dir", t.TempDir())...)
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
			if v := apitest.Get[*corev1.Node](s, "", "vk").Status.NodeInfo.ContainerRuntimeVersion; v != "cloud://1" {
				t.Errorf("container runtime %q", v)
			}
			exampletest.Has(t, probes, "/metrics", "kubewright_lease_", "kubewright_nodestatus_", "kubewright_podsync_", "kubewright_nodeapi_", `kubewright_healthy{controller="vkadapter"} 1`)
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
			if err := running.Stop(); err != nil {
				t.Errorf("the program ended with %v", err)
			}
			exampletest.NothingRefused(t, s)
		})
	}
}
