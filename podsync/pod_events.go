// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"errors"
	"hash/fnv"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// setPod takes a version of the object: from the informer, or the answer to a
// request. It reports whether the version is new. That the object exists is for the
// informer to say: an answer may come after the object was deleted.
func (t *podState) setPod(r *rules, now instant, next *version) bool {
	before := t.api.pod
	if next.cached {
		defer func() { t.api.cachedVersion = next.resourceVersion() }()
	}
	if before != nil {
		if olderVersion(next.resourceVersion(), before.resourceVersion()) && !t.rewound(next) {
			return false
		}
		if before.resourceVersion() == next.resourceVersion() {
			*before = *next // the same version from the other source: keep the informer's
			t.close()
			return false
		}
	}
	var old *corev1.Pod
	if before != nil {
		old = before.open()
	}
	pod := next.open()
	if old != nil && older(pod, old) {
		// The provider may run a generation that no longer exists.
		if t.provider.generation > pod.Generation {
			t.provider.generation = 0
		}
		t.provider.refusedGeneration = 0
	}
	t.api.pod, t.api.node, t.api.deleting = next, pod.Spec.NodeName, pod.DeletionTimestamp != nil
	if t.write.read != readNothing {
		t.write.read, t.write.retryAt = readNothing, 0
	}
	wasDeleted, grace := old != nil && old.DeletionTimestamp != nil, graceOf(pod)
	if t.atOnce() && !t.finalized() && t.api.goingAt == 0 {
		t.api.goingAt = now
	}
	if t.deleted() {
		t.beginTermination(now, StopDeleted, nil, grace)
	}
	if old == nil || old.Generation != pod.Generation || t.deleted() != wasDeleted ||
		pod.Generation == 0 && mutableChanged(&old.Spec, &pod.Spec) {
		t.call.retryAt, t.call.failures = 0, 0 // the call may succeed now
	}
	switch {
	case podstatus.IsTerminal(pod.Status.Phase):
		t.beginTermination(now, StopCompleted, nil, specGrace(pod))
	case t.final():
		// Another client has undone the end. It is written again.
		t.becomeUnwritten()
	}
	t.write.stale = true
	return true
}

// rewound reports whether v, which is older than the newest version, was stored later
// anyway, because the API server was restored from a backup. An informer never
// goes back to an older version than it had, and a GET returns none that is older
// than those seen before it was sent. Answers to writes prove nothing: the
// informer may lag behind them.
func (t *podState) rewound(v *version) bool {
	switch {
	case v.cached:
		return olderVersion(v.resourceVersion(), t.api.cachedVersion)
	case t.write.inflight != nil && t.write.inflight.op == OpGet:
		return olderVersion(v.resourceVersion(), t.write.inflight.pod.ResourceVersion)
	}
	return false
}

// older reports whether a is an older version than b.
func older(a, b *corev1.Pod) bool {
	if b == nil {
		return false
	}
	return olderVersion(a.ResourceVersion, b.ResourceVersion)
}

// olderVersion reports whether the resourceVersion a is older than b.
func olderVersion(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// markDeleted records that the object is gone.
func (t *podState) markDeleted(now instant) {
	if t.removed() && t.api.presence != presenceMissing {
		return
	}
	t.api.presence = presenceGone
	t.call.retryAt = 0
	if t.end == nil { // a termination under way keeps its grace period
		t.beginTermination(now, StopDeleted, nil, t.vanishedGrace())
	}
}

// markMissing records that the API seems to have no such object. A pod that ends
// anyway, or that the provider does not hold, is gone with that.
func (t *podState) markMissing(now instant) {
	if t.removed() {
		return
	}
	if t.end != nil || t.provider.listed && !t.held() {
		t.markDeleted(now)
		return
	}
	t.doubt(now)
}

// doubt makes the pod a suspect: the API is asked whether it is gone.
func (t *podState) doubt(now instant) {
	t.api.presence = presenceMissing
	t.sched.suspectAt, t.sched.goneSince, t.sched.unsure = now+missingDelay, 0, false
}

// beginTermination makes the pod end, or end sooner.
func (t *podState) beginTermination(now instant, reason StopReason, failure *podstatus.Failure, grace time.Duration) {
	grace = min(max(grace, minGrace), horizon)
	if t.end != nil {
		if grace < t.end.grace {
			t.end.grace = grace
			t.call.retryAt, t.call.failures = 0, 0
		}
		return
	}
	t.end = &termination{reason: reason, failure: failure, since: now, grace: grace}
	t.call.retryAt, t.call.failures = 0, 0
}

// vanishedGrace returns the grace period of a pod that is gone from the API without having
// been marked as deleted: that of its spec.
func (t *podState) vanishedGrace() time.Duration {
	if t.api.pod == nil {
		return minGrace
	}
	return specGrace(t.pod())
}

// specGrace returns the grace period in the pod's spec.
func specGrace(pod *corev1.Pod) time.Duration {
	if pod == nil || pod.Spec.TerminationGracePeriodSeconds == nil {
		return corev1.DefaultTerminationGracePeriodSeconds * time.Second
	}
	return max(minGrace, seconds(*pod.Spec.TerminationGracePeriodSeconds))
}

// graceOf returns the grace period of the pod's deletion.
func graceOf(pod *corev1.Pod) time.Duration {
	if pod.DeletionGracePeriodSeconds == nil {
		return specGrace(pod)
	}
	return max(minGrace, seconds(*pod.DeletionGracePeriodSeconds))
}

// seconds returns n seconds, limited to horizon. The API does not limit grace periods:
// the largest integer often stands for no limit, and a negative one means 0.
func seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), int64(horizon/time.Second))) * time.Second
}

