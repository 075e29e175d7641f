// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/examples/crikubelet/internal/criserver"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// drivers are DRA drivers with the names of the prepared claims.
type drivers map[string]bool

func (d drivers) Prepare(_ context.Context, driver string, c podruntime.ClaimReference) ([]podruntime.ClaimDevice, error) {
	d[c.Name] = true
	return []podruntime.ClaimDevice{{CDI: []string{driver + "/claim=" + c.Name}}}, nil
}

func (d drivers) Unprepare(_ context.Context, _ string, c podruntime.ClaimReference) error {
	delete(d, c.Name)
	return nil
}

func TestAContainerHasTheDevicesOfItsClaims(t *testing.T) {
	server := criserver.Start(t)
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gpu"}}
	claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "uid"}}
	claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
		Results: []resourcev1.DeviceRequestAllocationResult{{Request: "r", Driver: "example.com", Pool: "n1", Device: "d"}},
	}}
	r := newRuntime(t, server, claim)
	prepared := drivers{}
	r.cfg.Claims.Drivers = prepared
	p := pod(func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "devices", ResourceClaimName: new("gpu")}}
		p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "devices"}}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "other", Image: "none:1", Command: []string{"forever"}})
	})
	box, err := r.SetUpPod(t.Context(), podruntime.SandboxSpec{Pod: p})
	if err != nil {
		t.Fatal(err)
	}
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		spec := podruntime.ContainerSpec{ID: podruntime.ContainerID{Pod: p.UID, Name: c.Name}, Pod: p, Container: c, Sandbox: &box, Dir: t.TempDir()}
		spec.Environment.Command = c.Command
		if err := r.Start(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range server.Containers {
		var got []string
		for _, d := range c.Config.CDIDevices {
			got = append(got, d.Name)
		}
		want := ""
		if c.Config.Metadata.Name == "main" {
			want = "example.com/claim=gpu"
		}
		if strings.Join(got, " ") != want {
			t.Errorf("container %s has the devices %q, want %q", c.Config.Metadata.Name, got, want)
		}
	}
	if !prepared["gpu"] {
		t.Error("the claim is not prepared while its pod runs")
	}
	server.Fail = func(method string) error {
		if method == "StopPodSandbox" {
			return errors.New("busy")
		}
		return nil
	}
	if err := r.TearDownPod(t.Context(), p.UID); err == nil || !prepared["gpu"] {
		t.Errorf("TearDownPod = %v, and the claim of a pod that may run is not prepared", err)
	}
	server.Fail = nil
	if err := r.TearDownPod(t.Context(), p.UID); err != nil || prepared["gpu"] {
		t.Errorf("TearDownPod = %v, and the claim of a pod that has ended is prepared", err)
	}
}

func TestAPodWaitsForItsClaims(t *testing.T) {
	r := newRuntime(t, criserver.Start(t))
	p := pod(func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "devices", ResourceClaimName: new("gpu")}}
	})
	_, err := r.SetUpPod(t.Context(), podruntime.SandboxSpec{Pod: p})
	var failed *podruntime.StartError
	if !errors.As(err, &failed) || failed.Reason != "FailedPrepareDynamicResources" {
		t.Errorf("SetUpPod = %v, want a StartError", err)
	}
	if list, err := r.ListPods(t.Context(), p.UID); err != nil || len(list) != 0 {
		t.Errorf("the pod has the sandboxes %v, %v", list, err)
	}
}

func TestClaimsNeedARuntimeWithCDI(t *testing.T) {
	r := newRuntime(t, criserver.Start(t))
	p := pod(func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "devices", ResourceClaimName: new("gpu")}}
	})
	for version, rejected := range map[string]bool{
		"": false, "memory://1.0": false, "containerd://1.6.20~ds1": true, "containerd://v1.6.20": true, "containerd://1.5.1": true,
		"containerd://1.7.0": false, "containerd://v2.4.2": false, "containerd://2.4.2": false, "containerd://1.10.1": false, "cri-o://1.6.1": false,
	} {
		r.version = version
		if err := r.Check(p); (err != nil) != rejected {
			t.Errorf("%s: %v, want rejected %v", version, err, rejected)
		}
		if err := r.Check(pod()); err != nil {
			t.Errorf("%s: a pod without claims: %v", version, err)
		}
	}
}
