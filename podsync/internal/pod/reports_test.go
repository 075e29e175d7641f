// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/internal/lineartest"
)

func isWaiting(name string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}
}

func isUp(name string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
}

func isDown(name string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}
}

func TestAddMissing(t *testing.T) {
	stateless := corev1.ContainerStatus{Name: "a"}
	type list = []corev1.ContainerStatus
	for name, tc := range map[string]struct {
		list, other list
		endsOnly    bool
		want        list
	}{
		"nothing is missing":              {list{isUp("a")}, list{isDown("a")}, false, list{isUp("a")}},
		"a container is missing":          {list{isUp("a")}, list{isUp("b"), isDown("c")}, false, list{isUp("a"), isUp("b"), isDown("c")}},
		"only ends":                       {list{isUp("a")}, list{isUp("b"), isDown("c")}, true, list{isUp("a"), isDown("c")}},
		"a container has no state":        {list{stateless, isUp("b")}, list{isDown("a")}, true, list{isDown("a"), isUp("b")}},
		"neither has a state":             {list{isUp("b")}, list{stateless}, false, list{isUp("b")}},
		"one that waits is no end":        {nil, list{isWaiting("a")}, true, nil},
		"two have no state, one is known": {list{stateless, {Name: "b"}}, list{isUp("a"), isDown("b")}, true, list{stateless, isDown("b")}},
	} {
		before := append(list(nil), tc.list...)
		if got := addMissing(tc.list, tc.other, tc.endsOnly); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %+v", name, got)
		}
		if !reflect.DeepEqual(tc.list, before) {
			t.Errorf("%s: the report itself is %+v", name, tc.list)
		}
	}
}

// The exit code that the API has of a container that waits may be that of an instance that was lost.
func TestTheStoredEndOfAWaitingContainerEndsNoPod(t *testing.T) {
	last := isWaiting("c")
	last.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{}
	for name, store := range map[string]func(*corev1.PodStatus){
		"container":      func(st *corev1.PodStatus) { st.ContainerStatuses = []corev1.ContainerStatus{last} },
		"init container": func(st *corev1.PodStatus) { st.InitContainerStatuses = []corev1.ContainerStatus{last} },
	} {
		s := runningPod(func(p *corev1.Pod) {
			store(&p.Status)
			if name == "init container" {
				p.Spec.InitContainers, p.Spec.Containers[0].Name = []corev1.Container{{Name: "c"}}, "d"
				p.Status.ContainerStatuses = nil
			}
		}).with(func(s *scene) { s.setReport(nil) })
		report := &Report{Status: corev1.PodStatus{PodIP: "10.0.0.1"}}
		if s.says(report); s.ended() {
			t.Errorf("%s: the pod has ended", name)
		}
	}
}

// A report that leaves out a container that runs keeps it, until the API has it.
func TestAnUnsentReportOfARunningContainerIsKept(t *testing.T) {
	for name, list := range map[string]func(*corev1.PodStatus) *[]corev1.ContainerStatus{
		"init":      func(st *corev1.PodStatus) *[]corev1.ContainerStatus { return &st.InitContainerStatuses },
		"main":      func(st *corev1.PodStatus) *[]corev1.ContainerStatus { return &st.ContainerStatuses },
		"ephemeral": func(st *corev1.PodStatus) *[]corev1.ContainerStatus { return &st.EphemeralContainerStatuses },
	} {
		s := runningPod(func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "x"}) })
		first := runs()
		*list(&first.Status) = append(*list(&first.Status), isUp("x"))
		s.says(first).says(unready())
		got := *list(s.report())
		if last := got[len(got)-1]; last.Name != "x" || last.State.Running == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestSameProgress(t *testing.T) {
	base := isUp("c")
	yes, no := true, false
	base.Started = &yes
	for name, tc := range map[string]struct {
		edit func(*corev1.ContainerStatus)
		want bool
	}{
		"nothing":        {func(*corev1.ContainerStatus) {}, true},
		"its ID":         {func(c *corev1.ContainerStatus) { c.ContainerID = "x://2" }, true},
		"its name":       {func(c *corev1.ContainerStatus) { c.Name = "d" }, false},
		"ready":          {func(c *corev1.ContainerStatus) { c.Ready = true }, false},
		"restarts":       {func(c *corev1.ContainerStatus) { c.RestartCount = 1 }, false},
		"started unsaid": {func(c *corev1.ContainerStatus) { c.Started = nil }, true},
		"not started":    {func(c *corev1.ContainerStatus) { c.Started = &no }, false},
		"waits":          {func(c *corev1.ContainerStatus) { c.State = isWaiting("c").State }, false},
		"ended":          {func(c *corev1.ContainerStatus) { c.State = isDown("c").State }, false},
		"runs and ended": {func(c *corev1.ContainerStatus) { c.State.Terminated = &corev1.ContainerStateTerminated{} }, false},
	} {
		next := base
		tc.edit(&next)
		if got := sameProgress(base, next); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if next := base; sameProgress(isUp("c"), next) {
		t.Error("started is new")
	}
	a, b := isWaiting("c"), isWaiting("c")
	b.State.Waiting.Reason = "CrashLoopBackOff"
	if sameProgress(a, b) || !sameProgress(a, isWaiting("c")) {
		t.Error("the reason to wait decides")
	}
}

func TestMutableChanged(t *testing.T) {
	base := func() *corev1.PodSpec {
		return &corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}, InitContainers: []corev1.Container{{Name: "i", Image: "i"}}}
	}
	if mutableChanged(base(), base()) {
		t.Error("nothing has changed")
	}
	for name, edit := range map[string]func(*corev1.PodSpec){
		"image":           func(s *corev1.PodSpec) { s.Containers[0].Image = "j" },
		"image of init":   func(s *corev1.PodSpec) { s.InitContainers[0].Image = "j" },
		"resources":       func(s *corev1.PodSpec) { s.Containers[0].Resources.Limits = corev1.ResourceList{"cpu": {}} },
		"containers":      func(s *corev1.PodSpec) { s.Containers = append(s.Containers, corev1.Container{}) },
		"ephemeral":       func(s *corev1.PodSpec) { s.EphemeralContainers = make([]corev1.EphemeralContainer, 1) },
		"active deadline": func(s *corev1.PodSpec) { s.ActiveDeadlineSeconds = new(int64(5)) },
		"tolerations":     func(s *corev1.PodSpec) { s.Tolerations = make([]corev1.Toleration, 1) },
	} {
		next := base()
		if edit(next); !mutableChanged(base(), next) {
			t.Errorf("%s: no change", name)
		}
	}
	next := base()
	if next.ServiceAccountName = "s"; mutableChanged(base(), next) {
		t.Error("a field that can't change")
	}
}

// A report may have as many annotations as it likes, and all pods wait while it is applied.
func TestManyAnnotationsAreLinear(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector, which runs with -short, changes what a call costs")
	}
	lineartest.Check(t, 2000, func(n int) func() {
		report := runs()
		report.Annotations = map[string]string{}
		for i := range n {
			report.Annotations[fmt.Sprintf("example.com/%05d", i)] = "v"
		}
		return func() {
			if s := runningPod().says(report); len(s.newAnnotations()) != n {
				t.Errorf("%d annotations", len(s.newAnnotations()))
			}
		}
	})
}
