// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	t0 = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	t1 = t0.Add(time.Minute)
)

// testPod makes a pod of a description such as "Never i1 s1* c1 c2": a restart
// policy and containers; i are init containers, s sidecars, c regular ones and e
// ephemeral ones. A stored status follows after a "|", see testStatus.
func testPod(desc string) *corev1.Pod {
	spec, status, _ := strings.Cut(desc, "|")
	words := strings.Fields(spec)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", Generation: 1},
		Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicy(words[0])},
	}
	for _, name := range words[1:] {
		c := corev1.Container{Name: name, Image: "img"}
		switch name[0] {
		case 'i':
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		case 's':
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		case 'e':
			pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, corev1.EphemeralContainer{
				EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name}})
		default:
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		}
	}
	pod.Status = testStatus(status)
	return pod
}

// testStatus makes a status of a description such as "Running c1=run i1=0 s1=wait":
// a phase, if it begins with a capital letter, and for each container one of
// wait; crash:N, waiting after an end with code N; run; ready; and N, ended with code N.
func testStatus(desc string) corev1.PodStatus {
	var s corev1.PodStatus
	for _, word := range strings.Fields(desc) {
		name, state, ok := strings.Cut(word, "=")
		if !ok {
			s.Phase = corev1.PodPhase(word)
			continue
		}
		cs := testContainer(name, state)
		switch name[0] {
		case 'i', 's':
			s.InitContainerStatuses = append(s.InitContainerStatuses, cs)
		case 'e':
			s.EphemeralContainerStatuses = append(s.EphemeralContainerStatuses, cs)
		default:
			s.ContainerStatuses = append(s.ContainerStatuses, cs)
		}
	}
	return s
}

func testContainer(name, state string) corev1.ContainerStatus {
	cs := corev1.ContainerStatus{Name: name, Image: "img", Started: new(false)}
	at := metav1.NewTime(t0)
	ended := func(code string) *corev1.ContainerStateTerminated {
		n := int32(0)
		for _, r := range code {
			n = n*10 + r - '0'
		}
		return &corev1.ContainerStateTerminated{ExitCode: n, StartedAt: at, FinishedAt: at}
	}
	kind, code, _ := strings.Cut(state, ":")
	switch kind {
	case "wait":
		cs.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	case "crash":
		cs.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
		cs.LastTerminationState.Terminated = ended(code)
	case "start":
		cs.State.Running = &corev1.ContainerStateRunning{StartedAt: at}
	case "run":
		cs.State.Running = &corev1.ContainerStateRunning{StartedAt: at}
		cs.Started = new(true)
	case "ready":
		cs.State.Running = &corev1.ContainerStateRunning{StartedAt: at}
		cs.Ready, cs.Started = true, new(true)
	case "all":
		cs.State.Terminated = ended("1")
		cs.State.Terminated.Reason = ReasonRestartingAllContainers
	case "none":
	default:
		cs.State.Terminated = ended(state)
		cs.Ready = name[0] == 'i' && state == "0"
	}
	return cs
}

// line writes the states of a status in the language of testStatus, for comparison.
func line(s *corev1.PodStatus) string {
	var words []string
	if s.Phase != "" {
		words = append(words, string(s.Phase))
	}
	for _, list := range [...][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			cs := &list[i]
			state := "none"
			switch {
			case cs.State.Terminated != nil:
				state = digits(cs.State.Terminated.ExitCode)
				if cs.State.Terminated.Reason == ReasonContainerStatusUnknown {
					state = "unknown"
				}
			case cs.State.Running != nil && cs.Ready:
				state = "ready"
			case cs.State.Running != nil:
				state = "run"
			case cs.LastTerminationState.Terminated != nil:
				state = "crash:" + digits(cs.LastTerminationState.Terminated.ExitCode)
			case cs.State.Waiting != nil:
				state = "wait"
			}
			words = append(words, cs.Name+"="+state)
		}
	}
	return strings.Join(words, " ")
}

func digits(n int32) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return digits(n/10) + digits(n%10)
}
