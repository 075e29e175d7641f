// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// New returns the state of a pod that is first known at now. seq is that moment in the
// order of events.
func New(rules *Rules, now Instant, seq uint64, saved Saved) State {
	t := State{rules: rules}
	t.api.since, t.provider.born, t.provider.saved, t.write.news.statusSeq = now, seq, saved, 1
	t.provider.disputed = saved.Exists && saved.Generation == NoGeneration
	return t
}

// NewOrphan returns the state of an instance without a pod. It was started for nodeName, if
// that is known.
func NewOrphan(rules *Rules, now Instant, seq uint64, saved Saved, nodeName string) State {
	t := New(rules, now, seq, saved)
	t.api.presence, t.provider.sight, t.provider.nodeName = orphan, listed, nodeName
	t.suspect.wait = rules.OrphanDelay
	t.suspect.at = now + t.suspect.wait
	return t
}

// NewLeftover returns the state of an instance of an earlier pod that must be stopped.
func NewLeftover(rules *Rules, now Instant, seq uint64, nodeName string) State {
	t := New(rules, now, seq, Saved{})
	t.api.presence, t.provider.sight, t.provider.nodeName = gone, listed, nodeName
	t.becomeHeld()
	t.beginTermination(now, StopOrphaned, nil, MinGrace)
	return t
}

// Apply takes in an event. An error says that the event would take an illegal step: the state
// of the instance is then as it was.
func (t *State) Apply(at Moment, event Event) (news News, err error) {
	before := t.illegal
	now := at.Since
	switch ev := event.(type) {
	case Seen:
		news = t.seen(now, ev)
	case Vanished:
		if ev.Last != nil {
			t.setPod(now, ev.Last)
		}
		t.api.cached, t.api.restored = false, ev.Restored
		if ev.Doubtful {
			t.markMissing(now)
		} else {
			t.markDeleted(now)
		}
	case Recorded:
		t.setPod(now, Known(ev.Pod))
		t.api.cachedVersion, t.api.recorded = ev.Pod.ResourceVersion, true
		t.resume(now)

	case Reported:
		news = t.reported(at, ev)
	case *Repeated:
		t.startedFor(ev.NodeName)
		t.provider.seenSeq = max(t.provider.seenSeq, ev.Seq)
		t.shown(ev.FromList)
		news.Changed = t.confirmed(ev.Seq)
	case Joined:
		switch {
		case t.unsettled():
		case t.Held() || t.Stopped() || !t.evidence():
			t.classify(at)
		default:
			// It ran before. A List that begins now shows whether the provider still
			// holds it.
			news.Relist = true
		}
	case ListEnded:
		switch {
		case !ev.Shown && t.Known():
			held := t.Held()
			news.Lost = t.absent(at, ev.Seq, false)
			news.Changed = news.Lost || t.provider.needsInspect || held != t.Held() || t.Forgettable()
		case !t.Known() && t.Seen() && ev.Open && !t.unsettled() && (ev.First || t.provider.born < ev.Seq || t.Held()):
			news.Lost = t.classify(at)
			news.Changed = true
		}
	case LossBelieved:
		if t.MayBeLost() {
			news.Lost = t.markLost(at)
		}
	case LossQuestioned:
		t.provider.needsInspect = t.MayBeLost()

	case Called:
		news.Call = t.callStarted(now, ev.Seq, ev.Action)
		news.FirstStop = ev.Action.Op == Stop && t.end.stops == 1
	case Canceled:
		t.call.inflight.fate = max(t.call.inflight.fate, canceled)
	case NotMade:
		if ev.Lane == Calls {
			t.call.inflight = nil
		} else {
			t.write.inflight = nil
		}
	case Returned:
		news = t.callReturned(at, ev)
	case RetryNow:
		switch {
		case ev.Lane == Calls && t.call.failures > 0:
			t.call.retryAt = 0
		case ev.Lane == Writes && t.write.failures > 0:
			t.write.retryAt = 0
		}
	case Sent:
		news.Call = t.writeStarted(now, ev.Action.Op, at.Wall)
	case Stored, StatusRefused, AnnotationsRefused, NotFound, DeleteSent, Conflicted, Read, WriteFailed:
		if t.write.inflight.fate == stale {
			t.write.inflight = nil // the informer shows its effect
			break
		}
		news = t.answered(now, ev)

	case GateClosed:
		t.reset(now)
		news.Abort = true
	case GateOpened:
		t.provider.born = ev.Seq
	case Evicted:
		t.beginTermination(now, StopEvicted, ev.Failure, ev.Grace)
	case SuspectAnswered:
		news.Back = t.suspectAnswered(now, ev.Answer)
	case SuspectHeld:
		t.holdSuspect(now)
	case SuspectBelieved:
		news.Superfluous = t.stopSuspect(now)
	case NameWanted:
		t.suspect.at = min(t.suspect.at, now)
	case *NameTaken:
		if before := t.nameTaken(); before == nil || *before != *ev {
			t.call.err = ev
			t.write.news.statusSeq++
		}
	case Passed:
		news.Expired, news.Wake = t.advance(at)
		news.Unapplied = t.Seen() && t.unapplied()
	}
	news.Relist = t.asksAgain(now) || news.Relist
	if t.illegal != before {
		err = errors.New(t.illegal)
	}
	return news, err
}

