// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package resourceslice publishes the devices of a node, or of a cluster, as
// ResourceSlices (resource.k8s.io, dynamic resource allocation): with the
// fewest writes, and never so that the scheduler can't use a pool for longer
// than it takes to write what has changed.
//
// # Usage
//
// Say what there is with [Controller.Set], as often as you like: a pool is
// given whole, and what differs from what the API server has is written.
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
// Set tells at once whether a pool is valid, [Controller.Wait] when it is
// published. [Follow] does the same for devices that come as a stream.
//
// # Behavior
//
// Consumers take devices from a pool only while they see all slices of its
// newest generation, and all of them, so a pool is either usable or not at
// all. A single pool that is half published makes the scheduler fail Pods that
// ask for all devices of a class, cluster-wide. What follows from that:
//
//   - Devices are packed into slices here, and stay where they are. A device
//     that is added, removed or changed is one write of one slice, at the same
//     generation.
//   - Independent changes of several slices are as many writes at the same
//     generation: each leaves a pool that could have been asked for. The text of
//     the API wants a new generation for any change; no consumer can tell the
//     difference, and Pool.Atomic is there for who wants it.
//   - Where all slices have to change together, because their number does or a
//     device moves between them, they get a new generation, written in parallel.
//     Pools of more than four slices get empty spare ones when they grow, so
//     that this is rare. New slices get 64 devices: with 65 or more a taint on
//     one of them would force others out. A pool of up to 128 devices without
//     taints and counters is one slice.
//   - What completes a pool is a create or an update: the scheduler doesn't wake
//     up for a delete. Slices of old generations are deleted after the switch.
//   - After an error a publish goes on where it stopped, also in another
//     process. Slices that a crash, an API server or somebody else has left are
//     adopted under whatever name they have.
//   - Own writes are recognised exactly, by resource version, so changes by
//     others are undone after a second. When that somebody doesn't give in,
//     repairs come less and less often, up to five minutes apart.
//
// The informer's store holds records, names and hashes, in place of the objects,
// and pools are kept in their encoded form: 100,000 devices of seven attributes
// take 38 MB. A Set that changes nothing takes a microsecond per device.
//
// Slices belong to Config.Owner, usually the Node. Nothing is created before
// that exists; when it was deleted and made anew, slices get the new owner.
//
// # Concurrency
//
// All methods may be called by any goroutine at any time. Set and Remove never
// block on I/O. One goroutine at a time works on a pool; Config.Workers pools
// and Config.Concurrency writes are under way at once. Two controllers that
// publish one pool undo each other's work, ever more slowly, and report a
// *ContendedError: use a leader election for the pools of a cluster, and the
// node's name in those of a node.
//
// # Failure modes
//
// What the API server does not take, or not all of it, keeps nothing else from
// being published:
//
//   - Set returns an *InvalidError with all problems and their paths; the pool
//     stays as it was.
//   - A device that the API server refuses is left out, or stays as it was, and
//     an *InvalidError is reported. It is sent again when it is Set otherwise,
//     and every hour.
//   - Fields that the API server drops, since a feature is off or it is too old,
//     are reported as a *DroppedFieldsError and not sent again, until the API
//     server is of another release.
//   - A missing permission is a *ForbiddenError and tried every minute. A node's
//     own credentials are denied a slice for some milliseconds after it was
//     created, and for ever when it is gone: both are recognised.
//   - An API that isn't served is an *UnavailableError and asked for every
//     30 seconds to five minutes; one that goes away or comes back under another
//     version is followed.
//   - Outages are retried with backoff, Retry-After is honoured, and what lasts
//     for half a minute is reported once.
//
// When Run's context is done slices stay, and a pool that is half published is
// completed, for ShutdownTimeout at most. [Controller.Withdraw] removes what
// was Set.
//
// # Events and hooks
//
// No events are recorded: slices are changed by machines for machines.
//
// Recommended names for metrics, fed by [Hooks]:
//
//	kubewright_resourceslice_writes_total{driver,verb,result}  APICall
//	kubewright_resourceslice_publish_duration_seconds{driver}  Published, Latency
//	kubewright_resourceslice_incomplete_seconds_total{driver}  Published, Window
//	kubewright_resourceslice_repairs_total{driver}             Published, Repair
//	kubewright_resourceslice_devices{driver}                   Published, Devices
//
// The log has at V0 what ErrorHandler would be told, and that a driver is gone;
// at V2 each publish, each repair and each slice that was refused, and which
// version of the API is used; at V4 each write. Where nothing changes nothing is
// printed.
//
// # Permissions
//
// The client needs get, list, watch, create, update and delete of resourceslices,
// and get of nodes for [NodeOwner]. A ServiceAccount needs a ClusterRole for that, which
// can't say "of my node only": examples/rbac has one together with the
// ValidatingAdmissionPolicy that does. A node's own credentials (system:node)
// need nothing: the node authorizer lets them list and watch with the selector
// that this package uses and write what belongs to their node. They can't
// publish pools for other nodes.
//
// # Compatibility
//
// Kubernetes 1.32 and newer: the newest of resource.k8s.io/v1, v1beta2 and
// v1beta1 that is served. A controller of a node that publishes a pool for
// other nodes watches that pool alone from 1.37 on, and before all such pools
// of the driver. Counter sets need v1 in the layout of 1.35. Local validation
// has the limits of 1.37; where an older server has lower ones (4 taints per
// device before 1.35) it refuses the device, see above. clientsets work best
// with protobuf, their default.
package resourceslice
