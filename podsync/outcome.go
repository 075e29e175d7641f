// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// began takes note that the provider is being called.
func (t *track) began(now instant, seq uint64, s step) *call {
	t.call = &call{op: s.op, since: now, seq: seq, grace: s.grace, pod: t.pod}
	switch s.op {
	case OpStart:
		t.held = true
	case OpStop:
		t.call.over = t.stopped
		t.end.stops++
		t.end.passed = s.grace
	}
	return t.call
}

// returned takes the result of a call of the provider. It reports whether the
// pod turned out to be lost.
func (t *track) returned(r *rules, now instant, seq uint64, st *State, print uint64, err error) (lost bool) {
	c := t.call
	t.call = nil
	if err == nil || errors.Is(err, ErrNotFound) && (c.op == OpStop || c.op == OpRelease) {
		t.failures, t.lastErr = 0, nil
		t.succeeded(r, now, seq, c, st, print, err != nil)
		return false
	}
	if c.op == OpInspect {
		t.look = false // the next List decides
		if errors.Is(err, ErrNotFound) {
			return t.absent(r, now, c.seq, true) // what was reported since is newer
		}
		return false
	}
	if reject, ok := errors.AsType[*RejectError](err); ok && (c.op == OpStart || c.op == OpAdmit) {
		t.lastErr = err
		t.finish(now, StopRejected, &podstatus.Failure{Reason: reject.Reason, Message: reject.Message}, minGrace)
		return false
	}
	if c.canceled {
		t.retryAt = 0 // it failed because we wanted it to
		return false
	}
	t.failures++
	t.retryAt = now + r.delay(err, int(t.failures))
	if t.lastErr == nil || t.lastErr.Error() != err.Error() {
		t.want++ // the message in the status changes
	}
	t.lastErr = err
	return false
}

// succeeded takes the result of a call that returned no error.
func (t *track) succeeded(r *rules, now instant, seq uint64, c *call, st *State, print uint64, unknown bool) {
	switch c.op {
	case OpAdmit:
		t.admitted = true
		return
	case OpRelease:
		t.held = false
		return
	case OpStart, OpUpdate:
		t.accepted = max(t.accepted, c.pod.Generation)
		t.running = !t.stopped
		t.want++
		if c.pod.Generation == 0 {
			t.acked = c.pod
		}
	case OpStop:
		if unknown {
			*st = State{Stopped: true}
		}
		if c.over {
			t.held = false // T19
			return
		}
	}
	if t.seen <= c.seq || st.Stopped {
		// Otherwise a report came during the call, and is the newer one.
		t.observe(r, now, seq, st, print, false)
	}
	if c.op == OpStop && !t.stopped {
		t.stopAccepted(r, now, c)
	}
}

// stopAccepted takes note that the provider is stopping the pod.
func (t *track) stopAccepted(r *rules, now instant, c *call) {
	e := t.end
	killAt := now + c.grace
	if e.accepted == 0 {
		e.killAt, e.recheck = killAt, killAt+stopSlack
	} else {
		// T13: past its grace period it is asked for again with each List.
		e.killAt = min(e.killAt, killAt)
		e.recheck = max(e.killAt+stopSlack, now+r.relist)
	}
	e.accepted = now
}

// delay returns how long to wait after an error of the provider.
func (r *rules) delay(err error, failures int) time.Duration {
	if after, ok := errors.AsType[*RetryError](err); ok {
		if after.After > 0 {
			return min(after.After, horizon)
		}
		return r.retry.Base
	}
	return r.retry.Delay(failures)
}

// update returns what there is to say of the pod. Everything that it refers to
// is never changed any more.
func (t *track) update(r *rules) podstatus.Update {
	u := podstatus.Update{Stopped: t.over(), KeepPhase: r.policy.TrustPhase, Generation: t.accepted, Now: time.Now()}
	if t.observed != nil {
		u.Observed = *t.observed
		if t.mirrored {
			u.Observed.Conditions = ownConditions(t.own, t.observed.Conditions)
		}
	}
	switch {
	case u.Stopped:
		u.Failure, u.Generation = t.end.failure, t.pod.Generation
	case t.running && !r.updates:
		u.Generation = t.pod.Generation // T5: there is nobody to accept it
	case !t.running && t.end == nil && t.observed == nil:
		u.Observed.ContainerStatuses = waiting(t.pod.Spec.Containers)
		u.Observed.InitContainerStatuses = waiting(t.pod.Spec.InitContainers)
		if t.lastErr != nil && t.failures > 0 {
			u.Observed.Reason, u.Observed.Message = ReasonFailedStart, t.lastErr.Error()
		}
	}
	return u
}

// ownConditions returns the conditions of the types that the provider reports.
func ownConditions(own []corev1.PodConditionType, all []corev1.PodCondition) (conditions []corev1.PodCondition) {
	for i := range all {
		for _, typ := range own {
			if all[i].Type == typ {
				conditions = append(conditions, all[i])
			}
		}
	}
	return conditions
}

