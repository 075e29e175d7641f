// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package vkadapter runs a provider that was written for virtual-kubelet as a node of this
// library: its pods, its Node, its lease, and logs, exec and metrics. The provider is not
// changed.
//
// It is a module of its own, because it requires virtual-kubelet for the types in the
// signatures of providers.
//
// # Usage
//
// NewNode replaces nodeutil.NewNode, and takes the same function:
//
//	virtual, err := vkadapter.NewNode("vk", newProvider, vkadapter.NodeConfig{
//		Client:     clientset,
//		InternalIP: "192.0.2.7",
//	})
//	...
//	err = virtual.Run(ctx)
//
// A program that has controllers of its own takes the parts from an [Adapter]: it is the
// podsync.Provider, its Backend is that of a nodeapi.Server, and its Setter and HealthCheck
// are those of nodestatus.
//
// # Behavior
//
// Providers differ from what virtual-kubelet asks of them, because virtual-kubelet ignores
// many of their answers. The adapter goes by these rules:
//
//   - A pod that the provider returns without a UID is the one that was asked for, or that
//     holds its name. If another UID is returned, nothing is done ([ErrOtherPod]) until it is
//     known whose it is.
//   - A pod does not exist if GetPod says so, in any of these ways: an error with the method
//     NotFound or from the API's errors; nil, if GetPodStatus does not contradict; any other
//     error, if GetPods succeeds without the pod. Any other answer means that nothing is
//     known. A provider may have GetPodByUID and GetPodStatusByUID instead.
//   - NotifyPods is called before any other method. A context that the provider is handed has
//     the values of the call and lives until Run ends, so that loops may be started with it.
//     A call is therefore not canceled when its pod is deleted.
//   - GetPods is called again and again, once with Config.ListOnce. If it returns pods
//     without names, each pod is looked up.
//   - The status is that of the last report or, of a provider without NotifyPods, that of
//     GetPodStatus, which is called for each pod every five seconds. A pod has stopped if
//     its phase is final and no container runs, or if the provider no longer has it. A
//     Succeeded pod has the exit code 0 for each container without one.
//   - Annotations that the provider writes into a pod are stored in the API. If it sets a
//     deletionTimestamp, the pod is deleted after it has stopped: see podsync.State.
//   - After CreatePod a pod has a minute to appear before it is taken for lost.
//   - Environment variables are resolved as by virtual-kubelet, with Config.Client.
//   - Invalid input ends the pod: see Config.CreateError.
//   - An instance without a UID whose name no pod of the API has is stopped like any orphan.
//
// NodeProvider is asked with Ping in each health check. What it reports with
// NotifyNodeStatus is merged into the Node: fields that it leaves empty stay. A Ready
// condition that is False makes the Node not ready; one in a template does nothing. Taints
// are written by [Node] alone.
//
// # Concurrency
//
// Methods of the provider are called concurrently for different pods, as by virtual-kubelet.
//
// # Failure modes
//
//   - The provider's back end does not answer: nothing is concluded, calls are repeated, and
//     the Node is not ready after 20 s.
//   - GetPodStatus hangs or panics for one pod: the pod keeps its last status.
//   - The provider lies: if it returns no error and no pods from every method while its back
//     end is away, podsync.Policy.MassHold protects the pods if there is more than one.
//   - Another process of this machine runs a node of the name: [Node.Run] waits. On another
//     machine: the lease decides.
//
// # Compatibility
//
// Tested with the interfaces of virtual-kubelet v1.13 and the habits of its public providers.
// docs/migrate.md has the order of steps, and docs/operations.md the permissions.
package vkadapter
