// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNextStates follows phases and containers.
func TestNextStates(t *testing.T) {
	failure := &Failure{Reason: "Evicted", Message: "out of disk"}
	for _, tc := range []struct {
		name     string
		pod      string // with the stored status, see testPod
		observed string // see testStatus
		u        Update
		want     string // see line
		problems int
	}{
		{name: "nothing reported", pod: "Always c1", want: "Pending"},
		{name: "first report", pod: "Always c1", observed: "c1=ready", want: "Running c1=ready"},
		{name: "others wait", pod: "Always i1 c1 c2", observed: "i1=run", want: "Pending i1=run"},
		{name: "a container without opinion keeps its status", pod: "Never c1 c2|Running c1=0 c2=ready", observed: "c2=run", want: "Running c1=0 c2=run"},
		{name: "a container without a state keeps its status", pod: "Never c1 c2|Running c1=0 c2=ready", observed: "c1=none c2=none", want: "Running c1=0 c2=ready"},
		{name: "a first status without a state", pod: "Never c1", observed: "c1=none", want: "Pending c1=wait"},
		{name: "order of the spec", pod: "Always c2 c1", observed: "c1=ready c2=ready", want: "Running c2=ready c1=ready"},
		{name: "unknown container", pod: "Always c1", observed: "c1=ready c9=ready", want: "Running c1=ready", problems: 1},
		{name: "twice the same container", pod: "Always c1", observed: "c1=ready c1=0", want: "Running c1=ready", problems: 1},

		// The phase doesn't go back.
		{name: "Running stays", pod: "Always c1|Running c1=ready", observed: "c1=wait", want: "Running c1=wait"},
		{name: "Running stays with KeepPhase", pod: "Always c1|Running c1=ready", observed: "Pending c1=wait", u: Update{KeepPhase: true}, want: "Running c1=wait"},
		{name: "Succeeded stays", pod: "Never c1|Succeeded c1=0", observed: "c1=1", u: Update{Stopped: true, Failure: failure}, want: "Succeeded c1=1"},
		{name: "Failed by others stays", pod: "Always c1|Failed c1=ready", observed: "c1=ready", want: "Failed c1=ready"},
		{name: "Unknown is left", pod: "Always c1|Unknown", observed: "c1=ready", want: "Running c1=ready"},

		// No end before Stopped.
		{name: "ended by itself", pod: "Never c1|Running c1=ready", observed: "c1=0", want: "Running c1=0"},
		{name: "ended at once", pod: "Never c1|Pending", observed: "c1=0", want: "Pending c1=0"},
		{name: "init failed", pod: "Never i1 c1|Pending", observed: "i1=1 c1=wait", want: "Pending i1=1 c1=wait"},
		{name: "failure before stopped", pod: "Never c1|Running c1=ready", observed: "c1=ready", u: Update{Failure: failure}, want: "Running c1=ready"},
		{name: "KeepPhase before stopped", pod: "Never c1|Running c1=ready", observed: "Failed c1=1", u: Update{KeepPhase: true}, want: "Running c1=1"},

		// The end.
		{name: "succeeded", pod: "Never c1|Running c1=ready", observed: "c1=0", u: Update{Stopped: true}, want: "Succeeded c1=0"},
		{name: "failed", pod: "Never c1|Running c1=ready", observed: "c1=3", u: Update{Stopped: true}, want: "Failed c1=3"},
		{name: "restarting containers when stopped", pod: "Always c1 c2|Running", observed: "c1=crash:2 c2=0", u: Update{Stopped: true}, want: "Failed c1=2 c2=0"},
		{name: "an end reported as that of the last run", pod: "Never c1|Running c1=2", observed: "c1=crash:2", u: Update{Stopped: true}, want: "Failed c1=2"},
		{name: "completed sidecar pod", pod: "Never s1 c1|Running s1=run c1=0", observed: "s1=137", u: Update{Stopped: true}, want: "Succeeded s1=137 c1=0"},
		{name: "evicted though all exited with 0", pod: "Never c1|Running c1=ready", observed: "c1=0", u: Update{Stopped: true, Failure: failure}, want: "Failed c1=0"},

		// A container whose end was not seen is no success.
		{name: "deleted while running", pod: "Always c1|Running c1=ready", u: Update{Stopped: true}, want: "Failed c1=unknown"},
		{name: "one seen, one not", pod: "Never c1 c2|Running c1=ready c2=ready", observed: "c1=0", u: Update{Stopped: true}, want: "Failed c1=0 c2=unknown"},
		{name: "no status of one", pod: "Never c1 c2|Running", observed: "c1=0", u: Update{Stopped: true}, want: "Failed c1=0 c2=unknown"},
		{name: "no status at all", pod: "Never c1 c2|Running", u: Update{Stopped: true}, want: "Failed c1=unknown c2=unknown"},
		{name: "never started", pod: "Always c1", u: Update{Stopped: true}, want: "Failed"},
		{name: "waiting for its first start", pod: "Always c1|Pending c1=wait", u: Update{Stopped: true}, want: "Failed c1=unknown"},
		{name: "KeepPhase invents no success", pod: "Never c1|Running c1=ready", observed: "Succeeded", u: Update{Stopped: true, KeepPhase: true}, want: "Failed c1=unknown", problems: 1},
		{name: "the reported phase does not count without KeepPhase", pod: "Never c1|Running c1=ready", observed: "Failed c1=0", u: Update{Stopped: true}, want: "Succeeded c1=0"},
		{name: "KeepPhase may fail", pod: "Never c1|Running c1=ready", observed: "Failed c1=0", u: Update{Stopped: true, KeepPhase: true}, want: "Failed c1=0"},
		{name: "debug container", pod: "Never c1 e1|Running c1=0 e1=run", u: Update{Stopped: true}, want: "Succeeded c1=0 e1=unknown"},

		// Containers that were never reached still wait; those that may have run failed.
		{name: "stopped in the first init container", pod: "Never i1 i2 c1|Pending i1=run i2=wait c1=wait", u: Update{Stopped: true}, want: "Failed i1=unknown i2=wait c1=wait"},
		{name: "stopped before it", pod: "Never i1 i2 c1|Pending i1=wait i2=wait c1=wait", u: Update{Stopped: true}, want: "Failed i1=wait i2=wait c1=wait"},
		{name: "stopped between init containers", pod: "Never i1 i2 c1|Pending i1=0 i2=wait c1=wait", u: Update{Stopped: true}, want: "Failed i1=0 i2=wait c1=wait"},
		{name: "init container lost before one that ran", pod: "Never i1 i2 c1|Pending i1=wait i2=run c1=wait", u: Update{Stopped: true}, want: "Failed i1=unknown i2=unknown c1=wait"},
		{name: "init failed, stopped", pod: "Never i1 c1|Pending i1=wait c1=wait", observed: "i1=1", u: Update{Stopped: true}, want: "Failed i1=1 c1=wait"},
		{name: "stopped after init", pod: "Never i1 c1|Pending i1=0 c1=wait", u: Update{Stopped: true}, want: "Failed i1=0 c1=unknown"},
		{name: "stopped in a sidecar's start", pod: "Never s1 c1|Pending s1=start c1=wait", u: Update{Stopped: true}, want: "Failed s1=unknown c1=wait"},

		// What API servers refuse with 422.
		{name: "ended and not restarted", pod: "Never c1|Running c1=0", observed: "c1=ready", want: "Running c1=0", problems: 1},
		{name: "completed, OnFailure", pod: "OnFailure c1|Running c1=0", observed: "c1=ready", want: "Running c1=0", problems: 1},
		{name: "failed, OnFailure", pod: "OnFailure c1|Running c1=1", observed: "c1=ready", want: "Running c1=ready"},
		{name: "init container of Never", pod: "Never i1 c1|Pending i1=0 c1=wait", observed: "i1=run c1=wait", want: "Pending i1=0 c1=wait", problems: 1},
		{name: "sidecar of Never", pod: "Never s1 c1|Running s1=1 c1=run", observed: "s1=run", want: "Running s1=run c1=run"},
		{name: "debug container restarts never", pod: "Always c1 e1|Running c1=run e1=0", observed: "e1=run", want: "Running c1=run e1=0", problems: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := testPod(tc.pod)
			tc.u.Observed, tc.u.Now = testStatus(tc.observed), t1
			next, problems := Next(pod, tc.u)
			if got := line(&next); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			if len(problems) != tc.problems {
				t.Errorf("%d problems, want %d: %v", len(problems), tc.problems, problems)
			}
			// Stored and reported again, it stays.
			pod.Status = next
			again, _ := Next(pod, tc.u)
			if patch := Patch(pod, &again); patch != nil {
				t.Errorf("not a fixed point: %s", patch)
			}
		})
	}
}