// waiting returns statuses of containers that nothing is known of yet.
func waiting(containers []corev1.Container) []corev1.ContainerStatus {
	statuses := make([]corev1.ContainerStatus, len(containers))
	for i := range containers {
		statuses[i].Name = containers[i].Name
	}
	return statuses
}

// writing takes note that a request is under way.
func (t *track) writing(now instant, op Op) *call {
	t.write = &call{op: op, since: now, want: t.want, over: t.over(), pod: t.pod}
	return t.write
}

// settled takes note that the API has the status that was to be written: it was
// there already, or resp has it. Same says that the status of resp is the one
// that was computed, and so nobody else's work is left to look at.
func (t *track) settled(r *rules, now instant, c *call, resp *corev1.Pod, same bool) {
	t.write = nil
	t.writeFailures, t.writeAt = 0, 0
	if resp == nil {
		resp, same = c.pod, true
	} else {
		if t.want == t.stored {
			t.repaired(r, now)
		}
		t.answer(r, now, resp)
	}
	t.stored = c.want
	if t.want != c.want {
		return
	}
	switch {
	case t.pod.ResourceVersion == resp.ResourceVersion && same:
		t.stale, t.lost = false, nil
		t.observed, t.mirrored = &t.pod.Status, true // from here on the object is its own report
	case t.pod.ResourceVersion == resp.ResourceVersion && resp.ResourceVersion == c.pod.ResourceVersion:
		t.stale, t.lost = false, nil // it keeps no more of it than it had: a gate of the API is off
	}
	t.final = t.final || c.over && podstatus.IsTerminal(resp.Status.Phase)
}

// answer takes the object that a request was answered with. Where the watch was
// faster, which it mostly is, the cache has the same version: to keep the answer
// in its place would be a second copy of every pod.
func (t *track) answer(r *rules, now instant, pod *corev1.Pod) {
	if t.pod == nil || t.pod.ResourceVersion != pod.ResourceVersion {
		t.desire(r, now, pod)
	}
}

// repaired takes note that a status was written although nothing new was
// reported. Where somebody undoes each of our writes, they become rarer.
func (t *track) repaired(r *rules, now instant) {
	const atOnce = 3
	if now-t.repairedAt > 2*r.retry.Cap {
		t.repairs = 0
	}
	t.repairedAt = now
	t.repairs = min(t.repairs+1, 250)
	if t.repairs > atOnce {
		t.writeAt = now + r.retry.Delay(int(t.repairs-atOnce))
	}
}

// refuse takes note that the API calls the status invalid. It is held until it
// changes; an end is written with what can't be invalid, and if that is refused
// too, it stays unwritten: it must not keep the pod from being deleted.
func (t *track) refuse(c *call) {
	t.write = nil
	t.refused = c.want
	if c.over {
		t.final, t.minimal = t.minimal, true
	}
}

// missing takes note that a request was answered with "no such pod".
func (t *track) missing(now instant) {
	t.write = nil
	if t.goneAt == 0 {
		t.goneAt = now
	}
}

// letGo takes note that the pod is deleted in the API, or that its
// finalizers are all that keeps it.
func (t *track) letGo(now instant) {
	t.write = nil
	t.writeFailures, t.writeAt = 0, 0
	t.released, t.releasedAt = true, now
}

// conflicted takes note that the pod has been written by somebody else since
// the version that the status was computed from.
func (t *track) conflicted(r *rules, now instant) {
	t.reload = !older(t.write.pod, t.pod) // else the informer has it already
	t.beaten = t.reload
	t.write = nil
	if t.writeFailures > 0 {
		// To lose a race is no outage: the next one may be won.
		t.writeAt = now + min(r.retry.Delay(int(t.writeFailures)), 4*r.retry.Base)
	}
	t.writeFailures++
}

// read takes what the API has, nil if the instance does not exist.
func (t *track) read(r *rules, now instant, pod *corev1.Pod) {
	base, beaten := t.write.pod, t.beaten
	t.write = nil
	t.reload, t.beaten = false, false
	switch {
	case pod != nil:
		t.goneAt = 0
		t.answer(r, now, pod)
		t.stale = true
		if beaten && pod.ResourceVersion == base.ResourceVersion {
			// Nobody has been faster: it is refused for another reason.
			t.writeAt = now + r.retry.Delay(int(t.writeFailures))
		}
	case t.goneAt == 0:
		t.goneAt = now
	default:
		t.vanish(now) // it has been said twice
	}
}

// failed takes note of a request that may succeed later.
func (t *track) failed(r *rules, now instant, err error) {
	if t.write.op == OpPatch && apierr.MayHaveCommitted(err) && !older(t.write.pod, t.pod) {
		// Computed once more from the version before, a start time that is
		// stored would be another one.
		t.reload = true
	}
	t.write = nil
	t.writeFailures++
	delay := max(r.retry.Delay(int(t.writeFailures)), apierr.RetryAfter(err))
	if apierr.Classify(err) == apierr.Forbidden {
		delay = r.retry.Cap // only an administrator can help
	}
	t.writeAt = now + delay
}