// observe applies a report of the provider. seq is the time of the report, in
// Controller.seq; listed says that it is from a List that began then. st is private
// to t, and fp is its fingerprint. observe returns the reason if it drops the report.
func (t *podState) observe(r *rules, now instant, seq uint64, st *State, fp uint64, listed bool) (dropped string) {
	if listed && seq < t.provider.seenSeq {
		return "" // a newer report is known
	}
	if t.stopped() && !st.Stopped {
		if !listed {
			return DroppedAfterStop
		}
		// The provider broke its promise: stop it again.
		t.become(instanceHeld)
		t.provider.seenSeq, t.provider.fp = seq, fp
		t.end.accepted, t.end.recheck = 0, 0
		return DroppedAfterStop
	}
	t.provider.seenSeq = seq
	t.provider.absences, t.provider.needsInspect, t.provider.lostSince = 0, false, 0
	if listed {
		t.provider.losses = 0
	}
	t.hold()
	if fp == t.provider.fp && st.Stopped == t.stopped() {
		return ""
	}
	t.provider.fp = fp
	t.takeAnnotations(st.Annotations)
	t.take(r, now, st)
	t.provider.deletes = t.provider.deletes || st.Stopped && st.Delete
	if st.Stopped {
		t.markStopped(r, now)
	}
	return ""
}

// take records a report until the API has stored it.
func (t *podState) take(r *rules, now instant, st *State) {
	t.provider.saysGeneration = st.Generation > 0
	if st.Generation > 0 && (!t.running() || !r.updates) {
		// It counts until Start has succeeded; from then on only the results of
		// Update do, if the provider has it.
		t.provider.generation = st.Generation
		t.limitAccepted()
	}
	if t.final() || equality.Semantic.DeepEqual(&st.Status, &corev1.PodStatus{}) {
		return // too late, or no opinion
	}
	t.nameContainer(&st.Status)
	if before := t.provider.status; before != nil {
		// The previous report is not stored. A container that only it has keeps
		// its state, or an exit code would be lost.
		st.Status.InitContainerStatuses = addMissing(st.Status.InitContainerStatuses, before.InitContainerStatuses, false)
		st.Status.ContainerStatuses = addMissing(st.Status.ContainerStatuses, before.ContainerStatuses, false)
		st.Status.EphemeralContainerStatuses = addMissing(st.Status.EphemeralContainerStatuses, before.EphemeralContainerStatuses, false)
	}
	quiet := t.quiet(&st.Status)
	t.setReport(&st.Status)
	t.takeConditions(st.Status.Conditions)
	t.provider.reports = reportedFields{
		resources: hasResources(st.Status.ContainerStatuses) || hasResources(st.Status.InitContainerStatuses),
		hostIP:    st.Status.HostIP != "" || len(st.Status.HostIPs) > 0,
		podIP:     st.Status.PodIP != "" || len(st.Status.PodIPs) > 0,
	}
	stored := t.write.statusSeq == t.write.storedSeq
	if stored || t.write.reportedAt == 0 {
		t.write.reportedAt = now
	}
	quiet = quiet && (stored || t.write.quietSeq == t.write.statusSeq)
	t.write.statusSeq++
	if quiet {
		t.write.quietSeq = t.write.statusSeq
	}
	t.write.repairs = 0
	if t.end == nil && t.api.pod != nil && t.ended(r) {
		t.beginTermination(now, StopCompleted, nil, specGrace(t.pod()))
	}
}

// nameContainer gives the status of the only container of a pod that container's name. A
// backend that has one container for a pod often knows it by a name of its own.
func (t *podState) nameContainer(status *corev1.PodStatus) {
	if t.api.pod == nil || len(status.ContainerStatuses) != 1 || len(t.pod().Spec.Containers) != 1 {
		return
	}
	spec, name := &t.pod().Spec, status.ContainerStatuses[0].Name
	for i := range spec.InitContainers {
		if spec.InitContainers[i].Name == name {
			return
		}
	}
	status.ContainerStatuses[0].Name = spec.Containers[0].Name
}

// takeAnnotations records the annotations that are new since the last report and that the
// API does not have.
func (t *podState) takeAnnotations(annotations map[string]string) {
	if t.final() || t.removed() {
		return
	}
	for key, value := range annotations {
		if last, ok := t.provider.annotations[key]; ok && last == value {
			continue
		}
		if t.provider.annotations == nil {
			t.provider.annotations = map[string]string{}
		}
		t.provider.annotations[key] = value
		if t.api.pod != nil {
			if stored, ok := t.pod().Annotations[key]; ok && stored == value {
				continue
			}
		}
		if !slices.Contains(t.provider.unsaved, key) {
			t.provider.unsaved = append(t.provider.unsaved, key)
		}
		t.write.statusSeq++
	}
}

