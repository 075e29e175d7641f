// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/podsync"
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

// TestNothingIsAskedWhileNoResizeWaits: a program may compute the allocatable resources, and pods leave often.
func TestNothingIsAskedWhileNoResizeWaits(t *testing.T) {
	l, asked := newLodge(t), 0
	allocatable := l.room.allocatable
	l.room.allocatable = func() corev1.ResourceList { asked++; return allocatable() }
	l.hold(guest("a", "3", "0"))
	l.hold(guest("b", "1", "0"))
	l.hold(guest("c", "0", "0"))
	l.leave(t.Context(), "c")
	if asked != 0 {
		t.Errorf("asked %d times without a resize that waits", asked)
	}
	l.expect(guest("b", "2", "0"), corev1.PodReasonDeferred)
	asked = 0
	l.leave(t.Context(), "a")
	if asked != 1 {
		t.Errorf("asked %d times for a resize that waits, want once", asked)
	}
	l.expectGranted("b")
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
	if _, known := l.tenants["a"]; known {
		t.Error("a is still a tenant")
	}
	l.hold(guest("b", "1", "0"))
	l.expect(guest("b", "4", "0"), "")
	// A pod that runs stays, whoever is named.
	if reason, _ := rejection(t, l.admit(t.Context(), guest("c", "1", "0"), none)); reason != "" || l.spec("b") == nil {
		t.Errorf("%q, b is measured %v", reason, l.spec("b") != nil)
	}
	// So does one that podsync names, although it was not started yet.
	if reason, _ := rejection(t, l.admit(t.Context(), guest("d", "1", "0"), slices.Values([]*corev1.Pod{guest("c", "1", "0")}))); reason != "" || l.tenants["c"] == nil {
		t.Errorf("%q, c is a tenant %v", reason, l.tenants["c"] != nil)
	}
	l.leave(t.Context(), "d")
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

// TestWhyAResizeWaits compares the reason and the message of resizes.
func TestWhyAResizeWaits(t *testing.T) {
	const cpu = "Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000"
	for name, tc := range map[string]struct {
		room            func(*room)
		pod             *corev1.Pod
		reason, message string
	}{
		"nothing has changed, without a Resizer": {func(r *room) { r.resizes = false }, guest("a", "1", "1Gi"), "", ""},
		"without a Resizer":                      {func(r *room) { r.resizes = false }, guest("a", "1500m", "1Gi"), corev1.PodReasonInfeasible, "the runtime can't change the resources of running containers"},
		"without a limit":                        {func(r *room) { r.allocatable = nil }, guest("a", "9", "1Gi"), "", ""},
		"all that is left":                       {nil, guest("a", "2", "3Gi"), "", ""},
		"more than is left":                      {nil, guest("a", "3", "1Gi"), corev1.PodReasonDeferred, cpu},
		"the first of two":                       {nil, guest("a", "3", "3500Mi"), corev1.PodReasonDeferred, cpu},
		"as much as the node has":                {nil, guest("a", "4", "1Gi"), corev1.PodReasonDeferred, "Node didn't have enough resource: cpu, requested: 4000, used: 2000, capacity: 4000"},
		"one of two is larger than the node":     {nil, guest("a", "3", "5Gi"), corev1.PodReasonInfeasible, "Node didn't have enough capacity: memory, requested: 5368709120, capacity: 4294967296"},
		"the node can't be asked":                {func(r *room) { r.allocatable = func() corev1.ResourceList { panic("gone") } }, guest("a", "2", "1Gi"), corev1.PodReasonDeferred, "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLodge(t)
			if tc.room != nil {
				tc.room(l.room)
			}
			l.hold(guest("a", "1", "1Gi"))
			l.hold(guest("b", "2", "1Gi"))
			got, why := l.update(t.Context(), tc.pod, now)
			if why.reason != tc.reason || why.message != tc.message && (tc.message != "gone" || !strings.Contains(why.message, "gone")) {
				t.Errorf("%s: %s; want %s: %s", why.reason, why.message, tc.reason, tc.message)
			}
			if granted := sameResources(got, tc.pod); granted != (tc.reason == "") {
				t.Errorf("it has its resources: %v", granted)
			}
		})
	}
	l := newLodge(t)
	l.allocatable = func() corev1.ResourceList { panic("gone") }
	if err := l.admit(t.Context(), guest("a", "1", "1"), slices.Values([]*corev1.Pod{})); err == nil || errors.As(err, new(*podsync.RejectError)) {
		t.Errorf("without an answer: %v, want an error that is no rejection", err)
	}
	if pod, why := l.update(t.Context(), guest("gone", "1", "1"), now); pod.Name != "gone" || why != (pending{}) {
		t.Errorf("a pod that has stopped: %v, %v", pod, why)
	}
}

