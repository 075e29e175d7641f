// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// callStarted records a provider call.
func (t *State) callStarted(now Instant, seq uint64, s Action) *Call {
	c := &Call{Op: s.Op, Since: now, seq: seq, Grace: s.Grace, Pod: t.Pod(), LostSince: t.provider.lostSince}
	t.call.inflight = c
	if _, waited := t.call.err.(*NameTaken); waited {
		t.call.err, t.call.failures = nil, 0
	}
	switch s.Op {
	case Start:
		t.becomeHeld()
	case Save:
		c.End, t.provider.saved.Unsure = t.end.record(), true
	case Stop:
		c.Over, c.Reason = t.Stopped(), t.end.reason
		t.end.stops++
		t.end.passed = s.Grace
	}
	return c
}

// callReturned applies the result of a provider call.
func (t *State) callReturned(at Moment, ev Returned) (news News) {
	now := at.Since
	c := t.call.inflight
	t.call.inflight = nil
	t.provider.saved.Unsure = t.provider.saved.Unsure || ev.Saved
	news.Canceled = c.fate != counts
	if c.fate == stale {
		// The gate was closed during the call: only a List that begins now shows its
		// effect.
		t.provider.born = ev.Seq
		if ev.Result == Succeeded && ev.Report.Stopped && !t.rules.Releases && !t.Known() {
			t.keepReport(&ev.Report.Status, nil)
		}
		news.Stale, news.Relist = true, true
		return news
	}
	switch {
	case ev.Result == Succeeded, ev.Result == NoSuchPod && c.Op != Inspect:
		t.call.failures, t.call.err = 0, nil
		t.callSucceeded(now, c, ev, &news)
	case c.Op == Inspect:
		t.provider.needsInspect = false // the next List decides
		switch {
		case ev.Result != NoSuchPod:
		case t.MayBeLost():
			news.Lost = t.markLost(at)
		default:
			news.Lost = t.absent(at, c.seq, true) // a report since then is newer
		}
	case ev.Result == Refused && c.Op != Stop && c.Op != Release && !t.stands(c):
		// It is about a spec that the API does not have: the call is repeated with the newest.
		t.call.failures, t.call.err = 0, nil
	case ev.Result == Refused && c.Op == Update:
		// It would be refused again. The pod keeps running unchanged.
		t.call.failures, t.call.err = 0, ev.Err
		t.provider.refused = &refusal{generation: c.Pod.Generation, answer: ev.Err.Error()}
		if c.Pod.Generation == 0 {
			t.provider.acceptedPod = c.Pod // there is no number by which to know it
		}
		t.write.news.statusSeq++
	case ev.Result == Refused && (c.Op == Start || c.Op == Admit || c.Op == Annotate):
		t.call.err = ev.Err
		t.beginTermination(now, StopRejected, &podstatus.Failure{Reason: ev.Rejection.Reason, Message: messageRejected + ev.Rejection.Message}, MinGrace)
		t.end.unstarted = !t.started()
	case c.fate == canceled:
		t.call.retryAt = 0 // it failed because it was canceled
	default:
		t.call.failures++
		delay := t.rules.Retry.Delay(int(t.call.failures))
		if ev.After > 0 {
			delay = min(ev.After, Horizon)
		}
		t.call.retryAt = now + delay
		if c.Op == Save && t.end != nil && t.end.recheck > now {
			t.call.retryAt = min(t.call.retryAt, t.end.recheck) // Stop does not wait for it
		}
		if t.call.err == nil || t.call.err.Error() != ev.Err.Error() {
			t.write.news.statusSeq++ // the message in the status changes
		}
		t.call.err = ev.Err
	}
	return news
}

// callSucceeded applies the result of a call that returned no error.
func (t *State) callSucceeded(now Instant, c *Call, ev Returned, news *News) {
	st := ev.Report
	switch c.Op {
	case Admit:
		t.provider.admitted = t.stands(c)
		return
	case Save:
		t.provider.saved = Saved{Exists: true, Generation: t.savedGeneration(c), Lost: c.LostSince != 0, End: c.End}
		return
	case Remove:
		t.provider.saved = Saved{}
		return
	case Annotate:
		t.provider.annotated = true
		t.takeAnnotations(st.Annotations)
		return
	case Release:
		t.becomeForgotten()
		return
	case Start, Update:
		if t.stands(c) {
			t.provider.generation, t.provider.disputed = max(t.provider.generation, c.Pod.Generation), false
		} else {
			t.dispute()
		}
		if ev.Saved {
			t.provider.saved = Saved{Exists: true, Generation: t.savedGeneration(c)}
		}
		if !t.Stopped() {
			t.becomeRunning()
		}
		t.write.news.statusSeq++
		t.provider.refused = nil
		t.provider.resources = resourcesOf(c.Pod)
		if c.Pod.Generation == 0 || t.rules.UpdateMetadata {
			t.provider.acceptedPod = c.Pod
		}
	case Stop:
		if ev.Result == NoSuchPod {
			st = &Report{Stopped: true}
		}
		if c.Over {
			t.becomeForgotten()
			return
		}
	}
	if t.provider.seenSeq <= c.seq || st.Stopped {
		t.observe(now, ev.Seq, st, ev.FP, false)
		t.confirmed(c.seq)
	} else if ev.FP != t.provider.fp {
		news.Relist = true // a report came during the call: which is newer, a List says
		t.takeAnnotations(t.unreported(st.Annotations))
	}
	if c.Op == Stop && !t.Stopped() {
		t.stopAccepted(now, c)
	}
}

// savedGeneration returns the generation of the record that a call has made.
func (t *State) savedGeneration(c *Call) int64 {
	if !t.stands(c) {
		return NoGeneration
	}
	return c.Pod.Generation
}

// stopAccepted records that the provider is stopping the pod.
func (t *State) stopAccepted(now Instant, c *Call) {
	e := t.end
	killAt := now + c.Grace
	if e.accepted == 0 {
		e.killAt, e.recheck = killAt, killAt+stopSlack
	} else {
		// After the grace period, Stop is called again each Relist.
		e.killAt = min(e.killAt, killAt)
		e.recheck = max(e.killAt+stopSlack, now+t.rules.Relist)
	}
	e.accepted = now
}