// newAnnotations returns the annotations that the API does not have yet.
func (t *podState) newAnnotations() map[string]string {
	if len(t.provider.unsaved) == 0 {
		return nil
	}
	out := make(map[string]string, len(t.provider.unsaved))
	for _, key := range t.provider.unsaved {
		out[key] = t.provider.annotations[key]
	}
	return out
}

// annotationsSettled records that the API has stored the annotations, or will never store
// them.
func (t *podState) annotationsSettled(settled map[string]string) {
	t.provider.unsaved = slices.DeleteFunc(t.provider.unsaved, func(key string) bool {
		value, ok := settled[key]
		return ok && value == t.provider.annotations[key]
	})
}

// quiet reports whether a report may wait for the next one: no container has started,
// ended or changed its readiness since the last report. The addresses of a pod come
// between its first status and Running, for example. The last containers of a pod that
// is stopped are no news either, because the final status follows.
func (t *podState) quiet(next *corev1.PodStatus) bool {
	last := t.report()
	if last == nil {
		return false
	}
	lists := [][2][]corev1.ContainerStatus{
		{last.InitContainerStatuses, next.InitContainerStatuses},
		{last.ContainerStatuses, next.ContainerStatuses},
		{last.EphemeralContainerStatuses, next.EphemeralContainerStatuses},
	}
	if t.end != nil && !slices.ContainsFunc(lists, func(l [2][]corev1.ContainerStatus) bool {
		return slices.ContainsFunc(l[1], func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
	}) {
		return true
	}
	for _, l := range lists {
		if !slices.EqualFunc(l[0], l[1], sameProgress) {
			return false
		}
	}
	unsaid := func(last, next string) bool { return next == "" || next == last }
	return unsaid(string(last.Phase), string(next.Phase)) && unsaid(last.Reason, next.Reason) && unsaid(last.Message, next.Message) &&
		t.sameConditions(last.Conditions, next.Conditions)
}

// sameProgress reports whether two statuses of a container differ in details only.
func sameProgress(last, next corev1.ContainerStatus) bool {
	reason := func(w *corev1.ContainerStateWaiting) string {
		if w == nil {
			return ""
		}
		return w.Reason
	}
	a, b := last.State, next.State
	return last.Name == next.Name && last.Ready == next.Ready && last.RestartCount == next.RestartCount &&
		(next.Started == nil || last.Started != nil && *last.Started == *next.Started) &&
		(a.Running == nil) == (b.Running == nil) && (a.Terminated == nil) == (b.Terminated == nil) && reason(a.Waiting) == reason(b.Waiting)
}

// sameConditions reports whether two reports have the same conditions, without that of
// the sandbox.
func (t *podState) sameConditions(last, next []corev1.PodCondition) bool {
	missing := func(a, b []corev1.PodCondition) bool {
		return slices.ContainsFunc(a, func(c corev1.PodCondition) bool {
			return c.Type != corev1.PodReadyToStartContainers && !slices.ContainsFunc(b, func(o corev1.PodCondition) bool {
				return o.Type == c.Type && o.Status == c.Status && o.Reason == c.Reason
			})
		})
	}
	own := ownConditions(t.provider.conditions, last)
	return !missing(own, next) && !missing(next, own)
}

// hasResources reports whether the status of a container has resources.
func hasResources(list []corev1.ContainerStatus) bool {
	return slices.ContainsFunc(list, func(cs corev1.ContainerStatus) bool { return cs.Resources != nil || cs.AllocatedResources != nil })
}

// takeConditions keeps the types of the reported conditions, and those that an
// earlier report had and this one has not: they are withdrawn from the API.
func (t *podState) takeConditions(conditions []corev1.PodCondition) {
	reported := make([]corev1.PodConditionType, len(conditions))
	for i := range conditions {
		reported[i] = conditions[i].Type
	}
	isReported := func(typ corev1.PodConditionType) bool { return slices.Contains(reported, typ) }
	for _, typ := range t.provider.conditions {
		if !slices.Contains(t.provider.withdrawn, typ) {
			t.provider.withdrawn = append(t.provider.withdrawn, typ)
		}
	}
	t.provider.withdrawn = slices.DeleteFunc(t.provider.withdrawn, isReported)
	t.provider.conditions = reported
}

// limitAccepted lowers a generation that the pod never had, because no update would
// be newer than it.
func (t *podState) limitAccepted() {
	if t.api.pod != nil {
		t.provider.generation = min(t.provider.generation, t.pod().Generation)
	}
}

// base returns the pod as the API will have it once everything before the last
// report is stored: with the containers of a lost instance ended.
func (t *podState) base() *corev1.Pod {
	lost := t.provider.lost
	if lost == nil {
		return t.pod()
	}
	pod := *t.pod()
	pod.Status.InitContainerStatuses = lost.InitContainerStatuses
	pod.Status.ContainerStatuses = lost.ContainerStatuses
	pod.Status.EphemeralContainerStatuses = lost.EphemeralContainerStatuses
	return &pod
}

// ended reports whether the pod's work is done: by the last report, and for a
// container that the report leaves out by the end that is stored. The last
// termination of a container that waits counts only if the report has it: the
// stored one may be that of a lost instance.
func (t *podState) ended(r *rules) bool {
	report := t.report()
	if report == nil {
		return false
	}
	if r.policy.TrustPhase && podstatus.IsTerminal(report.Phase) {
		return true
	}
	stored := &t.base().Status
	return podstatus.Ended(&t.pod().Spec, &corev1.PodStatus{
		InitContainerStatuses: addMissing(report.InitContainerStatuses, stored.InitContainerStatuses, true),
		ContainerStatuses:     addMissing(report.ContainerStatuses, stored.ContainerStatuses, true),
	})
}

// addMissing returns list with the containers of other that it lacks, or has
// without a state; with endsOnly those that have ended.
func addMissing(list, other []corev1.ContainerStatus, endsOnly bool) []corev1.ContainerStatus {
	out, copied := list, false
	for i := range other {
		if other[i].State == (corev1.ContainerState{}) || endsOnly && other[i].State.Terminated == nil {
			continue
		}
		at := slices.IndexFunc(list, func(cs corev1.ContainerStatus) bool { return cs.Name == other[i].Name })
		if at >= 0 && list[at].State != (corev1.ContainerState{}) {
			continue
		}
		if !copied {
			out, copied = slices.Clone(list), true
		}
		if at >= 0 {
			out[at] = other[i]
		} else {
			out = append(out, other[i])
		}
	}
	return out
}

// markStopped records that nothing runs and nothing will.
func (t *podState) markStopped(r *rules, now instant) {
	if t.stopped() {
		return
	}
	t.provider.needsInspect = false
	if t.held() {
		t.become(instanceStopped)
	} else {
		t.become(instanceForgotten)
	}
	t.call.retryAt, t.call.failures = 0, 0
	t.beginTermination(now, StopCompleted, nil, specGrace(t.pod()))
	if !r.releases && t.end.stops > 0 {
		t.forgotten() // Stop was all there is
	}
	t.write.statusSeq++
}

// absent records that a List that began at seq left the pod out or, if sure is true,
// that the Inspector does not know it. It reports whether the pod is lost.
func (t *podState) absent(r *rules, now instant, seq uint64, sure bool) (lost bool) {
	if !t.held() || t.call.inflight != nil || t.provider.seenSeq >= seq {
		return false
	}
	if t.stopped() || t.orphan() {
		// The provider has forgotten the pod on its own.
		t.markStopped(r, now)
		t.forgotten()
		return false
	}
	if t.provider.absences == 0 {
		t.provider.absentAt = now
	}
	t.provider.absences = min(t.provider.absences+1, 250)
	// Two lists that follow each other at once are one observation.
	twice := t.provider.absences >= 2 && now-t.provider.absentAt >= r.relist/2
	switch {
	case t.end != nil && t.end.stops == 0:
		return false // the result of Stop decides
	case t.end != nil:
		// An accepted Stop has had its effect. If Stop keeps failing, two Lists
		// prove more.
		if t.end.accepted > 0 || sure || twice {
			t.markStopped(r, now)
			t.forgotten()
		}
		return false
	case !t.running():
		return false // Start is being retried, and decides
	case sure || twice && r.policy.CompleteList:
		return t.markLost(r, now)
	case twice:
		t.suspectLoss(t.provider.absentAt) // decideLosses decides
		return false
	}
	t.provider.needsInspect = r.inspects
	return false
}

// markLost decides about a pod that had started and that the provider does not
// hold. It reports false if the pod had ended before, and so is not lost.
func (t *podState) markLost(r *rules, now instant) (lost bool) {
	t.provider.listed, t.provider.lostSince = true, 0
	t.provider.absences, t.provider.needsInspect = 0, false
	if t.end == nil && podstatus.Ended(&t.pod().Spec, &t.base().Status) {
		// It had ended, and the API knows how: only its phase is not written.
		t.beginTermination(now, StopCompleted, nil, specGrace(t.pod()))
		t.markStopped(r, now)
		t.forgotten()
		return false
	}
	again := r.policy.Lost == LostRestart ||
		r.policy.Lost == LostByRestartPolicy && (t.pod().Spec.RestartPolicy == corev1.RestartPolicyAlways || t.pod().Spec.RestartPolicy == "")
	if !again {
		t.beginTermination(now, StopLost, &podstatus.Failure{Reason: ReasonLost, Message: messageLost}, minGrace)
		return true
	}
	status, _ := podstatus.Next(t.base(), t.update(r))
	ended := podstatus.Lost(&status)
	t.provider.lost = &ended
	t.setReport(nil)
	t.provider.fp = 0
	if t.provider.losses < 250 {
		t.provider.losses++
	}
	if t.provider.losses > 1 {
		// Start succeeds, and List does not show the pod.
		t.call.retryAt = now + r.retry.Delay(int(t.provider.losses-1))
	}
	if t.running() {
		t.become(instanceHeld)
	}
	t.provider.generation, t.provider.acceptedPod = 0, nil
	t.api.since = now
	t.write.statusSeq++
	return true
}

// classify adopts the pod, finds it lost, or lets it start, once the provider has said
// whether it holds an instance. It reports whether the pod is lost.
func (t *podState) classify(r *rules, now instant) (lost bool) {
	t.provider.listed = true
	if t.api.pod == nil {
		return false
	}
	if t.held() || t.end != nil {
		t.provider.lostSince, t.provider.needsInspect = 0, false
	}
	if podstatus.IsTerminal(t.pod().Status.Phase) {
		t.becomeFinal() // the status needs no further write
	}
	if t.recall(now) {
		return false
	}
	if t.held() {
		t.provider.admitted = true
		if !t.stopped() {
			t.become(instanceRunning)
			if t.provider.generation == 0 {
				t.provider.generation = t.pod().Status.ObservedGeneration
			}
			t.limitAccepted()
			if t.end == nil && t.ended(r) {
				t.beginTermination(now, StopCompleted, nil, specGrace(t.pod()))
			}
		}
		return false
	}
	if t.end == nil && t.started() {
		t.provider.admitted = true
		if r.policy.CompleteList {
			return t.markLost(r, now)
		}
		t.provider.listed = false
		t.suspectLoss(now)
	}
	return false
}

// suspectLoss records that the provider's Lists show that the pod is lost.
func (t *podState) suspectLoss(since instant) {
	if t.provider.lostSince == 0 {
		t.provider.lostSince = since
		if before := t.provider.saved.lostSince; before != 0 {
			t.provider.lostSince = before // it goes on since the process before
		}
	}
}

// suspectedLoss reports whether the pod is lost if its List is to be believed.
func (t *podState) suspectedLoss() bool { return t.provider.lostSince != 0 && t.end == nil }

// keepReport keeps the last report of an instance that has ended, while the gate is closed.
func (t *podState) keepReport(status *corev1.PodStatus, end *termination) {
	t.provider.kept = &keptReport{status: status, end: end}
}

// recall applies the kept report to a pod that the provider no longer holds. It reports false
// if there is none.
func (t *podState) recall(now instant) bool {
	kept := t.provider.kept
	t.provider.kept = nil
	if kept == nil || t.held() || t.final() {
		return false
	}
	t.setReport(kept.status)
	if kept.end != nil {
		t.beginTermination(now, kept.end.reason, kept.end.failure, kept.end.grace)
	} else {
		t.beginTermination(now, StopCompleted, nil, specGrace(t.pod()))
	}
	t.provider.admitted = true
	t.write.statusSeq++
	return true
}

// reset drops the reports of the provider and all state derived from them. Results of
// calls and requests in flight will not count. An eviction is kept: Evict was its only cause.
func (t *podState) reset(r *rules, now instant) {
	for _, c := range [...]*call{t.call.inflight, t.write.inflight} {
		if c != nil {
			c.fate = fateStale
			c.cancel()
		}
	}
	pod, presence := t.api.pod, t.api.presence
	if pod != nil && t.provider.status != nil && (t.stopped() || t.ended(r)) {
		t.keepReport(t.provider.status, t.end)
	}
	t.provider = providerState{nodeName: t.provider.nodeName, admitted: t.provider.admitted, kept: t.provider.kept, saved: t.provider.saved}
	t.call = callState{inflight: t.call.inflight}
	t.write = writeState{inflight: t.write.inflight, statusSeq: t.write.statusSeq + 1, storedSeq: t.write.storedSeq}
	if e := t.end; pod != nil && e != nil && e.reason == StopEvicted {
		t.end = &termination{reason: e.reason, failure: e.failure, since: e.since, grace: e.grace}
	} else {
		t.end = nil
	}
	if pod == nil { // an orphan: it is verified again
		t.api.presence, t.provider.instance, t.provider.listed = presenceOrphan, instanceHeld, true
		t.sched.suspectAt = now + t.sched.suspectWait
		return
	}
	t.api.pod = nil
	t.setPod(r, now, pod)
	switch presence {
	case presenceMissing:
		t.doubt(now) // what was not confirmed is not certain now either
	case presenceGone:
		t.beginTermination(now, StopDeleted, nil, t.vanishedGrace())
	}
}

// evidence reports whether the API says that the pod has been started before,
// so that not finding it in the provider means something.
func (t *podState) evidence() bool {
	return podstatus.IsTerminal(t.pod().Status.Phase) || t.started()
}

// started reports whether the API or the Checkpoint says that the pod has been started.
func (t *podState) started() bool {
	return t.provider.saved.exists || podstatus.HasStarted(&t.pod().Status)
}

// callStarted records a provider call.
func (t *podState) callStarted(now instant, seq uint64, s action) *call {
	t.call.inflight = &call{op: s.op, since: now, seq: seq, grace: s.grace, pod: t.pod(), lostSince: t.provider.lostSince}
	switch s.op {
	case OpStart:
		t.hold()
	case OpStop:
		t.call.inflight.over = t.stopped()
		t.end.stops++
		t.end.passed = s.grace
	}
	return t.call.inflight
}

// callReturned applies the result of a provider call. It reports whether the pod
// turned out to be lost.
func (t *podState) callReturned(r *rules, now instant, seq uint64, st *State, fp uint64, err error) (lost bool) {
	c := t.call.inflight
	t.call.inflight = nil
	if err == nil || errors.Is(err, ErrNotFound) && (c.op == OpStop || c.op == OpRelease) {
		t.call.failures, t.call.err = 0, nil
		t.callSucceeded(r, now, seq, c, st, fp, err != nil)
		return false
	}
	if c.op == OpInspect {
		t.provider.needsInspect = false // the next List decides
		if errors.Is(err, ErrNotFound) {
			if t.suspectedLoss() {
				return t.markLost(r, now)
			}
			return t.absent(r, now, c.seq, true) // a report since then is newer
		}
		return false
	}
	if reject, ok := errors.AsType[*RejectError](err); ok && (c.op == OpStart || c.op == OpAdmit || c.op == OpAnnotate) {
		t.call.err = err
		t.beginTermination(now, StopRejected, &podstatus.Failure{Reason: reject.Reason, Message: messageRejected + reject.Message}, minGrace)
		return false
	}
	if reject, ok := errors.AsType[*RejectError](err); ok && c.op == OpUpdate {
		// It would be refused again. The pod keeps running unchanged.
		t.call.failures, t.call.err = 0, err
		t.provider.refused, t.provider.refusedGeneration = reject, c.pod.Generation
		t.write.statusSeq++
		return false
	}
	if c.fate == fateCanceled {
		t.call.retryAt = 0 // it failed because it was canceled
		return false
	}
	t.call.failures++
	t.call.retryAt = now + r.delay(err, int(t.call.failures))
	if t.call.err == nil || t.call.err.Error() != err.Error() {
		t.write.statusSeq++ // the message in the status changes
	}
	t.call.err = err
	return false
}

// callSucceeded applies the result of a call that returned no error.
func (t *podState) callSucceeded(r *rules, now instant, seq uint64, c *call, st *State, fp uint64, unknown bool) {
	switch c.op {
	case OpAdmit:
		t.provider.admitted = true
		return
	case OpSave:
		t.provider.saved = savedRecord{exists: true, generation: c.pod.Generation, lost: c.lostSince != 0}
		return
	case OpRemove:
		t.provider.saved = savedRecord{}
		return
	case OpAnnotate:
		t.provider.annotated = true
		t.takeAnnotations(st.Annotations)
		return
	case OpRelease:
		t.forgotten()
		return
	case OpStart, OpUpdate:
		t.provider.generation = max(t.provider.generation, c.pod.Generation)
		if c.saved {
			t.provider.saved = savedRecord{exists: true, generation: c.pod.Generation}
		}
		if !t.stopped() {
			t.become(instanceRunning)
		}
		t.write.statusSeq++
		t.provider.refused, t.provider.refusedGeneration = nil, 0
		t.provider.resources = resourcesOf(c.pod)
		if c.pod.Generation == 0 || r.policy.UpdateMetadata {
			t.provider.acceptedPod = c.pod
		}
	case OpStop:
		if unknown {
			*st = State{Stopped: true}
		}
		if c.over {
			t.forgotten()
			return
		}
	}
	if t.provider.seenSeq <= c.seq || st.Stopped {
		t.observe(r, now, seq, st, fp, false)
	} else if fp != t.provider.fp {
		t.sched.relist = true // a report came during the call: which is newer, a List says
	}
	if c.op == OpStop && !t.stopped() {
		t.stopAccepted(r, now, c)
	}
}

// resourcesOf returns a fingerprint of the resources that a resize changes.
func resourcesOf(pod *corev1.Pod) uint64 {
	h := fnv.New64a()
	for _, list := range [...][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			encoded, _ := list[i].Resources.Marshal() // with the maps in order
			_, _ = h.Write(encoded)
			_, _ = h.Write([]byte{0})
		}
	}
	return h.Sum64()
}

