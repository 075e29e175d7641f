// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Update is a node's report of one pod.
type Update struct {
	// Observed is the status that the provider reports. Its zero fields mean "no
	// opinion": addresses, start time and each container without a status, or with
	// one without a state, keep the stored one. Reason and Message are always those of the report, so
	// that they go away with their cause.
	//
	// Resources and allocated resources that a container's status leaves out are
	// those of the spec, once the provider has accepted it.
	//
	// Conditions in it are written if their type is not one that is computed:
	// ContainersReady, Ready, Initialized, and PodScheduled, which is True for a
	// pod that is bound to a node. PodReadyToStartContainers replaces the computed one;
	// DisruptionTarget is written with a transition to a terminal phase and
	// only then. PodResizePending, PodResizeInProgress and
	// AllContainersRestarting are taken off the pod by a report whose Conditions
	// are not nil and lack them. LastProbeTime is not written: it would cost a
	// request for each report.
	//
	// Fields that belong to others are ignored: nominatedNodeName, qosClass,
	// resize and the status of resource claims.
	Observed corev1.PodStatus

	// Withdrawn are the types of conditions that an earlier report had and that
	// Observed has no longer. They are taken off the pod, unless they are
	// computed or another component's.
	Withdrawn []corev1.PodConditionType

	// Stopped says that nothing of the pod runs and that nothing will. The phase
	// becomes terminal with it, and never without.
	Stopped bool

	// Failure ends the pod as Failed whatever its containers' exit codes say:
	// evicted, too long active, rejected, lost. Nil leaves it to the exit codes.
	// It shows once Stopped is true.
	Failure *Failure

	// KeepPhase takes Observed.Phase, if it is set and possible, in place of
	// the phase that the containers add up to. "Possible" excludes a terminal
	// phase before Stopped, Succeeded without an exit code 0 of every container
	// that has to complete, and a way back.
	KeepPhase bool

	// Generation is the metadata.generation of the spec that the provider has
	// accepted. It is written as observedGeneration of the status and of the
	// conditions written here, and never lowers the stored one. Zero
	// leaves them.
	Generation int64

	// Now is the time of the update. It is cut to seconds, the resolution of the
	// API, and becomes the transition time of conditions that change and the
	// start time of a pod that has none.
	Now time.Time
}

// Failure is an end that the node decided, not the containers.
type Failure struct {
	// Reason and Message become status.reason and status.message, such as
	// "Evicted" and the resource that ran out.
	Reason, Message string
	// DisruptionReason adds the condition DisruptionTarget with this reason
	// (KEP-3329), for example corev1.PodReasonTerminationByKubelet, by which a
	// Job distinguishes an eviction from a failure of its own. Empty adds none.
	DisruptionReason string
}

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
	m.next.ObservedGeneration = max(m.next.ObservedGeneration, u.Generation)

	m.addresses()
	m.containers()
	m.resources()
	if m.next.StartTime == nil {
		m.next.StartTime = m.startTime()
	}
	if u.Stopped {
		m.completeByPhase()
		settle(&pod.Spec, &m.next)
	}
	m.phase()
	m.conditions()
	return m.next, m.problems
}

// merger holds one call of Next.
type merger struct {
	pod      *corev1.Pod
	stored   *corev1.PodStatus
	observed *corev1.PodStatus // private copy
	u        Update
	next     corev1.PodStatus
	problems field.ErrorList
}

func (m *merger) problem(err *field.Error) { m.problems = append(m.problems, err) }

var statusPath = field.NewPath("status")

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
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reasonCompleted}},
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
