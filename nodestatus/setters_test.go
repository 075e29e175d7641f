// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
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
	if problems := status.DropInvalid(n, true); len(problems) > 0 {
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

// failing is a file system that opens no file while there is an error.
type failing struct {
	fstest.MapFS
	err *knob[error]
}

func (f failing) Open(name string) (fs.File, error) {
	if err := f.err.get(); err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return f.MapFS.Open(name)
}

func (f failing) ReadFile(name string) ([]byte, error) {
	if err := f.err.get(); err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return f.MapFS.ReadFile(name)
}

// A process with too many open files does not know less about its machine than before.
func TestHostInfoStaysIfNoFileCanBeOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		root := failing{fstest.MapFS{"proc/sys/kernel/osrelease": {Data: []byte("6.1.0\n")}, "etc/machine-id": {Data: []byte("machine\n")}}, &knob[error]{}}
		w := start(t, s, Config{Setters: []Setter{hostInfo(root, corev1.NodeSystemInfo{KubeletVersion: "v1.37.0"})}})
		w.pass(time.Minute)
		before := w.node().Status.NodeInfo
		for _, err := range []error{syscall.EMFILE, syscall.ENFILE} {
			root.err.set(err)
			w.pass(10 * time.Minute)
			if diff := cmp.Diff(before, w.node().Status.NodeInfo); diff != "" || before.MachineID != "machine" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		}
		root.err.set(fs.ErrPermission) // that is about the files
		w.pass(time.Minute)
		if info := w.node().Status.NodeInfo; info.MachineID != "" {
			t.Errorf("with files that can't be read: %+v", info)
		}
	})
}

func TestDeclaredFeaturesAreSortedAndUnique(t *testing.T) {
	names := []string{"UserNamespacesHostNetworkSupport", "RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport"}
	setter := DeclaredFeatures(names...)
	names[0] = "Changed"
	n := set(t, DeclaredFeatures("VolumeBindMountOptions", "A/b"), setter, setter)
	want := []string{"A/b", "RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport", "VolumeBindMountOptions"}
	if diff := cmp.Diff(want, n.Status.DeclaredFeatures); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if problems := status.DropInvalid(n, true); len(problems) > 0 || len(n.Status.DeclaredFeatures) != len(want) {
		t.Errorf("the API server refuses %v", problems)
	}
}

func TestRuntime(t *testing.T) {
	handlers := []corev1.NodeRuntimeHandler{{Name: "runc"}, {Name: "", Features: &corev1.NodeRuntimeHandlerFeatures{UserNamespaces: new(true)}}}
	setter := Runtime(handlers, &corev1.NodeFeatures{SupplementalGroupsPolicy: new(true)})
	if handlers[0].Name != "runc" {
		t.Error("the caller's list was sorted")
	}
	*handlers[1].Features.UserNamespaces = false
	first, second := set(t, setter), set(t, setter)
	if h := first.Status.RuntimeHandlers; len(h) != 2 || h[0].Name != "" || !*h[0].Features.UserNamespaces || !*first.Status.Features.SupplementalGroupsPolicy {
		t.Errorf("%+v", first.Status)
	}
	*first.Status.Features.SupplementalGroupsPolicy = false
	if !*second.Status.Features.SupplementalGroupsPolicy {
		t.Error("two nodes share memory")
	}
	if none := set(t, Runtime(nil, nil)); none.Status.Features != nil || len(none.Status.RuntimeHandlers) != 0 {
		t.Errorf("%+v", none.Status)
	}
}

func TestVolumesInUse(t *testing.T) {
	volumes := []corev1.UniqueVolumeName{"b", "a", "b"}
	failed := errors.New("no answer")
	var err error
	setter := VolumesInUse(func(_ context.Context, nodeName string) ([]corev1.UniqueVolumeName, error) {
		if nodeName != node1 {
			t.Errorf("asked about %q", nodeName)
		}
		return volumes, err
	})
	if diff := cmp.Diff([]corev1.UniqueVolumeName{"a", "b"}, set(t, setter).Status.VolumesInUse); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if volumes[0] != "b" {
		t.Error("what list returned was changed")
	}
	if err = failed; !errors.Is(setter(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node1}}), failed) {
		t.Error("the error is lost")
	}
}

