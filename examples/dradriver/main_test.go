// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1"
	draapi "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/kubewright/kubewright/apitest"
)

const nodeName = "n1"

// machine is a directory with a sysfs, and the driver's other directories.
type machine struct {
	*testing.T
	dir    string
	probes string // the address for probes; empty: none
	out    output
}

type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (m *machine) printed() string {
	m.out.mu.Lock()
	defer m.out.mu.Unlock()
	return m.out.b.String()
}

// newMachine returns a machine with the network interfaces eth0, which has a
// link, and lo, which is on no PCI bus.
func newMachine(t *testing.T) *machine {
	dir, err := os.MkdirTemp("", "dra") // short, because it will contain Unix sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	m := &machine{T: t, dir: dir}
	const eth0 = "devices/pci0000:3a/0000:3b:00.0/net/eth0"
	m.write("sys/devices/pci0000:3a/0000:3b:00.0/numa_node", "1")
	m.write("sys/"+eth0+"/address", "02:00:00:00:00:01")
	m.write("sys/"+eth0+"/operstate", "up")
	m.write("sys/devices/virtual/net/lo/operstate", "unknown")
	m.write("registry/.keep", "")
	if err := os.MkdirAll(filepath.Join(dir, "sys/class/net"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"eth0": eth0, "lo": "devices/virtual/net/lo"} {
		if err := os.Symlink("../../"+target, filepath.Join(dir, "sys/class/net", name)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func (m *machine) write(name, content string) {
	m.Helper()
	name = filepath.Join(m.dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		m.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content+"\n"), 0o644); err != nil {
		m.Fatal(err)
	}
}

// start runs the driver. It returns a function that stops it.
func (m *machine) start(client kubernetes.Interface) (stop func()) {
	ctx, cancel := context.WithCancel(m.Context())
	o := options{
		nodeName: nodeName, poll: 10 * time.Millisecond, sysfs: filepath.Join(m.dir, "sys"), cdiDir: filepath.Join(m.dir, "cdi"),
		pluginDir: filepath.Join(m.dir, "plugin"), kubeletDir: filepath.Join(m.dir, "registry"), probes: probes{address: m.probes},
	}
	done := make(chan error, 1)
	go func() { done <- o.run(ctx, client, &m.out) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			m.Errorf("run: %v", err)
		}
	})
	m.Cleanup(stop)
	return stop
}

// eventually waits until the condition holds.
func (m *machine) eventually(what string, condition func() bool) {
	m.Helper()
	for end := time.Now().Add(time.Minute); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			m.out.mu.Lock()
			defer m.out.mu.Unlock()
			m.Fatalf("waited a minute for %s; the driver printed:\n%s", what, m.out.b.String())
		}
	}
}

// kubelet is the kubelet's side of the driver's sockets.
type kubelet struct {
	draapi.DRAPluginClient
	healthapi.DRAResourceHealthClient
}

// register finds the driver as the kubelet does: by its socket in the registry.
func (m *machine) register() kubelet {
	m.Helper()
	var sockets []string
	m.eventually("the registration socket", func() bool {
		sockets, _ = filepath.Glob(filepath.Join(m.dir, "registry", "*.sock"))
		return len(sockets) == 1
	})
	registration := registerapi.NewRegistrationClient(m.dial(sockets[0]))
	info, err := registration.GetInfo(m.Context(), &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		m.Fatal(err)
	}
	if info.Type != registerapi.DRAPlugin || info.Name != driverName {
		m.Errorf("registered as %s %s", info.Type, info.Name)
	}
	if _, err := registration.NotifyRegistrationStatus(m.Context(), &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		m.Error(err)
	}
	conn := m.dial(info.Endpoint)
	return kubelet{draapi.NewDRAPluginClient(conn), healthapi.NewDRAResourceHealthClient(conn)}
}

func (m *machine) dial(socket string) *grpc.ClientConn {
	m.Helper()
	conn, err := grpc.NewClient("passthrough:///"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", addr)
		}))
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { _ = conn.Close() })
	return conn
}

