// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// desire takes a version of the object: from the informer, or the answer to a
// write. It reports whether it was news. That the object is there is for the
// informer to say: an answer may come after it was deleted.
func (t *track) desire(r *rules, now instant, pod *corev1.Pod) bool {
	old := t.pod
	if older(pod, old) {
		return false
	}
	t.pod = pod
	if old != nil && old.ResourceVersion == pod.ResourceVersion {
		// The same version from the other source: ours goes, the cache's stays.
		if t.observed == &old.Status {
			t.observed = &pod.Status
		}
		return false
	}
	if t.reload {
		t.reload, t.beaten, t.writeAt = false, false, 0
	}
	wasDeleted, grace := t.deleted, graceOf(pod)
	t.deleted = pod.DeletionTimestamp != nil
	atOnce := t.deleted && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
	t.finalized = atOnce && len(pod.Finalizers) > 0
	if atOnce && !t.finalized && t.goingAt == 0 {
		t.goingAt = now
	}
	if t.deleted {
		t.finish(now, StopDeleted, nil, grace)
	}
	if old == nil || old.Generation != pod.Generation || t.deleted != wasDeleted ||
		pod.Generation == 0 && mutableChanged(&old.Spec, &pod.Spec) {
		t.retryAt, t.failures = 0, 0 // I15: what has changed may work now
	}
	switch {
	case podstatus.IsTerminal(pod.Status.Phase):
		t.finish(now, StopCompleted, nil, specGrace(pod))
	case t.final:
		// Somebody has undone the end. It is written again (the API server
		// would let a failed pod run).
		t.final = false
	}
	t.stale = true
	return true
}

// older reports whether a is an older version than b.
func older(a, b *corev1.Pod) bool {
	if b == nil {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order < 0
}

// vanish takes note that the object is gone.
func (t *track) vanish(now instant) {
	if t.removed {
		return
	}
	t.removed = true
	t.retryAt = 0
	t.finish(now, StopDeleted, nil, minGrace)
}

// finish makes the pod end, or end sooner.
func (t *track) finish(now instant, reason StopReason, failure *podstatus.Failure, grace time.Duration) {
	grace = min(max(grace, minGrace), horizon)
	if t.end != nil {
		if grace < t.end.grace {
			t.end.grace = grace
			t.retryAt, t.failures = 0, 0 // I15
		}
		return
	}
	t.end = &ending{reason: reason, failure: failure, since: now, grace: grace}
	t.retryAt, t.failures = 0, 0
}

// specGrace is how long the pod wants to be given.
func specGrace(pod *corev1.Pod) time.Duration {
	if pod == nil || pod.Spec.TerminationGracePeriodSeconds == nil {
		return corev1.DefaultTerminationGracePeriodSeconds * time.Second
	}
	return max(minGrace, seconds(*pod.Spec.TerminationGracePeriodSeconds))
}

// graceOf is how long whoever deletes the pod gives it.
func graceOf(pod *corev1.Pod) time.Duration {
	if pod.DeletionGracePeriodSeconds == nil {
		return specGrace(pod)
	}
	return max(minGrace, seconds(*pod.DeletionGracePeriodSeconds))
}

// seconds returns so many seconds, as far as a time.Duration has them. The API has
// no limits for a grace period: "for ever" is often spelled as the largest
// integer, and what is negative means at once.
func seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), int64(horizon/time.Second))) * time.Second
}

// observe takes what the provider says of the pod. Seq is when it was said, in
// Controller.seq; listed says that it is from a List begun then. St is private
// to the track, and print its fingerprint. It returns why the report was
// dropped, if it was.
func (t *track) observe(r *rules, now instant, seq uint64, st *State, print uint64, listed bool) (dropped string) {
	if listed && seq < t.seen {
		return "" // what is known is newer
	}
	if t.stopped && !st.Stopped {
		if !listed {
			return DroppedAfterStop
		}
		// The provider broke its promise: stop it again.
		t.stopped, t.held = false, true
		t.seen, t.print = seq, print
		t.end.accepted, t.end.recheck = 0, 0
		return DroppedAfterStop
	}
	t.seen = max(t.seen, seq)
	t.absences, t.look = 0, false
	if !t.stopped {
		t.held = true
	}
	if print == t.print && st.Stopped == t.stopped {
		return ""
	}
	t.print = print
	t.take(r, now, st)
	if st.Stopped {
		t.stop(r, now)
	}
	return ""
}

// take keeps a report until it is stored.
func (t *track) take(r *rules, now instant, st *State) {
	if st.Generation > 0 && !t.running {
		// It counts until the pod is handed over; from then on we know.
		t.accepted = st.Generation
		t.limitAccepted()
	}
	if t.final || equality.Semantic.DeepEqual(&st.Status, &corev1.PodStatus{}) {
		return // too late, or no opinion
	}
	if t.lost != nil {
		carryRestarts(&st.Status, t.lost)
	}
	t.observed, t.mirrored, t.own = &st.Status, false, nil
	for i := range st.Status.Conditions {
		t.own = append(t.own, st.Status.Conditions[i].Type)
	}
	if t.want == t.stored || t.reportedAt == 0 {
		t.reportedAt = now
	}
	t.want++
	t.repairs = 0
	if t.end == nil && t.pod != nil && t.ended(r) {
		t.finish(now, StopCompleted, nil, specGrace(t.pod))
	}
}

