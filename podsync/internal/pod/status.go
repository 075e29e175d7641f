// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"hash/fnv"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// writeStarted records an API request.
func (t *State) writeStarted(now Instant, op Op, wall time.Time) *Call {
	c := &Call{Op: op, Since: now, want: t.write.news.statusSeq, Over: t.Stopped(), Pod: t.Pod()}
	if op == Patch {
		c.Base, c.Update, c.Annotations = t.base(), t.update(wall), t.newAnnotations()
		c.Minimal, c.Pinned = t.write.end == endInvalid, t.pinned()
	}
	t.write.inflight = c
	return c
}

// update returns the argument of podstatus.Next at the time wall. The memory that it refers to is never
// changed.
func (t *State) update(wall time.Time) podstatus.Update {
	u := podstatus.Update{
		Stopped: t.Stopped(), KeepPhase: t.rules.TrustPhase, Generation: t.provider.generation,
		Withdrawn: slices.Clone(t.provider.withdrawn), Now: wall,
	}
	pends := func(c corev1.PodCondition) bool { return c.Type == corev1.PodResizePending }
	if t.running() && t.provider.generation >= t.Pod().Generation && slices.ContainsFunc(t.Pod().Status.Conditions, pends) {
		u.Withdrawn = append(u.Withdrawn, corev1.PodResizePending) // unless the provider reports it
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
		u.Failure, u.Unstarted, u.Generation = t.end.failure, t.end.unstarted, t.Pod().Generation
	case t.running() && !t.rules.Updates && !t.provider.saysGeneration:
		u.Generation = t.Pod().Generation // nothing else can accept it
	case t.unapplied() && t.provider.resources != 0 && t.provider.resources != resourcesOf(t.Pod()):
		u.Observed.Conditions = append(slices.Clone(u.Observed.Conditions), corev1.PodCondition{
			Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible, Message: MessageUnapplied,
		})
	case t.provider.refused != nil && t.provider.refused.generation == t.Pod().Generation:
		// Seen and refused. To a resize that is a condition of its own.
		u.Generation = t.Pod().Generation
		if t.provider.resources == resourcesOf(t.Pod()) {
			break
		}
		u.Observed.Conditions = append(slices.Clone(u.Observed.Conditions), corev1.PodCondition{
			Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible, Message: t.provider.refused.answer,
		})
	case !t.running() && t.end == nil:
		if t.provider.fp == 0 {
			t.addStarting(&u.Observed)
		}
		u.Generation = t.Pod().Generation // Start is called with the newest
		u.Observed.Reason, u.Observed.Message = "", ""
		switch taken := t.nameTaken(); {
		case taken != nil:
			u.Observed.Reason, u.Observed.Message = ReasonNameTaken, taken.Message
		case t.call.err != nil && t.call.failures > 0:
			u.Observed.Reason, u.Observed.Message = ReasonFailedStart, t.call.err.Error()
		}
	}
	return u
}

// nameTaken returns why the pod waits for its name; nil if it does not.
func (t *State) nameTaken() *NameTaken {
	taken, _ := t.call.err.(*NameTaken)
	return taken
}

// asReported removes from a stored status the fields that the provider did not report:
// conditions of other types, and resources and addresses if they were derived.
func (t *State) asReported(status *corev1.PodStatus) {
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

// addWaiting adds a status for each container of the spec.
func (t *State) addWaiting(status *corev1.PodStatus) {
	status.ContainerStatuses = waiting(t.Pod().Spec.Containers)
	status.InitContainerStatuses = waiting(t.Pod().Spec.InitContainers)
}

// addStarting adds a status for each container of a pod that the provider has said
// nothing about. One that has not run waits for the reason that the last error of
// Start gives; of others the stored status counts.
func (t *State) addStarting(status *corev1.PodStatus) {
	t.addWaiting(status)
	stored := &t.base().Status
	for _, lists := range [...][2][]corev1.ContainerStatus{
		{status.InitContainerStatuses, stored.InitContainerStatuses}, {status.ContainerStatuses, stored.ContainerStatuses},
	} {
		places := placesOf(lists[1])
		for i := range lists[0] {
			cs := &lists[0][i]
			at, ran := places[cs.Name]
			if ran {
				old := &lists[1][at]
				ran = old.State.Running != nil || old.State.Terminated != nil || old.LastTerminationState.Terminated != nil
			}
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