// seen applies a version of the informer.
func (t *State) seen(now Instant, ev Seen) (news News) {
	v := ev.Version
	news.First = !t.Seen()
	t.api.cached = true
	recorded, revived := t.api.recorded, false
	t.api.recorded = false
	if news.First || !Older(v.ResourceVersion(), t.api.pod.ResourceVersion()) || t.rewound(v) {
		revived = t.revive()
		t.api.presence, t.api.restored, t.suspect.goneSince = present, false, 0
	}
	if recorded {
		t.setPod(now, v) // what the record has of the status counts for nothing
		news.New = true  // the status has waited for this
	} else {
		news.New = t.foreign(now, ev.Seq, v)
		if news.New && t.write.news.contestedAt == ev.Seq && t.write.rivals.repairs >= repairsAtOnce {
			news.Fought = v.Writer()
		}
	}
	if recorded && t.provider.lost != nil {
		ended := podstatus.Lost(&t.Pod().Status) // with the history that the record does not have
		t.provider.lost = &ended
	}
	news.New = news.New || revived
	if !news.New || !news.First {
		return news
	}
	t.look(unlisted, 0)
	t.resume(now)
	if t.provider.status != nil {
		t.nameContainer(t.provider.status) // it was reported before the pod was seen
	}
	return news
}

// revive takes back the end of a pod that a LIST left out by mistake before anything of it was
// started: nothing has happened to it. It reports whether it did.
func (t *State) revive() bool {
	if t.api.presence != gone || t.provider.instance != forgotten || t.provider.seenSeq > 0 || t.write.inflight != nil || t.final() {
		return false
	}
	if e := t.end; e.reason != StopDeleted || !e.unstarted || t.deleted() {
		return false // it ends for another reason
	}
	t.end = nil
	t.step(none)
	return true
}

// startedFor records the node that the instance was started for; "" if it was not said.
func (t *State) startedFor(nodeName string) {
	if nodeName != "" {
		t.provider.nodeName = nodeName
	}
}

// shown records that the provider holds the pod.
func (t *State) shown(fromList bool) {
	t.provider.absentAt, t.provider.needsInspect = 0, false
	t.found()
	if fromList {
		t.provider.losses = 0
	}
}

// reported applies a report.
func (t *State) reported(at Moment, ev Reported) (news News) {
	t.startedFor(ev.NodeName)
	if ev.FromList && t.rules.Gated && !t.Known() && ev.Seq < t.provider.born {
		return news // it is from before the gate opened
	}
	news.Dropped = t.observe(at.Since, ev.Seq, ev.Report, ev.FP, ev.FromList)
	t.confirmed(ev.Seq)
	if !t.Known() && ev.Joined && t.Seen() && t.Held() && !t.unsettled() {
		t.classify(at)
	}
	return news
}