// prepare prepares a claim, and returns the CDI devices and the CDI file.
func (m *machine) prepare(k kubelet, claim *resourcev1.ResourceClaim) (ids []string, file string) {
	m.Helper()
	answer, err := k.NodePrepareResources(m.Context(), &draapi.NodePrepareResourcesRequest{
		Claims: []*draapi.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}},
	})
	if err != nil {
		m.Fatal(err)
	}
	result := answer.Claims[string(claim.UID)]
	if result == nil || result.Error != "" {
		m.Fatalf("prepared %+v", result)
	}
	for _, d := range result.Devices {
		ids = append(ids, d.CdiDeviceIds...)
	}
	content, err := os.ReadFile(filepath.Join(m.dir, "cdi", driverName+"-"+string(claim.UID)+".json"))
	if err != nil {
		m.Fatal(err)
	}
	return ids, string(content)
}

func (m *machine) unprepare(k kubelet, claim *resourcev1.ResourceClaim) {
	m.Helper()
	answer, err := k.NodeUnprepareResources(m.Context(), &draapi.NodeUnprepareResourcesRequest{
		Claims: []*draapi.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}},
	})
	if err != nil || answer.Claims[string(claim.UID)].Error != "" {
		m.Errorf("unprepared %v, error %v", answer, err)
	}
	if left, _ := filepath.Glob(filepath.Join(m.dir, "cdi", "*")); len(left) > 0 {
		m.Errorf("left over: %v", left)
	}
}

const device = "pci-0000-3b-00-0"

