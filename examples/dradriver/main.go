// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Dradriver is a whole DRA driver, to be copied: it lends the network interfaces
// of a machine to Pods. Package kubeletplugin of k8s.io/dynamic-resource-allocation
// speaks gRPC with the kubelet, package resourceslice publishes the devices, package
// sysfs finds their PCI attributes, package claimstore remembers the prepared claims,
// and package claimstatus writes the status of claims.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/kubewright/kubewright/examples/prometheus/metrics"
	"github.com/kubewright/kubewright/resourceslice"
	"github.com/kubewright/kubewright/resourceslice/claimstatus"
	"github.com/kubewright/kubewright/resourceslice/claimstore"
)

const driverName = "nic.example.com"

func main() { start(run) }

// options are the program's flags.
type options struct {
	nodeName   string
	poll       time.Duration
	sysfs      string
	cdiDir     string
	pluginDir  string
	kubeletDir string
	probes     probes
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := newFlags("dradriver")
	var o options
	flags.StringVar(&o.nodeName, "node-name", os.Getenv("NODE_NAME"), "`name` of the Node")
	flags.DurationVar(&o.poll, "poll", 5*time.Second, "the interval between two scans of the devices")
	flags.StringVar(&o.sysfs, "sysfs", "/sys", "`path` of the sysfs")
	flags.StringVar(&o.cdiDir, "cdi-dir", "/var/run/cdi", "`path` of the directory in which container runtimes look for CDI files")
	flags.StringVar(&o.pluginDir, "plugin-dir", filepath.Join(kubeletplugin.KubeletPluginsDir, driverName), "`path` of the directory for the driver's socket")
	flags.StringVar(&o.kubeletDir, "registry-dir", kubeletplugin.KubeletRegistryDir, "`path` of the directory in which the kubelet looks for plugins")
	flags.StringVar(&o.probes.address, "probe-address", "", "`address` that answers the probes of a Pod at /healthz and /readyz, and /metrics, such as :8081; none by default")
	if err := flags.parse(args); err != nil {
		return err
	}
	cfg, err := flags.config()
	if err != nil {
		return err
	}
	// The default limit of 5 requests a second would delay Pods.
	cfg.QPS, cfg.Burst = 50, 100
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	return o.run(ctx, client, stdout)
}

// run runs the driver until ctx is done or a part of it fails.
func (o *options) run(ctx context.Context, client kubernetes.Interface, stdout io.Writer) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	status, err := claimstatus.New(claimstatus.Config{Client: client.ResourceV1(), Driver: driverName})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.pluginDir, 0o750); err != nil {
		return err
	}
	d := &driver{sys: os.DirFS(o.sysfs), cdiDir: o.cdiDir, pool: o.nodeName, status: status, stdout: stdout, fail: stop, changed: make(chan struct{})}
	registry := prometheus.NewRegistry()
	hooks, err := metrics.ResourceSlice(registry, resourceslice.Hooks{})
	if err != nil {
		return err
	}
	publisher, err := d.publisher(client, hooks)
	if err != nil {
		return err
	}
	boot, err := claimstore.BootID()
	if err != nil {
		return err
	}
	d.claims, err = claimstore.Open(ctx, claimstore.Config[prepared]{
		Dir: filepath.Join(o.pluginDir, "claims"), Driver: driverName, BootID: boot, Claims: client.ResourceV1(),
		Unprepare: d.unprepare, Restore: d.restore,
	})
	if err != nil {
		return err
	}

	if err := metrics.Health(registry, publisher, d.claims); err != nil {
		return err
	}
	o.probes.parts, o.probes.metrics = []part{publisher, d.claims}, metrics.Handler(registry)
	return o.probes.during(ctx, func(ctx context.Context) error { return o.serve(ctx, d, publisher, client, stop) })
}

