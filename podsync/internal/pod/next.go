// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// Next returns the next step of a lane. Passed must have been applied for now. nameFree says that
// no other pod of the same name blocks this one.
func (t *State) Next(now Instant, lane Lane, nameFree bool) Action {
	if lane == Calls {
		return t.decideCall(now, nameFree)
	}
	return t.decideWrite(now)
}

// Stage returns the stage of the pod.
func (t *State) Stage() Stage {
	switch {
	case !t.Known():
		return Unsynced
	case t.Orphan() && !t.Stopped():
		return Orphaned
	case t.released(), t.Stopped() && t.final() && !t.deleted() && !t.Gone():
		return Released // it may disappear, or stays as completed
	case t.Stopped() && (t.final() || t.Gone()):
		return Final
	case t.Stopped():
		return Stopped
	case t.end != nil:
		return Terminating
	case t.running():
		return Running
	case t.call.inflight != nil && t.call.inflight.Op == Start || t.Held():
		return Starting
	}
	return Waiting
}

// Blocks reports whether another pod of the same name must wait for t.
func (t *State) Blocks() bool { return !t.Stopped() && (t.Held() || !t.Known()) }

// decideCall returns the provider call that is due. nameFree says that no other pod of
// the same name blocks it.
func (t *State) decideCall(now Instant, nameFree bool) Action {
	switch {
	case !t.Known() && !t.provider.needsInspect && !(t.MayBeLost() && t.unsaved()):
		return Action{Wake: Never}
	case t.call.inflight != nil:
		s := Action{Wake: Never, Cancel: t.call.inflight.fate == counts && t.inTheWay(now)}
		if t.call.inflight.Op == Save && t.end != nil && !t.Stopped() {
			s.Wake = t.decideStop(now).Wake // until it is in the way
		}
		return s
	}
	var s Action
	switch {
	case t.Known():
		s = t.wantedCall(now, nameFree)
	case t.unsaved():
		s = Action{Op: Save, Wake: Never}
	default:
		s = t.decideInspect()
	}
	if s.Op != "" && now < t.call.retryAt {
		return Action{Wake: t.call.retryAt}
	}
	return s
}

// inTheWay reports whether the call in flight keeps Stop from being called, or from
// being called with a shorter grace period.
func (t *State) inTheWay(now Instant) bool {
	switch t.call.inflight.Op {
	case Admit, Annotate, Start, Update, Inspect:
		return t.end != nil
	case Save:
		return t.end != nil && !t.Stopped() && t.decideStop(now).Op == Stop
	case Stop:
		return !t.Stopped() && t.end.grace < t.call.inflight.Grace
	}
	return false
}

func (t *State) wantedCall(now Instant, nameFree bool) Action {
	idle := Action{Wake: Never}
	switch {
	case t.outlived() && (t.call.failures == 0 || t.decideRelease().Op == "" || t.Orphan()):
		return Action{Op: Remove, Wake: Never} // a Checkpoint that fails keeps no pod from its Release
	case t.Orphan():
		return idle // until it is verified
	case t.Stopped():
		if t.unsaved() {
			return Action{Op: Save, Wake: Never}
		}
		return t.decideRelease()
	case t.end != nil:
		s := t.decideStop(now)
		if s.Op == "" && t.unsaved() { // Stop does not wait for a disk, which may be full
			return Action{Op: Save, Wake: s.Wake}
		}
		return s
	case !t.running():
		switch {
		case t.Gone():
			return idle // until it is certain that the pod is there
		case !nameFree:
			return idle
		case t.rules.Admits && !t.provider.admitted:
			return Action{Op: Admit, Wake: Never}
		case t.rules.Annotates && !t.provider.annotated:
			return Action{Op: Annotate, Wake: Never}
		case t.rules.Annotates && len(t.provider.unsaved) > 0:
			return idle // until the API has them
		}
		return Action{Op: Start, Wake: Never}
	case t.provider.needsInspect:
		return t.decideInspect()
	case t.rules.Updates && t.changed():
		return Action{Op: Update, Wake: Never}
	case t.unsaved(): // when the change is accepted: it does not wait for a disk that is full
		return Action{Op: Save, Wake: Never}
	}
	return idle
}

// decideInspect returns the question to the Inspector.
func (t *State) decideInspect() Action { return Action{Op: Inspect, Wake: Never} }

// decideStop returns when Stop is due, and its grace period, which never grows: after
// the first success it is the rest of that call's grace period.
func (t *State) decideStop(now Instant) Action {
	e := t.end
	grace := e.grace
	if e.accepted > 0 {
		grace = min(grace, max(MinGrace, e.killAt-now))
	}
	if e.grace >= e.passed && now < e.recheck {
		return Action{Wake: e.recheck}
	}
	return Action{Op: Stop, Grace: grace, Wake: Never}
}

// decideRelease returns the call that makes the provider forget a stopped pod, which
// is due when the API no longer needs the pod.
func (t *State) decideRelease() Action {
	idle := Action{Wake: Never}
	if !t.Held() || !t.Gone() && !t.released() {
		return idle
	}
	switch {
	case t.rules.Releases:
		return Action{Op: Release, Wake: Never}
	case !t.Gone():
		return idle
	}
	// It ended on its own, and the provider kept it for its logs.
	return Action{Op: Stop, Grace: MinGrace, Wake: Never}
}

