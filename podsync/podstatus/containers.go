// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// containers merges the three lists of container statuses.
func (m *merger) containers() {
	spec := &m.pod.Spec
	m.next.InitContainerStatuses = mergeContainers(m, initial, spec.InitContainers, "initContainerStatuses",
		m.stored.InitContainerStatuses, m.observed.InitContainerStatuses)
	m.next.ContainerStatuses = mergeContainers(m, regular, spec.Containers, "containerStatuses",
		m.stored.ContainerStatuses, m.observed.ContainerStatuses)
	m.next.EphemeralContainerStatuses = mergeContainers(m, ephemeral, debugContainers(spec), "ephemeralContainerStatuses",
		m.stored.EphemeralContainerStatuses, m.observed.EphemeralContainerStatuses)
}

// debugContainers returns the ephemeral containers of spec as containers.
func debugContainers(spec *corev1.PodSpec) []corev1.Container {
	var out []corev1.Container
	for i := range spec.EphemeralContainers {
		out = append(out, corev1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	return out
}

// mergeContainers returns a status for each container of the spec, in the
// spec's order: the observed one, if it says in which state the container is or
// nothing is stored; else the stored one; else, if anything was
// observed, that it waits. The API replaces such a list whole, so one that left
// out a container would take its exit code away. Statuses of containers that the
// spec doesn't have are left out, observed ones as a problem.
func mergeContainers(m *merger, k kind, specs []corev1.Container, list string, stored, observed []corev1.ContainerStatus) []corev1.ContainerStatus {
	if len(observed) == 0 && len(stored) == 0 {
		return nil
	}
	var out []corev1.ContainerStatus
	before, now := statusesIn(stored), statusesIn(observed)
	for i := range specs {
		c := &specs[i]
		old := before.find(c.Name)
		at := now.index(c.Name)
		n := len(out)
		switch {
		case at >= 0 && (old == nil || observed[at].State != corev1.ContainerState{}):
			out = append(out, m.container(k, c, place{list, at}, old, observed[at]))
		case old != nil:
			out = append(out, *old.DeepCopy())
		case len(observed) > 0 && k != ephemeral:
			out = append(out, m.container(k, c, place{list, i}, nil, corev1.ContainerStatus{Name: c.Name}))
		}
		if k != ephemeral && len(out) > n {
			m.containerResources(c, old, &out[n])
		}
	}
	known := containersIn(specs)
	for i := range observed {
		switch name := observed[i].Name; {
		case now.index(name) != i:
			m.problem(field.Duplicate(place{list, i}.path("name"), name))
		case known.find(name) == nil:
			m.problem(field.Invalid(place{list, i}.path("name"), name, "not a container of the spec: podsync leaves such a status out, although the API server would store it"))
		}
	}
	return out
}

// container returns the status to store for one container of the spec. Its observed
// status is cs and its stored one old, which may be nil.
func (m *merger) container(k kind, c *corev1.Container, at place, old *corev1.ContainerStatus, cs corev1.ContainerStatus) corev1.ContainerStatus {
	if m.u.Stopped && cs.State.Running == nil {
		// It won't be started again: the end of its last run is its end.
		if end := lastEnd(&cs); end != nil && cs.State.Terminated == nil {
			cs.State, cs.LastTerminationState = corev1.ContainerState{Terminated: end}, corev1.ContainerState{}
		}
	}
	if old != nil && Forgets(&cs, old) {
		cs.State = *old.State.DeepCopy()
	}
	if old != nil && old.State.Terminated != nil && cs.State.Terminated == nil {
		if m.u.Stopped && old.State.Terminated.Reason == ReasonContainerStatusUnknown && cs.RestartCount <= old.RestartCount {
			// The end that settle gave this run.
			return *old.DeepCopy()
		}
		if !mayLeaveTerminated(&m.pod.Spec, k, c, old.State.Terminated) {
			m.problem(field.Forbidden(at.path("state"), "a container that ended and isn't restarted has no other state"))
			return *old.DeepCopy()
		}
	}
	m.containerState(at, "state", &cs.State)
	m.containerState(at, "lastState", &cs.LastTerminationState)
	if cs.State == (corev1.ContainerState{}) {
		cs.State.Waiting = &corev1.ContainerStateWaiting{}
	}
	if w := cs.State.Waiting; w != nil && w.Reason == "" {
		w.Reason = ReasonContainerCreating
		if k == initial || k == regular && len(m.pod.Spec.InitContainers) > 0 {
			w.Reason = ReasonPodInitializing
		}
	}
	// Runs and waits of before are no last state, only ends are.
	cs.LastTerminationState.Running, cs.LastTerminationState.Waiting = nil, nil

	if cs.RestartCount < 0 {
		m.problem(field.Invalid(at.path("restartCount"), cs.RestartCount, "must not be negative"))
		cs.RestartCount = 0
	}
	if old != nil {
		inherit(&cs, old)
	}
	cs.Image, cs.ImageID = text(cs.Image, maxReason), text(cs.ImageID, maxReason)
	if cs.Image == "" {
		cs.Image = text(c.Image, maxReason)
	}
	cs.ContainerID = text(cs.ContainerID, maxReason)
	readiness(&cs, k, c)
	m.containerDetails(at, k, c, &cs)
	return cs
}

// Forgets reports whether next, a later status of the same container, does not know how the run
// ended whose end before has: a runtime forgets containers that an administrator removes. An end
// that was seen is final.
func Forgets(next, before *corev1.ContainerStatus) bool {
	return next.RestartCount <= before.RestartCount && forgetsEnd(next.State.Terminated, before.State.Terminated)
}

// forgetsEnd reports whether next is the unknown end of a run of which known is the end.
func forgetsEnd(next, known *corev1.ContainerStateTerminated) bool {
	return next != nil && known != nil && next.Reason == ReasonContainerStatusUnknown && known.Reason != ReasonContainerStatusUnknown &&
		(next.ContainerID == "" || known.ContainerID == "" || next.ContainerID == known.ContainerID) &&
		(next.StartedAt.IsZero() || known.StartedAt.IsZero() || next.StartedAt.Unix() == known.StartedAt.Unix())
}

// containerResources fills in the resources that the report leaves out: those of the
// spec if the provider has accepted the spec and nothing of it waits to be
// applied, else the stored ones.
func (m *merger) containerResources(c *corev1.Container, old, cs *corev1.ContainerStatus) {
	from := corev1.ContainerStatus{}
	switch {
	case old != nil && (m.u.Stopped || !m.specApplied()):
		from.Resources, from.AllocatedResources = old.Resources.DeepCopy(), old.AllocatedResources.DeepCopy()
	case m.specApplied():
		from.AllocatedResources = c.Resources.Requests.DeepCopy()
		if len(c.Resources.Limits)+len(c.Resources.Requests) > 0 {
			from.Resources = &corev1.ResourceRequirements{Limits: c.Resources.Limits.DeepCopy(), Requests: c.Resources.Requests.DeepCopy()}
		}
	}
	if cs.Resources == nil {
		cs.Resources = from.Resources
	}
	if cs.AllocatedResources == nil {
		cs.AllocatedResources = from.AllocatedResources
	}
}

// specApplied reports whether the containers have the resources of the spec, as far
// as the update says.
func (m *merger) specApplied() bool {
	for _, t := range [...]corev1.PodConditionType{corev1.PodResizePending, corev1.PodResizeInProgress} {
		if at := indexOf(m.observed.Conditions, t); at >= 0 && m.observed.Conditions[at].Status == corev1.ConditionTrue {
			return false
		}
	}
	return m.u.Generation >= m.pod.Generation
}

// mayLeaveTerminated reports whether the API server lets a container that ended
// so get another state.
func mayLeaveTerminated(spec *corev1.PodSpec, k kind, c *corev1.Container, end *corev1.ContainerStateTerminated) bool {
	if k == ephemeral {
		return false
	}
	return mayRestartPod(spec) || ShouldRestart(spec, c, end.ExitCode)
}

// inherit fills what cs lacks from old, the stored status of the same container.
func inherit(cs, old *corev1.ContainerStatus) {
	ended := old.State.Terminated
	restarted := ended != nil && cs.State.Terminated == nil

	// A provider that keeps no count, or lost it by a restart of its own,
	// reports one that is too low; the way out of an end is a restart.
	waited := old.State.Waiting != nil && old.LastTerminationState.Terminated != nil && cs.RestartCount == 0
	switch {
	case (restarted || waited) && cs.State.Running != nil && cs.RestartCount <= old.RestartCount:
		if old.RestartCount < math.MaxInt32 {
			cs.RestartCount = old.RestartCount + 1
		}
	case cs.RestartCount < old.RestartCount:
		cs.RestartCount = old.RestartCount
	}
	same := cs.RestartCount == old.RestartCount

	// The end of the run before says why a container restarts.
	last := old.LastTerminationState.Terminated
	if restarted || ended != nil && !same {
		last = ended
	}
	if reported := cs.LastTerminationState.Terminated; reported == nil || cs.RestartCount <= old.RestartCount+1 && forgetsEnd(reported, last) {
		cs.LastTerminationState.Terminated = last.DeepCopy()
	}
	switch state := &cs.State; {
	case state.Terminated != nil && state.Terminated.StartedAt.IsZero():
		if old.State.Running != nil {
			state.Terminated.StartedAt = cut(old.State.Running.StartedAt)
		} else if ended != nil && same {
			state.Terminated.StartedAt = cut(ended.StartedAt)
		}
	case state.Running != nil && state.Running.StartedAt.IsZero():
		if old.State.Running != nil && same {
			state.Running.StartedAt = cut(old.State.Running.StartedAt)
		}
	}
	if cs.ContainerID == "" && same {
		cs.ContainerID = old.ContainerID
	}
	if cs.Image == "" {
		cs.Image = old.Image
	}
	if cs.ImageID == "" && cs.Image == old.Image {
		cs.ImageID = old.ImageID
	}
}

// readiness makes ready and started agree with the state, and gives started a
// value: without a startup probe a container that runs has started.
func readiness(cs *corev1.ContainerStatus, k kind, c *corev1.Container) {
	started := false
	if cs.State.Running != nil {
		started = cs.Ready || c.StartupProbe == nil
		if cs.Started != nil {
			started = *cs.Started
		}
	}
	cs.Started = &started
	if k == initial && !IsSidecar(c) {
		// Of an init container "ready" means that it has completed.
		cs.Ready = cs.State.Terminated != nil && cs.State.Terminated.ExitCode == 0
		return
	}
	cs.Ready = cs.Ready && started
}

// containerState leaves the most final member of state and makes it storable.
func (m *merger) containerState(at place, which string, state *corev1.ContainerState) {
	set := 0
	for _, is := range [...]bool{state.Waiting != nil, state.Running != nil, state.Terminated != nil} {
		if is {
			set++
		}
	}
	if set > 1 {
		m.problem(field.Invalid(at.path(which), "waiting, running, terminated", "only one of them may be set"))
	}
	switch {
	case state.Terminated != nil:
		state.Waiting, state.Running = nil, nil
		end := state.Terminated
		end.Reason = text(end.Reason, maxReason)
		end.Message = text(end.Message, terminationShare(&m.pod.Spec))
		end.ContainerID = text(end.ContainerID, maxReason)
		m.timestamp(at, &end.StartedAt, which, "terminated", "startedAt")
		m.timestamp(at, &end.FinishedAt, which, "terminated", "finishedAt")
	case state.Running != nil:
		state.Waiting = nil
		m.timestamp(at, &state.Running.StartedAt, which, "running", "startedAt")
	case state.Waiting != nil:
		state.Waiting.Reason = text(state.Waiting.Reason, maxReason)
		state.Waiting.Message = text(state.Waiting.Message, maxMessage)
	}
}