// TestAResizeThatBecameInfeasibleNoLongerWaits, nor does one that was withdrawn.
func TestAResizeThatBecameInfeasibleNoLongerWaits(t *testing.T) {
	for last, reason := range map[string]string{"5": corev1.PodReasonInfeasible, "1": ""} {
		l := newLodge(t)
		l.hold(guest("a", "3", "1"))
		l.hold(guest("b", "1", "1"))
		l.expect(guest("b", "2", "1"), corev1.PodReasonDeferred)
		l.expect(guest("b", last, "1"), reason)
		l.leave(t.Context(), "a")
		l.expectGranted()
		if got := l.spec("b").Spec.Containers[0].Resources.Requests.Cpu().Value(); got != 1 {
			t.Errorf("%s: it has %d CPUs", last, got)
		}
	}
}

func TestTheOrderOfResources(t *testing.T) {
	list := func(names ...corev1.ResourceName) corev1.ResourceList {
		l := corev1.ResourceList{}
		for _, name := range names {
			l[name] = resource.MustParse("1")
		}
		return l
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: list("hugepages-2Mi", "cpu", "example.com/license")}}},
		Resources:  &corev1.ResourceRequirements{Requests: list("hugepages-1Gi", "memory")},
	}}
	got := namesOf(list("memory", "ephemeral-storage", "pods", "example.com/gpu", "cpu"), PodResources(pod).Requests)
	want := []corev1.ResourceName{"pods", "cpu", "memory", "ephemeral-storage", "example.com/gpu", "hugepages-1Gi", "hugepages-2Mi"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestTheResourcesOfTwoVersions(t *testing.T) {
	with := func(change func(*corev1.Pod)) *corev1.Pod { return guest("a", "1", "1", change) }
	same := func(*corev1.Pod) {}
	ephemeral := func(name, cpu string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(guest("x", cpu, "1").Spec.Containers[0])}}
			pod.Spec.EphemeralContainers[0].Name = name
		}
	}
	for name, tc := range map[string]struct {
		a, b *corev1.Pod
		want bool
	}{
		"the same":               {with(same), with(same), true},
		"other labels":           {with(same), with(func(pod *corev1.Pod) { pod.Labels = map[string]string{"a": "b"} }), true},
		"another image":          {with(same), with(func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "x" }), true},
		"a container":            {with(same), guest("a", "2", "1"), false},
		"the pod":                {with(same), with(func(pod *corev1.Pod) { pod.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts("1", "")} }), false},
		"an ephemeral container": {with(ephemeral("e", "1")), with(ephemeral("e", "2")), true},
		"one that is new":        {with(ephemeral("e", "1")), with(same), true},
		"an init container": {with(func(pod *corev1.Pod) { pod.Spec.InitContainers = []corev1.Container{sized("i", equally("1", ""))} }),
			with(func(pod *corev1.Pod) { pod.Spec.InitContainers = []corev1.Container{sized("i", equally("2", ""))} }), false},
	} {
		if got := sameResources(tc.a, tc.b); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
		made := withResourcesOf(tc.b, tc.a)
		if !sameResources(made, tc.a) || made.Spec.Containers[0].Image != tc.b.Spec.Containers[0].Image || len(made.Labels) != len(tc.b.Labels) {
			t.Errorf("%s: the first one's resources in the second are %+v", name, made.Spec)
		}
	}
}