// answered applies an answer to a request.
func (t *State) answered(now Instant, event Event) (news News) {
	c, n := t.write.inflight, &t.write.news
	switch ev := event.(type) {
	case Stored:
		if ev.Pod != nil {
			news.Lag = now - n.reportedAt
			news.Fresh = n.reportedAt > 0 && n.statusSeq == c.want && n.storedSeq != c.want
		}
		t.statusStored(now, c, ev.Pod, ev.Same)
		if news.Fresh {
			n.reportedAt = 0
		}
	case StatusRefused:
		t.statusRejected(c)
	case AnnotationsRefused:
		t.annotationsRejected(c)
	case NotFound:
		t.notFound(now)
	case DeleteSent:
		t.deleteSent(now)
		if ev.NotFound {
			t.notFound(now)
		}
	case Conflicted:
		t.conflicted(now)
	case Read:
		t.finishGet(now, ev.Seq, ev.Pod)
	case WriteFailed:
		t.writeFailed(now, ev)
	}
	return news
}

// advance makes the transitions that depend on the time only. Its wall clock is that by
// which status.startTime was taken. advance reports whether the pod's deadline has expired just
// now, and when to call it again.
func (t *State) advance(at Moment) (expired bool, wake Instant) {
	now := at.Since
	wake = Never
	if !t.Known() {
		return false, wake
	}
	if t.end != nil && !t.Stopped() && !t.Held() && t.call.inflight == nil {
		t.markStopped(now) // the provider was never called for it
	}
	if t.api.pod == nil || t.Gone() {
		return false, wake
	}
	if t.Stopped() && t.finalized() {
		t.becomeReleased(now) // the owners of the finalizers remove the object
	}
	if limit := t.Pod().Spec.ActiveDeadlineSeconds; limit != nil && t.end == nil {
		due := t.api.since + seconds(*limit)
		if start := t.Pod().Status.StartTime; start != nil {
			due = now + min(start.Add(seconds(*limit)).Sub(at.Wall), Horizon) // Sub stops at 292 years
		}
		if now < due {
			wake = min(due, now+clockCheck)
		} else {
			expired = true
			t.beginTermination(now, StopDeadline, &podstatus.Failure{Reason: ReasonDeadlineExceeded, Message: MessageDeadline}, SpecGrace(t.Pod()))
		}
	}
	return expired, wake
}

// Repeats reports whether a report with this fingerprint has no news, so that the event
// Repeated is enough.
func (t *State) Repeats(fp uint64, isStopped bool) bool {
	return t.provider.fp == fp && t.Stopped() == isStopped && (t.Held() || t.Stopped())
}

// MayBe reports whether an instance without a UID, from a List that began at
// seq, may be t's: if t was started before, or is an instance without a UID.
// Otherwise the instance is that of an earlier pod of the name.
func (t *State) MayBe(seq uint64) bool {
	if call := t.call.inflight; call != nil && call.Op == Start {
		return call.seq < seq
	}
	return t.api.pod == nil || t.Held() || t.Stopped() || t.evidence()
}

// Supersedable reports whether the pod is gone if the API has another one of its name.
func (t *State) Supersedable() bool {
	return !t.api.restored && (t.api.cached || t.Missing())
}

// LastReport returns the last report of the provider, or the status that the API has stored
// of it; nil if there is none. It must not be changed.
func (t *State) LastReport() *corev1.PodStatus { return t.report() }

// Unclaimed returns the last report of an instance that the provider has forgotten before its
// pod was seen, if it has exit codes, and its fingerprint; nil if there is none. It must not be
// changed.
func (t *State) Unclaimed() (last *Report, fp uint64) {
	if !t.Orphan() || !t.Stopped() || t.provider.status == nil {
		return nil, 0
	}
	ended := func(c corev1.ContainerStatus) bool { return c.State.Terminated != nil }
	if !slices.ContainsFunc(t.provider.status.ContainerStatuses, ended) {
		return nil, 0
	}
	return &Report{
		Stopped: t.end.reason != StopLost, Status: *t.provider.status,
		Annotations: t.provider.annotations, Delete: t.provider.deletes,
	}, t.provider.fp
}

// LastStatus returns the status that the next report is compared with: the last report, or
// else the stored status; nil if there is neither. It must not be changed.
func (t *State) LastStatus() *corev1.PodStatus {
	if report := t.report(); report != nil || t.api.pod == nil {
		return report
	}
	return &t.base().Status
}
