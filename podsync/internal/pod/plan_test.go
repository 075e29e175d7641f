// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/internal/backoff"
)

// The tables below are the transitions of a pod (DESIGN.md), without goroutines,
// clients or clocks: events, and the action that follows.

const tick = time.Minute // the present of the tables, as an Instant

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func wallAt(now Instant) time.Time { return epoch.Add(now) }

func moment(now Instant) Moment { return Moment{Since: now, Wall: wallAt(now)} }

// later is the result of a call that asks for a delay.
type later time.Duration

func testRules() *Rules {
	return &Rules{
		CompleteList: true,
		Relist:       10 * time.Second, PendingAfter: time.Second,
		Retry:   backoff.Policy{Base: time.Second, Cap: time.Minute},
		Updates: true, Releases: true,
	}
}

func testPod(edit ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u", Generation: 1, ResourceVersion: "10"},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: new(int64(30)),
			Containers:                    []corev1.Container{{Name: "c"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	for _, f := range edit {
		f(pod)
	}
	return pod
}

func phase(p corev1.PodPhase) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.Phase = p }
}

func deletedWithin(seconds int64) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Unix(1, 0)}, &seconds
		pod.ResourceVersion = "30"
	}
}

func finalizer(pod *corev1.Pod) { pod.Finalizers = []string{"f"} }

func ran(pod *corev1.Pod) {
	pod.Status.Phase, pod.Status.ObservedGeneration = corev1.PodRunning, 1
	pod.Status.StartTime = &metav1.Time{Time: time.Unix(1, 0)}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
}

func runs() *Report {
	return &Report{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
		Name: "c", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}}}
}

// unready is a report of another readiness, which is written at once.
func unready() *Report {
	s := runs()
	s.Status.ContainerStatuses[0].Ready = false
	return s
}

// detailed is a report that may wait for the next one.
func detailed() *Report {
	s := runs()
	s.Status.ContainerStatuses[0].ContainerID = "x://1"
	return s
}

func exited(code int32, stopped bool) *Report {
	return &Report{Stopped: stopped, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
		Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}},
	}}}}
}

// A scene is a track to which things have happened.
type scene struct {
	*State
	r    *Rules
	seq  uint64
	free bool
}

func newScene(pod *corev1.Pod) *scene {
	rules := testRules()
	state := New(rules, tick-10*time.Second, 0, Saved{})
	s := &scene{State: &state, r: rules, free: true}
	s.setPod(s.api.since, &Version{pod: pod})
	s.api.cached = true
	return s
}

// fresh is a pod that was never started, and waits for a decision.
func fresh(edit ...func(*corev1.Pod)) *scene {
	s := newScene(testPod(edit...))
	s.classify(moment(s.api.since))
	return s
}

// adopted is a pod that the provider held at the start.
func adopted(st *Report, edit ...func(*corev1.Pod)) *scene {
	s := newScene(testPod(edit...))
	s.says(st)
	s.classify(moment(s.api.since))
	return s
}

// runningPod is a pod that has been started and written.
func runningPod(edit ...func(*corev1.Pod)) *scene {
	s := adopted(runs(), append([]func(*corev1.Pod){ran}, edit...)...)
	s.write.news.storedSeq, s.write.news.overwritten = s.write.news.statusSeq, false
	return s
}

func (s *scene) now(edit ...func(*corev1.Pod)) *scene {
	pod := s.Pod().DeepCopy()
	pod.ResourceVersion = "20"
	for _, f := range edit {
		f(pod)
	}
	s.setPod(tick, &Version{pod: pod})
	return s.checked()
}

// checked panics if an invariant does not hold: a scene is made before its test has a T.
func (s *scene) checked() *scene {
	if err := s.Check(); err != nil {
		panic(err)
	}
	return s
}

func (s *scene) says(st *Report) *scene {
	s.seq++
	s.observe(tick, s.seq, st, uint64(1000+s.seq), false)
	return s.checked()
}

// calls begins a call, and ends it if it has a result.
func (s *scene) calls(op Op, grace time.Duration, results ...any) *scene {
	s.seq++
	s.callStarted(tick, s.seq, Action{Op: op, Grace: grace})
	if len(results) == 0 {
		return s
	}
	s.seq++
	ev := Returned{Seq: s.seq, Report: &Report{}, FP: uint64(1000 + s.seq), Err: errFailed, Result: Failed}
	switch r := results[0].(type) {
	case *Report:
		ev.Report, ev.Err, ev.Result = r, nil, Succeeded
	case Rejection:
		ev.Rejection, ev.Result = r, Refused
	case Result:
		ev.Result = r
	case later:
		ev.After = time.Duration(r)
	case nil:
		ev.Err, ev.Result = nil, Succeeded
	}
	s.callReturned(moment(tick), ev)
	return s.checked()
}

