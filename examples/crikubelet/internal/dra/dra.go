// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package dra finds the DRA drivers of the node and calls them. They register as with
// the kubelet: with a socket in a directory.
package dra

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/kubewright/kubewright/podsync/podruntime"
)

// Drivers implements podruntime.DRADrivers with the drivers that have registered.
type Drivers struct {
	// Registry is the directory in which drivers register.
	Registry string

	mu          sync.Mutex
	plugins     map[string]plugin // by the path of the socket in Registry
	registering map[string]bool   // the same, while the driver is asked

	wg sync.WaitGroup // of registrations
}

var _ podruntime.DRADrivers = (*Drivers)(nil)

// A plugin is the answer of a socket. One that is no DRA driver has no name.
type plugin struct {
	name, endpoint string
	since          time.Time
}

// The times of the calls.
const (
	scanInterval = time.Second
	callTimeout  = 45 * time.Second // as with the kubelet
)

// Run registers drivers until ctx is done.
func (d *Drivers) Run(ctx context.Context) error {
	scan := time.NewTicker(scanInterval)
	defer scan.Stop()
	defer d.wg.Wait()
	for {
		if err := d.scan(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("The directory of plugins can't be read", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-scan.C:
		}
	}
}

// scan registers the drivers whose sockets are new, and forgets those whose sockets
// have gone. A driver that does not answer delays no other: its registration goes on, at most
// for callTimeout, and later scans leave it alone.
func (d *Drivers) scan(ctx context.Context) error {
	entries, err := os.ReadDir(d.Registry)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	found := map[string]bool{}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || info.Mode().Type() != os.ModeSocket {
			continue
		}
		path := filepath.Join(d.Registry, entry.Name())
		found[path] = true
		if known, ok := d.plugins[path]; d.registering[path] || ok && known.since.Equal(info.ModTime()) {
			continue
		}
		if d.registering == nil {
			d.plugins, d.registering = map[string]plugin{}, map[string]bool{}
		}
		d.registering[path] = true
		d.wg.Go(func() { d.add(ctx, path, info.ModTime()) })
	}
	maps.DeleteFunc(d.plugins, func(path string, _ plugin) bool { return !found[path] })
	return err
}

// add registers the driver at a socket.
func (d *Drivers) add(ctx context.Context, path string, since time.Time) {
	p, err := register(ctx, path)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.registering, path)
	if err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("A plugin is not registered", "socket", path, "err", err)
		}
		return
	}
	p.since = since
	d.plugins[path] = p // if the socket has gone, until the next scan
	klog.FromContext(ctx).V(2).Info("Plugin registered", "driver", p.name, "socket", path)
}

// register returns the plugin at a socket, without a name if it is no DRA driver.
func register(ctx context.Context, path string) (p plugin, err error) {
	err = call(ctx, path, func(ctx context.Context, conn *grpc.ClientConn) error {
		client := registration.NewRegistrationClient(conn)
		info, err := client.GetInfo(ctx, &registration.InfoRequest{})
		if err != nil {
			return err
		}
		if info.Type != registration.DRAPlugin || !slices.Contains(info.SupportedVersions, dra.DRAPluginService) {
			_, _ = client.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{Error: "this kubelet only has plugins of type DRAPlugin with " + dra.DRAPluginService})
			return nil
		}
		p.name, p.endpoint = info.Name, info.Endpoint
		_, err = client.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: true})
		return err
	})
	return p, err
}

// call connects to a socket for one call.
func call(ctx context.Context, socket string, f func(context.Context, *grpc.ClientConn) error) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return f(ctx, conn)
}

// driver calls the driver with a name. If several have registered, as in a rolling
// update, it calls the newest.
func (d *Drivers) driver(ctx context.Context, name string, f func(context.Context, dra.DRAPluginClient) error) error {
	var newest plugin
	d.mu.Lock()
	for _, p := range d.plugins {
		if p.name == name && !p.since.Before(newest.since) {
			newest = p
		}
	}
	d.mu.Unlock()
	if newest.name == "" {
		return errors.New("it is not registered")
	}
	return call(ctx, newest.endpoint, func(ctx context.Context, conn *grpc.ClientConn) error { return f(ctx, dra.NewDRAPluginClient(conn)) })
}

// Prepare implements podruntime.DRADrivers.
func (d *Drivers) Prepare(ctx context.Context, driver string, ref podruntime.ClaimReference) (devices []podruntime.ClaimDevice, err error) {
	c := claim(ref)
	err = d.driver(ctx, driver, func(ctx context.Context, client dra.DRAPluginClient) error {
		answer, err := client.NodePrepareResources(ctx, &dra.NodePrepareResourcesRequest{Claims: []*dra.Claim{c}})
		result := answer.GetClaims()[c.Uid]
		for _, one := range result.GetDevices() {
			devices = append(devices, podruntime.ClaimDevice{Requests: one.RequestNames, CDI: one.CdiDeviceIds})
		}
		return cmp.Or(err, outcome(result != nil, result.GetError()))
	})
	return devices, err
}

// Unprepare implements podruntime.DRADrivers.
func (d *Drivers) Unprepare(ctx context.Context, driver string, ref podruntime.ClaimReference) error {
	c := claim(ref)
	return d.driver(ctx, driver, func(ctx context.Context, client dra.DRAPluginClient) error {
		answer, err := client.NodeUnprepareResources(ctx, &dra.NodeUnprepareResourcesRequest{Claims: []*dra.Claim{c}})
		result, ok := answer.GetClaims()[c.Uid]
		return cmp.Or(err, outcome(ok, result.GetError()))
	})
}

func claim(ref podruntime.ClaimReference) *dra.Claim {
	return &dra.Claim{Namespace: ref.Namespace, Name: ref.Name, Uid: string(ref.UID)}
}

// outcome returns the error of one claim.
func outcome(answered bool, message string) error {
	switch {
	case !answered:
		return errors.New("the driver has not answered about the claim")
	case message != "":
		return errors.New(message)
	}
	return nil
}
