// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ends waits for the kubelet to end with this exit status, and restarts it like
// a supervisor.
func (r *kubeletRig) ends(status int) {
	r.Helper()
	_ = r.program.cmd.Wait()
	if got := r.program.cmd.ProcessState.ExitCode(); got != status {
		r.Fatalf("the kubelet ended with status %d, want %d", got, status)
	}
	r.start()
}

// rollOut writes the settings.
func (r *kubeletRig) rollOut(text string) {
	r.Helper()
	api := r.client.CoreV1().ConfigMaps("kubewright")
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kubelet"}, Data: map[string]string{"settings.yaml": text}}
	_, err := api.Update(r.Context(), cm, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(r.Context(), cm, metav1.CreateOptions{})
	}
	if err != nil {
		r.Fatal(err)
	}
}

func (r *kubeletRig) awaitSettings(status corev1.ConditionStatus, reason string) *corev1.Node {
	r.Helper()
	return awaitNode(r.T, r.client, r.node, fmt.Sprintf("with settings %s: %s", status, reason), func(n *corev1.Node) bool {
		c := condition(n, "KubeletConfigOK")
		return c.Status == status && c.Reason == reason
	})
}

// This test rolls out settings while a pod runs: good ones, invalid ones, and
// settings that make the kubelet end.
func TestExampleKubeletSettings(t *testing.T) {
	busy(t)
	cluster := shared.Cluster(t)
	applyManifests(t, cluster, "kubelet.yaml")
	r := newKubeletRig(t, cluster, "kubelet-settings", "--config-map=kubewright/kubelet/settings.yaml", "--config-soak=1s")
	r.deployment("web", 1)
	r.await("the pod to be ready", func(pods []*corev1.Pod) bool { return readyPods(pods, "web") == 1 })

	r.rollOut("labels: {room: blue}")
	r.ends(75)
	if got := r.awaitSettings(corev1.ConditionTrue, "Good").Labels["room"]; got != "blue" {
		t.Errorf("the label is %q", got)
	}
	r.rollOut("maxPods: -1")
	r.awaitSettings(corev1.ConditionFalse, "ValidationFailed")

	r.rollOut("labels: {node-role.kubernetes.io/king: yes}")
	r.ends(75)
	for range 3 {
		r.ends(1)
	}
	if got := r.awaitSettings(corev1.ConditionFalse, "CrashLoop").Labels["room"]; got != "blue" {
		t.Errorf("after the roll-back the label is %q", got)
	}
	if n := len(r.starts()); n != 1 {
		t.Errorf("%d pods were started meanwhile, want the one", n)
	}
	cluster.Kubectl(t, "delete", "-n", r.namespace, "--wait=false", "deployment/web")
	r.awaitNone()
	r.onceAndNotLost()
	r.program.stop()
	r.nothingRefused()
}

// The scheduler allocates a CPU that the kubelet has published, and the pod
// runs on that CPU.
func TestExampleKubeletCPUs(t *testing.T) {
	busy(t)
	const driver = "cpu.kubewright.dev"
	r := newKubeletRig(t, shared.Cluster(t), "kubelet-cpus", "--publish-cpus")
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: resourcev1.DeviceClassSpec{
		Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "` + driver + `"`}}},
	}}
	if _, err := r.client.ResourceV1().DeviceClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	template := &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "one-cpu"},
		Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{Name: "cpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: driver}}},
		}}},
	}
	if _, err := r.client.ResourceV1().ResourceClaimTemplates(r.namespace).Create(t.Context(), template, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := r.template("pinned", corev1.RestartPolicyNever, `echo $(grep Cpus_allowed_list /proc/self/status) >> $OUT; until [ -e $OUT.seen ]; do sleep 0.1; done`)
	pod.Name = "pinned"
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "cpu", ResourceClaimTemplateName: new("one-cpu")}}
	pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "cpu"}}
	if _, err := r.client.CoreV1().Pods(r.namespace).Create(t.Context(), &corev1.Pod{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.await("the pod to run", func(pods []*corev1.Pod) bool { return len(pods) == 1 && pods[0].Status.Phase == corev1.PodRunning })
	// Check while the pod runs, because its claim is deallocated when it has
	// ended.
	claims, err := r.client.ResourceV1().ResourceClaims(r.namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(claims.Items) != 1 || claims.Items[0].Status.Allocation == nil {
		t.Fatalf("%+v, %v", claims, err)
	}
	device := claims.Items[0].Status.Allocation.Devices.Results[0].Device
	if err := os.WriteFile(r.out+".seen", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.awaitSucceeded("pinned", 1)
	if line := r.written()[0]; len(line) != 2 || "cpu-"+line[1] != device {
		t.Errorf("the pod ran with %q, and was given %s", line, device)
	}
	r.cluster.Kubectl(t, "delete", "-n", r.namespace, "--wait=false", "pod/pinned")
	r.awaitNone()
	r.program.stop()
	r.nothingRefused()
}
