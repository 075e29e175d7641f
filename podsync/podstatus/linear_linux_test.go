// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// largePod returns a pod of n containers, n init containers and n conditions, and a report that
// has them in reverse order.
func largePod(n int) (*corev1.Pod, Update) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever}}
	var report corev1.PodStatus
	for i := range n {
		name := fmt.Sprint("container-", i)
		ended := corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}
		pod.Spec.Containers, report.ContainerStatuses = append(pod.Spec.Containers, corev1.Container{Name: name}), append(report.ContainerStatuses, ended)
		pod.Spec.InitContainers, report.InitContainerStatuses = append(pod.Spec.InitContainers, corev1.Container{Name: name}), append(report.InitContainerStatuses, ended)
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodConditionType(fmt.Sprint("example.com/", i)), Status: corev1.ConditionTrue})
	}
	slices.Reverse(report.ContainerStatuses)
	slices.Reverse(report.InitContainerStatuses)
	return pod, Update{Observed: report, Stopped: true, Now: time.Unix(1, 0)}
}

// processTime returns the CPU time of this process: other programs on the machine do not count.
func processTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cheapest returns the least CPU time of some calls.
func cheapest(f func()) time.Duration {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // its work is not that of one call
	var times []time.Duration
	for range 7 {
		runtime.GC()
		begin := processTime()
		f()
		times = append(times, processTime()-begin)
	}
	return slices.Min(times)
}

// TestStatusesOfALargePodAreLinear: the API server stores pods of thousands of containers, and other
// pods must not wait for them.
func TestStatusesOfALargePodAreLinear(t *testing.T) {
	const small, factor = 1000, 4
	for name, prepare := range map[string]func(n int) func(){
		"the next status": func(n int) func() {
			pod, update := largePod(n)
			return func() {
				if next, problems := Next(pod, update); len(problems) > 0 || next.Phase != corev1.PodSucceeded {
					t.Error(next.Phase, problems)
				}
			}
		},
		"a patch": func(n int) func() {
			pod, update := largePod(n)
			next, _ := Next(pod, update)
			slices.Reverse(next.Conditions)
			return func() { Patch(pod, &next) }
		},
		"a comparison": func(n int) func() {
			pod, update := largePod(n)
			next, _ := Next(pod, update)
			other := *next.DeepCopy()
			slices.Reverse(other.Conditions)
			return func() {
				if !Equal(&next, &other) {
					t.Error("the statuses differ")
				}
			}
		},
		"a validation": func(n int) func() {
			pod, update := largePod(n)
			next, _ := Next(pod, update)
			pod.Status = next
			return func() {
				if errs := Validate(pod, &update.Observed); len(errs) > 0 {
					t.Error(errs)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			few, many := cheapest(prepare(small)), cheapest(prepare(factor*small))
			if many > 6*few+2*time.Millisecond {
				t.Errorf("%d containers take %v, and %d take %v: more than linear", small, few, factor*small, many)
			}
		})
	}
}
