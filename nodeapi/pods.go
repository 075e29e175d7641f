// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// instance identifies one run of a container in the status of its pod.
type instance struct {
	found    bool
	restarts int32
	ended    bool
}

func instanceOf(pod *corev1.Pod, container string) (i instance) {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for _, status := range list {
			if status.Name == container {
				i = instance{found: true, restarts: status.RestartCount, ended: status.State.Terminated != nil}
			}
		}
	}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		i.ended = true
	}
	return i
}

// logDrain is for backends whose log reader does not end with the container: when a log
// has brought nothing for so long after the end of its container, it ends.
const logDrain = 5 * time.Second

// endCheck is the time between two looks at the pod of a log that is followed.
const endCheck = logDrain / 5

// snapshot is the pods of the node at most half an endCheck ago. The logs that are
// followed share it. Otherwise each would ask for all pods at each of its looks.
type snapshot struct {
	mu   sync.Mutex
	pods map[Pod]*corev1.Pod // nil if it is too old
}

func (n *snapshot) get(want Pod, cfg *Config) *corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pods == nil {
		pods := make(map[Pod]*corev1.Pod)
		for pod := range cfg.Pods {
			if pod != nil {
				pods[Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}] = pod
			}
		}
		n.pods = pods
		time.AfterFunc(endCheck/2, func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.pods = nil
		})
	}
	return n.pods[want]
}

// findPod returns the pod from Config.Pods, or nil. If want has no UID, it returns the
// newest pod of that name: a pod that was deleted by force may still be stopping.
func (s *Server) findPod(want Pod) (found *corev1.Pod) {
	for pod := range s.cfg.Pods {
		switch {
		case pod == nil || pod.Name != want.Name || pod.Namespace != want.Namespace:
		case want.UID == "":
			if found == nil || supersedes(pod, found) {
				found = pod
			}
		case pod.UID == want.UID:
			return pod
		}
	}
	return found
}

// supersedes reports whether pod a is newer than pod b of the same name. Creation
// timestamps are in seconds. The order of UIDs makes each request find the same pod.
func supersedes(a, b *corev1.Pod) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return b.CreationTimestamp.Before(&a.CreationTimestamp)
	}
	if (a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil) {
		return a.DeletionTimestamp == nil
	}
	return a.UID > b.UID
}

// resolve sets the UID of p and returns the pod if Config.Pods is set. It returns
// an error with status 404 if the node has no such pod.
func (s *Server) resolve(p *Pod) (*corev1.Pod, error) {
	if s.cfg.Pods == nil {
		return nil, nil
	}
	pod := s.findPod(*p)
	if pod == nil {
		if p.UID != "" {
			return nil, notFound("pod %s with UID %s is not on node %q", p, p.UID, s.cfg.NodeName)
		}
		return nil, notFound("pod %s is not on node %q", p, s.cfg.NodeName)
	}
	p.UID = pod.UID
	return pod, nil
}

// hasContainer returns an error with status 404 if the pod has no such container.
func hasContainer(pod *corev1.Pod, name string) error {
	var names []string
	for _, c := range pod.Spec.InitContainers {
		names = append(names, c.Name)
	}
	for _, c := range pod.Spec.Containers {
		names = append(names, c.Name)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		names = append(names, c.Name)
	}
	for _, n := range names {
		if n == name {
			return nil
		}
	}
	return notFound("container %q is not in pod %s/%s, which has: %s", name, pod.Namespace, pod.Name, strings.Join(names, ", "))
}
