// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package resourceslice publishes the devices of a node, or of a cluster, as
// ResourceSlices (resource.k8s.io, dynamic resource allocation). It needs few writes, and
// the scheduler can use a pool while its devices change.
//
// # Usage
//
// Pass all devices of a pool to [Controller.Set], as often as you like:
//
//	c, err := resourceslice.New(resourceslice.Config{
//		Client:   clientset.ResourceV1(),
//		NodeName: nodeName,
//		Owner:    resourceslice.NodeOwner(clientset.CoreV1().Nodes(), nodeName),
//	})
//	...
//	go c.Run(ctx)
//	err = c.Set(resourceslice.PoolID{Driver: "gpu.example.com", Name: nodeName}, resourceslice.Pool{Devices: devices})
//
// Set validates the pool and returns at once. The controller then writes the differences
// from the slices on the API server. [Controller.Wait] returns when it has done so.
//
// A DRA driver also registers with the kubelet and prepares claims. It uses package
// kubeletplugin of k8s.io/dynamic-resource-allocation for this, but must not call its
// PublishResources. examples/dradriver is a complete driver. It uses package sysfs for
// standard attributes and package claimstatus for the status of claims.
//
// # Behavior
//
// The scheduler allocates devices from a pool only if it sees all slices of the newest
// generation of the pool. If one pool is incomplete, Pods that ask for all devices of a
// class can't be scheduled on any node. Therefore:
//
//   - A device stays on its slice. So adding, removing or changing one device is usually
//     one write, and the generation stays the same. If several slices change, each is one
//     write.
//   - If slices must change together, because their number changes, a device moves to
//     another slice, or a counter set changes with its devices, they get a new generation.
//     To make this rare, a pool that grows to more than four slices also gets empty ones, and
//     a driver can keep the counter set of a device that is gone.
//   - The last write that completes a pool is a create or an update, because the
//     scheduler does not try Pods again after a delete.
//   - After an error, the controller continues at the write that failed. A restarted
//     process continues too, if it publishes the same devices. Existing slices may have
//     any names.
//   - If another client changes a slice, the change is undone after a second. If this
//     repeats, the delay grows to five minutes.
//
// The controller stores names and hashes, not objects: 100,000 devices with seven
// attributes need less than 40 MB. DESIGN.md has the details.
//
// # Concurrency
//
// All methods may be called by any goroutine at any time; Set, SetAll and Remove
// never block on I/O. If two instances of one program run, as during a rolling update, the
// older one leaves the pools to the newer one, also those that only one of them has. Other
// controllers must not publish the same pool, because they would undo each other's work and
// report a *ContendedError. To prevent this, use a leader election for pools of the cluster,
// and name the pools of a node after the node.
//
// # Failure modes
//
// If the API server does not accept a device, the other devices are published anyway:
//
//   - If the pool as a whole is invalid, Set returns an *InvalidError with all problems.
//   - If the API server refuses a device, the device is left out or stays as it was, and
//     an *InvalidError is reported.
//   - If the API server drops fields, for example because a feature gate is off, a
//     *DroppedFieldsError is reported. Devices that must not be used without such a field
//     are not published; see Config.PublishUnrestricted.
//   - Refused and dropped content is sent again every hour, after an outage of the API
//     server, and if Set changes it.
//   - If a permission is missing, a *ForbiddenError is reported. The controller tries
//     again every minute.
//   - If ResourceSlices are not served, an *UnavailableError is reported. The controller
//     asks again until they are.
//   - Other errors are retried with backoff or after a Set, and reported after 30 s.
//   - A write without an answer is repeated until it is answered, before any other write.
//     For a minute a refusal does not count as the answer, because the first attempt may
//     still be carried out.
//
// When Run's context is done, slices stay, and incomplete pools are completed for at most
// ShutdownTimeout. [Controller.Withdraw] removes all pools.
//
// # Compatibility
//
// The package needs resource.k8s.io/v1 (Kubernetes 1.34). Counter sets need v1 as of 1.35.
// If a node's controller publishes a pool of the cluster, it watches only that pool if the
// API server has version 1.37 or newer. With older ones it watches all pools of the driver.
// The limits of a device are those of the API server.
//
// docs/operations.md has the metrics, log lines and permissions.
package resourceslice
