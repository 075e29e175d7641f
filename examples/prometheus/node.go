// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"

	"github.com/kubewright/kubewright"
	"github.com/kubewright/kubewright/configcheckpoint"
	configkube "github.com/kubewright/kubewright/configcheckpoint/kube"
	"github.com/kubewright/kubewright/examples/internal/kube"
	"github.com/kubewright/kubewright/examples/prometheus/metrics"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
	"github.com/kubewright/kubewright/resourceslice"
)

// driver is the name of the driver that publishes the devices.
const driver = "prometheus.kubewright.dev"

type options struct {
	nodeName        *string
	devices         int
	settings, store string
}

// A node holds the controllers of one node.
type node struct {
	lease      *lease.Controller
	status     *nodestatus.Controller
	pods       *podsync.Controller
	slices     *resourceslice.Controller
	checkpoint *configcheckpoint.Controller[string] // nil without settings
}

// newNode wires the controllers: each gets the hooks that count, which then
// call this program's hooks.
func newNode(cfg *rest.Config, registry prometheus.Registerer, opts options) (*node, error) {
	heartbeats, err := kube.Heartbeats(cfg)
	if err != nil {
		return nil, err
	}
	client, err := kube.Unlimited(cfg)
	if err != nil {
		return nil, err
	}
	n := &node{}
	statusHooks, err1 := metrics.NodeStatus(registry, nodestatus.Hooks{})
	leaseHooks, err2 := metrics.Lease(registry, lease.Hooks{})
	podHooks, err3 := metrics.PodSync(registry, podsync.Hooks{})
	sliceHooks, err4 := metrics.ResourceSlice(registry, resourceslice.Hooks{})
	settingsHooks, err5 := metrics.ConfigCheckpoint(registry, configcheckpoint.Hooks{
		StatusChanged: func(configcheckpoint.Status) { n.status.Trigger(*opts.nodeName) },
	})
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return nil, err
	}

	var setters []nodestatus.Setter
	if opts.settings != "" {
		if n.checkpoint, err = newCheckpoint(opts, settingsHooks); err != nil {
			return nil, err
		}
		setters = append(setters, configkube.NodeCondition(n.checkpoint.Status, "SettingsOK"))
	}
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("8"),
		corev1.ResourceMemory: resource.MustParse("32Gi"),
	}
	n.lease, err1 = lease.New(lease.Config{
		Client: heartbeats.CoordinationV1(), ResetConnections: heartbeats.ResetConnections,
		NodeName: *opts.nodeName,
		Hooks:    leaseHooks,
	})
	n.pods, err2 = podsync.New(podsync.Config{
		Client: client.CoreV1(), NodeName: *opts.nodeName,
		Gate:     n.lease.Holds, // of two processes with the same node name, one acts and the other waits
		Provider: podsynctest.NewBackend(podsynctest.Options{}).Connect(),
		Hooks:    podHooks,
	})
	n.status, err3 = nodestatus.New(nodestatus.Config{
		Client: heartbeats.CoreV1(), NodeName: *opts.nodeName, Lease: n.lease,
		Template: &corev1.Node{Spec: corev1.NodeSpec{
			// Pods here run nothing, so only pods that tolerate this may be
			// scheduled.
			Taints: []corev1.Taint{{Key: "kubewright.dev/pretends", Effect: corev1.TaintEffectNoExecute}},
		}},
		Setters:      nodestatus.Standard(append(setters, nodestatus.ContainerRuntime("pretend://1"), nodestatus.Capacity(capacity, nil))...),
		HealthChecks: []nodestatus.HealthCheck{n.pods.CheckProvider},
		OnDeleted:    nodestatus.DeletedReregister,
		OnShutdown:   nodestatus.ShutdownNotReady,
		Hooks:        statusHooks,
	})
	n.slices, err4 = resourceslice.New(resourceslice.Config{
		Client: client.ResourceV1(), NodeName: *opts.nodeName, Driver: driver,
		Owner: resourceslice.NodeOwner(client.CoreV1().Nodes(), *opts.nodeName),
		Hooks: sliceHooks,
	})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	if err := metrics.Health(registry, n.checkers()...); err != nil {
		return nil, err
	}
	return n, n.slices.Set(resourceslice.PoolID{Driver: driver, Name: *opts.nodeName}, resourceslice.Pool{Devices: devices(opts.devices)})
}

func devices(count int) []resourcev1.Device {
	var all []resourcev1.Device
	for i := range count {
		all = append(all, resourcev1.Device{Name: fmt.Sprintf("device-%d", i)})
	}
	return all
}

// newCheckpoint returns the controller of settings that consist of one line of
// text and need not be applied.
func newCheckpoint(opts options, hooks configcheckpoint.Hooks) (*configcheckpoint.Controller[string], error) {
	source, err := configcheckpoint.File(opts.settings, 0)
	if err != nil {
		return nil, err
	}
	return configcheckpoint.New(configcheckpoint.Config[string]{
		Dir: opts.store,
		Codec: configcheckpoint.Codec[string]{
			Decode: func(data []byte) (string, error) { return string(data), nil },
			Validate: func(s string) error {
				if s == "" {
					return errors.New("the file is empty")
				}
				return nil
			},
			Default: func() (string, error) { return "default", nil },
		},
		Source: source,
		Apply:  func(context.Context, configcheckpoint.Active[string]) error { return nil },
		Hooks:  hooks,
	})
}

// run runs the controllers until ctx is done.
func (n *node) run(ctx context.Context) error {
	if n.checkpoint != nil {
		if _, err := n.checkpoint.Boot(ctx); err != nil {
			return errors.Join(err, n.checkpoint.Close(err))
		}
	}
	if n.checkpoint == nil {
		return kubewright.Run(ctx, n.lease, n.status, n.pods, n.slices)
	}
	err := kubewright.Run(ctx, n.lease, n.status, n.pods, n.slices, n.checkpoint)
	return errors.Join(err, n.checkpoint.Close(err))
}

// checkers returns the controllers.
func (n *node) checkers() []metrics.Checker {
	all := []metrics.Checker{n.lease, n.status, n.pods, n.slices}
	if n.checkpoint != nil {
		all = append(all, n.checkpoint)
	}
	return all
}

// check returns an error if a controller is stuck.
func (n *node) check(r *http.Request) (err error) {
	for _, c := range n.checkers() {
		err = errors.Join(err, c.Check(r))
	}
	return err
}