// unapplied reports whether the provider runs an older generation of the spec and
// has no Update to be called for it.
func (t *podState) unapplied(r *rules) bool {
	return t.running() && !r.updates && t.end == nil && t.provider.saysGeneration && t.provider.generation < t.pod().Generation
}

// stopAccepted records that the provider is stopping the pod.
func (t *podState) stopAccepted(r *rules, now instant, c *call) {
	e := t.end
	killAt := now + c.grace
	if e.accepted == 0 {
		e.killAt, e.recheck = killAt, killAt+stopSlack
	} else {
		// After the grace period, Stop is called again each Relist.
		e.killAt = min(e.killAt, killAt)
		e.recheck = max(e.killAt+stopSlack, now+r.relist)
	}
	e.accepted = now
}

// delay returns the time until the next call after an error of the provider.
func (r *rules) delay(err error, failures int) time.Duration {
	if after, ok := errors.AsType[*RetryError](err); ok {
		if after.After > 0 {
			return min(after.After, horizon)
		}
		return r.retry.Base
	}
	return r.retry.Delay(failures)
}

// update returns the argument of podstatus.Next. The memory that it refers to is never
// changed.
func (t *podState) update(r *rules) podstatus.Update {
	u := podstatus.Update{
		Stopped: t.stopped(), KeepPhase: r.policy.TrustPhase, Generation: t.provider.generation,
		Withdrawn: slices.Clone(t.provider.withdrawn), Now: time.Now(),
	}
	if report := t.report(); report != nil {
		u.Observed = *report
		if t.provider.mirror != nil {
			t.asReported(&u.Observed)
		}
	}
	switch {
	case u.Stopped:
		if t.report() == nil {
			t.addWaiting(&u.Observed)
		}
		u.Failure, u.Generation = t.end.failure, t.pod().Generation
	case t.running() && !r.updates && !t.provider.saysGeneration:
		u.Generation = t.pod().Generation // nothing else can accept it
	case t.unapplied(r) && t.provider.resources != 0 && t.provider.resources != resourcesOf(t.pod()):
		u.Observed.Conditions = append(slices.Clone(u.Observed.Conditions), corev1.PodCondition{
			Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible, Message: messageUnapplied,
		})
	case t.provider.refused != nil && t.provider.refusedGeneration == t.pod().Generation:
		// Seen and refused. To a resize that is a condition of its own.
		u.Generation = t.pod().Generation
		if t.provider.resources == resourcesOf(t.pod()) {
			break
		}
		u.Observed.Conditions = append(slices.Clone(u.Observed.Conditions), corev1.PodCondition{
			Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible, Message: t.provider.refused.Error(),
		})
	case !t.running() && t.end == nil:
		if t.provider.fp == 0 {
			t.addStarting(&u.Observed)
		}
		u.Generation = t.pod().Generation // Start is called with the newest
		u.Observed.Reason, u.Observed.Message = "", ""
		if t.call.err != nil && t.call.failures > 0 {
			u.Observed.Reason, u.Observed.Message = ReasonFailedStart, t.call.err.Error()
		}
	}
	return u
}

