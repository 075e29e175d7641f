// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/kubewright/kubewright/test/conformance/rig"
)

// testDriver is the DRA driver of TestAPodHasTheDeviceOfItsClaim. Its only device is a
// variable and a device node, which a CDI file describes.
const testDriver = "device.example.com"

type driver struct {
	registration.UnimplementedRegistrationServer
	dra.UnimplementedDRAPluginServer
	socket, cdi string
}

// start serves the driver until the test ends.
func (d *driver) start(t *testing.T) {
	t.Helper()
	for _, dir := range []string{filepath.Dir(d.socket), d.cdi} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, d)
	dra.RegisterDRAPluginServer(server, d)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
}

func (d *driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.DRAPlugin, Name: testDriver, Endpoint: d.socket, SupportedVersions: []string{dra.DRAPluginService}}, nil
}

func (d *driver) NotifyRegistrationStatus(context.Context, *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	return &registration.RegistrationStatusResponse{}, nil
}

// file returns the path of the CDI file of a claim.
func (d *driver) file(c *dra.Claim) string { return filepath.Join(d.cdi, c.Uid+".json") }

func (d *driver) NodePrepareResources(_ context.Context, r *dra.NodePrepareResourcesRequest) (*dra.NodePrepareResourcesResponse, error) {
	out := &dra.NodePrepareResourcesResponse{Claims: map[string]*dra.NodePrepareResourceResponse{}}
	for _, c := range r.Claims {
		spec := fmt.Sprintf(`{"cdiVersion": "0.6.0", "kind": "%s/claim", "devices": [{"name": %q, "containerEdits":
  {"env": ["DEVICE=%[2]s"], "deviceNodes": [{"path": "/dev/example", "hostPath": "/dev/null"}]}}]}`, testDriver, c.Uid)
		if err := os.WriteFile(d.file(c), []byte(spec), 0o644); err != nil {
			return nil, err
		}
		out.Claims[c.Uid] = &dra.NodePrepareResourceResponse{Devices: []*dra.Device{
			{RequestNames: []string{"one"}, PoolName: "worker", DeviceName: "device", CdiDeviceIds: []string{testDriver + "/claim=" + c.Uid}},
		}}
	}
	return out, nil
}

func (d *driver) NodeUnprepareResources(_ context.Context, r *dra.NodeUnprepareResourcesRequest) (*dra.NodeUnprepareResourcesResponse, error) {
	out := &dra.NodeUnprepareResourcesResponse{Claims: map[string]*dra.NodeUnprepareResourceResponse{}}
	for _, c := range r.Claims {
		if err := os.RemoveAll(d.file(c)); err != nil {
			return nil, err
		}
		out.Claims[c.Uid] = &dra.NodeUnprepareResourceResponse{}
	}
	return out, nil
}

// TestAPodHasTheDeviceOfItsClaim runs two pods one after the other that want the only
// device of a DRA driver, on a containerd that has CDI, which Debian's does not.
func TestAPodHasTheDeviceOfItsClaim(t *testing.T) {
	binaries := needsRuntime(t)
	binaries.Containerd = rig.Containerd(t)
	s := newSuiteWith(t, binaries)
	client := s.client(t)
	s.explain(t, client)
	d := &driver{socket: filepath.Join(s.runtime.Plugins(), "driver.sock"), cdi: s.runtime.CDI()}
	d.start(t)

	device := resourcev1.DeviceRequest{Name: "one", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: testDriver}}
	_, err := client.ResourceV1().DeviceClasses().Create(t.Context(), &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: testDriver}}, metav1.CreateOptions{})
	if err == nil {
		_, err = client.ResourceV1().ResourceSlices().Create(t.Context(), &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "devices"}, Spec: resourcev1.ResourceSliceSpec{
			Driver: testDriver, NodeName: new("worker"), Pool: resourcev1.ResourcePool{Name: "worker", ResourceSliceCount: 1}, Devices: []resourcev1.Device{{Name: "device"}},
		}}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = client.ResourceV1().ResourceClaimTemplates("default").Create(t.Context(), &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "device"},
			Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{device}}}},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	pods := client.CoreV1().Pods("default")
	seen := map[string]bool{}
	for _, name := range []string{"first", "second"} {
		pod := limitedPod(name, "", "")
		pod.Spec.NodeName, pod.Spec.RestartPolicy = "", corev1.RestartPolicyNever
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "device", ResourceClaimTemplateName: new("device")}}
		report := `echo "$DEVICE" > /dev/termination-log; test -c /dev/example`
		pod.Spec.Containers[0].Command = []string{"sh", "-c", report}
		pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "device"}}
		pod.Spec.Containers[1].Command = []string{"sh", "-c", report} // it has no claim
		if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"first", "second"} { // the second one waits for the device
		eventually(t, "pod "+name+" to end", func() bool {
			p, err := pods.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || p.Status.Phase != corev1.PodFailed {
				return false
			}
			with, without := p.Status.ContainerStatuses[0].State.Terminated, p.Status.ContainerStatuses[1].State.Terminated
			if with.ExitCode != 0 || strings.TrimSpace(with.Message) == "" {
				t.Errorf("pod %s: the container with the claim: %v", name, with)
			}
			if without.ExitCode == 0 || strings.TrimSpace(without.Message) != "" {
				t.Errorf("pod %s: the container without a claim: %v", name, without)
			}
			seen[strings.TrimSpace(with.Message)] = true
			return true
		})
		// The device is released although the pod is still there.
		files, err := os.ReadDir(d.cdi)
		if err != nil || len(files) > 1 || len(files) == 1 && seen[strings.TrimSuffix(files[0].Name(), ".json")] {
			t.Errorf("pod %s has ended, and there are the CDI files %v, %v", name, files, err)
		}
	}
	if len(seen) != 2 {
		t.Errorf("two pods had the claims %v", seen)
	}
	s.nothingIsLeft(t, client)
}
