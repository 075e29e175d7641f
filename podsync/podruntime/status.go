// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	core "github.com/kubewright/kubewright/podsync/podruntime/internal/container"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// status returns the status of the pod as far as a provider reports it.
func (p *pod) status() corev1.PodStatus {
	hosts := p.node.cfg.HostIPs
	st := corev1.PodStatus{
		HostIP:    hosts[0],
		StartTime: &metav1.Time{Time: p.accepted},
		// Not nil: conditions that are missing here are taken off the pod.
		Conditions: []corev1.PodCondition{},
	}
	for _, ip := range hosts {
		st.HostIPs = append(st.HostIPs, corev1.HostIP{IP: ip})
	}
	for n, ip := range p.addresses().PodIPs {
		if n == 0 {
			st.PodIP = ip
		}
		st.PodIPs = append(st.PodIPs, corev1.PodIP{IP: ip})
	}
	if p.node.caps.sandboxer != nil {
		ready := corev1.ConditionFalse
		// While it is torn down it is no longer ready, but the next status is the final one.
		if p.sandbox != nil && (p.sandbox.Ready || p.tearing) {
			ready = corev1.ConditionTrue
		}
		st.Conditions = append(st.Conditions, corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: ready})
	}
	if p.restarting {
		st.Conditions = append(st.Conditions, corev1.PodCondition{Type: corev1.AllContainersRestarting, Status: corev1.ConditionTrue, Reason: podstatus.ReasonRestartingAllContainers})
	}
	for _, c := range p.containers {
		switch c.kind {
		case core.Init, core.Sidecar:
			st.InitContainerStatuses = append(st.InitContainerStatuses, c.status())
		case core.Regular:
			st.ContainerStatuses = append(st.ContainerStatuses, c.status())
		default:
			st.EphemeralContainerStatuses = append(st.EphemeralContainerStatuses, c.status())
		}
	}
	if p.node.caps.podResizer != nil {
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
		RestartCount: int32(max(c.m.Attempt, 0)),
	}
	// A run counts when it has begun: until then the status is that of the one before.
	next := c.m.Attempt > 0 && c.m.Record.Ran.IsZero() && (c.m.Run == nil || c.m.Listed(core.Created))
	if next {
		st.RestartCount--
	}
	if c.m.Run != nil && !c.m.Listed(core.Created) {
		st.ContainerID, st.ImageID, st.Image = c.m.Run.RuntimeID, c.m.Run.ImageID, c.m.Record.Image
	} else if prev := c.m.Prev; prev != nil {
		st.ContainerID, st.ImageID, st.Image = prev.RuntimeID, prev.ImageID, c.m.PrevRecord.Image
	}
	st.Image = cmp.Or(st.Image, c.Image) // that of the spec if no run has another one
	if prev := c.m.Prev; prev != nil && prev.State == core.Exited {
		st.LastTerminationState.Terminated = c.terminated(prev, c.m.Attempt-1, c.m.PrevRecord.Message)
	}
	if c.m.Record.Resources != "" && c.pod.node.caps.resizer != nil && c.kind != core.Ephemeral {
		r := parseGrant(c.m.Record.Resources).ResourceRequirements
		st.Resources, st.AllocatedResources = &r, c.Resources.DeepCopy().Requests
	}
	switch {
	case c.m.Listed(core.Running):
		st.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.m.Record.Ran)}
		st.Started, st.Ready = new(c.m.Record.Started), c.m.Record.Started && c.m.Record.Ready
	case c.m.Listed(core.Exited) && !c.m.Starting:
		st.State.Terminated = c.terminated(c.m.Run, c.m.Attempt, c.m.Record.Message)
		c.holdBack(&st)
	case c.m.Failure != nil:
		f := c.m.Failure
		reason := f.Reason
		if f.BackoffReason != "" && !c.m.Starting && time.Now().Before(c.m.Due) {
			reason = f.BackoffReason
		}
		st.State.Waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: f.Message}
	case next && c.m.Record.Waited > 0:
		st.State.Waiting = c.crashLoop(c.m.Record.Waited)
	case c.kind != core.Ephemeral && len(c.pod.spec.Spec.InitContainers) > 0 && c.m.Attempt <= 0 && (c.m.Run == nil || c.m.Listed(core.Created)):
		st.State.Waiting = &corev1.ContainerStateWaiting{Reason: podstatus.ReasonPodInitializing}
	default:
		st.State.Waiting = &corev1.ContainerStateWaiting{Reason: podstatus.ReasonContainerCreating}
	}
	if f := c.pod.sandboxFailure; f != nil && st.State.Waiting != nil && st.State.Waiting.Message == "" {
		st.State.Waiting.Message = f.Message
	}
	c.hideReplaced(&st)
	if c.kind == core.Init && st.State.Terminated != nil {
		st.Ready = st.State.Terminated.ExitCode == 0
	}
	return st
}

// hideReplaced leaves out the end of a run that made way for the next one if the policy would
// not restart the container: readers of the status would take it for the end of its work. It
// is shown when the next one runs, or the pod ends.
func (c *container) hideReplaced(st *corev1.ContainerStatus) {
	end, rec := st.LastTerminationState.Terminated, c.m.PrevRecord
	if c.m.Listed(core.Exited) && !c.m.Starting {
		rec = c.m.Record
	}
	if st.State.Terminated != nil {
		end = st.State.Terminated
	}
	if st.State.Running != nil || end == nil || !rec.Replace || c.pod.deadline != nil || c.kind == core.Ephemeral ||
		end.Reason == podstatus.ReasonRestartingAllContainers || podstatus.ShouldRestart(&c.pod.spec.Spec, c.Container, end.ExitCode) {
		return
	}
	if st.State.Terminated != nil {
		st.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: podstatus.ReasonContainerCreating}}
	}
	st.LastTerminationState = corev1.ContainerState{}
}

// holdBack turns the status of a container that has ended into that of one that
// waits for its next start.
func (c *container) holdBack(st *corev1.ContainerStatus) {
	wait := time.Until(c.m.Due)
	if c.pod.deadline != nil || wait <= 0 || c.m.Over(&c.pod.spec.Spec) {
		return
	}
	waiting := c.crashLoop(c.m.Delay())
	if f := c.m.Failure; f != nil {
		waiting = &corev1.ContainerStateWaiting{Reason: f.Reason, Message: f.Message}
	}
	st.LastTerminationState, st.State = st.State, corev1.ContainerState{Waiting: waiting}
}

func (c *container) crashLoop(delay time.Duration) *corev1.ContainerStateWaiting {
	return &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: fmt.Sprintf("back-off %v restarting failed container=%s", delay, c.Name)}
}

// terminated returns the status of a run that has ended.
func (c *container) terminated(run *core.Run, attempt int, message string) *corev1.ContainerStateTerminated {
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
	if victim && c.kind != core.Ephemeral && !podstatus.RestartsPod(c.Container, run.ExitCode) {
		t.Reason = podstatus.ReasonRestartingAllContainers
	}
	return t
}
