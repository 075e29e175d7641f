// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// A lodge is a room with four CPUs and 4 Gi of memory. Time passes with each update.
type lodge struct {
	*testing.T
	*room
	now     time.Time
	granted []string // in order
}

func newLodge(t *testing.T) *lodge {
	l := &lodge{T: t, now: now}
	l.room = newRoom(func() corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("4Gi")}
	}, true, true, func(uid types.UID) { l.granted = append(l.granted, string(uid)) })
	return l
}

// guest returns a pod that requests CPUs and memory.
func guest(name, cpu, memory string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Name, pod.UID = name, types.UID(name)
	pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)},
	}}}
	for _, f := range change {
		f(pod)
	}
	return pod
}

// guaranteedPod makes the limits of a pod its requests.
func guaranteedPod(pod *corev1.Pod) {
	r := &pod.Spec.Containers[0].Resources
	r.Limits = r.Requests.DeepCopy()
}

// expect updates a pod and compares the reason for which that is pending.
func (l *lodge) expect(pod *corev1.Pod, reason string) {
	l.Helper()
	l.now = l.now.Add(time.Second)
	if _, why := l.update(l.Context(), pod, l.now); why.reason != reason {
		l.Errorf("%s: %q %s, want %q", pod.Name, why.reason, why.message, reason)
	}
}

func (l *lodge) expectGranted(names ...string) {
	l.Helper()
	if !slices.Equal(l.granted, names) {
		l.Errorf("granted %q, want %q", l.granted, names)
	}
}

func TestAPodThatNeverStartedLeavesTheRoom(t *testing.T) {
	l := newLodge(t)
	none := slices.Values([]*corev1.Pod{})
	if reason, _ := rejection(t, l.admit(t.Context(), guest("a", "3", "0"), none)); reason != "" {
		t.Fatal(reason)
	}
	if l.spec("a") != nil {
		t.Error("a pod that was not started is measured")
	}
	// It was deleted before its start, so podsync no longer names it.
	if reason, _ := rejection(t, l.admit(t.Context(), guest("b", "3", "0"), none)); reason != "" {
		t.Fatal(reason)
	}
	l.hold(guest("b", "1", "0"))
	l.expect(guest("b", "4", "0"), "")
	if got := l.spec("b"); got == nil || got.Spec.Containers[0].Resources.Requests.Cpu().Value() != 4 {
		t.Errorf("b has %+v", got)
	}
}

func TestAResourceThatDoesNotGrowIsGranted(t *testing.T) {
	l := newLodge(t)
	l.hold(guest("a", "3", "1Gi"))
	l.hold(guest("b", "3", "1Gi")) // the node was larger once
	l.expect(guest("a", "3", "2Gi"), "")
	l.expect(guest("a", "2", "2Gi"), "")
	l.expect(guest("a", "2500m", "1Gi"), corev1.PodReasonDeferred)
}

func TestAResizeThatShrinksMakesRoom(t *testing.T) {
	l := newLodge(t)
	l.hold(guest("a", "2", "0"))
	l.hold(guest("b", "2", "0"))
	l.expect(guest("b", "3", "0"), corev1.PodReasonDeferred)
	l.expect(guest("a", "1500m", "0"), "")
	l.expectGranted()
	l.expect(guest("a", "1", "0"), "")
	l.expectGranted("b")
	l.expect(guest("b", "3", "0"), "") // as its pod asks after that
}

func TestTheOrderOfResizesThatWait(t *testing.T) {
	important := func(pod *corev1.Pod) { pod.Spec.Priority = new(int32(1)) }
	l := newLodge(t)
	l.hold(guest("all", "3", "1"))
	waiting := []*corev1.Pod{
		guest("z", "2", "1"), guest("y", "2", "1"), guest("d", "2", "1", guaranteedPod), guest("e", "1900m", "1", important),
	}
	for _, pod := range waiting {
		l.hold(guest(pod.Name, "0", "1", func(p *corev1.Pod) {
			p.Spec.Priority = pod.Spec.Priority
			if pod.Name == "d" { // a guaranteed pod has a CPU limit
				p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1m")
				guaranteedPod(p)
			}
		}))
		l.expect(pod, corev1.PodReasonDeferred)
	}
	l.expect(waiting[0], corev1.PodReasonDeferred) // asking again does not make it younger
	l.leave(t.Context(), "all")
	l.expectGranted("e", "d")
	l.leave(t.Context(), "e")
	l.leave(t.Context(), "d")
	l.expectGranted("e", "d", "z", "y")
}

func TestAPodAsAWholeIsResizedIfTheRuntimeCan(t *testing.T) {
	whole := func(cpu string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
		}
	}
	l := newLodge(t)
	l.hold(guest("a", "1", "0", whole("2")))
	l.hold(guest("b", "1", "0"))
	l.expect(guest("a", "1", "0", whole("3")), "")
	l.expect(guest("a", "1", "0", whole("3500m")), corev1.PodReasonDeferred)
	l.expect(guest("a", "1", "0", whole("4001m")), corev1.PodReasonInfeasible)
	if got := l.spec("a").Spec.Resources.Requests.Cpu().Value(); got != 3 {
		t.Errorf("it has %d CPUs", got)
	}
	l.expect(guest("a", "3", "0", whole("3")), "") // the containers have it all
	l.expect(guest("a", "1", "0", whole("1")), "")
	l.expect(guest("b", "3", "0"), "")

	l = newLodge(t)
	l.resizesPod = false
	l.hold(guest("a", "1", "0", whole("2")))
	l.expect(guest("a", "1", "0", whole("3")), corev1.PodReasonInfeasible)
	l.expect(guest("a", "1", "0"), corev1.PodReasonInfeasible)
	if got := l.spec("a").Spec.Resources.Requests.Cpu().Value(); got != 2 {
		t.Errorf("it has %d CPUs", got)
	}
	l.expect(guest("a", "2", "0", whole("2")), "")
}
