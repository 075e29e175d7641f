// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/test/e2e/harness"
)

// TestANodeStartsWithoutTheAPIServer stops the API server and kills the kubelet, containerd and all
// shims, as the crash of a machine does. With --offline the pods run again when the node is back,
// and the API server finds each of them once when it is back.
func TestANodeStartsWithoutTheAPIServer(t *testing.T) {
	s := newSuiteWith(t, needsRuntime(t), "--offline")
	client := s.client(t)
	s.explain(t, client)
	out := t.TempDir()
	if err := os.Chmod(out, 0o777); err != nil {
		t.Fatal(err)
	}
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"key": "text"}}
	if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), settings, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pods := client.CoreV1().Pods("default")
	const n = 4
	for i := range n {
		pod := workPod(i, out)
		c := &pod.Spec.Containers[0]
		pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
		c.Command = []string{"sh", "-c", `test "$SETTING" = text && test "$(cat /settings/key)" = text && echo start $UID_OF_POD >> /out/log; sleep 100000`}
		source := corev1.LocalObjectReference{Name: settings.Name}
		c.Env = append(c.Env, corev1.EnvVar{Name: "SETTING", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: source, Key: "key"}}})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "settings", MountPath: "/settings"})
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "settings", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: source}}})
		if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	starts := func() int {
		written, _ := os.ReadFile(filepath.Join(out, "log")) // it is there with the first start
		return strings.Count(string(written), "start ")
	}
	eventually(t, "all pods to start", func() bool { return starts() == n })
	run := func(restarts int32) func() bool {
		return func() bool {
			list, err := pods.List(t.Context(), metav1.ListOptions{})
			running := 0
			for _, p := range list.Items {
				if len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Running != nil && p.Status.ContainerStatuses[0].RestartCount == restarts {
					running++
				}
			}
			return err == nil && running == n
		}
	}
	eventually(t, "all pods to run", run(0))

	s.cluster.Kill(t, harness.APIServer)
	s.kubelet.Kill()
	s.runtime.Kill()
	for _, pid := range s.runtime.Shims() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all shims to end", func() bool { return len(s.runtime.Shims()) == 0 })
	s.runtime.Start(t)
	s.kubelet.Start(t)
	eventually(t, "all pods to start without the API server", func() bool { return starts() == 2*n })

	s.cluster.Restart(t, harness.APIServer)
	eventually(t, "the API server to know that all pods run again", run(1))
	cri := s.runtime.Client(t)
	list, err := cri.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		t.Fatal(err)
	}
	uids := map[string]bool{}
	for _, c := range list.Containers {
		uids[c.Labels["io.kubernetes.pod.uid"]] = true
	}
	if got := fmt.Sprint(len(list.Containers), " ", len(uids), " ", starts()); got != fmt.Sprint(n, " ", n, " ", 2*n) {
		t.Errorf("containers, their pods and starts are %s", got)
	}
	s.nothingIsLeft(t, client)
}
