// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubewright/kubewright/test/e2e/harness"
)

// TestThePodGetsItsDevice runs the driver with its permissions against a real
// control plane: the scheduler allocates the device and binds the Pod. The test
// stands for the kubelet.
func TestThePodGetsItsDevice(t *testing.T) {
	if !harness.Enabled() {
		t.Skip("needs a control plane, see test/controlplane")
	}
	cluster := harness.Start(t, harness.Options{ExtraArgs: map[string][]string{
		harness.ControllerManager: {"--controllers=*,-node-lifecycle-controller,-taint-eviction-controller"},
	}})
	admin := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	cluster.Kubectl(t, "apply", "-f", "rbac.yaml")
	amounts := corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("10")}
	if _, err := admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}, Capacity: amounts, Allocatable: amounts,
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The controller that would remove the taint of new nodes doesn't run.
	if _, err := admin.CoreV1().Nodes().Patch(t.Context(), nodeName, types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}

	m := newMachine(t)
	cfg := rest.CopyConfig(cluster.AdminConfig())
	cfg.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:kube-system:dradriver",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"},
		Extra:    map[string][]string{"authentication.kubernetes.io/node-name": {nodeName}},
	}
	m.start(kubernetes.NewForConfigOrDie(cfg))
	k := m.register()

	if _, err := admin.ResourceV1().DeviceClasses().Create(t.Context(), &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "nic"},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
			CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "nic.example.com" && device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:3a"`},
		}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.ResourceV1().ResourceClaims("default").Create(t.Context(), &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "net"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
			{Name: "my-nic", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "nic"}},
		}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	m.eventually("the default ServiceAccount", func() bool {
		_, err := admin.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	if _, err := admin.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "net", ResourceClaimName: new("net")}},
			Containers: []corev1.Container{{Name: "c", Image: "example.com/none", Resources: corev1.ResourceRequirements{
				Claims: []corev1.ResourceClaim{{Name: "net"}},
			}}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	m.eventually("the Pod on the node", func() bool {
		pod, err := admin.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{})
		return err == nil && pod.Spec.NodeName == nodeName
	})
	claim, err := admin.ResourceV1().ResourceClaims("default").Get(t.Context(), "net", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ids, file := m.prepare(k, claim); len(ids) != 1 {
		t.Errorf("CDI devices %v, file %s", ids, file)
	}
	claim, err = admin.ResourceV1().ResourceClaims("default").Get(t.Context(), "net", metav1.GetOptions{})
	if err != nil || len(claim.Status.Devices) != 1 || claim.Status.Devices[0].Device != device || claim.Status.Devices[0].NetworkData.InterfaceName != "eth0" {
		t.Errorf("status %+v, error %v", claim.Status.Devices, err)
	}
	m.unprepare(k, claim)
}