// TestAClaimIsPreparedAndUnprepared goes the way of a claim: the devices are
// published, the kubelet finds the driver, and the claim is prepared twice, as
// after a restart of the kubelet.
func TestAClaimIsPreparedAndUnprepared(t *testing.T) {
	s := apitest.New(apitest.Options{})
	s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
	m := newMachine(t)
	client := s.Client(apitest.User{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m.probes = listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	stop := m.start(client)
	slices := func() []*resourcev1.ResourceSlice { return apitest.List[*resourcev1.ResourceSlice](s, "") }
	m.eventually("a slice with a device", func() bool {
		all := slices()
		return len(all) == 1 && len(all[0].Spec.Devices) == 1
	})
	resp, err := http.Get("http://" + m.probes + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || !strings.Contains(string(metrics), "kubewright_resourceslice_") || !strings.Contains(string(metrics), "kubewright_healthy{controller=\"claimstore\"} 1") {
		t.Errorf("metrics: %v\n%s", err, metrics)
	}
	published := slices()[0].Spec.Devices[0]
	if published.Name != device || *published.Attributes["resource.kubernetes.io/pcieRoot"].StringValue != "pci0000:3a" ||
		*published.Attributes["resource.kubernetes.io/numaNode"].IntValue != 1 || len(published.Taints) != 0 {
		t.Errorf("published %+v", published)
	}

	s.Put(&resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "net"},
		Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "my-nic", Driver: driverName, Pool: nodeName, Device: device, BindingConditions: []string{"prepared"}},
			{Request: "gpu", Driver: "gpu.example.com", Pool: nodeName, Device: "gpu-0"},
		}}}},
	})
	claim := apitest.List[*resourcev1.ResourceClaim](s, "default")[0]
	k := m.register()
	for range 2 {
		ids, file := m.prepare(k, claim)
		if len(ids) != 1 || ids[0] != "nic.example.com/claim="+string(claim.UID)+"-"+device {
			t.Errorf("CDI devices %v", ids)
		}
		if !strings.Contains(file, `"NIC_MY_NIC=eth0"`) || !strings.Contains(file, `"hostInterfaceName":"eth0"`) {
			t.Errorf("CDI file %s", file)
		}
	}
	status := apitest.List[*resourcev1.ResourceClaim](s, "default")[0].Status.Devices
	if len(status) != 1 || status[0].NetworkData.HardwareAddress != "02:00:00:00:00:01" || len(status[0].Conditions) != 1 || status[0].Conditions[0].Type != "prepared" {
		t.Errorf("status %+v", status)
	}

	health, err := k.NodeWatchResources(t.Context(), &healthapi.NodeWatchResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	await := func(want healthapi.HealthStatus) {
		t.Helper()
		for {
			report, err := health.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if len(report.Devices) == 1 && report.Devices[0].Device.DeviceName == device && report.Devices[0].Health == want {
				return
			}
		}
	}
	await(healthapi.HealthStatus_HEALTHY)
	m.write("sys/devices/pci0000:3a/0000:3b:00.0/net/eth0/operstate", "down")
	await(healthapi.HealthStatus_UNHEALTHY)
	m.eventually("a taint", func() bool { return len(slices()[0].Spec.Devices[0].Taints) == 1 })

	// The Pod has the interface in its own network. The device stays published, and the next
	// process of the driver answers from what this one has remembered.
	if err := os.Remove(filepath.Join(m.dir, "sys/class/net/eth0")); err != nil {
		t.Fatal(err)
	}
	await(healthapi.HealthStatus_UNKNOWN)
	stop()
	links := filepath.Join(m.dir, "sys/class/net")
	if err := os.Rename(links, links+".later"); err != nil { // it has not seen the devices yet
		t.Fatal(err)
	}
	m.start(client)
	k = m.register()
	if ids, _ := m.prepare(k, claim); len(ids) != 1 {
		t.Errorf("CDI devices %v after a restart", ids)
	}
	if status := apitest.List[*resourcev1.ResourceClaim](s, "default")[0].Status.Devices; len(status) != 1 || status[0].NetworkData.HardwareAddress != "02:00:00:00:00:01" {
		t.Errorf("status %+v", status)
	}
	if err := os.Rename(links+".later", links); err != nil {
		t.Fatal(err)
	}
	if health, err = k.NodeWatchResources(t.Context(), &healthapi.NodeWatchResourcesRequest{}); err != nil {
		t.Fatal(err)
	}
	await(healthapi.HealthStatus_UNKNOWN)
	m.eventually("the device without a taint", func() bool {
		all := slices()
		return len(all) == 1 && len(all[0].Spec.Devices) == 1 && len(all[0].Spec.Devices[0].Taints) == 0
	})
	if now := slices()[0].Spec.Devices[0]; len(now.Attributes) != len(published.Attributes) {
		t.Errorf("published %+v", now)
	}
	// A process that was killed has left a part of a CDI file.
	m.write("cdi/"+driverName+"-"+string(claim.UID)+".json.tmp", "{")
	for range 2 {
		m.unprepare(k, claim)
	}
	if n := strings.Count(m.printed(), "prepared claim default/net\n"); n != 2 {
		t.Errorf("%d lines about the claim, want that it was prepared once and unprepared once:\n%s", n, m.printed())
	}
	if n := len(slices()); n != 1 {
		t.Errorf("%d slices after the end, want 1: the next process goes on with it", n)
	}
}

// TestADeviceThatIsGoneIsAnError: the kubelet retries and shows the error as an
// event of the Pod.
func TestADeviceThatIsGoneIsAnError(t *testing.T) {
	s := apitest.New(apitest.Options{})
	s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
	s.Put(&resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "net"},
		Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "nic", Driver: driverName, Pool: nodeName, Device: "pci-0000-99-00-0"},
		}}}},
	})
	m := newMachine(t)
	m.start(s.Client(apitest.User{}))
	k := m.register()
	claim := apitest.List[*resourcev1.ResourceClaim](s, "default")[0]
	answer, err := k.NodePrepareResources(t.Context(), &draapi.NodePrepareResourcesRequest{
		Claims: []*draapi.Claim{{Namespace: "default", Name: "net", Uid: string(claim.UID)}},
	})
	if err != nil || !strings.Contains(answer.Claims[string(claim.UID)].Error, "pci-0000-99-00-0 is not on this node") {
		t.Errorf("answer %v, error %v", answer, err)
	}
}

