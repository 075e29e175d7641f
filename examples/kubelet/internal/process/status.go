// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/examples/kubelet/internal/shim"
)

// status returns the status of the pod as far as a provider reports it.
func (p *pod) status() corev1.PodStatus {
	ip := p.provider.cfg.HostIP
	st := corev1.PodStatus{
		HostIP:    ip,
		HostIPs:   []corev1.HostIP{{IP: ip}},
		PodIP:     ip,
		PodIPs:    []corev1.PodIP{{IP: ip}},
		StartTime: &metav1.Time{Time: p.accepted},
	}
	for _, c := range p.containers {
		if c.init {
			st.InitContainerStatuses = append(st.InitContainerStatuses, c.containerStatus())
		} else {
			st.ContainerStatuses = append(st.ContainerStatuses, c.containerStatus())
		}
	}
	return st
}

func (c *container) containerStatus() corev1.ContainerStatus {
	st := corev1.ContainerStatus{
		Name:         c.Name,
		Image:        c.Image,
		RestartCount: int32(max(c.attempt, 0)),
	}
	if c.attempt >= 0 {
		st.ContainerID = c.id(c.attempt)
	}
	if c.previous != nil {
		st.LastTerminationState.Terminated = terminated(c.previous, c.id(c.attempt-1), "")
	}
	switch exit := c.status.Exit; {
	case exit != nil:
		st.State.Terminated = terminated(exit, c.id(c.attempt), c.message)
		if wait := time.Until(c.due); c.pod.deadline == nil && wait > 0 && !c.viewOver() {
			st.LastTerminationState, st.State = st.State, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
				Reason:  "CrashLoopBackOff",
				Message: fmt.Sprintf("back-off %v before the next start", c.delay()),
			}}
		}
	case c.run != nil && c.status.Running != nil:
		st.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.status.Running.StartedAt)}
		st.Started, st.Ready = new(c.health.Started), c.health.Started && c.health.Ready
	case c.failure != nil:
		st.State.Waiting = &corev1.ContainerStateWaiting{Reason: c.failure.reason, Message: c.failure.message}
	case !c.init && len(c.pod.spec.Spec.InitContainers) > 0:
		st.State.Waiting = &corev1.ContainerStateWaiting{Reason: "PodInitializing"}
	default:
		st.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	}
	return st
}

func (c *container) viewOver() bool {
	v := c.view()
	return v.over(&c.pod.spec.Spec)
}

// id names a run of the container. The scheme says what kind of runtime it is.
func (c *container) id(attempt int) string {
	return fmt.Sprintf("process://%s/%s/%d", c.pod.ref.UID, c.Name, attempt)
}

func terminated(exit *shim.Exit, id, message string) *corev1.ContainerStateTerminated {
	t := &corev1.ContainerStateTerminated{
		ExitCode:    exit.Code,
		Signal:      exit.Signal,
		Reason:      exit.Reason,
		Message:     exit.Message,
		FinishedAt:  metav1.NewTime(exit.FinishedAt),
		ContainerID: id,
	}
	if !exit.StartedAt.IsZero() {
		t.StartedAt = metav1.NewTime(exit.StartedAt)
	}
	if message != "" {
		t.Message = message
	}
	return t
}

// The size of a termination message, as with a kubelet.
const (
	maxMessage      = 4096
	maxMessageOfLog = 2048
)

// terminationMessage returns what the newest run has left for its status.
func (c *container) terminationMessage(exit *shim.Exit) string {
	message := tail(filepath.Join(c.root(), filepath.Clean("/"+c.TerminationMessagePath)), maxMessage)
	if message == "" && exit.Code != 0 && c.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		message = tail(c.log(c.attempt), maxMessageOfLog)
	}
	return message
}

// tail returns the last bytes of a file, and nothing of one that can't be read.
func tail(path string, size int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	data := make([]byte, min(size, info.Size()))
	n, _ := f.ReadAt(data, info.Size()-int64(len(data)))
	return strings.ToValidUTF8(string(data[:n]), "\uFFFD")
}