// asReported removes from a stored status the fields that the provider did not report:
// conditions of other types, and resources and addresses if they were derived.
func (t *podState) asReported(status *corev1.PodStatus) {
	status.Conditions = ownConditions(t.provider.conditions, status.Conditions)
	if !t.provider.reports.hostIP {
		status.HostIP, status.HostIPs = "", nil
	}
	if !t.provider.reports.podIP {
		status.PodIP, status.PodIPs = "", nil
	}
	if t.provider.reports.resources {
		return
	}
	for _, list := range [...]*[]corev1.ContainerStatus{&status.InitContainerStatuses, &status.ContainerStatuses} {
		*list = slices.Clone(*list)
		for i := range *list {
			(*list)[i].Resources, (*list)[i].AllocatedResources = nil, nil
		}
	}
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

// addWaiting adds a status for each container of the spec.
func (t *podState) addWaiting(status *corev1.PodStatus) {
	status.ContainerStatuses = waiting(t.pod().Spec.Containers)
	status.InitContainerStatuses = waiting(t.pod().Spec.InitContainers)
}

// addStarting adds a status for each container of a pod that the provider has said
// nothing about. One that has not run waits for the reason that the last error of
// Start gives; of others the stored status counts.
func (t *podState) addStarting(status *corev1.PodStatus) {
	t.addWaiting(status)
	stored := &t.base().Status
	for _, lists := range [...][2][]corev1.ContainerStatus{
		{status.InitContainerStatuses, stored.InitContainerStatuses}, {status.ContainerStatuses, stored.ContainerStatuses},
	} {
		for i := range lists[0] {
			cs := &lists[0][i]
			ran := slices.ContainsFunc(lists[1], func(old corev1.ContainerStatus) bool {
				return old.Name == cs.Name && (old.State.Running != nil || old.State.Terminated != nil || old.LastTerminationState.Terminated != nil)
			})
			if !ran {
				reason, message := waitingReason(t.call.err, cs.Name)
				cs.State.Waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: message}
			}
		}
	}
}

