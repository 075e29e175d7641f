// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// conditions merges the conditions: the provider's first, because readiness
// gates may name them, then the computed ones.
func (m *merger) conditions() {
	terminal := IsTerminal(m.next.Phase)
	ends := terminal && !IsTerminal(m.stored.Phase)

	sandbox := m.observedConditions(ends)
	if ends && m.u.Failure != nil && m.u.Failure.DisruptionReason != "" {
		m.setCondition(corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
			Reason: text(m.u.Failure.DisruptionReason, maxReason), Message: text(m.u.Failure.Message, maxMessage),
		})
	}
	if sandbox.Type == "" || terminal {
		sandbox = ReadyToStartContainers(&m.next)
	}
	m.setCondition(sandbox)
	if m.pod.Spec.NodeName != "" {
		m.setCondition(scheduled(m.stored.Conditions))
	}
	m.setCondition(Initialized(&m.pod.Spec, &m.next))
	ready := ContainersReady(&m.pod.Spec, &m.next)
	m.setCondition(ready)
	m.setCondition(readyFrom(ready, &m.pod.Spec, m.next.Conditions))
}

// scheduled returns the PodScheduled condition of a pod that is bound to a node. The
// scheduler writes it without observedGeneration, and does not write it for a pod
// that was created with a node name.
func scheduled(stored []corev1.PodCondition) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}
	if at := indexOf(stored, c.Type); at >= 0 && stored[at].Status == c.Status {
		c.Reason, c.Message = stored[at].Reason, stored[at].Message
	}
	return c
}

// observedConditions writes the conditions in the report that are the provider's
// to write, and returns its PodReadyToStartContainers, if any.
func (m *merger) observedConditions(ends bool) (sandbox corev1.PodCondition) {
	reported := conditionsIn(m.observed.Conditions)
	for i, c := range m.observed.Conditions {
		at := place{"conditions", i}
		if errs := checkCondition(at.path(), &c); len(errs) > 0 {
			m.problems = append(m.problems, errs...)
			continue
		}
		if reported.index(string(c.Type)) != i {
			m.problem(field.Duplicate(at.path("type"), c.Type))
			continue
		}
		m.timestamp(at, &c.LastTransitionTime, "lastTransitionTime")
		c.Reason, c.Message = text(c.Reason, maxReason), text(c.Message, maxMessage)
		switch c.Type {
		case corev1.PodScheduled, corev1.ContainersReady, corev1.PodReady, corev1.PodInitialized:
		case corev1.PodReadyToStartContainers:
			sandbox = c
		case corev1.DisruptionTarget:
			if ends {
				m.setCondition(c)
			}
		default:
			m.setCondition(c)
		}
	}
	if m.observed.Conditions != nil {
		for _, t := range [...]corev1.PodConditionType{corev1.PodResizePending, corev1.PodResizeInProgress, corev1.AllContainersRestarting} {
			if at := indexOf(m.next.Conditions, t); at >= 0 && reported.find(string(t)) == nil {
				m.next.Conditions = append(m.next.Conditions[:at], m.next.Conditions[at+1:]...)
			}
		}
	}
	for _, t := range m.u.Withdrawn {
		switch t {
		case corev1.PodScheduled, corev1.ContainersReady, corev1.PodReady, corev1.PodInitialized, corev1.PodReadyToStartContainers, corev1.DisruptionTarget:
			continue
		}
		if at := indexOf(m.next.Conditions, t); at >= 0 && reported.find(string(t)) == nil {
			m.next.Conditions = append(m.next.Conditions[:at], m.next.Conditions[at+1:]...)
		}
	}
	return sandbox
}

// setCondition puts c in its place. The transition time moves only with the
// status (API conventions), the generation never back.
func (m *merger) setCondition(c corev1.PodCondition) {
	c.LastProbeTime = metav1.Time{}
	c.ObservedGeneration = max(c.ObservedGeneration, m.u.Generation)
	at := indexOf(m.next.Conditions, c.Type)
	if at < 0 {
		if c.LastTransitionTime.IsZero() {
			c.LastTransitionTime = metav1.Time{Time: m.u.Now}
		}
		m.next.Conditions = append(m.next.Conditions, c)
		return
	}
	old := &m.next.Conditions[at]
	c.LastProbeTime = old.LastProbeTime
	c.ObservedGeneration = max(c.ObservedGeneration, m.observedGeneration(old.ObservedGeneration))
	switch {
	case old.Status == c.Status:
		c.LastTransitionTime = old.LastTransitionTime
	case c.LastTransitionTime.IsZero(), c.LastTransitionTime.Before(&old.LastTransitionTime):
		c.LastTransitionTime = metav1.Time{Time: m.u.Now}
	}
	*old = c
}

// checkCondition returns the errors for which the API server refuses a pod
// condition, or for which no client could read it.
func checkCondition(path *field.Path, c *corev1.PodCondition) field.ErrorList {
	var errs field.ErrorList
	if c.ObservedGeneration < 0 {
		errs = append(errs, field.Invalid(path.Child("observedGeneration"), c.ObservedGeneration, "must not be negative"))
	}
	if msgs := validation.IsQualifiedName(string(c.Type)); len(msgs) > 0 {
		errs = append(errs, field.Invalid(path.Child("type"), text(string(c.Type), maxReason), strings.Join(msgs, "; ")))
	}
	switch c.Status {
	case corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown:
	default:
		errs = append(errs, field.NotSupported(path.Child("status"), corev1.ConditionStatus(text(string(c.Status), 100)),
			[]corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}))
	}
	return errs
}
