// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// observe applies a report of the provider. seq is the time of the report, in
// the order of events; fromList says that it is from a List that began then. st is private
// to t, and fp is its fingerprint. observe returns the reason if it drops the report.
func (t *State) observe(now Instant, seq uint64, st *Report, fp uint64, fromList bool) (dropped string) {
	if fromList && seq < t.provider.seenSeq {
		return "" // a newer report is known
	}
	if t.Stopped() && !st.Stopped {
		if !fromList {
			return DroppedAfterStop
		}
		// The provider broke its promise: stop it again.
		t.becomeHeld()
		t.provider.seenSeq, t.provider.fp = seq, fp
		t.end.accepted, t.end.recheck, t.end.passed = 0, 0, 0
		return DroppedAfterStop
	}
	t.provider.seenSeq = seq
	t.shown(fromList)
	if t.provider.instance == none {
		t.becomeHeld()
	}
	if fp == t.provider.fp && st.Stopped == t.Stopped() {
		return ""
	}
	t.provider.fp = fp
	t.takeAnnotations(st.Annotations)
	if t.echoes(&st.Status) {
		t.takeEcho(now, st)
	} else {
		t.take(now, st)
	}
	t.provider.deletes = t.provider.deletes || st.Stopped && st.Delete
	if st.Stopped {
		t.markStopped(now)
	}
	return ""
}

// markStopped records that nothing runs and nothing will.
func (t *State) markStopped(now Instant) {
	if t.Stopped() {
		return
	}
	unstarted := t.Seen() && !t.running() && !t.started()
	t.provider.needsInspect = false
	t.becomeEnded()
	t.call.retryAt, t.call.failures = 0, 0
	t.beginTermination(now, StopCompleted, nil, SpecGrace(t.Pod()))
	t.end.unstarted = t.end.unstarted || unstarted
	if !t.rules.Releases && t.end.stops > 0 {
		t.becomeForgotten() // Stop was all there is
	}
	t.write.news.statusSeq++
}

// absent records that a List that began at seq left the pod out or, if sure is true,
// that the Inspector does not know it. It reports whether the pod is lost.
func (t *State) absent(at Moment, seq uint64, sure bool) (lost bool) {
	now := at.Since
	if !t.Held() || t.call.inflight != nil || t.provider.seenSeq >= seq {
		return false
	}
	if t.Stopped() || t.Orphan() {
		// The provider has forgotten the pod on its own.
		if t.Orphan() {
			t.beginTermination(now, StopLost, nil, MinGrace) // unless it had stopped
		}
		t.markStopped(now)
		t.becomeForgotten()
		return false
	}
	if t.provider.absentAt == 0 {
		t.provider.absentAt = now
	}
	// Two lists that follow each other at once are one observation.
	twice := now-t.provider.absentAt >= t.rules.Relist/2
	switch {
	case t.end != nil && t.end.stops == 0:
		return false // the result of Stop decides
	case t.end != nil:
		// An accepted Stop has had its effect. If Stop keeps failing, two Lists
		// prove more.
		if t.end.accepted > 0 || twice {
			t.markStopped(now)
			t.becomeForgotten()
		}
		return false
	case !t.running():
		return false // Start is being retried, and decides
	case sure || twice && t.rules.CompleteList:
		return t.markLost(at)
	case twice:
		t.look(missed, t.provider.absentAt)
		return false
	}
	t.provider.needsInspect = t.rules.Inspects
	return false
}

// markLost decides about a pod that had started and that the provider does not
// hold. It reports false if the pod had ended before, and so is not lost.
func (t *State) markLost(at Moment) (lost bool) {
	now := at.Since
	t.look(listed, 0)
	if t.end == nil && t.endedBy(&corev1.PodStatus{}) {
		// It had ended, and the API knows how: only its phase is not written.
		t.beginTermination(now, StopCompleted, nil, SpecGrace(t.Pod()))
		t.markStopped(now)
		t.becomeForgotten()
		return false
	}
	again := t.rules.Lost == LostRestart ||
		t.rules.Lost == LostByRestartPolicy && (t.Pod().Spec.RestartPolicy == corev1.RestartPolicyAlways || t.Pod().Spec.RestartPolicy == "")
	if !again {
		t.beginTermination(now, StopLost, &podstatus.Failure{Reason: ReasonLost, Message: MessageLost}, MinGrace)
		t.mayRun()
		return true
	}
	status, _ := podstatus.Next(t.base(), t.update(at.Wall))
	ended := podstatus.Lost(&status)
	t.provider.lost = &ended
	t.setReport(nil)
	t.provider.fp = 0
	// Start may succeed again and again, and List not show the pod.
	t.call.retryAt = now + t.rules.Retry.Delay(int(t.provider.losses))
	t.provider.losses = min(t.provider.losses+1, 250)
	if t.running() {
		t.becomeHeld()
	}
	t.api.since = now
	t.write.news.statusSeq++
	return true
}

