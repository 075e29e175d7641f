// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// set runs setters on a scratch node.
func set(t *testing.T, setters ...Setter) *corev1.Node {
	t.Helper()
	n := &corev1.Node{}
	n.Name = node1
	for _, setter := range setters {
		if err := setter(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func TestCapacity(t *testing.T) {
	capacity := corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("10")}
	reserved := corev1.ResourceList{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("2Gi"), "example.com/gpu": resource.MustParse("1")}
	n := set(t, Capacity(corev1.ResourceList{"example.com/nic": resource.MustParse("2")}, nil), Capacity(capacity, reserved))
	for name, want := range map[corev1.ResourceName][2]string{"cpu": {"4", "3500m"}, "memory": {"1Gi", "0"}, "pods": {"10", "10"}, "example.com/nic": {"2", "2"}} {
		has, left := n.Status.Capacity[name], n.Status.Allocatable[name]
		if has.String() != want[0] || left.String() != want[1] {
			t.Errorf("%s: capacity %s, allocatable %s, want %v", name, has.String(), left.String(), want)
		}
	}
	if len(n.Status.Capacity) != 4 || len(n.Status.Allocatable) != 4 {
		t.Errorf("capacity %v, allocatable %v", n.Status.Capacity, n.Status.Allocatable)
	}
}

func TestAddresses(t *testing.T) {
	address := func(kind corev1.NodeAddressType, a string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: kind, Address: a}
	}
	n := set(t,
		Addresses(address("InternalIP", "1.1.1.1"), address("Hostname", "h")),
		Addresses(address("InternalIP", "2.2.2.2"), address("InternalIP", "fd00::2")))
	want := []corev1.NodeAddress{address("Hostname", "h"), address("InternalIP", "2.2.2.2"), address("InternalIP", "fd00::2")}
	if diff := cmp.Diff(want, n.Status.Addresses); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestImages(t *testing.T) {
	var images []corev1.ContainerImage
	for i := range 60 {
		image := corev1.ContainerImage{SizeBytes: int64(i % 7)}
		for j := range 8 {
			image.Names = append(image.Names, fmt.Sprintf("image-%02d:%d", i, j))
		}
		images = append(images, image)
	}
	n := set(t, Images(func(_ context.Context, nodeName string) ([]corev1.ContainerImage, error) {
		if nodeName != node1 {
			t.Errorf("asked for the images of %q", nodeName)
		}
		return images, nil
	}))
	got := n.Status.Images
	if len(got) != maxImages || len(got[0].Names) != maxImageNames || got[0].SizeBytes != 6 || got[0].Names[0] != "image-06:0" {
		t.Errorf("%d images, the first is %+v", len(got), got[0])
	}
	for i := 1; i < len(got); i++ {
		if got[i].SizeBytes > got[i-1].SizeBytes {
			t.Fatalf("image %d is larger than the one before", i)
		}
	}
	if len(images[0].Names) != 8 || images[0].SizeBytes != 0 {
		t.Error("the list that was handed in has changed")
	}
	failed := errors.New("no runtime")
	if err := Images(func(context.Context, string) ([]corev1.ContainerImage, error) { return nil, failed })(t.Context(), n); !errors.Is(err, failed) {
		t.Errorf("the error is %v", err)
	}
}

func TestConditionSetters(t *testing.T) {
	state := func(status corev1.ConditionStatus, err error) Setter {
		return Condition("Fit", func(context.Context, string) (corev1.ConditionStatus, string, string, error) {
			return status, "R", "M", err
		})
	}
	n := set(t, state(corev1.ConditionFalse, nil), state(corev1.ConditionTrue, nil))
	if len(n.Status.Conditions) != 1 || n.Status.Conditions[0] != (corev1.NodeCondition{Type: "Fit", Status: corev1.ConditionTrue, Reason: "R", Message: "M"}) {
		t.Errorf("conditions are %v", n.Status.Conditions)
	}
	failed := errors.New("unknown")
	if err := state("", failed)(t.Context(), n); !errors.Is(err, failed) || n.Status.Conditions[0].Status != corev1.ConditionTrue {
		t.Errorf("error %v, condition %v", err, n.Status.Conditions[0])
	}
}

func TestStandardLabels(t *testing.T) {
	own := func(_ context.Context, n *corev1.Node) error {
		n.Labels = map[string]string{"pool": "a"}
		n.Status.NodeInfo.OperatingSystem = "windows"
		return nil
	}
	n := set(t, own, StandardLabels(), KubeletPort(10250))
	want := map[string]string{"pool": "a", "kubernetes.io/hostname": node1, "kubernetes.io/os": "windows", "kubernetes.io/arch": runtime.GOARCH}
	if diff := cmp.Diff(want, n.Labels); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(forbiddenLabels(n.Labels)) != 0 {
		t.Error("a node may not set the standard labels")
	}
	if n.Status.DaemonEndpoints.KubeletEndpoint.Port != 10250 {
		t.Error("the port is missing")
	}
	long := &corev1.Node{}
	long.Name = strings.Repeat("a", 70)
	if err := StandardLabels()(t.Context(), long); err != nil || long.Labels["kubernetes.io/hostname"] != "" || long.Labels["kubernetes.io/os"] != runtime.GOOS {
		t.Errorf("a name that is no label: %v, %v", long.Labels, err)
	}
}

func TestHostInfo(t *testing.T) {
	root := fstest.MapFS{
		"proc/sys/kernel/osrelease":       {Data: []byte("6.1.0\n")},
		"proc/sys/kernel/random/boot_id":  {Data: []byte("boot\n")},
		"etc/os-release":                  {Data: []byte("ID=x\nPRETTY_NAME=\"X Linux 1\"\n")},
		"var/lib/dbus/machine-id":         {Data: []byte("machine\n")},
		"sys/class/dmi/id/product_serial": {Data: []byte("other")},
	}
	n := set(t, hostInfo(root, corev1.NodeSystemInfo{KubeletVersion: "v1.37.0", BootID: "given"}))
	want := corev1.NodeSystemInfo{
		KubeletVersion: "v1.37.0", BootID: "given", KernelVersion: "6.1.0", OSImage: "X Linux 1", MachineID: "machine",
		OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
	}
	if diff := cmp.Diff(want, n.Status.NodeInfo); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	bare := set(t, hostInfo(fstest.MapFS{}, corev1.NodeSystemInfo{})).Status.NodeInfo
	if bare != (corev1.NodeSystemInfo{OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH}) {
		t.Errorf("with nothing to read: %+v", bare)
	}
	if info := set(t, HostInfo(corev1.NodeSystemInfo{})).Status.NodeInfo; runtime.GOOS == "linux" && info.KernelVersion == "" {
		t.Errorf("of this machine: %+v", info)
	}
}
