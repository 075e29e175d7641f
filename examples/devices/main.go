// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Devices publishes the devices that a file describes, as a DRA driver
// publishes the devices that it finds. Copy it as the part of a driver that
// informs the scheduler. It reads the file again whenever it changes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/resourceslice"
)

func main() { start(run) }

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := newFlags("devices")
	nodeName := flags.String("node-name", defaultNodeName(), "`name` of the Node")
	path := flags.String("file", "devices.yaml", "`path` of the file that describes the devices")
	poll := flags.Duration("poll", time.Second, "`time` between two reads of the file")
	withdraw := flags.Bool("withdraw", false, "delete the slices at the end, as when the driver is removed; by default they stay, as when it is restarted")
	if err := flags.parse(args); err != nil {
		return err
	}
	if *poll <= 0 {
		return fmt.Errorf("--poll=%v: must be more than 0", *poll)
	}
	cfg, err := flags.config()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	controller, err := resourceslice.New(resourceslice.Config{
		Client:   client.ResourceV1(),
		NodeName: *nodeName,
		Owner:    resourceslice.NodeOwner(client.CoreV1().Nodes(), *nodeName),
		// A driver that starts before its devices are ready finds none.
		HoldEmpty: 10 * time.Second,
		ErrorHandler: func(_ context.Context, err error, _ string) {
			fmt.Fprintln(stdout, explain(err))
		},
		Hooks: resourceslice.Hooks{Published: func(p resourceslice.Published) {
			fmt.Fprintf(stdout, "pool %s: %d devices in %d slices of generation %d, %d writes\n", p.Pool, p.Devices, p.Slices, p.Generation, p.Writes)
		}},
	})
	if err != nil {
		return err
	}

	// With --withdraw, the controller must outlive the signal to delete the
	// slices.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	stopped := make(chan error, 1)
	go func() { stopped <- controller.Run(running) }()

	driver := "" // that is published
	follow(ctx, *path, *poll, func(f *file, err error) {
		if err == nil {
			// The file has all pools of the driver. A pool that an earlier
			// process published under another name would offer each device
			// twice.
			name, pool := f.pool(*nodeName)
			err = controller.SetAll(f.Driver, map[string]resourceslice.Pool{name: pool})
			if err == nil && driver != "" && driver != f.Driver {
				err = controller.SetAll(driver, nil) // and so would another driver
			}
			if err == nil {
				driver = f.Driver
			}
		}
		if err != nil {
			// The published slices stay.
			fmt.Fprintln(stdout, explain(err))
		}
	})
	if *withdraw {
		last, cancel := context.WithTimeout(running, 10*time.Second)
		defer cancel()
		if err := controller.Withdraw(last); err != nil {
			return errors.Join(fmt.Errorf("withdraw: %w", err), end(stop, stopped))
		}
	}
	return end(stop, stopped)
}

func end(stop context.CancelFunc, stopped <-chan error) error {
	stop()
	return <-stopped
}

// explain returns an error text that says how to solve the
// problem.
func explain(err error) string {
	if dropped, ok := errors.AsType[*resourceslice.DroppedFieldsError](err); ok {
		return fmt.Sprintf("pool %s is published without %v: turn on the feature gate, or upgrade the API server", dropped.Pool, dropped.Fields)
	}
	if forbidden, ok := errors.AsType[*resourceslice.ForbiddenError](err); ok {
		return fmt.Sprintf("%v: see examples/rbac", forbidden)
	}
	return err.Error()
}

// defaultNodeName returns $NODE_NAME, which a pod gets from the downward API,
// or else the host name.
func defaultNodeName() string {
	name := os.Getenv("NODE_NAME")
	if name == "" {
		name, _ = os.Hostname() // an empty name is rejected later, by name
	}
	return name
}
