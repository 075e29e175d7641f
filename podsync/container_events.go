// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	corev1 "k8s.io/api/core/v1"
)

// The reasons of the events of Config.ContainerEvents. They are the kubelet's.
const (
	reasonPulled  = "Pulled"
	reasonCreated = "Created"
	reasonStarted = "Started"
	reasonKilling = "Killing"
)

// known returns the status that the next report is compared with: the last report, or
// else the stored status.
func (t *podState) known() *corev1.PodStatus {
	if report := t.report(); report != nil || t.api.pod == nil {
		return report
	}
	return &t.base().Status
}

// eventBase returns the status that recordStarts needs, nil if nothing is recorded.
func (c *Controller) eventBase(t *podState) *corev1.PodStatus {
	if c.cfg.ContainerEvents == nil {
		return nil
	}
	return t.known()
}

// recordStarts records the containers that have started between two statuses of the
// pod. c.mu must be held.
func (c *Controller) recordStarts(t *podState, before *corev1.PodStatus) {
	after := t.report()
	if before == nil || after == nil || before == after {
		return
	}
	record := func(fieldPath string, before, after []corev1.ContainerStatus) {
		for i := range after {
			cs := &after[i]
			if !startedSince(before, cs) {
				continue
			}
			c.containerEvent(t, fieldPath, cs.Name, reasonPulled, actionStart, "Container image \""+cs.Image+"\" is present on the node")
			c.containerEvent(t, fieldPath, cs.Name, reasonCreated, actionStart, "Created container "+cs.Name)
			c.containerEvent(t, fieldPath, cs.Name, reasonStarted, actionStart, "Started container "+cs.Name)
		}
	}
	record("spec.initContainers", before.InitContainerStatuses, after.InitContainerStatuses)
	record("spec.containers", before.ContainerStatuses, after.ContainerStatuses)
	record("spec.ephemeralContainers", before.EphemeralContainerStatuses, after.EphemeralContainerStatuses)
}

// startedSince reports whether the container has begun a run that is not in before.
func startedSince(before []corev1.ContainerStatus, cs *corev1.ContainerStatus) bool {
	if cs.State.Running == nil && cs.State.Terminated == nil {
		return false
	}
	for i := range before {
		old := &before[i]
		if old.Name == cs.Name {
			return cs.RestartCount > old.RestartCount || cs.State.Running != nil && old.State.Running == nil ||
				old.State.Waiting != nil && old.LastTerminationState.Terminated == nil
		}
	}
	return true
}

// recordKills records that the containers that run are being stopped. c.mu must be
// held.
func (c *Controller) recordKills(t *podState) {
	status := c.eventBase(t)
	if status == nil {
		return
	}
	kill := func(fieldPath string, list []corev1.ContainerStatus) {
		for i := range list {
			if list[i].State.Running != nil {
				c.containerEvent(t, fieldPath, list[i].Name, reasonKilling, actionStop, "Stopping container "+list[i].Name)
			}
		}
	}
	kill("spec.containers", status.ContainerStatuses)
	kill("spec.initContainers", status.InitContainerStatuses)
	kill("spec.ephemeralContainers", status.EphemeralContainerStatuses)
}

func (c *Controller) containerEvent(t *podState, fieldPath, container, reason, action, note string) {
	regarding := &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: t.ref.Namespace, Name: t.ref.Name, UID: t.ref.UID,
		FieldPath: fieldPath + "{" + container + "}",
	}
	c.record(c.cfg.ContainerEvents, regarding, corev1.EventTypeNormal, reason, action, cut(note, maxEventNote))
}
