// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Next returns the status to store for pod after u, pod.Status being the one
// stored now, and an error for each part of u.Observed that it left out because the
// API server would refuse it or because it can't be true. A non-empty list shows a
// defect of the provider; the status can be stored anyway.
//
// The result shares no memory with pod or u, and neither is changed. It is a
// fixed point: once it is stored, the same Update gives it again, whatever its
// Now. So does an Update with the stored status in the place of the report, and of
// its conditions those that the report had: no caller has to keep reports.
func Next(pod *corev1.Pod, u Update) (corev1.PodStatus, field.ErrorList) {
	m := merger{pod: pod, stored: &pod.Status, observed: u.Observed.DeepCopy(), u: u}
	m.u.Now = seconds(u.Now)

	// Everything that isn't ours passes through as it is stored.
	m.next = *pod.Status.DeepCopy()
	m.next.ObservedGeneration = m.observedGeneration(m.next.ObservedGeneration)

	m.addresses()
	m.containers()
	m.resources()
	if m.next.StartTime == nil {
		m.next.StartTime = m.startTime()
	}
	if u.Stopped {
		m.completeByPhase()
		switch {
		case !u.Unstarted || HasStarted(&m.next):
			settle(&pod.Spec, &m.next)
		case u.Failure != nil || pod.DeletionTimestamp == nil:
			// kubectl shows why a container waits rather than the phase and the reason of the pod.
			m.next.InitContainerStatuses, m.next.ContainerStatuses, m.next.EphemeralContainerStatuses = nil, nil, nil
		}
	}
	m.phase()
	m.conditions()
	return m.next, m.problems
}

// observedGeneration returns the generation to store in the place of stored. It does not go back,
// except behind one that the pod does not have: the API server was restored from a backup.
func (m *merger) observedGeneration(stored int64) int64 {
	if m.pod.Generation > 0 && stored > m.pod.Generation {
		stored = 0
	}
	return max(stored, m.u.Generation)
}

// phase decides phase, reason and message, which belong together.
func (m *merger) phase() {
	if IsTerminal(m.stored.Phase) {
		// The first end wins, with its reason.
		return
	}
	m.next.Phase = m.decidePhase()
	m.next.Reason, m.next.Message = text(m.observed.Reason, maxReason), text(m.observed.Message, maxMessage)
	if f := m.u.Failure; f != nil && m.u.Stopped {
		m.next.Reason, m.next.Message = text(f.Reason, maxReason), text(f.Message, maxMessage)
	}
}

func (m *merger) decidePhase() corev1.PodPhase {
	if m.u.Stopped {
		return m.finalPhase()
	}
	phase := Phase(&m.pod.Spec, &m.next)
	if m.u.KeepPhase {
		switch m.observed.Phase {
		case "":
		case corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed:
			phase = m.observed.Phase
		default:
			m.problem(field.NotSupported(statusPath.Child("phase"), m.observed.Phase,
				[]corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed}))
		}
	}
	// Running is never left for Pending; an end shows once it is confirmed that
	// nothing runs.
	if phase == corev1.PodRunning || m.stored.Phase == corev1.PodRunning {
		return corev1.PodRunning
	}
	return corev1.PodPending
}

func (m *merger) finalPhase() corev1.PodPhase {
	if m.u.Failure != nil {
		return corev1.PodFailed
	}
	phase := FinalPhase(&m.pod.Spec, &m.next)
	if !m.u.KeepPhase || m.observed.Phase == phase {
		return phase
	}
	switch m.observed.Phase {
	case corev1.PodFailed:
		return corev1.PodFailed
	case corev1.PodSucceeded:
		m.problem(field.Invalid(statusPath.Child("phase"), m.observed.Phase, "not every container is known to have exited with code 0"))
	}
	return phase
}

// completeByPhase ends the containers of a pod whose provider reports phases and
// no containers, and Succeeded: that means that all of them exited with 0.
func (m *merger) completeByPhase() {
	o := m.observed
	if !m.u.KeepPhase || m.u.Failure != nil || o.Phase != corev1.PodSucceeded || len(o.ContainerStatuses)+len(o.InitContainerStatuses) > 0 {
		return
	}
	for _, list := range [...][]corev1.ContainerStatus{m.next.InitContainerStatuses, m.next.ContainerStatuses} {
		for i := range list {
			if hasRun(&list[i]) {
				return // a report had container statuses once: they count
			}
		}
	}
	complete := func(specs []corev1.Container) (list []corev1.ContainerStatus) {
		for i := range specs {
			list = append(list, corev1.ContainerStatus{
				Name: specs[i].Name, Image: text(specs[i].Image, maxReason), Started: new(bool),
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}},
			})
		}
		return list
	}
	m.next.InitContainerStatuses, m.next.ContainerStatuses = complete(m.pod.Spec.InitContainers), complete(m.pod.Spec.Containers)
}

func (m *merger) startTime() *metav1.Time {
	t := metav1.Time{Time: m.u.Now}
	if o := m.observed.StartTime; o != nil && storable(*o) {
		t = cut(*o)
	}
	if t.IsZero() {
		return nil
	}
	return &t
}