// waitingReason returns the reason and message that an error of Start, or one that it
// wraps, gives for the waiting container.
func waitingReason(err error, container string) (reason, message string) {
	if err == nil {
		return "", ""
	}
	if e, ok := err.(interface{ WaitingReason(container string) string }); ok {
		if reason = e.WaitingReason(container); reason != "" {
			return reason, err.Error()
		}
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return waitingReason(e.Unwrap(), container)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if reason, message = waitingReason(err, container); reason != "" {
				return reason, message
			}
		}
	}
	return "", ""
}

// waiting returns statuses of containers that nothing is known of yet.
func waiting(containers []corev1.Container) []corev1.ContainerStatus {
	statuses := make([]corev1.ContainerStatus, len(containers))
	for i := range containers {
		statuses[i].Name = containers[i].Name
	}
	return statuses
}

// writeStarted records an API request.
func (t *podState) writeStarted(now instant, op Op) *call {
	t.write.inflight = &call{op: op, since: now, want: t.write.statusSeq, over: t.stopped(), pod: t.pod()}
	if op == OpPatch {
		t.write.inflight.annotations = t.newAnnotations()
	}
	return t.write.inflight
}

// statusStored records that the API has the status of c: it had it already, or resp
// has it. same says that the status of resp is the computed one, so that no write of
// another client is left to react to.
func (t *podState) statusStored(r *rules, now instant, c *call, resp *corev1.Pod, same bool) {
	t.write.inflight = nil
	t.write.failures, t.write.retryAt = 0, 0
	t.write.conflicts = 0
	t.annotationsSettled(c.annotations)
	if resp != nil {
		t.paceWrites(now)
	}
	if resp == nil {
		resp, same = c.pod, true
	} else {
		if t.write.statusSeq == t.write.storedSeq {
			t.repaired(r, now)
		}
		t.answer(r, now, resp)
	}
	t.write.storedSeq = c.want
	if t.write.statusSeq != c.want {
		return
	}
	switch {
	case t.pod().ResourceVersion == resp.ResourceVersion && same:
		t.write.stale, t.provider.lost, t.provider.withdrawn = false, nil, nil
		t.setMirror() // from here on the object is its own report
	case t.pod().ResourceVersion == resp.ResourceVersion && resp.ResourceVersion == c.pod.ResourceVersion:
		t.write.stale, t.provider.lost, t.provider.withdrawn = false, nil, nil // the server drops fields: a feature gate is off
	}
	if c.over && podstatus.IsTerminal(resp.Status.Phase) {
		t.becomeFinal()
	}
}

