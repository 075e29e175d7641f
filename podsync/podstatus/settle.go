// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	corev1 "k8s.io/api/core/v1"
)

// The reasons of a container that waits and has no reason of its own: PodInitializing for
// init containers and for regular ones behind them, else ContainerCreating.
const (
	ReasonContainerCreating = "ContainerCreating"
	ReasonPodInitializing   = "PodInitializing"
)

// The end of a container whose end was not observed. 137 is the exit code of a process
// that was killed, as shells spell signal 9, and never counts as a success.
const (
	ReasonContainerStatusUnknown  = "ContainerStatusUnknown"
	ExitCodeUnknown               = 137
	messageContainerStatusUnknown = "nobody saw the container end"
)

// settle gives every container of a pod of which nothing runs its end.
//
//   - One that ended keeps its end. One that waited to be started again has the
//     end of its last run.
//   - One that ran ended in an unknown way, ContainerStatusUnknown.
//   - One that never ran has that end too, so that clients neither count it as a
//     success nor wait for it, unless the pod never got past its init containers: then it
//     still waits, which is the truth.
func settle(spec *corev1.PodSpec, next *corev1.PodStatus) {
	initialized := Initialized(spec, next).Status == corev1.ConditionTrue
	if initialized && HasStarted(next) {
		next.ContainerStatuses = complete(spec.Containers, next.ContainerStatuses)
	}
	for i := range next.ContainerStatuses {
		settleContainer(&next.ContainerStatuses[i], initialized)
	}
	reached := len(next.InitContainerStatuses)
	if !initialized {
		for reached > 0 && !hasRun(&next.InitContainerStatuses[reached-1]) {
			reached--
		}
	}
	inits := containersIn(spec.InitContainers)
	for i := range next.InitContainerStatuses {
		cs := &next.InitContainerStatuses[i]
		settleContainer(cs, i < reached)
		// Of an init container "ready" means that it has completed.
		c := inits.find(cs.Name)
		cs.Ready = exitedZero(cs) && (c == nil || !IsSidecar(c))
	}
	for i := range next.EphemeralContainerStatuses {
		settleContainer(&next.EphemeralContainerStatuses[i], true)
	}
}

// complete adds the statuses that the list lacks, in the order of the spec.
func complete(specs []corev1.Container, list []corev1.ContainerStatus) []corev1.ContainerStatus {
	if len(list) >= len(specs) {
		return list
	}
	out := make([]corev1.ContainerStatus, 0, len(specs))
	known := statusesIn(list)
	for i := range specs {
		if cs := known.find(specs[i].Name); cs != nil {
			out = append(out, *cs)
			continue
		}
		out = append(out, corev1.ContainerStatus{Name: specs[i].Name, Image: text(specs[i].Image, maxReason)})
	}
	return out
}

// settleContainer ends cs; reached says that the pod got as far as to start it.
func settleContainer(cs *corev1.ContainerStatus, reached bool) {
	if cs.State.Terminated == nil {
		switch end := lastEnd(cs); {
		case end != nil:
			cs.State = corev1.ContainerState{Terminated: end.DeepCopy()}
			cs.LastTerminationState = corev1.ContainerState{}
		case reached || hasRun(cs):
			cs.State = unknownEnd(cs)
		}
	}
	cs.Ready, cs.Started = false, new(bool)
}

// unknownEnd returns the unobserved end of the run in cs. The end has no time:
// a finish that is made up would be believed.
func unknownEnd(cs *corev1.ContainerStatus) corev1.ContainerState {
	end := &corev1.ContainerStateTerminated{
		ExitCode:    ExitCodeUnknown,
		Reason:      ReasonContainerStatusUnknown,
		Message:     messageContainerStatusUnknown,
		ContainerID: cs.ContainerID,
	}
	if cs.State.Running != nil {
		end.StartedAt = cut(cs.State.Running.StartedAt)
	}
	return corev1.ContainerState{Terminated: end}
}

// Lost returns status with every container that was running ended in an unknown
// way and waiting for its next start, which [Next] counts as a
// restart. It is the status of a pod that its provider has lost and that is
// started again. An ephemeral container has ended for good.
// The result shares no memory with the argument.
func Lost(status *corev1.PodStatus) corev1.PodStatus {
	out := *status.DeepCopy()
	for _, list := range [...][]corev1.ContainerStatus{out.InitContainerStatuses, out.ContainerStatuses} {
		for i := range list {
			cs := &list[i]
			if cs.State.Running == nil || cs.State.Terminated != nil {
				continue
			}
			cs.LastTerminationState = unknownEnd(cs)
			cs.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: ReasonContainerCreating}}
			cs.Ready, cs.Started = false, new(bool)
			cs.ContainerID = ""
		}
	}
	for i := range out.EphemeralContainerStatuses {
		if cs := &out.EphemeralContainerStatuses[i]; cs.State.Running != nil && cs.State.Terminated == nil {
			cs.State = unknownEnd(cs) // it is never started again
			cs.Ready, cs.Started = false, new(bool)
		}
	}
	return out
}