func (s *scene) with(f func(*scene)) *scene { f(s); return s.checked() }

var errFailed = errors.New("failed")

func TestPlan(t *testing.T) {
	stopAccepted := func(s *scene) *scene { return s.calls(Stop, 30*time.Second, runs()) }
	for _, tc := range []struct {
		name   string
		scene  *scene
		at     Instant // after tick
		stage  Stage
		call   Op
		grace  time.Duration
		cancel bool
		write  Op
	}{
		{name: "unsynced: nothing", scene: newScene(testPod()), stage: Unsynced},
		{name: "fresh: start", scene: fresh(), stage: Waiting, call: Start, write: Patch},
		{name: "held: adopt", scene: adopted(runs(), ran), stage: Running, write: Patch},
		{name: "held with an older spec: update", scene: adopted(runs(), ran, func(p *corev1.Pod) { p.Generation = 3 }), stage: Running, call: Update, write: Patch},
		{name: "terminal and held: stop, no status", scene: adopted(runs(), phase(corev1.PodFailed)), stage: Terminating, call: Stop, grace: 30 * time.Second},
		{name: "terminal and stopped: rest", scene: adopted(exited(0, true), phase(corev1.PodSucceeded)), stage: Released},
		{name: "terminal and absent: rest", scene: fresh(phase(corev1.PodFailed)), stage: Released},
		{name: "deleted and held: stop", scene: adopted(runs(), ran, deletedWithin(7)), stage: Terminating, call: Stop, grace: 7 * time.Second, write: Patch},
		{name: "deleted and absent: final status", scene: fresh(ran, deletedWithin(7)), stage: Stopped, write: Patch},
		{name: "terminal, deleted and absent: deletion", scene: fresh(phase(corev1.PodFailed), deletedWithin(30)), stage: Final, write: Delete},
		{name: "lost, Never restarted: final status", scene: fresh(ran), stage: Stopped, write: Patch},
		{name: "lost, always restarted: start", scene: fresh(ran, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways }), stage: Waiting, call: Start, write: Patch},

		{name: "name taken: wait", scene: fresh().with(func(s *scene) { s.free = false }), stage: Waiting, write: Patch},
		{name: "admission first", scene: fresh().with(func(s *scene) { s.r.Admits = true }), stage: Waiting, call: Admit, write: Patch},
		{name: "admitted: start", scene: fresh().with(func(s *scene) { s.r.Admits = true }).calls(Admit, 0, nil), stage: Waiting, call: Start, write: Patch},
		{name: "started", scene: fresh().calls(Start, 0, runs()), stage: Running, write: Patch},
		{name: "starting: one call", scene: fresh().calls(Start, 0), stage: Starting, write: Patch},
		{name: "start failed: backoff", scene: fresh().calls(Start, 0, errFailed), stage: Starting, write: Patch},
		{name: "start failed: again", scene: fresh().calls(Start, 0, errFailed), at: 2 * time.Second, stage: Starting, call: Start, write: Patch},
		{name: "RetryAfter: not yet", scene: fresh().calls(Start, 0, later(time.Hour)), at: 59 * time.Minute, stage: Starting, write: Patch},
		{name: "RetryAfter: now", scene: fresh().calls(Start, 0, later(time.Hour)), at: time.Hour, stage: Starting, call: Start, write: Patch},
		{name: "update ends the backoff", scene: fresh().calls(Start, 0, errFailed).now(func(p *corev1.Pod) { p.Generation = 2 }), stage: Starting, call: Start, write: Patch},
		{name: "admission refused", scene: fresh().calls(Admit, 0, Rejection{"R", "m"}), stage: Stopped, write: Patch},
		{name: "start refused: stop what there may be", scene: fresh().calls(Start, 0, Rejection{"R", "m"}), stage: Terminating, call: Stop, grace: time.Second},
		{name: "update", scene: runningPod().now(func(p *corev1.Pod) { p.Generation = 2 }), stage: Running, call: Update, write: Patch},
		{name: "update failed: backoff", scene: runningPod().now(func(p *corev1.Pod) { p.Generation = 2 }).calls(Update, 0, errFailed), stage: Running, write: Patch},
		{name: "updated", scene: runningPod().now(func(p *corev1.Pod) { p.Generation = 2 }).calls(Update, 0, runs()), stage: Running, write: Patch},
		{name: "no updater", scene: runningPod().now(func(p *corev1.Pod) { p.Generation = 2 }).with(func(s *scene) { s.r.Updates = false }), stage: Running, write: Patch},
		{name: "report", scene: runningPod().says(unready()), stage: Running, write: Patch},
		{name: "details: the next report may follow", scene: runningPod().says(detailed()), at: time.Second - 1, stage: Running},
		{name: "details: alone after a second", scene: runningPod().says(detailed()), at: time.Second, stage: Running, write: Patch},
		{name: "details, and a report", scene: runningPod().says(detailed()).says(unready()), stage: Running, write: Patch},
		{name: "a report, and details", scene: runningPod().says(unready()).says(detailed()), stage: Running, write: Patch},
		{name: "nothing new", scene: runningPod(), stage: Running},
		{name: "changed by others", scene: runningPod().now(), stage: Running, write: Patch},
		{name: "work done: stop, status later", scene: runningPod().says(exited(0, false)), stage: Terminating, call: Stop, grace: 30 * time.Second},
		{name: "stopped by itself: final status", scene: runningPod().says(exited(0, true)), stage: Stopped, write: Patch},
		{name: "absent once: nothing", scene: runningPod().with(func(s *scene) { s.absent(moment(tick), 90, false) }), stage: Running},
		{name: "absent twice at once: nothing", scene: runningPod().with(func(s *scene) { s.absent(moment(tick), 90, false); s.absent(moment(tick), 91, false) }), stage: Running},
		{name: "absent twice: lost", scene: runningPod().with(func(s *scene) { s.absent(moment(tick-10*time.Second), 90, false); s.absent(moment(tick), 91, false) }), stage: Terminating, call: Stop, grace: time.Second},
		{name: "absent and not found: lost", scene: runningPod().with(func(s *scene) { s.absent(moment(tick), 90, true) }), stage: Terminating, call: Stop, grace: time.Second},
		{name: "absent from a list that began before it was seen", scene: runningPod().with(func(s *scene) { s.absent(moment(tick), 0, true) }), stage: Running},
		{name: "absent: inspect", scene: runningPod().with(func(s *scene) { s.r.Inspects = true; s.absent(moment(tick), 90, false) }), stage: Running, call: Inspect},
		{name: "deleted while starting: cancel", scene: fresh().calls(Start, 0).now(deletedWithin(30)), stage: Terminating, cancel: true},
		{name: "deleted while it is admitted: cancel", scene: fresh().calls(Admit, 0).now(deletedWithin(30)), stage: Terminating, cancel: true},
		{name: "deleted", scene: runningPod().now(deletedWithin(20)), stage: Terminating, call: Stop, grace: 20 * time.Second},
		{name: "deleted with grace 0", scene: runningPod().now(deletedWithin(0)), stage: Terminating, call: Stop, grace: time.Second},
		{name: "failed by another client", scene: runningPod().now(phase(corev1.PodFailed)), stage: Terminating, call: Stop, grace: 30 * time.Second},
		{name: "deadline", scene: runningPod(func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(1)) }), stage: Terminating, call: Stop, grace: 30 * time.Second},
		{name: "grace shortened during Stop: cancel", scene: runningPod().now(deletedWithin(20)).calls(Stop, 20*time.Second).with(func(s *scene) { s.beginTermination(tick, StopDeleted, nil, 5*time.Second) }), stage: Terminating, cancel: true},
		{name: "grace shortened after Stop: again", scene: stopAccepted(runningPod().now(deletedWithin(30))).with(func(s *scene) { s.beginTermination(tick, StopDeleted, nil, 5*time.Second) }), stage: Terminating, call: Stop, grace: 5 * time.Second},
		{name: "stop failed: backoff", scene: runningPod().now(deletedWithin(20)).calls(Stop, 20*time.Second, errFailed), stage: Terminating},
		{name: "stop failed: again, in full", scene: runningPod().now(deletedWithin(20)).calls(Stop, 20*time.Second, errFailed), at: 2 * time.Second, stage: Terminating, call: Stop, grace: 20 * time.Second, write: Patch},
		{name: "stop accepted: wait", scene: stopAccepted(runningPod().now(deletedWithin(30))), at: 31 * time.Second, stage: Terminating, write: Patch},
		{name: "grace over: again, with what is left", scene: stopAccepted(runningPod().now(deletedWithin(30))), at: 32 * time.Second, stage: Terminating, call: Stop, grace: time.Second, write: Patch},
		{name: "stopped by return", scene: runningPod().now(deletedWithin(30)).calls(Stop, 30*time.Second, exited(0, true)), stage: Stopped, write: Patch},
		{name: "stopped by report", scene: stopAccepted(runningPod().now(deletedWithin(30))).says(exited(0, true)), stage: Stopped, write: Patch},
		{name: "stopped by absence", scene: stopAccepted(runningPod().now(deletedWithin(30))).with(func(s *scene) { s.absent(moment(tick), 90, false) }), stage: Stopped, write: Patch},
		{name: "stopped by not found", scene: runningPod().now(deletedWithin(30)).calls(Stop, 30*time.Second, NoSuchPod), stage: Stopped, write: Patch},
		{name: "failed stop and one absence: not yet", scene: runningPod().now(deletedWithin(30)).calls(Stop, 30*time.Second, errFailed).with(func(s *scene) { s.absent(moment(tick), 90, false) }), stage: Terminating},
		{name: "failed stop and two absences: stopped", scene: runningPod().now(deletedWithin(30)).calls(Stop, 30*time.Second, errFailed).with(func(s *scene) { s.absent(moment(tick-10*time.Second), 90, false); s.absent(moment(tick), 91, false) }), stage: Stopped, write: Patch},
		{name: "failed by another client, and finalizers left only: stop", scene: runningPod().now(phase(corev1.PodFailed), finalizer, deletedWithin(0)), stage: Terminating, call: Stop, grace: time.Second},
		{name: "deleted before start", scene: fresh().now(deletedWithin(30)), stage: Stopped, write: Patch},
		{name: "final status stored", scene: ended(), stage: Released},
		{name: "deletion", scene: ended(deletedWithin(30)), stage: Final, write: Delete},
		{name: "deleted at once by another client: wait", scene: ended(deletedWithin(0)), stage: Final},
		{name: "deleted at once, and still there", scene: ended(deletedWithin(0)), at: goneAfter, stage: Final, write: Delete},
		{name: "deleted at once, and changed since", scene: ended(deletedWithin(0)).with(func(s *scene) {
			changed := s.Pod().DeepCopy()
			changed.ResourceVersion = "40"
			s.setPod(tick+20*time.Second, Known(changed))
		}), at: goneAfter, stage: Final, write: Delete},
		{name: "finalizers left only", scene: ended(finalizer, deletedWithin(0)), stage: Released, call: Release},
		{name: "deleted: release", scene: ended(deletedWithin(30)).with(func(s *scene) { s.deleteSent(tick) }), stage: Released, call: Release},
		{name: "half-done deletion: asked before it is repeated", scene: ended(deletedWithin(30)).with(func(s *scene) { s.deleteSent(tick) }), at: 30 * time.Second, stage: Released, call: Release, write: Get},
		{name: "removed: release", scene: ended().with(func(s *scene) { s.markDeleted(tick) }), stage: Final, call: Release},
		{name: "removed, no releaser: stop once", scene: ended().with(func(s *scene) { s.r.Releases = false; s.markDeleted(tick) }), stage: Final, call: Stop, grace: time.Second},
		{name: "removed while it runs", scene: runningPod().with(func(s *scene) { s.markDeleted(tick) }), stage: Terminating, call: Stop, grace: 30 * time.Second},
		{name: "orphan: nothing", scene: orphanPod(runs()), stage: Orphaned},
		{name: "stopped orphan: nothing", scene: orphanPod(exited(0, true)), stage: Final},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := tick + tc.at
			s := tc.scene
			s.advance(moment(now))
			s.checked()
			call := s.decideCall(now, s.free)
			write := s.decideWrite(now)
			if got := s.Stage(); got != tc.stage {
				t.Errorf("stage %v, want %v", got, tc.stage)
			}
			if call.Op != tc.call || call.Op == Stop && call.Grace != tc.grace || call.Cancel != tc.cancel {
				t.Errorf("call %q with %v, cancel %v; want %q with %v, cancel %v", call.Op, call.Grace, call.Cancel, tc.call, tc.grace, tc.cancel)
			}
			if write.Op != tc.write {
				t.Errorf("write %q, want %q", write.Op, tc.write)
			}
		})
	}
}

// ended is a pod that has ended on its own and whose final status is stored.
func ended(edit ...func(*corev1.Pod)) *scene {
	s := runningPod().says(exited(0, true))
	c := s.writeStarted(tick, Patch, wallAt(tick))
	done := s.Pod().DeepCopy()
	done.ResourceVersion, done.Status.Phase = "15", corev1.PodSucceeded
	s.statusStored(tick, c, done, true)
	if len(edit) > 0 {
		s.now(edit...)
	}
	return s
}

func orphanPod(st *Report) *scene {
	rules := testRules()
	state := NewOrphan(rules, tick, 0, Saved{}, "")
	s := &scene{State: &state, r: rules, free: true}
	return s.says(st)
}