// classify adopts the pod, finds it lost, or lets it start, once the provider has said
// whether it holds an instance. It reports whether the pod is lost.
func (t *State) classify(at Moment) (lost bool) {
	now := at.Since
	if t.Held() || t.end != nil {
		t.provider.needsInspect = false
	}
	if podstatus.IsTerminal(t.Pod().Status.Phase) {
		t.becomeFinal() // the status needs no further write
	}
	if t.recall(now) {
		t.look(listed, 0)
		return false
	}
	if t.Held() {
		t.look(listed, 0)
		t.provider.admitted = true
		if !t.Stopped() {
			t.becomeRunning()
			if t.provider.generation == 0 && !t.provider.disputed {
				t.accept(t.Pod().Status.ObservedGeneration)
			}
			if t.rules.UpdateMetadata && t.provider.acceptedPod == nil && t.Pod().Generation > 0 {
				t.provider.acceptedPod = t.Pod() // what changed before is not known
			}
			if t.end == nil && t.ended() {
				t.beginTermination(now, StopCompleted, nil, SpecGrace(t.Pod()))
			}
		}
		return false
	}
	if t.end != nil && t.started() && !t.final() {
		t.mayRun()
	}
	if t.end == nil && t.started() {
		t.provider.admitted = true
		if t.rules.CompleteList {
			return t.markLost(at)
		}
		t.look(doubted, now)
		return false
	}
	t.look(listed, 0)
	return false
}

// mayRun makes Stop be called for a pod that had started, that ends, and that a List leaves out
// at the first sight: the List may be a mistake.
func (t *State) mayRun() {
	if t.provider.instance == none && !t.rules.CompleteList {
		t.becomeHeld()
	}
}

// keepReport keeps the last report of an instance that has ended, while the gate is closed.
func (t *State) keepReport(status *corev1.PodStatus, end *termination) {
	t.provider.kept = &keptReport{status: status, end: end}
}

// recall applies the kept report to a pod that the provider no longer holds. It reports false
// if there is none.
func (t *State) recall(now Instant) bool {
	kept := t.provider.kept
	t.provider.kept = nil
	if kept == nil || t.Held() {
		return false
	}
	t.setReport(kept.status)
	if kept.end != nil {
		t.beginTermination(now, kept.end.reason, kept.end.failure, kept.end.grace)
	} else {
		t.beginTermination(now, StopCompleted, nil, SpecGrace(t.Pod()))
	}
	t.write.news.statusSeq++
	return true
}

// reset drops the reports of the provider and all state derived from them. Results of
// calls and requests in flight will not count. An eviction is kept: Evict was its only cause.
// So is what only the checkpoint says of a pod.
func (t *State) reset(now Instant) {
	for _, c := range [...]*Call{t.call.inflight, t.write.inflight} {
		if c != nil {
			c.fate = stale
		}
	}
	pod, presence := t.api.pod, t.api.presence
	if pod != nil && t.provider.status != nil && (t.Stopped() || t.ended()) {
		t.keepReport(t.provider.status, t.end)
	}
	p := &t.provider
	*p = providerState{born: p.born, nodeName: p.nodeName, admitted: p.admitted, disputed: p.disputed, kept: p.kept, saved: p.saved}
	t.call = callState{inflight: t.call.inflight}
	w := t.write
	t.write = writeState{inflight: w.inflight, unread: w.unread || w.inflight != nil && w.inflight.Op == Delete, news: newsState{statusSeq: w.news.statusSeq + 1, storedSeq: w.news.storedSeq}}
	if e := t.end; pod != nil && e != nil && e.reason == StopEvicted {
		t.end = &termination{reason: e.reason, failure: e.failure, since: e.since, grace: e.grace}
	} else {
		t.end = nil
	}
	if pod == nil { // an orphan: it is verified again
		t.api.presence, p.instance, p.sight = orphan, held, listed
		t.suspect.at = now + t.suspect.wait
		return
	}
	t.api.pod = nil
	t.setPod(now, pod)
	t.resume(now)
	switch presence {
	case missing:
		t.doubt(now) // what was not confirmed is not certain now either
	case gone:
		t.beginTermination(now, StopDeleted, nil, t.vanishedGrace())
	}
}