// serve serves the kubelet, and publishes the devices.
func (o *options) serve(ctx context.Context, d *driver, publisher *resourceslice.Controller, client kubernetes.Interface, stop context.CancelCauseFunc) error {
	published := make(chan error, 3)
	go func() { published <- publisher.Run(ctx) }()
	go func() { published <- d.claims.Run(ctx) }()
	go func() {
		select {
		case <-d.claims.Ready().Done(): // claims of an earlier boot have ended
			if err := d.sweep(ctx); err != nil {
				fmt.Fprintln(d.stdout, err) // nothing else depends on it
			}
		case <-ctx.Done():
		}
		published <- nil
	}()
	// Without a call of PublishResources the helper writes no ResourceSlices.
	helper, err := kubeletplugin.Start(ctx, d,
		kubeletplugin.DriverName(driverName), kubeletplugin.NodeName(o.nodeName), kubeletplugin.KubeClient(client),
		kubeletplugin.PluginDataDirectoryPath(o.pluginDir), kubeletplugin.RegistrarDirectoryPath(o.kubeletDir))
	if err != nil {
		stop(nil)
		return errors.Join(err, <-published, <-published, <-published)
	}
	o.scan(ctx, d, publisher)
	helper.Stop()
	err = errors.Join(<-published, <-published, <-published)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = errors.Join(err, cause)
	}
	return err
}

// scan publishes the devices again and again until ctx is done. A Set that
// changes nothing costs no request.
func (o *options) scan(ctx context.Context, d *driver, publisher *resourceslice.Controller) {
	poll := time.NewTicker(o.poll)
	defer poll.Stop()
	for ctx.Err() == nil {
		devices, err := d.discover(ctx)
		if err == nil {
			d.found(devices)
			// These are all the pools of the driver on this node: a pool of an earlier
			// version of the driver with another name is removed.
			err = publisher.SetAll(driverName, map[string]resourceslice.Pool{d.pool: {Devices: d.published()}})
		}
		if err != nil && ctx.Err() == nil {
			fmt.Fprintln(d.stdout, err) // the published slices stay
		}
		select {
		case <-ctx.Done():
		case <-poll.C:
		}
	}
}

// nic is a network interface.
type nic struct {
	resourcev1.Device `json:"device"`
	MAC               string `json:"mac"`
	// link is the state of its link, empty if it is not in the network of the host.
	link string
}

// discover returns the network interfaces by device name: those of the host, and those of
// claims, which the runtime moves into the network of the Pod. The claims come first: an
// interface may come back at any time.
func (d *driver) discover(ctx context.Context) (map[string]nic, error) {
	claims, err := d.claims.List(ctx)
	if err != nil {
		return nil, err
	}
	found, err := discover(d.sys)
	if err != nil {
		return nil, err
	}
	for _, claim := range claims {
		if claim.Phase == claimstore.Rebooted {
			continue // its interfaces are the host's again, if they still exist
		}
		for _, one := range claim.State.Interfaces {
			if _, ok := found[one.Name]; !ok {
				found[one.Name] = one
			}
		}
	}
	return found, nil
}

// discover returns the network interfaces of the host on a PCI bus, by device name.
func discover(sys fs.FS) (map[string]nic, error) {
	entries, err := fs.ReadDir(sys, "class/net")
	if err != nil {
		return nil, fmt.Errorf("find network interfaces: %w", err)
	}
	found := make(map[string]nic)
	for _, entry := range entries {
		one, err := describe(sys, entry.Name())
		if err != nil {
			return nil, err
		}
		if one != nil {
			found[one.Name] = *one
		}
	}
	return found, nil
}

// published returns the devices for the ResourceSlices. The scheduler must not
// use an interface without a link, so it has a taint.
func (d *driver) published() []resourcev1.Device {
	d.mu.Lock()
	defer d.mu.Unlock()
	var devices []resourcev1.Device
	for one := range maps.Values(d.devices) {
		device := one.Device
		if one.link != "up" && one.link != "" {
			device.Taints = []resourcev1.DeviceTaint{{Key: driverName + "/no-link", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
		}
		devices = append(devices, device)
	}
	return devices
}
