// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package nodeapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// cheapest returns the least CPU time of this process for some calls of f.
func cheapest(f func()) (least time.Duration) {
	used := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // can't fail for the calling process
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	for i := range 5 {
		begin := used()
		f()
		if took := used() - begin; i == 0 || took < least {
			least = took
		}
	}
	return least
}

// TestAnswersAboutLargePodsAreLinear: what a tenant's pod costs its node grows as the pod does.
func TestAnswersAboutLargePodsAreLinear(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector, which runs with -short, changes what a call costs")
	}
	for name, path := range map[string]func(n int) string{
		"the list of pods": func(int) string { return "/pods" },
		"a log":            func(n int) string { return fmt.Sprintf("/containerLogs/default/web/c%d", n-1) },
	} {
		t.Run(name, func(t *testing.T) {
			const size, growth = 2500, 4
			prepare := func(n int) func() {
				pod := testPod()
				pod.Spec.Containers, pod.Status.ContainerStatuses = nil, nil
				for i := range n {
					name := fmt.Sprint("c", i)
					pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name})
					pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: name, ContainerID: "test://" + name})
				}
				r := start(t, &testBackend{logs: func(context.Context, Container, LogOptions) (io.ReadCloser, error) { return text("line"), nil }}, nil)
				r.setPods(pod)
				return func() {
					if code, body := r.get(path(n)); code != http.StatusOK {
						t.Error(code, body)
					}
				}
			}
			few, many := cheapest(prepare(size)), cheapest(prepare(growth*size))
			if many > 6*few+2*time.Millisecond {
				t.Errorf("%d containers take %v, and %d take %v: more than linear", size, few, growth*size, many)
			}
		})
	}
}
