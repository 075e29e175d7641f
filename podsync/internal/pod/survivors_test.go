// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// After the grace period Stop is repeated each Relist, and not without a pause.
func TestStopIsRepeatedEachRelist(t *testing.T) {
	s := runningPod().now(deletedWithin(5)).calls(Stop, 5*time.Second, runs())
	now := tick + 5*time.Second + stopSlack
	if got := s.decideCall(now, true); got.Op != Stop {
		t.Fatalf("%q after the grace period, want Stop", got.Op)
	}
	for range 3 {
		s.callStarted(now, 100, Action{Op: Stop, Grace: time.Second})
		s.callReturned(moment(now), Returned{Seq: 100, Report: runs(), FP: 1})
		got := s.decideCall(now, true)
		if got.Op != "" || got.Wake != now+s.r.Relist {
			t.Fatalf("%q, wake after %v, want %v", got.Op, got.Wake-now, s.r.Relist)
		}
		now = got.Wake
	}
}

// The informer must have said that the object is gone, or it would show it as a new pod.
func TestAPodThatTheInformerHasIsNotForgotten(t *testing.T) {
	s := runningPod().says(exited(0, true))
	s.markDeleted(tick)
	s.becomeForgotten()
	if s.Forgettable() {
		t.Error("the informer has it, and it is forgotten")
	}
	if s.api.cached = false; !s.Forgettable() {
		t.Error("neither has it, and it is kept")
	}
}

// A question that failed is repeated with backoff.
func TestTheQuestionAfterA404BacksOff(t *testing.T) {
	s := runningPod().says(unready())
	s.writeStarted(tick, Patch, wallAt(tick))
	s.notFound(tick)
	at := tick + goneAfter
	if got := s.decideWrite(at); got.Op != Get {
		t.Fatalf("%q, want GET", got.Op)
	}
	for range 4 {
		s.writeStarted(at, Get, wallAt(at))
		s.writeFailed(at, WriteFailed{MayBeStored: true})
	}
	got := s.decideWrite(at)
	if got.Op != "" || got.Wake != s.write.retryAt || got.Wake <= at {
		t.Errorf("%q, wake after %v", got.Op, got.Wake-at)
	}
}

// A report that leaves out an init container keeps what the last one said of it, if the API does
// not have that yet.
func TestAnUnsentReportOfAnInitContainerIsKept(t *testing.T) {
	s := runningPod(func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "i"}} })
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
	s := runningPod().says(unready())
	for range 12 {
		s.writeStarted(tick, Patch, wallAt(tick))
		s.conflicted(tick)
	}
	if pause := s.write.retryAt - tick; pause <= 0 || pause > 4*s.r.Retry.Base {
		t.Errorf("a pause of %v", pause)
	}
}

// While the API does not answer about some suspects, the others are not stopped, even after
// MassHold, unless they are too many by themselves.
func TestSuspectsWithoutAnAnswerKeepTheOthersRunning(t *testing.T) {
	s := runningPod()
	s.r.MassHold = time.Minute
	s.suspect.goneSince = tick
	now := tick + time.Minute
	for _, tc := range []struct {
		gone, unsure, held int
		want               bool
	}{{3, 10, 20, false}, {3, 0, 20, true}, {10, 3, 20, true}} {
		if got := s.SuspectBelievable(now, tc.gone, tc.unsure, tc.held); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
	if s.SuspectBelievable(now-1, 10, 0, 20) {
		t.Error("before MassHold")
	}
}

// forgottenPod has stopped at a provider that keeps nothing of it, before the API has its exit
// code, and then the gate closed.
func forgottenPod() *scene {
	s := runningPod(func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways }).now(deletedWithin(30))
	s.r.Releases = false
	s.calls(Stop, 30*time.Second, exited(3, true))
	s.reset(tick)
	return s.checked()
}

func TestTheReportOfAForgottenInstanceIsKept(t *testing.T) {
	s := forgottenPod()
	s.classify(moment(tick))
	if report := s.report(); report == nil || report.ContainerStatuses[0].State.Terminated == nil || report.ContainerStatuses[0].State.Terminated.ExitCode != 3 {
		t.Errorf("the exit code is lost: %+v", report)
	}
}

func TestAKeptReportGivesWayToAnInstance(t *testing.T) {
	s := forgottenPod().says(runs())
	s.classify(moment(tick))
	if report := s.report(); report == nil || report.ContainerStatuses[0].State.Running == nil || s.Stopped() {
		t.Errorf("it runs, and the report is %+v", report)
	}
}

// The first conflicts may be those of a client that ends the pod.
func TestAChangeOfThePhaseIsPinnedAtFirst(t *testing.T) {
	s := runningPod().says(unready())
	for n := range pinnedTries {
		if !s.pinned() {
			t.Errorf("not pinned after %d conflicts", n)
		}
		s.writeStarted(tick, Patch, wallAt(tick))
		s.conflicted(tick)
	}
	if s.pinned() {
		t.Errorf("pinned after %d conflicts", pinnedTries)
	}
	if s.now(phase(corev1.PodFailed)); !s.pinned() {
		t.Error("the phase has changed, and the next change of it is not pinned")
	}
}
