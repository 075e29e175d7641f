// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// A step is what one lane of a pod does next.
type step struct {
	op     Op            // "": nothing, until wake or something happens
	grace  time.Duration // of OpStop
	cancel bool          // the call under way is in the way
	wake   instant       // when to ask again; never: not by itself
}

// position returns the stage of the pod.
func (t *track) position() Stage {
	switch {
	case !t.known:
		return StageUnsynced
	case t.released, t.stopped && t.final && !t.deleted && !t.removed:
		return StageReleased // it may go, or rests there as completed
	case t.stopped && (t.final || t.removed):
		return StageFinal
	case t.stopped:
		return StageStopped
	case t.end != nil:
		return StageTerminating
	case t.running:
		return StageRunning
	case t.call != nil && t.call.op == OpStart || t.held:
		return StageStarting
	}
	return StageWaiting
}

// over reports whether the API may be told that the pod has ended: nothing of
// it runs, or nobody confirmed that in the time the policy gives.
func (t *track) over() bool { return t.stopped || t.forced }

// blocksName reports whether another pod of the same name must wait for t.
func (t *track) blocksName() bool { return !t.stopped && (t.held || !t.known) }

// advance makes the transitions that need nothing but time or are due already.
// It reports whether the pod's deadline is over, and when to ask again.
func (t *track) advance(r *rules, now instant) (expired bool, wake instant) {
	wake = never
	if !t.known {
		return false, wake
	}
	if t.end != nil && !t.stopped && !t.held && t.call == nil {
		t.stop(r, now) // T15: the provider never heard of it
	}
	if t.pod == nil || t.removed {
		return false, wake
	}
	if t.over() && t.final && t.finalized {
		t.released = true // I20: whoever holds the finalizers ends it
	}
	if limit := t.pod.Spec.ActiveDeadlineSeconds; limit != nil && t.end == nil && !r.policy.IgnoreDeadline {
		at := t.since + seconds(*limit)
		if start := t.pod.Status.StartTime; start != nil {
			at = r.at(start.Add(seconds(*limit)))
		}
		if now < at {
			wake = at
		} else {
			expired = true
			t.finish(now, StopDeadline, &podstatus.Failure{Reason: ReasonDeadlineExceeded, Message: messageDeadline}, specGrace(t.pod))
		}
	}
	if e := t.end; e != nil && r.policy.ReleaseAfter > 0 && t.deleted && !t.stopped && !t.forced {
		at := e.since + e.grace + r.policy.ReleaseAfter
		if now < at {
			wake = min(wake, at)
		} else {
			t.forced = true
			t.want++
		}
	}
	return expired, wake
}

// nextCall says what the provider is to be called for. NameFree says that no
// other pod of the same name blocks it.
func (t *track) nextCall(r *rules, now instant, nameFree bool) step {
	switch {
	case !t.known:
		return step{wake: never}
	case t.call != nil:
		return step{wake: never, cancel: !t.call.canceled && t.inTheWay()}
	}
	s := t.wantedCall(r, now, nameFree)
	if s.op != "" && now < t.retryAt {
		return step{wake: t.retryAt}
	}
	return s
}

// inTheWay reports whether the call under way keeps the pod from being stopped,
// or from being stopped in the time that is left.
func (t *track) inTheWay() bool {
	switch t.call.op {
	case OpAdmit, OpStart, OpUpdate, OpInspect:
		return t.end != nil // T10
	case OpStop:
		return !t.stopped && t.end.grace < t.call.grace // T11
	}
	return false
}

func (t *track) wantedCall(r *rules, now instant, nameFree bool) step {
	idle := step{wake: never}
	switch {
	case t.orphan:
		return idle // until it is verified
	case t.stopped:
		return t.nextRelease(r)
	case t.end != nil:
		return t.nextStop(now)
	case !t.running:
		switch {
		case !nameFree && !r.policy.Overlap:
			return idle
		case r.admits && !t.admitted:
			return step{op: OpAdmit, wake: never}
		}
		return step{op: OpStart, wake: never}
	case t.look:
		return step{op: OpInspect, wake: never}
	case r.updates && t.changed():
		return step{op: OpUpdate, wake: never}
	}
	return idle
}