func TestSwap(t *testing.T) {
	for meminfo, want := range map[string]int64{
		"MemTotal: 5 kB\nSwapTotal:        2097148 kB\nSwapFree: 1 kB\n": 2097148 * 1024,
		"SwapTotal:       0 kB\n":             0,
		"SwapTotal:       many kB\n":          0,
		"SwapTotal:       -1 kB\n":            0,
		"SwapTotal: 9223372036854775807 kB\n": 0,
		"":                                    0,
	} {
		info := set(t, hostInfo(fstest.MapFS{"proc/meminfo": {Data: []byte(meminfo)}}, corev1.NodeSystemInfo{})).Status.NodeInfo
		switch {
		case want == 0 && info.Swap != nil:
			t.Errorf("%q: swap of %d bytes, want none", meminfo, *info.Swap.Capacity)
		case want != 0 && (info.Swap == nil || *info.Swap.Capacity != want):
			t.Errorf("%q: swap is %v, want %d", meminfo, info.Swap, want)
		}
	}
	own := corev1.NodeSystemInfo{Swap: &corev1.NodeSwapStatus{Capacity: new(int64(7))}}
	if info := set(t, hostInfo(fstest.MapFS{"proc/meminfo": {Data: []byte("SwapTotal: 8 kB\n")}}, own)).Status.NodeInfo; *info.Swap.Capacity != 7 {
		t.Errorf("swap of %d bytes, want that of the caller", *info.Swap.Capacity)
	}
}

func TestCloud(t *testing.T) {
	internal := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}
	good := CloudInstance{ProviderID: "example://zone/1", Addresses: []corev1.NodeAddress{internal}, Type: "big", Zone: "z"}
	var failure error
	instance := good
	setter := Cloud(func(context.Context, string) (CloudInstance, error) { return instance, failure })
	n := set(t, setter)
	want := map[string]string{"node.kubernetes.io/instance-type": "big", "topology.kubernetes.io/zone": "z"}
	if diff := cmp.Diff(want, n.Labels); diff != "" || n.Spec.ProviderID != good.ProviderID || len(n.Status.Addresses) != 1 {
		t.Errorf("node is %+v (-want +got):\n%s", n, diff)
	}
	for name, change := range map[string]func(){
		"the cloud does not answer":     func() { failure = errors.New("away") },
		"the instance has no address":   func() { instance.Addresses = nil },
		"the provider ID has no scheme": func() { instance.ProviderID = "1" },
	} {
		instance, failure = good, nil
		change()
		n := &corev1.Node{}
		if err := setter(t.Context(), n); err == nil || len(n.Labels)+len(n.Status.Addresses)+len(n.Spec.ProviderID) > 0 {
			t.Errorf("%s: %v, node is %+v", name, err, n)
		}
	}
}

func TestExternalCloud(t *testing.T) {
	setter := ExternalCloud("10.0.0.1", "fd00::1")
	n := set(t, setter, setter)
	if len(n.Spec.Taints) != 1 || n.Spec.Taints[0].ToString() != "node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule" {
		t.Errorf("taints are %v", n.Spec.Taints)
	}
	if ip := n.Annotations["alpha.kubernetes.io/provided-node-ip"]; ip != "10.0.0.1,fd00::1" {
		t.Errorf("the IPs provided are %q", ip)
	}
	if n := set(t, ExternalCloud()); len(n.Annotations) != 0 {
		t.Errorf("annotations are %v", n.Annotations)
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.2"}}
	if err := setter(t.Context(), n); err == nil {
		t.Error("addresses of a setter and a cloud controller manager on one node")
	}
}
