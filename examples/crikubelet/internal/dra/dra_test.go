// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/kubewright/kubewright/podsync/podruntime"
)

// A driver serves its registration and its own calls at one socket.
type driver struct {
	registration.UnimplementedRegistrationServer
	dra.UnimplementedDRAPluginServer
	info     registration.PluginInfo
	statuses []*registration.RegistrationStatus
	claims   []string
	message  string // the error of each claim
	silent   bool   // answers about no claim
	fail     error
	notified func() // nil: nothing
}

func (d *driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &d.info, nil
}

func (d *driver) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	d.statuses = append(d.statuses, s)
	if d.notified != nil {
		d.notified()
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func (d *driver) NodePrepareResources(_ context.Context, r *dra.NodePrepareResourcesRequest) (*dra.NodePrepareResourcesResponse, error) {
	out := &dra.NodePrepareResourcesResponse{Claims: map[string]*dra.NodePrepareResourceResponse{}}
	for _, c := range r.Claims {
		d.claims = append(d.claims, c.Namespace+"/"+c.Name+"/"+c.Uid)
		out.Claims[c.Uid] = &dra.NodePrepareResourceResponse{Error: d.message, Devices: []*dra.Device{{RequestNames: []string{"r"}, CdiDeviceIds: []string{"x/y=" + c.Name}}}}
	}
	if d.silent {
		out.Claims = nil
	}
	return out, d.fail
}

func (d *driver) NodeUnprepareResources(_ context.Context, r *dra.NodeUnprepareResourcesRequest) (*dra.NodeUnprepareResourcesResponse, error) {
	out := &dra.NodeUnprepareResourcesResponse{Claims: map[string]*dra.NodeUnprepareResourceResponse{}}
	for _, c := range r.Claims {
		d.claims = append(d.claims, "-"+c.Name)
		out.Claims[c.Uid] = &dra.NodeUnprepareResourceResponse{Error: d.message}
	}
	if d.silent {
		out.Claims = nil
	}
	return out, d.fail
}

// serve starts a driver in the directory of d with the socket name. stop ends it as if
// it were killed, if it leaves its socket.
func serve(t *testing.T, d *Drivers, name string, one *driver, at time.Time) (stop func()) {
	t.Helper()
	path := filepath.Join(d.Registry, name)
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
	if one.info.Endpoint == "" {
		one.info.Endpoint = path
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, one)
	dra.RegisterDRAPluginServer(server, one)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return server.Stop
}

func newDrivers(t *testing.T) *Drivers {
	t.Helper()
	dir, err := os.MkdirTemp("", "dra") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return &Drivers{Registry: dir}
}

func newDriver() *driver {
	d := &driver{}
	d.info.Type, d.info.Name, d.info.SupportedVersions = registration.DRAPlugin, "example.com", []string{dra.DRAPluginService}
	return d
}

var claim0 = podruntime.ClaimReference{Namespace: "default", Name: "gpu", UID: "uid"}

// settle scans and waits for the registrations.
func (d *Drivers) settle(ctx context.Context) error {
	err := d.scan(ctx)
	d.wg.Wait()
	return err
}

// A driver that hangs must not keep the claims of others from being prepared.
func TestADriverThatHangsDelaysNoOther(t *testing.T) {
	d, one := newDrivers(t), newDriver()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); d.wg.Wait() })
	silent, err := net.Listen("unix", filepath.Join(d.Registry, "a.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	registered := make(chan struct{})
	one.notified = func() { close(registered) }
	serve(t, d, "b.sock", one, time.Unix(1, 0))
	if err := d.scan(ctx); err != nil {
		t.Fatal(err)
	}
	select {
	case <-registered:
	case <-time.After(callTimeout / 2):
		t.Fatal("the driver waits for another one")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.registering[filepath.Join(d.Registry, "a.sock")] {
		t.Error("the silent driver has answered")
	}
}

func TestADriverIsRegisteredOnceAndCalled(t *testing.T) {
	d, one := newDrivers(t), newDriver()
	if _, err := d.Prepare(t.Context(), "example.com", claim0); err == nil {
		t.Error("a driver that is missing has prepared a claim")
	}
	serve(t, d, "driver.sock", one, time.Unix(1, 0))
	if err := os.WriteFile(filepath.Join(d.Registry, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := d.settle(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(one.statuses) != 1 || !one.statuses[0].PluginRegistered {
		t.Errorf("the driver was notified of %v, want one registration", one.statuses)
	}
	devices, err := d.Prepare(t.Context(), "example.com", claim0)
	if err != nil || len(devices) != 1 || !slices.Equal(devices[0].CDI, []string{"x/y=gpu"}) || !slices.Equal(devices[0].Requests, []string{"r"}) {
		t.Errorf("Prepare = %v, %v", devices, err)
	}
	if err := d.Unprepare(t.Context(), "example.com", claim0); err != nil {
		t.Error(err)
	}
	if want := "default/gpu/uid -gpu"; strings.Join(one.claims, " ") != want {
		t.Errorf("the driver was called with %q, want %q", one.claims, want)
	}
}

func TestAFailedAnswerOfADriverIsAnError(t *testing.T) {
	d, one := newDrivers(t), newDriver()
	serve(t, d, "driver.sock", one, time.Unix(1, 0))
	if err := d.settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(){
		"about a claim": func() { one.message = "no device" },
		"without it":    func() { one.message, one.silent = "", true },
		"as a whole":    func() { one.silent, one.fail = false, errors.New("down") },
	} {
		change()
		if _, err := d.Prepare(t.Context(), "example.com", claim0); err == nil {
			t.Errorf("%s: Prepare has no error", name)
		}
		if err := d.Unprepare(t.Context(), "example.com", claim0); err == nil {
			t.Errorf("%s: Unprepare has no error", name)
		}
		one.message, one.silent, one.fail = "", false, nil
	}
}

func TestTheNewestDriverIsCalled(t *testing.T) {
	d, older, newer := newDrivers(t), newDriver(), newDriver()
	serve(t, d, "a.sock", newer, time.Unix(2, 0))
	stop := serve(t, d, "b.sock", older, time.Unix(1, 0))
	prepare := func() {
		t.Helper()
		if err := d.settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Prepare(t.Context(), "example.com", claim0); err != nil {
			t.Fatal(err)
		}
	}
	prepare()
	if len(newer.claims) != 1 || len(older.claims) != 0 {
		t.Errorf("the newer driver was called %d times, the older one %d times", len(newer.claims), len(older.claims))
	}
	// The older one is started again: it is the newest now.
	stop()
	_ = os.Remove(filepath.Join(d.Registry, "b.sock"))
	serve(t, d, "b.sock", older, time.Unix(3, 0))
	prepare()
	if len(older.claims) != 1 || len(older.statuses) != 2 {
		t.Errorf("the driver that was started again was called %d times and notified %d times", len(older.claims), len(older.statuses))
	}
	// It goes.
	if err := os.Remove(filepath.Join(d.Registry, "b.sock")); err != nil {
		t.Fatal(err)
	}
	prepare()
	if len(newer.claims) != 2 {
		t.Errorf("the other driver was called %d times, want 2", len(newer.claims))
	}
}

func TestOtherPluginsAreRefused(t *testing.T) {
	for name, change := range map[string]func(*driver){
		"another type":    func(o *driver) { o.info.Type = registration.CSIPlugin },
		"another version": func(o *driver) { o.info.SupportedVersions = []string{"v2.DRAPlugin"} },
	} {
		d, one := newDrivers(t), newDriver()
		change(one)
		serve(t, d, "other.sock", one, time.Unix(1, 0))
		for range 2 {
			if err := d.settle(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if len(one.statuses) != 1 || one.statuses[0].PluginRegistered || one.statuses[0].Error == "" {
			t.Errorf("%s: it was notified of %v, want one refusal", name, one.statuses)
		}
		if _, err := d.Prepare(t.Context(), "example.com", claim0); err == nil {
			t.Errorf("%s: it is called", name)
		}
	}
}
