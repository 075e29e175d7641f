// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsim

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/podsync"
)

// A phase is what all containers of a simulated pod do.
type phase uint8

const (
	waiting phase = iota // for the start
	running
	backoff // ended, and waiting for the next start
	stopped // nothing runs, and nothing will
)

// simulated is a simulated pod. It keeps what its State is made of, so that tens of
// thousands are cheap.
type simulated struct {
	podsync.Ref
	nodeName   string
	policy     corev1.RestartPolicy
	containers []container

	runFor, stopAfter time.Duration
	exitCode          int32 // of a run that ends on its own

	phase          phase
	due            time.Time // of the next phase; zero: never
	started, ended time.Time // of the last run; zero before
	restarts       int32
	code           int32 // of the last run
	stopping       bool  // Stop was called
	killed         bool  // the grace period is shorter than stopAfter
}

// container is a container of a simulated pod.
type container struct {
	name, image string
	init        bool
	runs        bool // as long as the pod does; other init containers end at once
}

// advance brings the pod to the present, and reports whether that has changed it.
func (s *simulated) advance(now time.Time) (changed bool) {
	for !s.due.IsZero() && !s.due.After(now) {
		changed = true
		at := s.due
		s.due = time.Time{}
		switch s.phase {
		case waiting, backoff:
			if s.phase == backoff {
				s.restarts++
			}
			s.phase, s.started, s.ended = running, at, time.Time{}
			if s.runFor < never {
				s.due = at.Add(s.runFor)
			}
		case running:
			s.end(at)
		}
	}
	return changed
}

// end ends a run.
func (s *simulated) end(at time.Time) {
	s.ended, s.code = at, s.exitCode
	switch {
	case s.stopping:
		s.phase, s.code = stopped, 0
		if s.killed {
			s.code = 137
		}
	case s.policy == corev1.RestartPolicyNever, s.policy == corev1.RestartPolicyOnFailure && s.code == 0:
		s.phase = stopped
	default:
		s.phase, s.due = backoff, at.Add(backoffOf(s.restarts))
	}
}

// backoffOf returns the time before a restart, as the kubelet's.
func backoffOf(restarts int32) time.Duration {
	return min(10*time.Second<<min(restarts, 5), 5*time.Minute)
}

// stop asks the containers to end. The grace period may be shorter at a later call.
func (s *simulated) stop(now time.Time, grace time.Duration) {
	switch {
	case s.phase == stopped:
	case s.phase != running:
		s.phase, s.stopping, s.due = stopped, true, time.Time{}
	case s.stopAfter == never:
		s.stopping, s.due = true, time.Time{}
	default:
		if end := now.Add(min(s.stopAfter, grace)); s.due.IsZero() || end.Before(s.due) {
			s.due, s.killed = end, s.stopAfter > grace
		}
		s.stopping = true
	}
}

// state returns the State of the pod, a new one at each call.
func (s *simulated) state() podsync.State {
	const ip = "192.0.2.1" // TEST-NET-1, which is never assigned (RFC 5737)
	state := podsync.State{Ref: s.Ref, NodeName: s.nodeName, Stopped: s.phase == stopped}
	state.Status.PodIP, state.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
	for _, c := range s.containers {
		if c.init {
			state.Status.InitContainerStatuses = append(state.Status.InitContainerStatuses, s.status(c))
		} else {
			state.Status.ContainerStatuses = append(state.Status.ContainerStatuses, s.status(c))
		}
	}
	return state
}

// status returns the status of a container.
func (s *simulated) status(c container) corev1.ContainerStatus {
	status := corev1.ContainerStatus{Name: c.name, Image: c.image, Started: new(false)}
	if s.started.IsZero() {
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
		return status
	}
	started := metav1.NewTime(s.started)
	if !c.runs {
		status.Ready = true
		status.State.Terminated = &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: started, FinishedAt: started}
		return status
	}
	status.RestartCount = s.restarts
	if s.phase == running {
		status.Ready, status.Started = true, new(true)
		status.State.Running = &corev1.ContainerStateRunning{StartedAt: started}
		return status
	}
	ended := &corev1.ContainerStateTerminated{Reason: "Completed", ExitCode: s.code, StartedAt: started, FinishedAt: metav1.NewTime(s.ended)}
	if s.code != 0 {
		ended.Reason = "Error"
	}
	if s.phase == backoff {
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off " + backoffOf(s.restarts).String() + " restarting failed container"}
		status.LastTerminationState.Terminated = ended
		return status
	}
	status.State.Terminated = ended
	return status
}
