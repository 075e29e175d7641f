// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	corev1 "k8s.io/api/core/v1"
)

// IsTerminal reports whether phase is one that a pod never leaves: Succeeded or
// Failed.
func IsTerminal(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// HasStarted reports whether status holds evidence that something of the pod
// once ran: phase Running, or a container that isn't merely waiting for its
// first start. The age of the object is no evidence: a pod may have waited for
// a node or an image.
func HasStarted(status *corev1.PodStatus) bool {
	if status.Phase == corev1.PodRunning {
		return true
	}
	for _, list := range [...][]corev1.ContainerStatus{
		status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses,
	} {
		for i := range list {
			if hasRun(&list[i]) {
				return true
			}
		}
	}
	return false
}

// MayBeRunning reports whether status holds a container whose last known state
// is Running.
func MayBeRunning(status *corev1.PodStatus) bool {
	for _, list := range [...][]corev1.ContainerStatus{
		status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses,
	} {
		for i := range list {
			if list[i].State.Running != nil && list[i].State.Terminated == nil {
				return true
			}
		}
	}
	return false
}

// Phase returns the phase that the container statuses add up to, as long as the pod
// was not reported as stopped:
//
//   - Failed when an init container failed and isn't restarted, unless a regular container
//     has started since, which proves that the init containers had completed.
//   - Pending until every regular container has been started once. That proves
//     that the init containers had completed and the sidecars had started, even
//     if the runtime has forgotten them or runs them again.
//   - Running while a container runs or will be restarted.
//   - Succeeded or Failed when every regular container has ended, none is
//     restarted and no sidecar runs: Succeeded if all exited with 0.
//
// A container without a status, or with one that says nothing, keeps the pod
// Pending. Ephemeral containers don't count.
//
// Phase depends on its arguments only; that phases don't go back is
// [Next]'s business.
func Phase(spec *corev1.PodSpec, status *corev1.PodStatus) corev1.PodPhase {
	t := tallyOf(spec, status)
	switch {
	case t.initFailed:
		return corev1.PodFailed
	case t.waiting > 0 || t.unknown > 0:
		return corev1.PodPending
	case t.running > 0 || t.sidecarsRunning > 0:
		return corev1.PodRunning
	case t.ended == 0:
		return corev1.PodPending
	case t.restarting > 0:
		return corev1.PodRunning
	case t.ended == t.succeeded:
		return corev1.PodSucceeded
	}
	return corev1.PodFailed
}

// FinalPhase returns the phase of a pod of which nothing runs and nothing will:
// Succeeded if every regular container's last run exited with 0 and no init
// container is known to have ended otherwise, else Failed. Sidecars and
// ephemeral containers don't count. A container whose end was not observed
// has failed; a pod without container statuses has Failed.
//
// An init container without a status counts as completed when all regular ones
// have ended: they could not have started before.
func FinalPhase(spec *corev1.PodSpec, status *corev1.PodStatus) corev1.PodPhase {
	if len(spec.Containers) == 0 {
		return corev1.PodFailed
	}
	statuses, inits := statusesIn(status.ContainerStatuses), statusesIn(status.InitContainerStatuses)
	for i := range spec.Containers {
		cs := statuses.find(spec.Containers[i].Name)
		if cs == nil || !exitedZero(cs) {
			return corev1.PodFailed
		}
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if IsSidecar(c) {
			continue
		}
		if cs := inits.find(c.Name); cs != nil && !exitedZero(cs) {
			return corev1.PodFailed
		}
	}
	return corev1.PodSucceeded
}

// Ended reports whether the pod's work is done on its own: an init container
// failed for good, or every regular container has ended and none is restarted.
// Sidecars may still run: it is the moment at which to stop them.
func Ended(spec *corev1.PodSpec, status *corev1.PodStatus) bool {
	t := tallyOf(spec, status)
	if t.initFailed {
		return true
	}
	return t.ended > 0 && t.running == 0 && t.waiting == 0 && t.unknown == 0 && t.restarting == 0
}

// tally counts the states of a pod's containers.
type tally struct {
	initFailed      bool // an init container failed and isn't restarted
	sidecarsRunning int

	// Regular containers, each in one of these.
	unknown, waiting, running, ended int
	// Of those that ended:
	succeeded, restarting int
}

func tallyOf(spec *corev1.PodSpec, status *corev1.PodStatus) tally {
	var t tally
	statuses, inits := statusesIn(status.ContainerStatuses), statusesIn(status.InitContainerStatuses)
	all := restartsAll(spec, statuses, inits)
	initialized := false // a regular container has started since the init containers began
	for i := range spec.Containers {
		c := &spec.Containers[i]
		cs := statuses.find(c.Name)
		if cs == nil {
			t.unknown++
			continue
		}
		end := lastEnd(cs)
		initialized = initialized || cs.State.Running != nil ||
			cs.State.Terminated != nil && cs.State.Terminated.Reason != ReasonRestartingAllContainers
		switch {
		case end != nil:
			t.ended++
			if end.ExitCode == 0 {
				t.succeeded++
			}
			if all || end.Reason == ReasonRestartingAllContainers || ShouldRestart(spec, c, end.ExitCode) {
				t.restarting++
			}
		case cs.State.Running != nil:
			t.running++
		case cs.State.Waiting != nil:
			t.waiting++
		default:
			t.unknown++
		}
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		cs := inits.find(c.Name)
		switch {
		case cs == nil:
		case !IsSidecar(c):
			end := lastEnd(cs)
			t.initFailed = t.initFailed || end != nil && end.ExitCode != 0 && !initialized &&
				!all && end.Reason != ReasonRestartingAllContainers && !ShouldRestart(spec, c, end.ExitCode)
		case cs.State.Running != nil && cs.State.Terminated == nil:
			t.sidecarsRunning++
		}
	}
	return t
}

// restartsAll reports whether a container ended in the way that restarts every
// container of the pod.
func restartsAll(spec *corev1.PodSpec, statuses, inits lookup[corev1.ContainerStatus]) bool {
	if !mayRestartPod(spec) {
		return false
	}
	for i := range spec.Containers {
		c := &spec.Containers[i]
		if cs := statuses.find(c.Name); cs != nil && cs.State.Terminated != nil && RestartsPod(c, cs.State.Terminated.ExitCode) {
			return true
		}
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if cs := inits.find(c.Name); cs != nil && cs.State.Terminated != nil && RestartsPod(c, cs.State.Terminated.ExitCode) {
			return true
		}
	}
	return false
}

// lastEnd returns how the container's last run ended, or nil if it runs or has
// never run.
func lastEnd(cs *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	switch {
	case cs.State.Terminated != nil:
		return cs.State.Terminated
	case cs.State.Running != nil:
		return nil
	}
	return cs.LastTerminationState.Terminated
}

func exitedZero(cs *corev1.ContainerStatus) bool {
	end := lastEnd(cs)
	return end != nil && end.ExitCode == 0
}

// hasRun reports whether the container was started at least once.
func hasRun(cs *corev1.ContainerStatus) bool {
	return cs.State.Running != nil || cs.State.Terminated != nil || cs.LastTerminationState.Terminated != nil ||
		cs.RestartCount > 0 || cs.ContainerID != ""
}
