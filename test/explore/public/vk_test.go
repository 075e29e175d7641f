// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package public

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
)

func TestVirtualKubelet(t *testing.T) {
	run(t, testing.Short(), known{bugs: []bug{{"stale ", "was not reached within", true}}}, func(w *explore.World) explore.Scenario {
		b := newBackend()
		get := func(name string) *corev1.Pod { return apitest.Get[*corev1.Pod](w.Server, "default", name) }
		phase := func(name string, phase corev1.PodPhase) bool {
			p := get(name)
			return p != nil && p.Status.Phase == phase
		}
		return explore.Scenario{
			Programs: []explore.Program{{Name: "vk", User: apitest.User{Name: "virtual-kubelet"}, Run: func(ctx context.Context, p *explore.Process) error {
				return runVirtualKubelet(ctx, p, b)
			}}},
			Steps: []explore.Step{
				{Name: "create pods", Do: func() error {
					for _, name := range []string{"p1", "p2", "p3"} {
						w.Server.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: template(corev1.RestartPolicyNever).Spec, Status: corev1.PodStatus{Phase: corev1.PodPending}})
					}
					return nil
				}, Until: func() bool {
					return phase("p1", corev1.PodRunning) && phase("p2", corev1.PodRunning) && phase("p3", corev1.PodRunning)
				}},
				{Name: "p2 ends", Do: func() error {
					if p := get("p2"); p != nil {
						b.end(p.UID)
					}
					return nil
				}, Until: func() bool { return phase("p2", corev1.PodSucceeded) }},
				{Name: "delete p1", Do: remove(w, func(ctx context.Context, c kubernetes.Interface) error {
					return c.CoreV1().Pods("default").Delete(ctx, "p1", metav1.DeleteOptions{})
				}), Until: func() bool { return get("p1") == nil }},
			},
			Always: []explore.Invariant{{Name: "a pod is started once", Holds: func() error {
				b.mu.Lock()
				defer b.mu.Unlock()
				for uid, n := range b.started {
					if n > 1 {
						return fmt.Errorf("pod %s: %d times", b.pods[uid].Name, n)
					}
				}
				return nil
			}}},
			Finally: func() error {
				for _, p := range apitest.List[*corev1.Pod](w.Server, "default") {
					if b.running(p.UID) != (p.Status.Phase == corev1.PodRunning) {
						return fmt.Errorf("pod %s is %s, running: %v", p.Name, p.Status.Phase, b.running(p.UID))
					}
				}
				pods, _ := b.list()
				for _, p := range pods {
					if now := get(p.Name); p.Status.Phase == corev1.PodRunning && (now == nil || now.UID != p.UID) {
						return fmt.Errorf("pod %s is gone, and runs", p.Name)
					}
				}
				return nil
			},
		}
	})
}
