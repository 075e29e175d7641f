// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// statusStored records that the API has the status of c: it had it already, or resp
// has it. same says that the status of resp is the computed one, so that no write of
// another client is left to react to.
func (t *State) statusStored(now Instant, c *Call, resp *corev1.Pod, same bool) {
	t.write.inflight = nil
	t.write.failures, t.write.retryAt = 0, 0
	t.write.rivals.conflicts = 0
	t.annotationsSettled(c.Annotations)
	if resp != nil {
		t.paceWrites(now)
	}
	if resp == nil {
		resp, same = c.Pod, true
	} else {
		if t.write.news.statusSeq == t.write.news.storedSeq {
			t.repaired(now)
		}
		t.answer(now, resp)
	}
	t.write.news.storedSeq = c.want
	ours := t.Pod().ResourceVersion == resp.ResourceVersion
	if ours && same {
		t.write.news.contestedAt = 0 // the informer may have shown this version before
	}
	if t.write.news.statusSeq != c.want {
		return
	}
	switch {
	case ours && same:
		t.write.news.overwritten, t.provider.lost, t.provider.withdrawn = false, nil, nil
		t.setMirror() // from here on the object is its own report
	case ours && resp.ResourceVersion == c.Pod.ResourceVersion:
		t.write.news.overwritten, t.write.news.contestedAt, t.provider.lost, t.provider.withdrawn = false, 0, nil, nil // the server drops fields: a feature gate is off
	}
	if c.Over && podstatus.IsTerminal(t.Pod().Status.Phase) { // which may be newer than resp
		t.becomeFinal()
	}
}

// paceWrites lets a burst of statuses through, and then one each writeInterval:
// a provider that reports each change of a message must not write each of them.
func (t *State) paceWrites(now Instant) {
	t.write.pace.spent = max(t.write.pace.spent-(now-t.write.pace.lastAt), 0) + writeInterval
	t.write.pace.lastAt = now
	t.write.pace.notBefore = now + t.write.pace.spent - writeBurst*writeInterval
}

// repaired records a status write that no report caused. If another client undoes
// each write, the writes become rarer.
func (t *State) repaired(now Instant) {
	if now-t.write.rivals.repairedAt > 2*t.rules.Retry.Cap {
		t.write.rivals.repairs = 0
	}
	t.write.rivals.repairedAt = now
	t.write.rivals.repairs = min(t.write.rivals.repairs+1, 250)
	if t.write.rivals.repairs > repairsAtOnce {
		t.write.retryAt = now + t.rules.Retry.Delay(int(t.write.rivals.repairs-repairsAtOnce))
	}
}

// statusRejected records that the API refused the status as invalid. The status is not
// sent again until it changes. A final status is sent again as podstatus.Minimal. If
// that is refused too, it stays unwritten: it must not keep the pod from being
// deleted.
func (t *State) statusRejected(c *Call) {
	t.write.inflight = nil
	t.write.news.rejectedSeq = c.want
	if c.Over {
		t.becomeInvalid()
	}
}

// annotationsRejected records that the API refused the annotations as invalid. They are not
// sent again unless they change.
func (t *State) annotationsRejected(c *Call) {
	t.write.inflight = nil
	t.annotationsSettled(c.Annotations)
	t.write.news.statusSeq++ // the status is sent without them
}

// notFound records the answer "no such pod".
func (t *State) notFound(now Instant) {
	t.write.inflight = nil
	if t.api.notFoundAt == 0 {
		t.api.notFoundAt = now
	}
}

// deleteSent records that the API has accepted the DELETE. Finalizers may still keep the
// object.
func (t *State) deleteSent(now Instant) {
	t.write.inflight, t.write.unread = nil, true
	t.write.failures, t.write.retryAt = 0, 0
	t.becomeReleased(now)
}

// conflicted records that another client has written the pod since the version from
// which the status was computed.
func (t *State) conflicted(now Instant) {
	if !older(t.write.inflight.Pod, t.Pod()) { // else the informer has it already
		t.write.read = readRaced
	}
	t.write.inflight = nil
	if phase := t.Pod().Status.Phase; t.write.rivals.conflicts == 0 || t.write.rivals.contested != phase {
		t.write.rivals.contested, t.write.rivals.conflicts = phase, 0
	}
	t.write.rivals.conflicts = min(t.write.rivals.conflicts+1, 250)
	if t.write.failures > 0 {
		// A lost race is no outage: the next try may succeed.
		t.write.retryAt = now + min(t.rules.Retry.Delay(int(t.write.failures)), 4*t.rules.Retry.Base)
	}
	t.write.failures++
}

// pinned reports whether a patch that changes the phase must be conditional on the version
// from which it was computed. Other clients that write again and again without changing the
// phase must not keep it from being written.
func (t *State) pinned() bool {
	return t.write.rivals.conflicts < pinnedTries || t.write.rivals.contested != t.Pod().Status.Phase
}

// finishGet applies the answer to a GET; pod is nil if the instance does not exist.
func (t *State) finishGet(now Instant, seq uint64, pod *corev1.Pod) {
	base, beaten := t.write.inflight.Pod, t.write.read == readRaced
	t.write.read = readNothing
	if pod != nil && t.lacks(pod) {
		t.foreign(now, seq, Known(pod))
	}
	t.write.inflight = nil
	switch {
	case pod != nil:
		t.api.notFoundAt = 0
		t.write.news.overwritten = true
		t.write.unread = t.write.unread && !(t.final() && (pod.DeletionTimestamp != nil || t.provider.deletes)) // else it lives again
		if beaten && pod.ResourceVersion == base.ResourceVersion {
			// No other client has written: the conflict has another cause.
			t.write.retryAt = now + t.rules.Retry.Delay(int(t.write.failures))
		}
	case t.api.notFoundAt == 0:
		t.api.notFoundAt = now
		if t.write.unread {
			t.becomeReleased(now) // the DELETE was stored
		}
	default:
		t.markMissing(now) // the second answer
	}
}

// writeFailed schedules a retry of the current request.
func (t *State) writeFailed(now Instant, ev WriteFailed) {
	if t.write.inflight.Op == Patch && ev.MayBeStored && !older(t.write.inflight.Pod, t.Pod()) {
		// A status computed from the version before might have another start time
		// than the stored one.
		t.write.read = readUnsure
	}
	t.write.unread = t.write.unread || t.write.inflight.Op == Delete && ev.MayBeStored
	t.write.inflight = nil
	t.write.failures++
	delay := t.rules.Retry.Delay(int(t.write.failures))
	if ev.Unanswered {
		delay = min(delay, UnansweredCap)
	}
	t.write.retryAt = now + max(delay, ev.After)
}
