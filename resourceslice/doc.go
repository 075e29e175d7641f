// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package resourceslice publishes the devices of a node, or of a cluster, as
// ResourceSlices (resource.k8s.io, dynamic resource allocation), with the fewest
// writes, and so that the scheduler can use a pool while it changes.
//
// # Usage
//
// Pass the whole content of a pool to [Controller.Set], as often as convenient:
//
//	c, err := resourceslice.New(resourceslice.Config{
//		Client:   clientset,
//		NodeName: nodeName,
//		Owner:    resourceslice.NodeOwner(clientset.CoreV1().Nodes(), nodeName),
//	})
//	...
//	go c.Run(ctx)
//	err = c.Set(resourceslice.PoolID{Driver: "gpu.example.com", Name: nodeName}, resourceslice.Pool{Devices: devices})
//
// Set validates the pool and returns at once; the controller writes the differences from
// the slices on the API server, and [Controller.Wait] returns when it has.
//
// A DRA driver also registers with the kubelet and prepares claims, with package
// kubeletplugin of k8s.io/dynamic-resource-allocation and without its PublishResources.
// examples/dradriver is a whole driver, with package sysfs for standard attributes and
// claimstatus for the status of claims.
//
// # Behavior
//
// Consumers take devices from a pool only if they see all slices of its newest
// generation. One half published pool also makes the scheduler fail Pods that
// ask for all devices of a class, on any node. Therefore:
//
//   - The controller packs devices into slices, and a device stays on its slice.
//     One device that is added, removed or changed is usually one write, at the
//     same generation. Independent changes of several slices are one write each,
//     unless Pool.Atomic is set.
//   - Slices that must change together, because their number changes or a device
//     moves between them, get a new generation. To make that rare, pools that grow
//     to more than four slices get empty spare ones.
//   - A create or an update completes a pool, never a delete, because the
//     scheduler does not wake up for deletes.
//   - After an error a publish continues at the failed write, and a restarted process
//     continues too if it wants the same content. Slices are adopted under any name.
//   - Another writer's change is undone after a second, and more and more rarely, up to
//     five minutes, if it comes again.
//
// The controller stores names and hashes in place of objects: 100,000 devices of
// seven attributes take less than 40 MB. DESIGN.md has the details.
//
// # Concurrency
//
// All methods may be called by any goroutine at any time; Set, SetAll and Remove
// never block on I/O. Of two instances of one program, as during a rolling update, the
// older one leaves a pool to the newer one. Other controllers must not publish the same
// pool: they undo each other's work and report a *ContendedError. Use a leader election for cluster pools,
// and name the pools of a node after the node.
//
// # Failure modes
//
// Content that the API server does not take does not delay other content:
//
//   - Set returns an *InvalidError with all problems and their paths.
//   - A device that the API server refuses is left out, or keeps its previous
//     content, and an *InvalidError is reported.
//   - Dropped fields, for example because a feature gate is off, are reported as
//     a *DroppedFieldsError. Devices that must not be used without the field are
//     withheld, see Config.PublishUnrestricted.
//   - Refused and dropped content is sent again every hour, after an outage of
//     the API server, and if Set changes it.
//   - A missing permission is a *ForbiddenError and tried every minute.
//   - If no version of the API is served, an *UnavailableError is reported. The
//     controller follows an API that comes back in another version.
//   - Other errors are retried with backoff or by a Set, and reported after 30 seconds.
//   - A write without an answer is repeated until it is answered, before anything
//     else is planned. A refusal counts as the answer after a minute only.
//
// When Run's context is done, slices stay, and half published pools are
// completed, for ShutdownTimeout at most. [Controller.Withdraw] removes all pools.
//
// # Compatibility
//
// Kubernetes 1.33 and newer: resource.k8s.io/v1 or v1beta2. Counter sets need v1
// in the layout of 1.35. A controller of a node that publishes a cluster pool
// watches that pool alone from 1.37 on, and all cluster pools of the driver
// before. Set has the limits of 1.37; an API server with lower ones refuses the device.
//
// docs/operations.md has the metrics, log lines and permissions.
package resourceslice