// paceWrites lets a burst of statuses through, and then one each writeInterval:
// a provider that reports each change of a message must not write each of them.
func (t *podState) paceWrites(now instant) {
	t.write.spent = max(t.write.spent-(now-t.write.lastAt), 0) + writeInterval
	t.write.lastAt = now
	t.write.notBefore = now + t.write.spent - writeBurst*writeInterval
}

// answer applies the object in the answer to a request. If the watch was faster, the
// informer has the same version, and the answer is dropped: it would be a second copy
// of every pod.
func (t *podState) answer(r *rules, now instant, pod *corev1.Pod) {
	if t.api.pod == nil || t.api.pod.resourceVersion() != pod.ResourceVersion {
		t.setPod(r, now, &version{pod: pod})
	}
}

// repaired records a status write that no report caused. If another client undoes
// each write, the writes become rarer.
func (t *podState) repaired(r *rules, now instant) {
	const atOnce = 3
	if now-t.write.repairedAt > 2*r.retry.Cap {
		t.write.repairs = 0
	}
	t.write.repairedAt = now
	t.write.repairs = min(t.write.repairs+1, 250)
	if t.write.repairs > atOnce {
		t.write.retryAt = now + r.retry.Delay(int(t.write.repairs-atOnce))
	}
}

// statusRejected records that the API refused the status as invalid. The status is not
// sent again until it changes. A final status is sent again as podstatus.Minimal. If
// that is refused too, it stays unwritten: it must not keep the pod from being
// deleted.
func (t *podState) statusRejected(c *call) {
	t.write.inflight = nil
	t.write.rejectedSeq = c.want
	if c.over {
		t.becomeInvalid()
	}
}

