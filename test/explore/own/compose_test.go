// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
	"github.com/kubewright/kubewright/examples/composetest"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// TestCompose explores lease, nodestatus and podsync with a provider in memory, as
// examples/composetest composes them.
func TestCompose(t *testing.T) {
	cfg := config(testing.Short())
	// A backup brings a pod back that has been stopped, and it is started again.
	cfg.Faults = slices.DeleteFunc(explore.Faults(), func(f explore.Fault) bool { return f.Name == "restore" })
	explore.Run(t, cfg, func(w *explore.World) explore.Scenario {
		backend := podsynctest.NewBackend(podsynctest.Options{StopTime: 2 * time.Second})
		get := func(name string) *corev1.Pod { return apitest.Get[*corev1.Pod](w.Server, "default", name) }
		phase := func(name string, phase corev1.PodPhase) func() bool {
			return func() bool { p := get(name); return p != nil && p.Status.Phase == phase }
		}
		return explore.Scenario{
			Programs: []explore.Program{{Name: "node", User: apitest.NodeUser("n1"), Run: func(ctx context.Context, p *explore.Process) error {
				provider := backend.Connect()
				p.OnCrash(provider.Crash)
				return composetest.Run(ctx, p.Config, "n1", provider)
			}}},
			Steps: []explore.Step{
				{Name: "the node is ready", Until: func() bool {
					n := apitest.Get[*corev1.Node](w.Server, "", "n1")
					return n != nil && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
						return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
					})
				}},
				{Name: "create three pods", Do: put(w, pod("p1"), pod("p2"), pod("p3")), Until: all(phase("p1", corev1.PodRunning), phase("p2", corev1.PodRunning), phase("p3", corev1.PodRunning))},
				{Name: "p2 exits", Do: func() error { exit(w, backend, "p2"); return nil }, Until: phase("p2", corev1.PodSucceeded)},
				{Name: "delete p1", Do: deletePod(w, "p1"), Until: func() bool { return get("p1") == nil }},
			},
			Always: []explore.Invariant{{Name: "podsync keeps its contract", Holds: func() error {
				if v := backend.Violations(); len(v) > 0 {
					return fmt.Errorf("%v", v)
				}
				return nil
			}}},
			Finally: func() error {
				for _, p := range apitest.List[*corev1.Pod](w.Server, "default") {
					if backend.Running(p.UID) != (p.Status.Phase == corev1.PodRunning) {
						return fmt.Errorf("pod %s is %s, running: %v", p.Name, p.Status.Phase, backend.Running(p.UID))
					}
				}
				if n := len(backend.Held()); n > 2 {
					return fmt.Errorf("the backend holds %d pods", n)
				}
				return nil
			},
		}
	})
}

func exit(w *explore.World, b *podsynctest.Backend, name string) {
	if p := apitest.Get[*corev1.Pod](w.Server, "default", name); p != nil {
		b.Exit(p.UID, 0)
	}
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.PodSpec{NodeName: "n1", RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "app", Image: "app:1"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodPending},
	}
}
