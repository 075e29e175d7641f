// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// take records a report until the API has stored it.
func (t *State) take(now Instant, st *Report) {
	t.provider.saysGeneration = st.Generation > 0
	if st.Generation > 0 && (!t.running() || !t.rules.Updates) {
		// It counts until Start has succeeded; from then on only the results of
		// Update do, if the provider has it.
		t.accept(st.Generation)
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
		any:       true,
		resources: hasResources(st.Status.ContainerStatuses) || hasResources(st.Status.InitContainerStatuses),
		hostIP:    st.Status.HostIP != "" || len(st.Status.HostIPs) > 0,
		podIP:     st.Status.PodIP != "" || len(st.Status.PodIPs) > 0,
	}
	stored := t.write.news.statusSeq == t.write.news.storedSeq
	if stored || t.write.news.reportedAt == 0 {
		t.write.news.reportedAt = now
	}
	quiet = quiet && (stored || t.write.news.quietSeq == t.write.news.statusSeq)
	t.write.news.statusSeq++
	if quiet {
		t.write.news.quietSeq = t.write.news.statusSeq
	}
	t.write.rivals.repairs = 0
	if t.end == nil && t.api.pod != nil && t.ended() {
		t.beginTermination(now, StopCompleted, nil, SpecGrace(t.Pod()))
	}
}

// nameContainer gives the status of the only container of a pod that container's name. A
// backend that has one container for a pod often knows it by a name of its own.
func (t *State) nameContainer(status *corev1.PodStatus) {
	if t.api.pod == nil || len(status.ContainerStatuses) != 1 || len(t.Pod().Spec.Containers) != 1 {
		return
	}
	spec, name := &t.Pod().Spec, status.ContainerStatuses[0].Name
	for i := range spec.InitContainers {
		if spec.InitContainers[i].Name == name {
			return
		}
	}
	status.ContainerStatuses[0].Name = spec.Containers[0].Name
}

// takeAnnotations records the annotations that are new since the last report and that the
// API does not have.
func (t *State) takeAnnotations(annotations map[string]string) {
	if t.final() {
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
			if stored, ok := t.Pod().Annotations[key]; ok && stored == value {
				continue
			}
		}
		if !slices.Contains(t.provider.unsaved, key) {
			t.provider.unsaved = append(t.provider.unsaved, key)
		}
		t.write.news.statusSeq++
	}
}

// unreported returns the annotations of a call that no report during the call has another value
// of: nothing may repeat them, also no List.
func (t *State) unreported(annotations map[string]string) map[string]string {
	out := maps.Clone(annotations)
	maps.DeleteFunc(out, func(key, _ string) bool {
		_, reported := t.provider.annotations[key]
		return reported
	})
	return out
}

// newAnnotations returns the annotations that the API does not have yet.
func (t *State) newAnnotations() map[string]string {
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
func (t *State) annotationsSettled(settled map[string]string) {
	t.provider.unsaved = slices.DeleteFunc(t.provider.unsaved, func(key string) bool {
		value, ok := settled[key]
		return ok && value == t.provider.annotations[key]
	})
}

// quiet reports whether a report may wait for the next one: no container has started,
// ended or changed its readiness since the last report. The addresses of a pod come
// between its first status and Running, for example. The last containers of a pod that
// is stopped are no news either, because the final status follows.
func (t *State) quiet(next *corev1.PodStatus) bool {
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
func (t *State) sameConditions(last, next []corev1.PodCondition) bool {
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
func (t *State) takeConditions(conditions []corev1.PodCondition) {
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

// base returns the pod as the API will have it once everything before the last
// report is stored: with the containers of a lost instance ended.
func (t *State) base() *corev1.Pod {
	lost := t.provider.lost
	if lost == nil {
		return t.Pod()
	}
	pod := *t.Pod()
	pod.Status.InitContainerStatuses = lost.InitContainerStatuses
	pod.Status.ContainerStatuses = lost.ContainerStatuses
	pod.Status.EphemeralContainerStatuses = lost.EphemeralContainerStatuses
	return &pod
}

// ended reports whether the pod's work is done by the last report.
func (t *State) ended() bool {
	report := t.report()
	return report != nil && (t.rules.TrustPhase && podstatus.IsTerminal(report.Phase) || t.endedBy(report))
}

// endedBy reports whether the pod's work is done: by a report, and for a container that the
// report leaves out by the end that is stored. The last termination of a container that waits
// counts only if the report has it: the stored one may be that of a lost instance.
func (t *State) endedBy(report *corev1.PodStatus) bool {
	stored := &t.base().Status
	return podstatus.Ended(&t.Pod().Spec, &corev1.PodStatus{
		InitContainerStatuses: addMissing(report.InitContainerStatuses, stored.InitContainerStatuses, true),
		ContainerStatuses:     addMissing(report.ContainerStatuses, stored.ContainerStatuses, true),
	})
}

// placesOf returns the places of containers in a list, by name: the first one, if a provider
// has reported a name twice.
func placesOf(list []corev1.ContainerStatus) map[string]int {
	places := make(map[string]int, len(list))
	for i := len(list) - 1; i >= 0; i-- {
		places[list[i].Name] = i
	}
	return places
}

// addMissing returns list with the containers of other that it lacks, has
// without a state, or of which it has forgotten the end; with endsOnly those that have ended.
func addMissing(list, other []corev1.ContainerStatus, endsOnly bool) []corev1.ContainerStatus {
	if len(other) == 0 {
		return list
	}
	places := placesOf(list)
	out, copied := list, false
	for i := range other {
		if other[i].State == (corev1.ContainerState{}) || endsOnly && other[i].State.Terminated == nil {
			continue
		}
		at, ok := places[other[i].Name]
		if ok && list[at].State != (corev1.ContainerState{}) && !podstatus.Forgets(&list[at], &other[i]) {
			continue
		}
		if !copied {
			out, copied = slices.Clone(list), true
		}
		if ok {
			out[at] = other[i]
		} else {
			out = append(out, other[i])
		}
	}
	return out
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
