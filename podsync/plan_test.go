// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

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

const tick = time.Minute // the present of the tables, as an instant

func testRules() *rules {
	return &rules{
		policy: Policy{CompleteList: true},
		relist: 10 * time.Second, pendingAfter: time.Second,
		retry:   backoff.Policy{Base: time.Second, Cap: time.Minute},
		epoch:   time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		updates: true, releases: true,
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

func runs() *State {
	return &State{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
		Name: "c", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}}}
}

// unready is a report of another readiness, which is written at once.
func unready() *State {
	s := runs()
	s.Status.ContainerStatuses[0].Ready = false
	return s
}

// detailed is a report that may wait for the next one.
func detailed() *State {
	s := runs()
	s.Status.ContainerStatuses[0].ContainerID = "x://1"
	return s
}

func exited(code int32, stopped bool) *State {
	return &State{Stopped: stopped, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
		Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}},
	}}}}
}

// A scene is a track to which things have happened.
type scene struct {
	*podState
	r    *rules
	seq  uint64
	free bool
}

func newScene(pod *corev1.Pod) *scene {
	s := &scene{podState: &podState{ref: RefOf(pod)}, r: testRules(), free: true}
	s.write.statusSeq, s.api.since = 1, tick-10*time.Second
	s.setPod(s.r, s.api.since, &version{pod: pod})
	s.api.cached = true
	return s
}

// fresh is a pod that was never started, and waits for a decision.
func fresh(edit ...func(*corev1.Pod)) *scene {
	s := newScene(testPod(edit...))
	s.classify(s.r, s.api.since)
	return s
}

// adopted is a pod that the provider held at the start.
func adopted(st *State, edit ...func(*corev1.Pod)) *scene {
	s := newScene(testPod(edit...))
	s.says(st)
	s.classify(s.r, s.api.since)
	return s
}

// running is a pod that has been started and written.
func running(edit ...func(*corev1.Pod)) *scene {
	s := adopted(runs(), append([]func(*corev1.Pod){ran}, edit...)...)
	s.write.storedSeq, s.write.stale = s.write.statusSeq, false
	return s
}

func (s *scene) now(edit ...func(*corev1.Pod)) *scene {
	pod := s.pod().DeepCopy()
	pod.ResourceVersion = "20"
	for _, f := range edit {
		f(pod)
	}
	s.setPod(s.r, tick, &version{pod: pod})
	return s.checked()
}

// checked panics if an invariant does not hold: a scene is made before its test has a T.
func (s *scene) checked() *scene {
	if err := s.check(); err != nil {
		panic(err)
	}
	return s
}

func (s *scene) says(st *State) *scene {
	s.seq++
	s.observe(s.r, tick, s.seq, st, uint64(1000+s.seq), false)
	return s.checked()
}

// calls begins a call, and ends it if it has a result.
func (s *scene) calls(op Op, grace time.Duration, results ...any) *scene {
	s.seq++
	c := s.callStarted(tick, s.seq, action{op: op, grace: grace})
	c.cancel = func() {}
	if len(results) == 0 {
		return s
	}
	s.seq++
	st := &State{}
	var err error
	switch r := results[0].(type) {
	case *State:
		st = r
	case error:
		err = r
	}
	s.callReturned(s.r, tick, s.seq, st, uint64(1000+s.seq), err)
	return s.checked()
}

func (s *scene) with(f func(*scene)) *scene { f(s); return s.checked() }

var errFailed = errors.New("failed")

