// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
)

// PoolID identifies a pool: consumers of ResourceSlices distinguish pools by
// driver and name only.
type PoolID struct {
	// Driver is spec.driver of the slices, for example gpu.example.com.
	Driver string
	// Name is spec.pool.name. For the devices of a node it is usually the
	// node's name: a pool must have one publisher only. Further pools of the node
	// add to it, as in node-1/nics.
	Name string
}

// String returns driver/name.
func (id PoolID) String() string { return id.Driver + "/" + id.Name }

// Pool is the whole desired content of a pool. The controller decides how it is
// laid out in slices.
type Pool struct {
	// Devices of the pool. Their names must be unique in it. A pool without devices
	// is one empty slice, which says that there is nothing to allocate; a pool
	// without slices says nothing.
	//
	// The scheduler takes the first device that matches a claim, so the order is the
	// driver's preference: list a partition before the whole device. Each slice that
	// is written has its devices in this order, and so has a pool that is published
	// for the first time, across its slices. A device that is added later may come
	// after devices that it precedes here, and another order alone is no change,
	// because some drivers publish from a map. See Ordered.
	Devices []resourcev1.Device
	// Ordered makes the order of Devices a part of the content: it holds across all
	// slices, at all times, and another order is a change. That takes a write of all
	// slices if a device must move to another slice. Drivers whose devices the scheduler must
	// try in an order need it (KEP-5773, kubernetes#136641). Default: false.
	Ordered bool
	// SharedCounters are the counter sets that devices consume from. They need
	// an API server that serves resource.k8s.io/v1 in the layout of Kubernetes
	// 1.35 and newer.
	SharedCounters []resourcev1.CounterSet
	// Nodes selects the nodes that can use the devices. The zero value is the
	// node of Config.NodeName.
	Nodes NodeSelection
	// PartitionTypeAttribute is spec.partitionTypeAttribute of the slices with
	// devices that consume counters. A driver for GPUs with partitions, such as MIG, sets it
	// (feature gate DRAPartitionableDevicesType). Default: none.
	PartitionTypeAttribute resourcev1.FullyQualifiedName
	// SkipNodeOperations is spec.skipNodeOperations of all slices with devices. A driver whose
	// devices need no preparation on the node sets it (KEP-5945).
	SkipNodeOperations []resourcev1.SkipNodeOperation
}

// NodeSelection selects the nodes that can use the devices of a pool. At most
// one field may be set; the zero value means the node of Config.NodeName.
type NodeSelection struct {
	// Selector is spec.nodeSelector: exactly one term.
	Selector *corev1.NodeSelector
	// AllNodes is spec.allNodes.
	AllNodes bool
	// PerDevice is spec.perDeviceNodeSelection: every device has its own.
	PerDevice bool
}

// Status is the state of a pool as of this controller's own writes. What another client
// changes or deletes does not count: it is undone, and Hooks.Published is called then.
type Status struct {
	// Revision counts the Sets and Removes that changed the desired pool.
	// Published is the revision that the API server has. They are equal if
	// nothing is left to do.
	Revision, Published int64
	// Generation is spec.pool.generation of the slices. Slices and Devices are
	// their numbers. All three are of the last publish.
	Generation      int64
	Slices, Devices int
	// Complete is false from the first write of a new generation to the last:
	// the scheduler takes no device from the pool during that time.
	Complete bool
	// Err is an *InvalidError or *DroppedFieldsError if the API server doesn't
	// have the whole pool and a retry would not help. It is a *ContendedError
	// while a newer instance of the program publishes the pool.
	Err error
	// Since is the time of the last change of the status.
	Since time.Time
}