// changed reports whether the spec is newer than the one that the provider accepted.
func (t *State) changed() bool {
	if accepted := t.provider.acceptedPod; t.rules.UpdateMetadata && accepted != nil &&
		(!maps.Equal(accepted.Labels, t.Pod().Labels) || !maps.Equal(accepted.Annotations, t.Pod().Annotations)) {
		return true
	}
	if t.Pod().Generation > 0 {
		refused := t.provider.refused
		return t.Pod().Generation > t.provider.generation && (refused == nil || t.Pod().Generation > refused.generation)
	}
	// API servers before 1.34 keep no generation: compare the mutable fields. The
	// spec of an adopted instance is unknown.
	return t.provider.acceptedPod == nil || mutableChanged(&t.provider.acceptedPod.Spec, &t.Pod().Spec)
}

// Forgettable reports whether neither the API nor the provider has the pod.
func (t *State) Forgettable() bool {
	if !t.Known() || !t.Gone() || t.api.presence == missing || t.api.cached || !t.Stopped() || t.call.inflight != nil || t.write.inflight != nil {
		return false
	}
	return !t.Held() && !t.provider.saved.mayExist()
}

// A need is what the API lacks of the pod.
type need uint8

const (
	needNothing  need = iota
	needStatus        // a status that is not final
	needFinal         // the final status
	needDelete        // the DELETE
	needDeletion      // the DELETE once more, after a GET, because the deletion did not finish
)

// need returns what the API lacks of the pod. A status that the API calls invalid is not
// needed until it changes.
func (t *State) need() need {
	n := &t.write.news
	switch {
	case !t.Stopped():
		if n.contestedAt != 0 || n.statusSeq == n.storedSeq && !n.overwritten || n.statusSeq == n.rejectedSeq || t.final() {
			return needNothing
		}
		return needStatus
	case !t.final():
		return needFinal
	case t.unreleased():
		return needDelete
	case t.deleted() && len(t.Pod().Finalizers) == 0:
		return needDeletion
	}
	return needNothing
}

// decideWrite returns the API request that is due.
func (t *State) decideWrite(now Instant) Action {
	if !t.Known() || t.api.pod == nil || t.Gone() || t.write.inflight != nil || t.api.recorded {
		return Action{Wake: Never} // a status is computed from what the API has, not from a record
	}
	var s Action
	at := t.write.retryAt
	switch need := t.need(); {
	case t.api.notFoundAt > 0:
		s, at = Action{Op: Get}, max(at, t.api.notFoundAt+goneAfter)
	case t.write.read != readNothing:
		s = Action{Op: Get, Urgent: true}
	case need == needNothing && t.write.news.contestedAt != 0 && !t.write.news.asked && now < at:
		return Action{Wake: at} // the List is asked for then
	case need == needNothing:
		return Action{Wake: Never}
	case need == needStatus:
		s = Action{Op: Patch, Urgent: t.Pod().Status.Phase == corev1.PodPending || len(t.provider.unsaved) > 0}
		at = max(at, t.mergeUntil(), t.write.pace.notBefore)
	case need == needFinal:
		s = Action{Op: Patch, Urgent: true}
	case need == needDelete:
		s = Action{Op: Delete, Urgent: true}
		if t.api.goingAt > 0 {
			at = max(at, t.api.goingAt+goneAfter) // the API server is removing it
		}
	case need == needDeletion:
		s, at = Action{Op: Delete}, max(at, t.write.releasedAt+goneAfter)
	}
	if now < at {
		return Action{Wake: at}
	}
	if s.Op == Delete && t.write.unread {
		s.Op = Get
	}
	s.Wake = Never
	return s
}

// Unfinished reports whether the API lacks the final status or the deletion of a pod that has
// stopped.
func (t *State) Unfinished() bool {
	return t.Stopped() && t.Known() && t.api.pod != nil && !t.Gone() && !t.api.recorded && t.api.notFoundAt == 0 && (!t.final() || t.unreleased())
}

// unreleased reports whether the object must be deleted once its final status is stored:
// because it is being deleted, or because the provider asks for it and a controller will
// make another one.
func (t *State) unreleased() bool {
	return !t.released() && (t.deleted() || t.provider.deletes && controlled(t.Pod()))
}

// mergeUntil returns the Instant until which a status waits for the next one, so that
// one write has both.
func (t *State) mergeUntil() Instant {
	switch {
	case len(t.provider.unsaved) > 0:
		return 0
	case t.write.news.quietSeq == t.write.news.statusSeq:
		return t.write.news.reportedAt + t.rules.PendingAfter
	case t.end != nil:
		return t.end.since + t.rules.PendingAfter
	case !t.running():
		return t.api.since + t.rules.PendingAfter
	case t.Pod().Status.StartTime == nil && (t.report() == nil || podstatus.Phase(&t.Pod().Spec, t.report()) == corev1.PodPending) && !t.heldUp():
		return t.api.since + t.rules.PendingAfter
	}
	return 0
}

// heldUp reports whether a container can't start, by the last report, for a reason that a user
// should read at once, such as an image that can't be pulled.
func (t *State) heldUp() bool {
	report := t.report()
	return report != nil && slices.ContainsFunc(slices.Concat(report.InitContainerStatuses, report.ContainerStatuses), func(c corev1.ContainerStatus) bool {
		w := c.State.Waiting
		return w != nil && w.Reason != "" && w.Reason != podstatus.ReasonContainerCreating && w.Reason != podstatus.ReasonPodInitializing
	})
}