func TestPlan(t *testing.T) {
	stopAccepted := func(s *scene) *scene { return s.calls(OpStop, 30*time.Second, runs()) }
	for _, tc := range []struct {
		name   string
		scene  *scene
		at     instant // after tick
		stage  Stage
		call   Op
		grace  time.Duration
		cancel bool
		write  Op
	}{
		{name: "unsynced: nothing", scene: newScene(testPod()), stage: StageUnsynced},
		{name: "3.4 fresh: start", scene: fresh(), stage: StageWaiting, call: OpStart, write: OpPatch},
		{name: "3.4 held: adopt", scene: adopted(runs(), ran), stage: StageRunning, write: OpPatch},
		{name: "3.4 held with an older spec: update", scene: adopted(runs(), ran, func(p *corev1.Pod) { p.Generation = 3 }), stage: StageRunning, call: OpUpdate, write: OpPatch},
		{name: "3.4 terminal and held: stop, no status", scene: adopted(runs(), phase(corev1.PodFailed)), stage: StageTerminating, call: OpStop, grace: 30 * time.Second},
		{name: "3.4 terminal and stopped: rest", scene: adopted(exited(0, true), phase(corev1.PodSucceeded)), stage: StageReleased},
		{name: "3.4 terminal and absent: rest", scene: fresh(phase(corev1.PodFailed)), stage: StageReleased},
		{name: "3.4 deleted and held: stop", scene: adopted(runs(), ran, deletedWithin(7)), stage: StageTerminating, call: OpStop, grace: 7 * time.Second, write: OpPatch},
		{name: "3.4 deleted and absent: final status", scene: fresh(ran, deletedWithin(7)), stage: StageStopped, write: OpPatch},
		{name: "3.4 terminal, deleted and absent: deletion", scene: fresh(phase(corev1.PodFailed), deletedWithin(30)), stage: StageFinal, write: OpDelete},
		{name: "3.4 lost, noDeadline restarted: final status", scene: fresh(ran), stage: StageStopped, write: OpPatch},
		{name: "3.4 lost, always restarted: start", scene: fresh(ran, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways }), stage: StageWaiting, call: OpStart, write: OpPatch},

		{name: "name taken: wait", scene: fresh().with(func(s *scene) { s.free = false }), stage: StageWaiting, write: OpPatch},
		{name: "admission first", scene: fresh().with(func(s *scene) { s.r.admits = true }), stage: StageWaiting, call: OpAdmit, write: OpPatch},
		{name: "admitted: start", scene: fresh().with(func(s *scene) { s.r.admits = true }).calls(OpAdmit, 0, nil), stage: StageWaiting, call: OpStart, write: OpPatch},
		{name: "started", scene: fresh().calls(OpStart, 0, runs()), stage: StageRunning, write: OpPatch},
		{name: "starting: one call", scene: fresh().calls(OpStart, 0), stage: StageStarting, write: OpPatch},
		{name: "start failed: backoff", scene: fresh().calls(OpStart, 0, errFailed), stage: StageStarting, write: OpPatch},
		{name: "start failed: again", scene: fresh().calls(OpStart, 0, errFailed), at: 2 * time.Second, stage: StageStarting, call: OpStart, write: OpPatch},
		{name: "RetryAfter: not yet", scene: fresh().calls(OpStart, 0, RetryAfter(errFailed, time.Hour)), at: 59 * time.Minute, stage: StageStarting, write: OpPatch},
		{name: "RetryAfter: now", scene: fresh().calls(OpStart, 0, RetryAfter(errFailed, time.Hour)), at: time.Hour, stage: StageStarting, call: OpStart, write: OpPatch},
		{name: "update ends the backoff", scene: fresh().calls(OpStart, 0, errFailed).now(func(p *corev1.Pod) { p.Generation = 2 }), stage: StageStarting, call: OpStart, write: OpPatch},
		{name: "admission refused", scene: fresh().calls(OpAdmit, 0, Reject("R", "m")), stage: StageStopped, write: OpPatch},
		{name: "start refused: stop what there may be", scene: fresh().calls(OpStart, 0, Reject("R", "m")), stage: StageTerminating, call: OpStop, grace: time.Second},
		{name: "update", scene: running().now(func(p *corev1.Pod) { p.Generation = 2 }), stage: StageRunning, call: OpUpdate, write: OpPatch},
		{name: "update failed: backoff", scene: running().now(func(p *corev1.Pod) { p.Generation = 2 }).calls(OpUpdate, 0, errFailed), stage: StageRunning, write: OpPatch},
		{name: "updated", scene: running().now(func(p *corev1.Pod) { p.Generation = 2 }).calls(OpUpdate, 0, runs()), stage: StageRunning, write: OpPatch},
		{name: "no updater", scene: running().now(func(p *corev1.Pod) { p.Generation = 2 }).with(func(s *scene) { s.r.updates = false }), stage: StageRunning, write: OpPatch},
		{name: "report", scene: running().says(unready()), stage: StageRunning, write: OpPatch},
		{name: "details: the next report may follow", scene: running().says(detailed()), at: time.Second - 1, stage: StageRunning},
		{name: "details: alone after a second", scene: running().says(detailed()), at: time.Second, stage: StageRunning, write: OpPatch},
		{name: "details, and a report", scene: running().says(detailed()).says(unready()), stage: StageRunning, write: OpPatch},
		{name: "a report, and details", scene: running().says(unready()).says(detailed()), stage: StageRunning, write: OpPatch},
		{name: "nothing new", scene: running(), stage: StageRunning},
		{name: "changed by others", scene: running().now(), stage: StageRunning, write: OpPatch},
		{name: "work done: stop, status later", scene: running().says(exited(0, false)), stage: StageTerminating, call: OpStop, grace: 30 * time.Second},
		{name: "T8a stopped by itself: final status", scene: running().says(exited(0, true)), stage: StageStopped, write: OpPatch},
		{name: "absent once: nothing", scene: running().with(func(s *scene) { s.absent(s.r, tick, 90, false) }), stage: StageRunning},
		{name: "absent twice at once: nothing", scene: running().with(func(s *scene) { s.absent(s.r, tick, 90, false); s.absent(s.r, tick, 91, false) }), stage: StageRunning},
		{name: "absent twice: lost", scene: running().with(func(s *scene) { s.absent(s.r, tick-10*time.Second, 90, false); s.absent(s.r, tick, 91, false) }), stage: StageTerminating, call: OpStop, grace: time.Second},
		{name: "absent and not found: lost", scene: running().with(func(s *scene) { s.absent(s.r, tick, 90, true) }), stage: StageTerminating, call: OpStop, grace: time.Second},
		{name: "absent from a list that began before it was seen", scene: running().with(func(s *scene) { s.absent(s.r, tick, 0, true) }), stage: StageRunning},
		{name: "absent: inspect", scene: running().with(func(s *scene) { s.r.inspects = true; s.absent(s.r, tick, 90, false) }), stage: StageRunning, call: OpInspect},
		{name: "deleted while starting: cancel", scene: fresh().calls(OpStart, 0).now(deletedWithin(30)), stage: StageTerminating, cancel: true},
		{name: "deleted", scene: running().now(deletedWithin(20)), stage: StageTerminating, call: OpStop, grace: 20 * time.Second},
		{name: "deleted with grace 0", scene: running().now(deletedWithin(0)), stage: StageTerminating, call: OpStop, grace: time.Second},
		{name: "failed by another client", scene: running().now(phase(corev1.PodFailed)), stage: StageTerminating, call: OpStop, grace: 30 * time.Second},
		{name: "deadline", scene: running(func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(1)) }), stage: StageTerminating, call: OpStop, grace: 30 * time.Second},
		{name: "grace shortened during Stop: cancel", scene: running().now(deletedWithin(20)).calls(OpStop, 20*time.Second).with(func(s *scene) { s.beginTermination(tick, StopDeleted, nil, 5*time.Second) }), stage: StageTerminating, cancel: true},
		{name: "grace shortened after Stop: again", scene: stopAccepted(running().now(deletedWithin(30))).with(func(s *scene) { s.beginTermination(tick, StopDeleted, nil, 5*time.Second) }), stage: StageTerminating, call: OpStop, grace: 5 * time.Second},
		{name: "stop failed: backoff", scene: running().now(deletedWithin(20)).calls(OpStop, 20*time.Second, errFailed), stage: StageTerminating},
		{name: "stop failed: again, in full", scene: running().now(deletedWithin(20)).calls(OpStop, 20*time.Second, errFailed), at: 2 * time.Second, stage: StageTerminating, call: OpStop, grace: 20 * time.Second, write: OpPatch},
		{name: "stop accepted: wait", scene: stopAccepted(running().now(deletedWithin(30))), at: 31 * time.Second, stage: StageTerminating, write: OpPatch},
		{name: "grace over: again, with what is left", scene: stopAccepted(running().now(deletedWithin(30))), at: 32 * time.Second, stage: StageTerminating, call: OpStop, grace: time.Second, write: OpPatch},
		{name: "stopped by return", scene: running().now(deletedWithin(30)).calls(OpStop, 30*time.Second, exited(0, true)), stage: StageStopped, write: OpPatch},
		{name: "stopped by report", scene: stopAccepted(running().now(deletedWithin(30))).says(exited(0, true)), stage: StageStopped, write: OpPatch},
		{name: "stopped by absence", scene: stopAccepted(running().now(deletedWithin(30))).with(func(s *scene) { s.absent(s.r, tick, 90, false) }), stage: StageStopped, write: OpPatch},
		{name: "stopped by not found", scene: running().now(deletedWithin(30)).calls(OpStop, 30*time.Second, ErrNotFound), stage: StageStopped, write: OpPatch},
		{name: "failed stop and one absence: not yet", scene: running().now(deletedWithin(30)).calls(OpStop, 30*time.Second, errFailed).with(func(s *scene) { s.absent(s.r, tick, 90, false) }), stage: StageTerminating},
		{name: "deleted before start", scene: fresh().now(deletedWithin(30)), stage: StageStopped, write: OpPatch},
		{name: "final status stored", scene: ended(), stage: StageReleased},
		{name: "deletion", scene: ended(deletedWithin(30)), stage: StageFinal, write: OpDelete},
		{name: "deleted at once by another client: wait", scene: ended(deletedWithin(0)), stage: StageFinal},
		{name: "deleted at once, and still there", scene: ended(deletedWithin(0)), at: goneAfter, stage: StageFinal, write: OpDelete},
		{name: "finalizers left only", scene: ended(finalizer, deletedWithin(0)), stage: StageReleased, call: OpRelease},
		{name: "deleted: release", scene: ended(deletedWithin(30)).with(func(s *scene) { s.deleteSent(tick) }), stage: StageReleased, call: OpRelease},
		{name: "half-done deletion: once more", scene: ended(deletedWithin(30)).with(func(s *scene) { s.deleteSent(tick) }), at: 30 * time.Second, stage: StageReleased, call: OpRelease, write: OpDelete},
		{name: "removed: release", scene: ended().with(func(s *scene) { s.markDeleted(tick) }), stage: StageFinal, call: OpRelease},
		{name: "removed, no releaser: stop once", scene: ended().with(func(s *scene) { s.r.releases = false; s.markDeleted(tick) }), stage: StageFinal, call: OpStop, grace: time.Second},
		{name: "removed while it runs", scene: running().with(func(s *scene) { s.markDeleted(tick) }), stage: StageTerminating, call: OpStop, grace: 30 * time.Second},
		{name: "3.7 orphan: nothing", scene: orphan(runs()), stage: StageOrphaned},
		{name: "3.7 stopped orphan: nothing", scene: orphan(exited(0, true)), stage: StageFinal},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := tick + tc.at
			s := tc.scene
			s.advance(s.r, now, s.r.epoch.Add(now))
			s.checked()
			call := s.decideCall(s.r, now, s.free)
			write, _ := s.decideWrite(s.r, now)
			if got := s.stage(); got != tc.stage {
				t.Errorf("stage %v, want %v", got, tc.stage)
			}
			if call.op != tc.call || call.op == OpStop && call.grace != tc.grace || call.cancel != tc.cancel {
				t.Errorf("call %q with %v, cancel %v; want %q with %v, cancel %v", call.op, call.grace, call.cancel, tc.call, tc.grace, tc.cancel)
			}
			if write.op != tc.write {
				t.Errorf("write %q, want %q", write.op, tc.write)
			}
		})
	}
}

// ended is a pod that has ended on its own and whose final status is stored.
func ended(edit ...func(*corev1.Pod)) *scene {
	s := running().says(exited(0, true))
	c := s.writeStarted(tick, OpPatch)
	done := s.pod().DeepCopy()
	done.ResourceVersion, done.Status.Phase = "15", corev1.PodSucceeded
	s.statusStored(s.r, tick, c, done, true)
	if len(edit) > 0 {
		s.now(edit...)
	}
	return s
}

func orphan(st *State) *scene {
	s := &scene{podState: &podState{ref: Ref{UID: "o"}}, r: testRules(), free: true}
	s.api.presence, s.provider.listed = presenceOrphan, true
	return s.says(st)
}
