// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestExitedContainersMayBeRemoved removes the exited containers from the runtime, as an
// administrator does with crictl, while the kubelet runs and while it does not. The pods go on as if
// the containers were still there: work that is done is not done again, and an end keeps its exit code.
func TestExitedContainersMayBeRemoved(t *testing.T) {
	s, client := needsContainers(t)
	s.explain(t, client)
	pods := client.CoreV1().Pods("default")
	out := t.TempDir()
	if err := os.Chmod(out, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, running := range []bool{true, false} {
		made := []*corev1.Pod{
			prunedPod("never", corev1.RestartPolicyNever, 0, out), prunedPod("failed", corev1.RestartPolicyNever, 3, out),
			prunedPod("on-failure", corev1.RestartPolicyOnFailure, 0, out),
		}
		for _, pod := range made {
			pod.Name += fmt.Sprint("-", running)
			if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		get := func(pod *corev1.Pod) (*corev1.Pod, []corev1.ContainerStatus) {
			p, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return p, slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
		}
		for _, pod := range made {
			eventually(t, "the work of "+pod.Name+" to be done", func() bool {
				_, c := get(pod)
				return len(c) == 3 && c[0].State.Terminated != nil && c[1].State.Terminated != nil && c[2].State.Running != nil
			})
		}
		if !running {
			s.kubelet.Kill()
		}
		if n := s.removeExited(t); n != 2*len(made) {
			t.Errorf("%d containers were removed, want the two of each pod", n)
		}
		if !running {
			s.kubelet.Start(t)
		}
		// A pod that is started after that is also listed after it.
		probe := prunedPod(fmt.Sprint("probe-", running), corev1.RestartPolicyNever, 0, out)
		if _, err := pods.Create(t.Context(), probe, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "another pod to run", func() bool {
			_, c := get(probe)
			return len(c) == 3 && c[2].State.Running != nil
		})
		for _, pod := range append(made, probe) {
			if p, c := get(pod); p.Status.Phase != corev1.PodRunning || c[2].State.Running == nil || c[2].RestartCount != 0 {
				t.Errorf("%s after the removal: %+v", pod.Name, p.Status)
			}
			if err := os.WriteFile(filepath.Join(out, pod.Name), nil, 0o644); err != nil { // its app ends
				t.Fatal(err)
			}
			eventually(t, pod.Name+" to end", func() bool { p, _ := get(pod); return hasEnded(p) })
			p, c := get(pod)
			want, code := corev1.PodSucceeded, int32(0)
			if strings.HasPrefix(pod.Name, "failed") {
				want, code = corev1.PodFailed, 3
			}
			if p.Status.Phase != want || c[0].State.Terminated.ExitCode != 0 || c[1].State.Terminated.ExitCode != code || c[2].State.Terminated.ExitCode != 0 {
				t.Errorf("%s has ended as %+v", pod.Name, p.Status)
			}
			written, err := os.ReadFile(filepath.Join(out, pod.Name+".log"))
			if got, want := string(written), "init\nwork\napp\n"; err != nil || strings.Count(got, "\n") != 3 || !strings.HasPrefix(got, "init\n") {
				t.Errorf("%s ran %q, %v, want each of %q once", pod.Name, got, err, want)
			}
		}
		s.nothingIsLeft(t, client)
	}
}

// prunedPod returns a pod with an init container and work that ends with a code, and with an app that
// runs until its file is in out. Each writes a line.
func prunedPod(name string, policy corev1.RestartPolicy, code int, out string) *corev1.Pod {
	pod := workPod(0, out)
	pod.Name, pod.Spec.RestartPolicy = name, policy
	container := func(name, script string) corev1.Container {
		c := *pod.Spec.Containers[0].DeepCopy()
		c.Name, c.Command = name, []string{"sh", "-c", "echo " + name + " >> /out/$NAME_OF_POD.log; " + script}
		c.Env = []corev1.EnvVar{{Name: "NAME_OF_POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}
		return c
	}
	pod.Spec.InitContainers = []corev1.Container{container("init", "exit 0")}
	pod.Spec.Containers = []corev1.Container{container("work", fmt.Sprint("exit ", code)), container("app", "until test -e /out/$NAME_OF_POD; do sleep 1; done")}
	return pod
}

// removeExited removes the exited containers from the runtime, and returns their number.
func (s *suite) removeExited(t *testing.T) int {
	t.Helper()
	cri := s.runtime.Client(t)
	list, err := cri.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_EXITED},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list.Containers {
		if _, err := cri.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: c.Id}); err != nil {
			t.Fatal(err)
		}
	}
	return len(list.Containers)
}