// nextStop says when Stop is called, and with which grace period: one that
// never grows, and from the first success on no more than is left of it.
func (t *track) nextStop(now instant) step {
	e := t.end
	grace := e.grace
	if e.accepted > 0 {
		grace = min(grace, max(minGrace, e.killAt-now))
	}
	if e.passed > 0 {
		grace = min(grace, e.passed)
	}
	if e.accepted > 0 && e.grace >= e.passed && now < e.recheck {
		return step{wake: e.recheck}
	}
	return step{op: OpStop, grace: grace, wake: never}
}

// nextRelease says whether the provider is to forget a stopped pod: when the
// API does not need it any more.
func (t *track) nextRelease(r *rules) step {
	idle := step{wake: never}
	if !t.held || !t.removed && !(t.released && t.final) {
		return idle
	}
	switch {
	case r.releases:
		return step{op: OpRelease, wake: never}
	case !t.removed:
		return idle
	}
	// T19: it ended by itself and was left there for its logs.
	return step{op: OpStop, grace: minGrace, wake: never}
}

// changed reports whether the spec is newer than what the provider accepted.
func (t *track) changed() bool {
	if t.pod.Generation > 0 {
		return t.pod.Generation > t.accepted
	}
	// API servers before 1.34 keep no generation: compare what can change. What
	// a pod that was adopted runs with nobody knows.
	return t.acked == nil || t.acked != t.pod && mutableChanged(&t.acked.Spec, &t.pod.Spec)
}

// mutableChanged compares the fields of a spec that the API lets change.
func mutableChanged(a, b *corev1.PodSpec) bool {
	images := func(x, y []corev1.Container) bool {
		if len(x) != len(y) {
			return true
		}
		for i := range x {
			if x[i].Image != y[i].Image || !equality.Semantic.DeepEqual(x[i].Resources, y[i].Resources) {
				return true
			}
		}
		return false
	}
	return images(a.Containers, b.Containers) || images(a.InitContainers, b.InitContainers) ||
		!equality.Semantic.DeepEqual(a.EphemeralContainers, b.EphemeralContainers) ||
		!equality.Semantic.DeepEqual(a.ActiveDeadlineSeconds, b.ActiveDeadlineSeconds) ||
		!equality.Semantic.DeepEqual(a.Tolerations, b.Tolerations)
}

// forgettable reports whether nothing of the pod is left, anywhere.
func (t *track) forgettable() bool {
	if !t.known || !t.removed || t.inCache || !t.stopped || t.call != nil || t.write != nil {
		return false
	}
	return !t.held
}

// nextWrite says what the API is to be told.
func (t *track) nextWrite(r *rules, now instant) (s step, urgent bool) {
	s = step{wake: never}
	if !t.known || t.pod == nil || t.removed || t.orphan || t.write != nil {
		return s, false
	}
	if t.goneAt > 0 {
		if at := max(t.goneAt+goneAfter, t.writeAt); now < at {
			return step{wake: at}, false
		}
		return step{op: OpGet, wake: never}, false
	}
	if t.reload {
		if now < t.writeAt {
			return step{wake: t.writeAt}, false
		}
		return step{op: OpGet, wake: never}, true
	}
	var at instant
	switch {
	case !t.over():
		if t.want == t.stored && !t.stale || t.want == t.refused || t.final {
			return s, false
		}
		s.op, at, urgent = OpPatch, t.mergeUntil(r), t.pod.Status.Phase == corev1.PodPending
	case !t.final:
		s.op, urgent = OpPatch, true
	case t.deleted && !t.released:
		s.op, urgent = OpDelete, true
		if t.goingAt > 0 {
			at = t.goingAt + goneAfter // it is as good as gone
		}
	case t.deleted && len(t.pod.Finalizers) == 0 && !t.finalized:
		// A deletion that did not finish; one more call finishes it.
		s.op, at = OpDelete, t.releasedAt+goneAfter
	default:
		return s, false
	}
	if at = max(at, t.writeAt); now < at {
		return step{wake: at}, false
	}
	return s, urgent
}

// mergeUntil is until when a status waits for the one that is expected to
// follow it at once, so that one write does for both: P1.
func (t *track) mergeUntil(r *rules) instant {
	switch {
	case t.end != nil:
		return t.end.since + r.pendingAfter
	case !t.running:
		return t.since + r.pendingAfter
	case t.pod.Status.StartTime == nil && (t.observed == nil || podstatus.Phase(&t.pod.Spec, t.observed) == corev1.PodPending):
		return t.since + r.pendingAfter
	}
	return 0
}