// TestNextReason: reason and message live as long as their cause.
func TestNextReason(t *testing.T) {
	pod := testPod("Never c1")
	next, _ := Next(pod, Update{Observed: corev1.PodStatus{Reason: "FailedStart", Message: "no image"}, Now: t0})
	if next.Reason != "FailedStart" || next.Message != "no image" {
		t.Fatalf("reason %q, message %q", next.Reason, next.Message)
	}
	pod.Status = next
	next, _ = Next(pod, Update{Now: t0})
	if next.Reason != "" || next.Message != "" {
		t.Fatalf("reason %q, message %q outlive the report", next.Reason, next.Message)
	}
	next, _ = Next(pod, Update{Stopped: true, Failure: &Failure{Reason: "Evicted", Message: "out of disk", DisruptionReason: corev1.PodReasonTerminationByKubelet}, Now: t0})
	at := indexOf(next.Conditions, corev1.DisruptionTarget)
	if next.Phase != corev1.PodFailed || next.Reason != "Evicted" || next.Message != "out of disk" || at < 0 || next.Conditions[at].Reason != "TerminationByKubelet" {
		t.Fatalf("evicted: %s %q %q %v", next.Phase, next.Reason, next.Message, next.Conditions)
	}
	pod.Status = next
	next, _ = Next(pod, Update{Observed: corev1.PodStatus{Reason: "Other"}, Stopped: true, Now: t0})
	if next.Reason != "Evicted" {
		t.Fatalf("the reason of the end became %q", next.Reason)
	}
}

