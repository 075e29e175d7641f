// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Reasons of the conditions that this package computes. They are those that the
// kubelet uses, since people and programs look for them.
const (
	ReasonUnknownContainerStatuses = "UnknownContainerStatuses"
	ReasonContainersNotReady       = "ContainersNotReady"
	ReasonContainersNotInitialized = "ContainersNotInitialized"
	ReasonReadinessGatesNotReady   = "ReadinessGatesNotReady"
	ReasonPodCompleted             = "PodCompleted"
	ReasonPodFailed                = "PodFailed"
)

// ContainersReady returns the condition of that type: True when every regular
// container and every sidecar is ready. It is False with a terminal phase,
// whatever the containers say. Only Type, Status, Reason and Message are set.
func ContainersReady(spec *corev1.PodSpec, status *corev1.PodStatus) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionFalse}
	switch status.Phase {
	case corev1.PodSucceeded:
		c.Reason = ReasonPodCompleted
		return c
	case corev1.PodFailed:
		c.Reason = ReasonPodFailed
		return c
	}
	if len(status.ContainerStatuses) == 0 && len(spec.Containers) > 0 {
		c.Reason = ReasonUnknownContainerStatuses
		return c
	}
	var unknown, unready []string
	statuses, inits := statusesIn(status.ContainerStatuses), statusesIn(status.InitContainerStatuses)
	add := func(list lookup[corev1.ContainerStatus], name string) {
		switch cs := list.find(name); {
		case cs == nil:
			unknown = append(unknown, name)
		case !cs.Ready:
			unready = append(unready, name)
		}
	}
	for i := range spec.InitContainers {
		if IsSidecar(&spec.InitContainers[i]) {
			add(inits, spec.InitContainers[i].Name)
		}
	}
	for i := range spec.Containers {
		add(statuses, spec.Containers[i].Name)
	}
	if len(unknown)+len(unready) == 0 {
		c.Status = corev1.ConditionTrue
		return c
	}
	c.Reason = ReasonContainersNotReady
	c.Message = sentence("containers with unready status", unready, "containers with unknown status", unknown)
	return c
}

// Ready returns the pod's Ready condition: True when [ContainersReady] is and
// every readiness gate of the spec has a condition in status that is True
// (KEP-580). Only Type, Status, Reason and Message are set.
func Ready(spec *corev1.PodSpec, status *corev1.PodStatus) corev1.PodCondition {
	return readyFrom(ContainersReady(spec, status), spec, status.Conditions)
}

// readyFrom makes Ready of ContainersReady and the conditions that gates name.
func readyFrom(c corev1.PodCondition, spec *corev1.PodSpec, conditions []corev1.PodCondition) corev1.PodCondition {
	c.Type = corev1.PodReady
	if c.Status != corev1.ConditionTrue {
		return c
	}
	var missing, unmet []string
	for i := range spec.ReadinessGates {
		gate := spec.ReadinessGates[i].ConditionType
		switch at := indexOf(conditions, gate); {
		case at < 0:
			missing = append(missing, string(gate))
		case conditions[at].Status != corev1.ConditionTrue:
			unmet = append(unmet, string(gate))
		}
	}
	if len(missing)+len(unmet) > 0 {
		c.Status = corev1.ConditionFalse
		c.Reason = ReasonReadinessGatesNotReady
		c.Message = sentence("readiness gates not True", unmet, "readiness gates without a condition", missing)
	}
	return c
}

// Initialized returns the condition of that type: True when every init container
// has completed and every sidecar has started, or when a regular container has
// been started, which proves it. A pod that was initialized stays so: pass the
// stored condition on in status.Conditions. Only Type, Status, Reason and
// Message are set.
func Initialized(spec *corev1.PodSpec, status *corev1.PodStatus) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	if status.Phase == corev1.PodSucceeded {
		c.Reason = ReasonPodCompleted
		return c
	}
	if len(spec.InitContainers) == 0 {
		return c
	}
	if at := indexOf(status.Conditions, corev1.PodInitialized); at >= 0 && status.Conditions[at].Status == corev1.ConditionTrue {
		return c
	}
	for i := range status.ContainerStatuses {
		if hasRun(&status.ContainerStatuses[i]) {
			return c
		}
	}
	inits := statusesIn(status.InitContainerStatuses)
	var unknown, incomplete []string
	for i := range spec.InitContainers {
		name := spec.InitContainers[i].Name
		switch cs := inits.find(name); {
		case cs == nil:
			unknown = append(unknown, name)
		case IsSidecar(&spec.InitContainers[i]):
			if cs.Started == nil || !*cs.Started {
				incomplete = append(incomplete, name)
			}
		case !exitedZero(cs):
			incomplete = append(incomplete, name)
		}
	}
	if len(unknown)+len(incomplete) == 0 {
		return c
	}
	c.Status = corev1.ConditionFalse
	c.Reason = ReasonContainersNotInitialized
	if len(unknown) == len(spec.InitContainers) {
		c.Reason = ReasonUnknownContainerStatuses
	}
	c.Message = sentence("containers with incomplete status", incomplete, "containers with unknown status", unknown)
	return c
}

// ReadyToStartContainers returns the PodReadyToStartContainers condition
// (KEP-3085) as far as it shows from outside: True when the pod has an address
// or a container of it has run, False before that and with a terminal phase. A
// provider that knows better reports the condition itself.
func ReadyToStartContainers(status *corev1.PodStatus) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse}
	if !IsTerminal(status.Phase) && (status.PodIP != "" || HasStarted(status)) {
		c.Status = corev1.ConditionTrue
	}
	return c
}

// sentence lists names under one or two headings, in the form that the kubelet
// uses and Kubernetes' own tests look for: "containers with unready status: [a b],
// containers with unknown status: [c]".
func sentence(what string, names []string, what2 string, names2 []string) string {
	var b strings.Builder
	write := func(what string, names []string) {
		if len(names) == 0 {
			return
		}
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString(what)
		b.WriteString(": [")
		// A pod may have hundreds of containers; a condition has to stay small.
		const shown = 20
		b.WriteString(strings.Join(names[:min(shown, len(names))], " "))
		b.WriteString("]")
		if more := len(names) - shown; more > 0 {
			b.WriteString(" and " + strconv.Itoa(more) + " more")
		}
	}
	write(what, names)
	write(what2, names2)
	return b.String()
}

// indexOf returns the place of the condition of this type, or -1.
func indexOf(conditions []corev1.PodCondition, t corev1.PodConditionType) int {
	for i := range conditions {
		if conditions[i].Type == t {
			return i
		}
	}
	return -1
}