// annotationsRejected records that the API refused the annotations as invalid. They are not
// sent again unless they change.
func (t *podState) annotationsRejected(c *call) {
	t.write.inflight = nil
	t.annotationsSettled(c.annotations)
	t.write.statusSeq++ // the status is sent without them
}

// notFound records the answer "no such pod".
func (t *podState) notFound(now instant) {
	t.write.inflight = nil
	if t.api.notFoundAt == 0 {
		t.api.notFoundAt = now
	}
}

// deleteSent records that the API has accepted the DELETE. Finalizers may still keep the
// object.
func (t *podState) deleteSent(now instant) {
	t.write.inflight = nil
	t.write.failures, t.write.retryAt = 0, 0
	t.becomeReleased(now)
}

// conflicted records that another client has written the pod since the version from
// which the status was computed.
func (t *podState) conflicted(r *rules, now instant) {
	if !older(t.write.inflight.pod, t.pod()) { // else the informer has it already
		t.write.read = readRaced
	}
	t.write.inflight = nil
	if phase := t.pod().Status.Phase; t.write.conflicts == 0 || t.write.contested != phase {
		t.write.contested, t.write.conflicts = phase, 0
	}
	t.write.conflicts = min(t.write.conflicts+1, 250)
	if t.write.failures > 0 {
		// A lost race is no outage: the next try may succeed.
		t.write.retryAt = now + min(r.retry.Delay(int(t.write.failures)), 4*r.retry.Base)
	}
	t.write.failures++
}

// pinned reports whether a patch that changes the phase must be conditional on the version
// from which it was computed. Other clients that write again and again without changing the
// phase must not keep it from being written.
func (t *podState) pinned() bool {
	return t.write.conflicts < pinnedTries || t.write.contested != t.pod().Status.Phase
}

// finishGet applies the answer to a GET; pod is nil if the instance does not exist.
func (t *podState) finishGet(r *rules, now instant, pod *corev1.Pod) {
	base, beaten := t.write.inflight.pod, t.write.read == readRaced
	t.write.read = readNothing
	if pod != nil {
		t.answer(r, now, pod)
	}
	t.write.inflight = nil
	switch {
	case pod != nil:
		t.api.notFoundAt = 0
		t.write.stale = true
		if beaten && pod.ResourceVersion == base.ResourceVersion {
			// No other client has written: the conflict has another cause.
			t.write.retryAt = now + r.retry.Delay(int(t.write.failures))
		}
	case t.api.notFoundAt == 0:
		t.api.notFoundAt = now
	default:
		t.markMissing(now) // the second answer
	}
}

// unanswered reports whether a request failed because no answer came.
func unanswered(err error) bool {
	class := apierr.Classify(err)
	return class == apierr.Timeout || class == apierr.Unreachable
}

// writeFailed schedules a retry of the current request.
func (t *podState) writeFailed(r *rules, now instant, err error) {
	if t.write.inflight.op == OpPatch && apierr.MayHaveCommitted(err) && !older(t.write.inflight.pod, t.pod()) {
		// A status computed from the version before might have another start time
		// than the stored one.
		t.write.read = readUnsure
	}
	t.write.inflight = nil
	t.write.failures++
	delay := r.retry.Delay(int(t.write.failures))
	if unanswered(err) {
		delay = min(delay, unansweredCap)
	}
	delay = max(delay, apierr.RetryAfter(err))
	if class := apierr.Classify(err); class == apierr.Forbidden || class == apierr.Invalid {
		delay = r.retry.Cap // only an administrator can help
	}
	t.write.retryAt = now + delay
}