// TestNextRestarts counts restarts for providers that do, that don't, and that
// lost their count.
func TestNextRestarts(t *testing.T) {
	for _, tc := range []struct {
		name            string
		before, after   string // states
		oldCount, count int32
		want            int32
		wantLast        bool
	}{
		{name: "running", before: "run", after: "ready", want: 0},
		{name: "counted by the provider", before: "1", after: "run", count: 1, want: 1, wantLast: true},
		{name: "counted by us", before: "1", after: "run", want: 1, wantLast: true},
		{name: "provider starts from 0", before: "1", oldCount: 5, after: "run", count: 1, want: 6, wantLast: true},
		{name: "in backoff", before: "1", oldCount: 5, after: "wait", count: 5, want: 5, wantLast: true},
		{name: "count fell", before: "run", oldCount: 5, after: "run", count: 0, want: 5},
		{name: "ended twice in a row", before: "1", oldCount: 1, after: "2", count: 2, want: 2, wantLast: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := testPod("Always c1|Running c1=" + tc.before)
			pod.Status.ContainerStatuses[0].RestartCount = tc.oldCount
			u := Update{Observed: testStatus("c1=" + tc.after), Now: t1}
			u.Observed.ContainerStatuses[0].RestartCount = tc.count
			for range 2 { // the second is the fixed point
				next, problems := Next(pod, u)
				cs := next.ContainerStatuses[0]
				if cs.RestartCount != tc.want || (cs.LastTerminationState.Terminated != nil) != tc.wantLast || len(problems) > 0 {
					t.Fatalf("count %d, last %v, problems %v", cs.RestartCount, cs.LastTerminationState.Terminated, problems)
				}
				pod.Status = next
			}
		})
	}
}

// TestNextFills: fields of the stored status that the report lacks are kept.
func TestNextFills(t *testing.T) {
	pod := testPod("Always i1 c1|Running c1=run")
	pod.Status.ContainerStatuses[0].ContainerID, pod.Status.ContainerStatuses[0].ImageID = "x://1", "sha256:1"
	observed := corev1.PodStatus{
		PodIP: "10.0.0.7", HostIPs: []corev1.HostIP{{IP: "192.168.0.1"}, {IP: "FD00::1"}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "c1", Ready: true, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}},
	}
	next, problems := Next(pod, Update{Observed: observed, Now: t1.Add(999e6)})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	cs := next.ContainerStatuses[0]
	switch {
	case next.PodIPs[0].IP != "10.0.0.7" || next.HostIP != "192.168.0.1" || next.HostIPs[1].IP != "fd00::1":
		t.Errorf("addresses %v %v %v", next.PodIPs, next.HostIP, next.HostIPs)
	case !next.StartTime.Time.Equal(t1):
		t.Errorf("start time %v", next.StartTime)
	case cs.ContainerID != "x://1" || cs.ImageID != "sha256:1" || cs.Image != "img" || cs.Ready || *cs.Started:
		t.Errorf("container %+v", cs)
	case !cs.State.Terminated.StartedAt.Time.Equal(t0):
		t.Errorf("the run's start was lost: %v", cs.State.Terminated)
	case next.InitContainerStatuses != nil:
		t.Errorf("init containers %v of no report", next.InitContainerStatuses)
	}
	pod.Status = next
	next, _ = Next(pod, Update{Observed: corev1.PodStatus{StartTime: new(metav1.NewTime(t1.Add(1e12))), HostIP: "192.168.0.2"}, Now: t1})
	if !next.StartTime.Time.Equal(t1) || next.PodIP != "10.0.0.7" || len(next.HostIPs) != 1 || next.HostIP != "192.168.0.2" {
		t.Errorf("start time %v, pod %v, host %v", next.StartTime, next.PodIP, next.HostIPs)
	}
}