// limitAccepted leaves out a generation that the pod never had: no update would be
// newer than it.
func (t *track) limitAccepted() {
	if t.pod != nil {
		t.accepted = min(t.accepted, t.pod.Generation)
	}
}

// carryRestarts counts in the first reports of an instance the restart that it
// is, and tells how the one before ended. What is stored once is carried on by
// podstatus.
func carryRestarts(status, lost *corev1.PodStatus) {
	for i := range status.ContainerStatuses {
		c := &status.ContainerStatuses[i]
		for j := range lost.ContainerStatuses {
			before := &lost.ContainerStatuses[j]
			if before.Name != c.Name || c.RestartCount >= before.RestartCount {
				continue
			}
			c.RestartCount = before.RestartCount
			if c.LastTerminationState.Terminated == nil {
				c.LastTerminationState = before.LastTerminationState
			}
		}
	}
}

// ended reports whether the pod's work is done by what the provider says.
func (t *track) ended(r *rules) bool {
	if t.observed == nil {
		return false
	}
	if r.policy.TrustPhase && podstatus.IsTerminal(t.observed.Phase) {
		return true
	}
	return podstatus.Ended(&t.pod.Spec, t.observed)
}

// stop takes note that nothing runs and nothing will.
func (t *track) stop(r *rules, now instant) {
	if t.stopped {
		return
	}
	t.stopped, t.running, t.look = true, false, false
	t.retryAt, t.failures = 0, 0
	t.finish(now, StopCompleted, nil, specGrace(t.pod))
	if !r.releases && t.end.stops > 0 {
		t.held = false // Stop was all there is
	}
	t.want++
}

// absent takes note of a List that began at seq and did not have the pod, or,
// with sure, of an Inspector that does not know it. It reports whether the pod
// is lost.
func (t *track) absent(r *rules, now instant, seq uint64, sure bool) (lost bool) {
	if !t.held || t.call != nil || t.seen >= seq {
		return false
	}
	if t.stopped || t.orphan {
		// It has forgotten the pod by itself.
		t.stop(r, now)
		t.held = false
		return false
	}
	if t.absences == 0 {
		t.absentAt = now
	}
	t.absences = min(t.absences+1, 250)
	// Two lists that follow each other at once are one observation.
	twice := t.absences >= 2 && now-t.absentAt >= r.relist/2
	switch {
	case t.end != nil && t.end.stops == 0:
		return false // Stop will tell
	case t.end != nil:
		// A Stop that was accepted has had its effect. One that fails all the
		// time counts less than two lists.
		if t.end.accepted > 0 || sure || twice {
			t.stop(r, now)
			t.held = false
		}
		return false
	case !t.running:
		return false // Start is being retried, and will tell
	case sure || twice:
		t.lose(r, now)
		return true
	}
	t.look = r.inspects
	return false
}

// lose decides about a pod that had started and that the provider does not
// hold.
func (t *track) lose(r *rules, now instant) {
	t.absences, t.look = 0, false
	again := r.policy.Lost == LostRestart ||
		r.policy.Lost == LostByRestartPolicy && (t.pod.Spec.RestartPolicy == corev1.RestartPolicyAlways || t.pod.Spec.RestartPolicy == "")
	if !again {
		t.finish(now, StopLost, &podstatus.Failure{Reason: ReasonLost, Message: messageLost}, minGrace)
		return
	}
	lost := podstatus.Lost(&t.pod.Status)
	t.observed, t.mirrored, t.print = &lost, true, 0
	t.lost = &lost
	t.running, t.accepted, t.acked = false, 0, nil
	t.since = now
	t.want++
}

// classify decides what a pod is at first sight, once the provider has said
// whether it holds it. It reports whether the pod is lost.
func (t *track) classify(r *rules, now instant) (lost bool) {
	t.known = true
	if t.pod == nil {
		return false
	}
	if podstatus.IsTerminal(t.pod.Status.Phase) {
		t.final = true // whatever is left to do, the status is done
	}
	if t.held {
		t.admitted = true
		if !t.stopped {
			t.running = true
			if t.accepted == 0 {
				t.accepted = t.pod.Status.ObservedGeneration
			}
			t.limitAccepted()
			if t.end == nil && t.ended(r) {
				t.finish(now, StopCompleted, nil, specGrace(t.pod))
			}
		}
		return false
	}
	if t.end == nil && podstatus.HasStarted(&t.pod.Status) {
		t.admitted = true
		t.lose(r, now)
		return true
	}
	return false
}

// evidence reports whether the API says that the pod has been started before,
// so that not finding it in the provider means something.
func (t *track) evidence() bool {
	return podstatus.IsTerminal(t.pod.Status.Phase) || podstatus.HasStarted(&t.pod.Status)
}