func TestFlags(t *testing.T) {
	for _, args := range []string{"--nonsense", "argument"} {
		if err := run(t.Context(), []string{args}, &output{}); err == nil {
			t.Errorf("%s was accepted", args)
		}
	}
	d := &driver{}
	ctx, cancel := context.WithCancelCause(t.Context())
	d.fail = cancel
	d.HandleError(ctx, fmt.Errorf("the socket is gone"), "serve")
	if cause := context.Cause(ctx); cause == nil || !strings.Contains(cause.Error(), "the socket is gone") {
		t.Errorf("cause %v", cause)
	}
}

// allocated stores a claim with the device, and returns it.
func allocated(s *apitest.Server, name string) *resourcev1.ResourceClaim {
	s.Put(&resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "my-nic", Driver: driverName, Pool: nodeName, Device: device},
		}}}},
	})
	return apitest.Get[*resourcev1.ResourceClaim](s, "default", name)
}

// TestTheCDIDirectoryIsLost empties it under the same boot ID: between two processes, as when
// the container that is a node restarts, and while the driver runs.
func TestTheCDIDirectoryIsLost(t *testing.T) {
	s := apitest.New(apitest.Options{})
	s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
	m := newMachine(t)
	client := s.Client(apitest.User{})
	stop := m.start(client)
	m.eventually("a slice", func() bool {
		all := apitest.List[*resourcev1.ResourceSlice](s, "")
		return len(all) == 1 && len(all[0].Spec.Devices) == 1
	})
	claim := allocated(s, "net")
	_, before := m.prepare(m.register(), claim)
	lose := func() {
		t.Helper()
		if err := os.RemoveAll(filepath.Join(m.dir, "cdi")); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	lose()
	m.start(client)
	k := m.register()
	file := filepath.Join(m.dir, "cdi", driverName+"-"+string(claim.UID)+".json")
	m.eventually("the file, without a call", func() bool {
		content, err := os.ReadFile(file)
		return err == nil && string(content) == before
	})
	lose()
	if _, after := m.prepare(k, claim); after != before {
		t.Errorf("the file is\n%s, and was\n%s", after, before)
	}
	m.write("cdi/"+filepath.Base(file), "{}") // another program has replaced it
	if _, after := m.prepare(k, claim); after != before {
		t.Errorf("the file is\n%s, and was\n%s", after, before)
	}
	m.unprepare(k, claim)
}

// TestFilesThatNoClaimHasAreSwept, and those of claims are not.
func TestFilesThatNoClaimHasAreSwept(t *testing.T) {
	s := apitest.New(apitest.Options{})
	s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
	m := newMachine(t)
	client := s.Client(apitest.User{})
	stop := m.start(client)
	m.eventually("a slice", func() bool {
		all := apitest.List[*resourcev1.ResourceSlice](s, "")
		return len(all) == 1 && len(all[0].Spec.Devices) == 1
	})
	claim := allocated(s, "net")
	m.prepare(m.register(), claim)
	stop()
	m.write("cdi/"+driverName+"-lost.json", `{"devices":[{"name":"lost-pci-0000-99-00-0"}]}`)
	m.write("cdi/"+driverName+"-other.json", `{"devices":[{"name":"other-`+device+`"}]}`)
	m.write("cdi/"+driverName+"-broken.json", `{`)
	m.write("cdi/gpu.example.com-x.json", `{}`)
	m.start(client)
	m.eventually("the sweep", func() bool {
		return strings.Contains(m.printed(), driverName+"-broken.json: ")
	})
	left, err := filepath.Glob(filepath.Join(m.dir, "cdi", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range left {
		left[i] = strings.NewReplacer(string(claim.UID), "UID", driverName+"-", "").Replace(filepath.Base(left[i]))
	}
	slices.Sort(left)
	// The device of "other" is in use: only its claim could tell whose file that is.
	if want := []string{"UID.json", "broken.json", "gpu.example.com-x.json", "other.json"}; !slices.Equal(left, want) {
		t.Errorf("%q are left, want %q", left, want)
	}
}
