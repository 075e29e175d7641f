// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

func TestConformance(t *testing.T) {
	podsynctest.TestProvider(t, podsynctest.Suite{
		New: func(testing.TB) podsync.Provider {
			p, err := New(Config{RunFor: 10 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			return p
		},
		Completes: func() *corev1.Pod {
			return &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Image: "none"}}}}
		},
		SecondNode:    func(_ testing.TB, p podsync.Provider) podsync.Provider { return p }, // one provider has all nodes
		NeverRestarts: true,                                                                 // the pods of the suite that end need not be restarted
	})
}

func pod(policy corev1.RestartPolicy, annotations map[string]string) *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "uid", Annotations: annotations},
		Spec: corev1.PodSpec{
			NodeName: "n1", RestartPolicy: policy,
			InitContainers: []corev1.Container{{Name: "init", Image: "none"}, {Name: "sidecar", Image: "none", RestartPolicy: &always}},
			Containers:     []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
}

// describe says what the main container does.
func describe(s podsync.State) string {
	c := s.Status.ContainerStatuses[0]
	var parts []string
	switch {
	case c.State.Waiting != nil:
		parts = append(parts, c.State.Waiting.Reason)
	case c.State.Running != nil:
		parts = append(parts, "Running")
	default:
		parts = append(parts, fmt.Sprint(c.State.Terminated.Reason, " ", c.State.Terminated.ExitCode))
	}
	if c.RestartCount > 0 {
		parts = append(parts, fmt.Sprint("restarts ", c.RestartCount))
	}
	if s.Stopped {
		parts = append(parts, "stopped")
	}
	return strings.Join(parts, ", ")
}

// A pod is asked to stop after so long, with a grace period of 30 s.
func TestAnnotations(t *testing.T) {
	for name, test := range map[string]struct {
		policy      corev1.RestartPolicy
		annotations map[string]string
		stop        time.Duration // 0: not asked
		want        []string
	}{
		"a service": {"", nil, 2 * time.Hour, []string{"0s Running", "2h0m0s Completed 0, stopped"}},
		"a job":     {corev1.RestartPolicyNever, nil, 0, []string{"0s Running", "1m0s Completed 0, stopped"}},
		"a job that fails": {corev1.RestartPolicyNever, map[string]string{RunFor: "5s", ExitCode: "3"}, 0,
			[]string{"0s Running", "5s Error 3, stopped"}},
		"a job that is tried again": {corev1.RestartPolicyOnFailure, map[string]string{RunFor: "5s", ExitCode: "3"}, 39 * time.Second,
			[]string{"0s Running", "5s CrashLoopBackOff", "15s Running, restarts 1", "20s CrashLoopBackOff, restarts 1", "39s Error 3, restarts 1, stopped"}},
		"a job that succeeds": {corev1.RestartPolicyOnFailure, map[string]string{RunFor: "5s"}, 0,
			[]string{"0s Running", "5s Completed 0, stopped"}},
		"a crash loop": {corev1.RestartPolicyAlways, map[string]string{RunFor: "1s", ExitCode: "1"}, 35 * time.Second,
			[]string{"0s Running", "1s CrashLoopBackOff", "11s Running, restarts 1", "12s CrashLoopBackOff, restarts 1", "32s Running, restarts 2",
				"33s CrashLoopBackOff, restarts 2", "35s Error 1, restarts 2, stopped"}},
		"a slow pull":        {"", map[string]string{StartAfter: "90s"}, 0, []string{"0s ContainerCreating", "1m30s Running"}},
		"hangs at its start": {"", map[string]string{StartAfter: Never}, time.Hour, []string{"0s ContainerCreating", "1h0m0s ContainerCreating, stopped"}},
		"a slow stop":        {"", map[string]string{StopAfter: "20s"}, time.Minute, []string{"0s Running", "1m20s Completed 0, stopped"}},
		"a stop that is too slow": {"", map[string]string{StopAfter: "50s"}, time.Minute,
			[]string{"0s Running", "1m30s Error 137, stopped"}},
		"hangs at its stop": {"", map[string]string{StopAfter: Never}, time.Minute, []string{"0s Running"}},
		"ends while it stops": {corev1.RestartPolicyNever, map[string]string{RunFor: "65s", StopAfter: "20s"}, time.Minute,
			[]string{"0s Running", "1m5s Completed 0, stopped"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, err := New(Config{})
				if err != nil {
					t.Fatal(err)
				}
				begun := time.Now()
				pod := pod(test.policy, test.annotations)
				var got []string
				note := func(s podsync.State) {
					what := describe(s)
					if n := len(got); n == 0 || !strings.HasSuffix(got[n-1], "s "+what) {
						got = append(got, fmt.Sprint(time.Since(begun), " ", what))
					}
				}
				state, err := p.Start(t.Context(), pod)
				if err != nil {
					t.Fatal(err)
				}
				note(state)
				for time.Since(begun) < 2*time.Hour+time.Minute {
					time.Sleep(time.Second)
					if test.stop > 0 && time.Since(begun) == test.stop {
						if state, err = p.Stop(t.Context(), podsync.RefOf(pod), podsync.StopOptions{Grace: 30 * time.Second}); err != nil {
							t.Fatal(err)
						}
						note(state)
					}
					for _, state := range p.changed() {
						note(state)
					}
				}
				if !slices.Equal(got, test.want) {
					t.Errorf("got  %q\nwant %q", got, test.want)
				}
			})
		})
	}
}

func TestARejection(t *testing.T) {
	for annotations, want := range map[[2]string]string{
		{Reject, "OutOfgpu"}:               "OutOfgpu: ",
		{Reject, "OutOfgpu: none is left"}: "OutOfgpu: none is left",
		{RunFor, "soon"}:                   `InvalidSimulation: annotation sim.kubewright.dev/run-for: "soon" is no duration of zero or more, and not Never`,
		{StopAfter, "-1s"}:                 `InvalidSimulation: annotation sim.kubewright.dev/stop-after: "-1s" is no duration of zero or more, and not Never`,
		{ExitCode, "256"}:                  `InvalidSimulation: annotation sim.kubewright.dev/exit-code: "256" is no number from 0 to 255`,
	} {
		p, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.Start(context.Background(), pod("", map[string]string{annotations[0]: annotations[1]}))
		if err == nil || err.Error() != want {
			t.Errorf("%q: %v", annotations, err)
		}
		if all, _ := p.List(context.Background()); len(all) > 0 {
			t.Errorf("%q: a pod that was rejected is there: %v", annotations, all)
		}
	}
	if _, err := New(Config{RunFor: -1}); err == nil {
		t.Error("a negative RunFor is accepted")
	}
}