// TestStartedFollowsTheStartupProbe: without a report of it, a container that runs has
// started if it has no startup probe, or is ready.
func TestStartedFollowsTheStartupProbe(t *testing.T) {
	for _, tc := range []struct {
		probe, ready, want bool
	}{{false, false, true}, {false, true, true}, {true, false, false}, {true, true, true}} {
		pod := testPod("Always c1")
		if tc.probe {
			pod.Spec.Containers[0].StartupProbe = &corev1.Probe{}
		}
		observed := corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: "c1", Ready: tc.ready, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}}
		next, problems := Next(pod, Update{Observed: observed, Now: t0})
		if cs := next.ContainerStatuses[0]; *cs.Started != tc.want || cs.Ready != tc.ready || len(problems) > 0 {
			t.Errorf("%+v: started %t, ready %t, problems %v", tc, *cs.Started, cs.Ready, problems)
		}
	}
}

func TestNoStartTimeIsWrittenWithoutAClock(t *testing.T) {
	if next, _ := Next(testPod("Always c1"), Update{Observed: testStatus("c1=ready")}); next.StartTime != nil {
		t.Errorf("startTime %v", next.StartTime)
	}
}

// TestNextTerminationMessages: 12 KiB for all containers, cut between runes.
func TestNextTerminationMessages(t *testing.T) {
	pod := testPod("Never i1 c1 c2 e1")
	u := Update{Observed: testStatus("c1=1 c2=1"), Now: t1}
	long := strings.Repeat("é", 10000)
	u.Observed.ContainerStatuses[0].State.Terminated.Message = "x" + long
	u.Observed.ContainerStatuses[1].State.Terminated.Message = strings.Repeat("y", 3072)
	next, _ := Next(pod, u)
	if got := len(next.ContainerStatuses[0].State.Terminated.Message); got != 3071 {
		t.Errorf("message of %d bytes, want 3071, the last whole rune within a quarter of 12 KiB", got)
	}
	if got := len(next.ContainerStatuses[1].State.Terminated.Message); got != 3072 {
		t.Errorf("a message of just the share was cut to %d bytes", got)
	}
}

// TestNextSharesNothing scribbles over what Next returned.
func TestNextSharesNothing(t *testing.T) {
	pod := testPod("Never i1 c1 c2 e1|Running i1=0 c1=1 c2=run e1=run")
	pod.Status.StartTime = new(metav1.NewTime(t0))
	pod.Status.Conditions = []corev1.PodCondition{{Type: "Theirs", Status: "True"}}
	observed := testStatus("c2=crash:1")
	observed.Conditions = []corev1.PodCondition{{Type: "Ours", Status: "True"}}
	before, reported := pod.DeepCopy(), observed.DeepCopy()
	for _, stopped := range []bool{false, true} {
		next, _ := Next(pod, Update{Observed: observed, Stopped: stopped, Now: t1})
		next.StartTime.Time = t1
		for i := range next.Conditions {
			next.Conditions[i].Reason = "Scribble"
		}
		for _, list := range [][]corev1.ContainerStatus{next.InitContainerStatuses, next.ContainerStatuses, next.EphemeralContainerStatuses} {
			for i := range list {
				*list[i].Started = !*list[i].Started
				for _, state := range []*corev1.ContainerState{&list[i].State, &list[i].LastTerminationState} {
					if state.Terminated != nil {
						state.Terminated.ExitCode = 99
					}
					if state.Waiting != nil {
						state.Waiting.Reason = "Scribble"
					}
					if state.Running != nil {
						state.Running.StartedAt = metav1.Time{}
					}
				}
			}
		}
		if !Equal(&before.Status, &pod.Status) || !Equal(reported, &observed) {
			t.Fatalf("stopped %v: the result shares memory with its arguments", stopped)
		}
	}
}

func TestLost(t *testing.T) {
	pod := testPod("Always i1 c1 c2|Running i1=0 c1=ready c2=crash:2")
	lost := Lost(&pod.Status)
	if got, want := line(&lost), "Running i1=0 c1=crash:137 c2=crash:2"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	if n := lost.ContainerStatuses[0].RestartCount; n != 0 {
		t.Errorf("restart count %d, want 0 before the next start", n)
	}
	next, problems := Next(pod, Update{Observed: lost, Now: t1})
	if got, want := line(&next), "Running i1=0 c1=crash:137 c2=crash:2"; got != want || len(problems) > 0 {
		t.Fatalf("got %s %v, want %s", got, problems, want)
	}
	pod.Status = next
	next, _ = Next(pod, Update{Observed: testStatus("c1=ready c2=ready"), Now: t1})
	if n := next.ContainerStatuses[0].RestartCount; n != 1 || next.ContainerStatuses[0].LastTerminationState.Terminated.ExitCode != 137 {
		t.Errorf("after the start: count %d, last %v", n, next.ContainerStatuses[0].LastTerminationState)
	}
}
