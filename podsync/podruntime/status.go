// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// status returns the status of the pod as far as a provider reports it.
func (p *pod) status() corev1.PodStatus {
	hosts := p.p.cfg.HostIPs
	st := corev1.PodStatus{
		HostIP:    hosts[0],
		StartTime: &metav1.Time{Time: p.accepted},
		// Not nil: conditions that are missing here are taken off the pod.
		Conditions: []corev1.PodCondition{},
	}
	for _, ip := range hosts {
		st.HostIPs = append(st.HostIPs, corev1.HostIP{IP: ip})
	}
	if p.p.caps.sandboxer == nil || p.sandbox != nil {
		for _, ip := range p.addresses().PodIPs {
			st.PodIPs = append(st.PodIPs, corev1.PodIP{IP: ip})
		}
		st.PodIP = st.PodIPs[0].IP
	}
	if p.p.caps.sandboxer != nil {
		ready := corev1.ConditionFalse
		// While it is torn down it is no longer ready, but the next status is the final one.
		if p.sandbox != nil && (p.sandbox.Ready || p.tearing) && !p.tornDown {
			ready = corev1.ConditionTrue
		}
		st.Conditions = append(st.Conditions, corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: ready})
	}
	if p.restarting {
		st.Conditions = append(st.Conditions, corev1.PodCondition{Type: corev1.AllContainersRestarting, Status: corev1.ConditionTrue, Reason: podstatus.ReasonRestartingAllContainers})
	}
	for _, c := range p.containers {
		switch c.kind {
		case initKind, sidecar:
			st.InitContainerStatuses = append(st.InitContainerStatuses, c.status())
		case regular:
			st.ContainerStatuses = append(st.ContainerStatuses, c.status())
		default:
			st.EphemeralContainerStatuses = append(st.EphemeralContainerStatuses, c.status())
		}
	}
	if p.p.caps.podResizer != nil {
		st.AllocatedResources = p.want.DeepCopy().Requests
		if len(p.whole.Requests)+len(p.whole.Limits) > 0 {
			st.Resources = p.whole.DeepCopy()
		}
	}
	st.Conditions = append(st.Conditions, p.resizeConditions()...)
	return st
}

// resizeConditions returns the conditions of resources that have changed and are not in
// force.
func (p *pod) resizeConditions() (list []corev1.PodCondition) {
	if p.pending.reason != "" {
		list = append(list, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: p.pending.reason, Message: p.pending.message})
	}
	if p.resizeInProgress() {
		condition := corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue}
		if p.resizeFailure != "" {
			condition.Reason, condition.Message = corev1.PodReasonError, p.resizeFailure
		}
		list = append(list, condition)
	}
	return list
}

// status returns the status of the container.
func (c *container) status() corev1.ContainerStatus {
	st := corev1.ContainerStatus{
		Name:         c.Name,
		Image:        c.Image,
		RestartCount: int32(max(c.attempt, 0)),
	}
	// A run counts when it has begun: until then the status is that of the one before.
	next := c.attempt > 0 && c.rec.Ran.IsZero() && (c.obs == nil || c.obs.State == ContainerCreated)
	if next {
		st.RestartCount--
	}
	if c.obs != nil && c.obs.State != ContainerCreated {
		st.ContainerID, st.ImageID = c.obs.RuntimeID, c.obs.ImageID
	} else if c.prev != nil {
		st.ContainerID, st.ImageID = c.prev.RuntimeID, c.prev.ImageID
	}
	if c.prev != nil && c.prev.State == ContainerExited {
		st.LastTerminationState.Terminated = c.terminated(c.prev, c.attempt-1, c.prevRec.Message)
	}
	if c.rec.Resources != "" && c.pod.p.caps.resizer != nil && c.kind != ephemeral {
		r := parseGrant(c.rec.Resources).ResourceRequirements
		st.Resources, st.AllocatedResources = &r, c.Resources.DeepCopy().Requests
	}
	switch {
	case c.obs != nil && c.obs.State == ContainerRunning:
		st.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.rec.Ran)}
		st.Started, st.Ready = new(c.rec.Started), c.rec.Started && c.rec.Ready
	case c.obs != nil && c.obs.State == ContainerExited && !c.busy:
		st.State.Terminated = c.terminated(c.obs, c.attempt, c.rec.Message)
		c.holdBack(&st)
	case c.failure != nil:
		reason := c.failure.reason
		if c.failure.backoffReason != "" && !c.busy && time.Now().Before(c.due) {
			reason = c.failure.backoffReason
		}
		st.State.Waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: c.failure.message}
	case next && c.rec.Waited > 0:
		st.State.Waiting = c.crashLoop(c.rec.Waited)
	case c.kind != ephemeral && len(c.pod.spec.Spec.InitContainers) > 0 && c.attempt <= 0 && (c.obs == nil || c.obs.State == ContainerCreated):
		st.State.Waiting = &corev1.ContainerStateWaiting{Reason: "PodInitializing"}
	default:
		st.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	}
	if f := c.pod.sandboxFailure; f != nil && st.State.Waiting != nil && st.State.Waiting.Message == "" {
		st.State.Waiting.Message = f.message
	}
	if c.kind == initKind && st.State.Terminated != nil {
		st.Ready = st.State.Terminated.ExitCode == 0
	}
	return st
}

// holdBack turns the status of a container that has ended into that of one that
// waits for its next start.
func (c *container) holdBack(st *corev1.ContainerStatus) {
	v := c.view()
	wait := time.Until(c.due)
	if c.pod.deadline != nil || wait <= 0 || v.over(&c.pod.spec.Spec) {
		return
	}
	waiting := c.crashLoop(c.delay())
	if c.failure != nil {
		waiting = &corev1.ContainerStateWaiting{Reason: c.failure.reason, Message: c.failure.message}
	}
	st.LastTerminationState, st.State = st.State, corev1.ContainerState{Waiting: waiting}
}

func (c *container) crashLoop(delay time.Duration) *corev1.ContainerStateWaiting {
	return &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: fmt.Sprintf("back-off %v restarting failed container=%s", delay, c.Name)}
}

// terminated returns the status of a run that has ended.
func (c *container) terminated(run *Container, attempt int, message string) *corev1.ContainerStateTerminated {
	t := &corev1.ContainerStateTerminated{
		ExitCode:    run.ExitCode,
		Signal:      run.Signal,
		Reason:      run.Reason,
		Message:     run.Message,
		FinishedAt:  metav1.NewTime(run.FinishedAt),
		ContainerID: run.RuntimeID,
	}
	if t.Reason == "" {
		t.Reason = "Completed"
		if run.ExitCode != 0 {
			t.Reason = "Error"
		}
	}
	if !run.StartedAt.IsZero() {
		t.StartedAt = metav1.NewTime(run.StartedAt)
	}
	if message != "" {
		t.Message = message
	}
	// A container that another one's exit has ended starts again whatever its own
	// policy says, which the reason tells the readers of the status.
	last, ok := c.pod.past.Runs[c.Name]
	victim := c.pod.restarting || ok && c.pod.past.Rule && attempt <= last
	if victim && c.kind != ephemeral && !podstatus.RestartsPod(c.Container, run.ExitCode) {
		t.Reason = podstatus.ReasonRestartingAllContainers
	}
	return t
}
