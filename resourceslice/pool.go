// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
)

// PoolID names a pool: consumers of ResourceSlices tell pools apart by driver
// and name, and by nothing else.
type PoolID struct {
	// Driver is spec.driver of the slices, for example gpu.example.com.
	Driver string
	// Name is spec.pool.name. For the devices of a node it is usually the
	// node's name: a pool must have one publisher only.
	Name string
}

// String returns driver/name.
func (id PoolID) String() string { return id.Driver + "/" + id.Name }

// Pool is the whole desired content of a pool. How it is laid out in slices is
// the controller's affair.
type Pool struct {
	// Devices of the pool. Their names are unique in it. None is fine: the pool
	// is then one empty slice, which says that there is nothing to allocate,
	// while a pool without slices says nothing at all.
	Devices []resourcev1.Device
	// SharedCounters are the counter sets that devices consume from. They need
	// an API server that serves resource.k8s.io/v1 in the layout of Kubernetes
	// 1.35 and newer.
	SharedCounters []resourcev1.CounterSet
	// Nodes says which nodes can use the devices. The zero value is the node
	// of Config.NodeName.
	Nodes NodeSelection
	// Ordered makes the order of Devices the order in which the scheduler
	// tries them. Without it the order of Devices means nothing, and a list
	// that differs in nothing else changes nothing.
	Ordered bool
	// Atomic makes every change of more than one slice a switch of the whole
	// pool to a new generation. Without it independent changes of several
	// slices are made one by one, each as if it had been the only one, which
	// costs fewer writes and leaves the pool usable all the while.
	Atomic bool
	// PartitionTypeAttribute is spec.partitionTypeAttribute of those slices
	// that have devices which consume counters; empty leaves it out.
	PartitionTypeAttribute resourcev1.FullyQualifiedName
	// SkipNodeOperations is spec.skipNodeOperations of all slices with devices.
	SkipNodeOperations []resourcev1.SkipNodeOperation
}

// NodeSelection says which nodes can use the devices of a pool. At most one
// field may be set; the zero value means the node of Config.NodeName.
type NodeSelection struct {
	// Selector is spec.nodeSelector: exactly one term.
	Selector *corev1.NodeSelector
	// AllNodes is spec.allNodes.
	AllNodes bool
	// PerDevice is spec.perDeviceNodeSelection: every device says for itself.
	PerDevice bool
}

// local reports whether the pool belongs to the controller's own node.
func (n NodeSelection) local() bool { return n == NodeSelection{} }

// Sink is the part of a Controller that a source of devices needs. Code that
// discovers devices takes a Sink, so that its tests need no API server.
type Sink interface {
	// Set is [Controller.Set].
	Set(PoolID, Pool) error
	// Remove is [Controller.Remove].
	Remove(PoolID)
}

var _ Sink = (*Controller)(nil)
