// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// After the grace period Stop is repeated each Relist, and not without a pause.
func TestStopIsRepeatedEachRelist(t *testing.T) {
	s := running().now(deletedWithin(5)).calls(OpStop, 5*time.Second, runs())
	now := tick + 5*time.Second + stopSlack
	if got := s.decideCall(s.r, now, true); got.op != OpStop {
		t.Fatalf("%q after the grace period, want Stop", got.op)
	}
	for range 3 {
		c := s.callStarted(now, 100, action{op: OpStop, grace: time.Second})
		c.cancel = func() {}
		s.callReturned(s.r, now, 100, runs(), 1, nil)
		got := s.decideCall(s.r, now, true)
		if got.op != "" || got.wake != now+s.r.relist {
			t.Fatalf("%q, wake after %v, want %v", got.op, got.wake-now, s.r.relist)
		}
		now = got.wake
	}
}

// The informer must have said that the object is gone, or it would show it as a new pod.
func TestAPodThatTheInformerHasIsNotForgotten(t *testing.T) {
	s := running().says(exited(0, true))
	s.markDeleted(tick)
	s.forgotten()
	if s.forgettable() {
		t.Error("the informer has it, and it is forgotten")
	}
	if s.api.cached = false; !s.forgettable() {
		t.Error("neither has it, and it is kept")
	}
}

// A question that failed is repeated with backoff.
func TestTheQuestionAfterA404BacksOff(t *testing.T) {
	s := running().says(unready())
	s.writeStarted(tick, OpPatch)
	s.notFound(tick)
	at := tick + goneAfter
	if got, _ := s.decideWrite(s.r, at); got.op != OpGet {
		t.Fatalf("%q, want GET", got.op)
	}
	for range 4 {
		s.writeStarted(at, OpGet)
		s.writeFailed(s.r, at, errFailed)
	}
	got, _ := s.decideWrite(s.r, at)
	if got.op != "" || got.wake != s.write.retryAt || got.wake <= at {
		t.Errorf("%q, wake after %v", got.op, got.wake-at)
	}
}

// A report that leaves out an init container keeps what the last one said of it, if the API does
// not have that yet.
func TestAnUnsentReportOfAnInitContainerIsKept(t *testing.T) {
	s := running(func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "i"}} })
	first := runs()
	first.Status.InitContainerStatuses = []corev1.ContainerStatus{{
		Name: "i", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 7}},
	}}
	s.says(first).says(unready())
	list := s.report().InitContainerStatuses
	if len(list) != 1 || list[0].State.Terminated == nil || list[0].State.Terminated.ExitCode != 7 {
		t.Errorf("init containers %+v", list)
	}
}

// A lost race is no outage: the pause after many of them is short.
func TestThePauseAfterAConflictIsShort(t *testing.T) {
	s := running().says(unready())
	for range 12 {
		s.writeStarted(tick, OpPatch)
		s.conflicted(s.r, tick)
	}
	if pause := s.write.retryAt - tick; pause <= 0 || pause > 4*s.r.retry.Base {
		t.Errorf("a pause of %v", pause)
	}
}

// While the API does not answer about some suspects, the others are not stopped, even after
// MassHold, unless they are too many by themselves.
func TestSuspectsWithoutAnAnswerKeepTheOthersRunning(t *testing.T) {
	c := &Controller{cfg: Config{Policy: Policy{MassHold: time.Minute}}}
	s := running()
	s.sched.goneSince = tick
	now := tick + time.Minute
	for _, tc := range []struct {
		gone, unsure, held int
		want               bool
	}{{3, 10, 20, false}, {3, 0, 20, true}, {10, 3, 20, true}} {
		if got := c.believed(s.podState, now, tc.gone, tc.unsure, tc.held); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
	if c.believed(s.podState, now-1, 10, 0, 20) {
		t.Error("before MassHold")
	}
}

// While the gate is closed, no call and no request is planned, whatever the state of the pod says:
// each would ask the gate again.
func TestNothingIsPlannedWhileTheGateIsClosed(t *testing.T) {
	c := &Controller{
		cfg:   Config{NodeName: "n", Gate: func(context.Context, string) error { return nil }},
		rules: *testRules(), gates: map[string]gateState{"n": gateClosed},
		names: map[types.NamespacedName]*podState{},
	}
	s := running().now(deletedWithin(5)).says(unready())
	s.api.node = "n"
	if wake := min(c.startCall(s.podState, tick, false), c.startWrite(s.podState, tick+time.Hour, false)); wake != noDeadline {
		t.Errorf("it is planned again after %v", wake-tick)
	}
	if s.call.inflight != nil || s.write.inflight != nil {
		t.Error("a call or a request is under way")
	}
}

// forgottenPod has stopped at a provider that keeps nothing of it, before the API has its exit
// code, and then the gate closed.
func forgottenPod() *scene {
	s := running(func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways }).now(deletedWithin(30))
	s.r.releases = false
	s.calls(OpStop, 30*time.Second, exited(3, true))
	s.reset(s.r, tick)
	return s.checked()
}

func TestTheReportOfAForgottenInstanceIsKept(t *testing.T) {
	s := forgottenPod()
	s.classify(s.r, tick)
	if report := s.report(); report == nil || report.ContainerStatuses[0].State.Terminated == nil || report.ContainerStatuses[0].State.Terminated.ExitCode != 3 {
		t.Errorf("the exit code is lost: %+v", report)
	}
}

func TestAKeptReportGivesWayToAnInstance(t *testing.T) {
	s := forgottenPod().says(runs())
	s.classify(s.r, tick)
	if report := s.report(); report == nil || report.ContainerStatuses[0].State.Running == nil || s.stopped() {
		t.Errorf("it runs, and the report is %+v", report)
	}
}

// The first conflicts may be those of a client that ends the pod.
func TestAChangeOfThePhaseIsPinnedAtFirst(t *testing.T) {
	s := running().says(unready())
	for n := range pinnedTries {
		if !s.pinned() {
			t.Errorf("not pinned after %d conflicts", n)
		}
		s.writeStarted(tick, OpPatch)
		s.conflicted(s.r, tick)
	}
	if s.pinned() {
		t.Errorf("pinned after %d conflicts", pinnedTries)
	}
	if s.now(phase(corev1.PodFailed)); !s.pinned() {
		t.Error("the phase has changed, and the next change of it is not pinned")
	}
}
