// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package vkadapter runs a provider that was written for virtual-kubelet with the
// controllers of this library: its pods, its Node, its lease, and logs, exec and metrics.
// The provider need not be changed.
//
// The package is a separate module, because it needs the types of virtual-kubelet.
//
// # Usage
//
// NewNode replaces nodeutil.NewNode and takes the same function that makes a provider:
//
//	virtual, err := vkadapter.NewNode("vk", newProvider, vkadapter.NodeConfig{
//		Client:     clientset,
//		InternalIP: "192.0.2.7",
//	})
//	...
//	err = virtual.Run(ctx)
//
// A program that makes its own controllers can use an [Adapter] instead. It is a
// podsync.Provider. Its method Backend returns a backend for a nodeapi.Server, and its
// methods Setter and HealthCheck are for a nodestatus.Controller.
//
// # Behavior
//
// Providers differ from what virtual-kubelet asks of them, because virtual-kubelet ignores
// many of their answers. The adapter follows these rules:
//
//   - If the provider returns a pod without a UID, it counts as the pod that was asked for,
//     or that has its name. If it returns another UID, nothing is done ([ErrOtherPod]) until
//     the adapter knows which pod it is.
//   - A pod does not exist in three cases: GetPod returns an error that says so, with the
//     method NotFound, as an error of the API or with the status code 404 (see
//     [Config.NotFound]); GetPod returns nil, and neither GetPodStatus nor GetPods shows the
//     pod; GetPod returns another error, and GetPods
//     succeeds without the pod. If GetPods has never shown a pod that may run, such an
//     error must last for a minute. After any other answer nothing is known. A provider
//     may have GetPodByUID and GetPodStatusByUID instead.
//   - NotifyPods is called before any other method. The others wait for it for up to ten
//     seconds. The context of a call has the values of the call, but is canceled only when
//     Run ends, because providers start loops with it. So a call is not canceled when its
//     pod is deleted.
//   - GetPods is called again and again, or only once with Config.ListOnce. If it returns
//     pods without names, the adapter looks up each pod. If it leaves out pods that GetPod
//     returns, the adapter looks up these. Pods of other nodes in it are ignored.
//   - The status of a pod is that of the last report. If the provider has no NotifyPods,
//     GetPodStatus is called every five seconds for each pod that has not ended. GetPods
//     is then called once a minute. It is also called at once after another call about a
//     pod, if GetPodStatus has no status of a pod, and if no pod runs. If the provider
//     has NotifyPods, GetPodStatus is called only for pods that it returns without a
//     status and has not reported. A pod has stopped if its phase is final and no
//     container runs, or if the provider no longer has it. A container without an exit
//     code in a Succeeded pod gets the exit code 0.
//   - Annotations that the provider writes into a pod are stored in the API. Labels are stored
//     in one annotation, [LabelsAnnotation]: the provider gets them back as labels, but
//     kubectl get --selector does not find the pod by them. If the provider sets
//     a deletionTimestamp, the pod is deleted after it has stopped; see podsync.State.
//   - After CreatePod the provider has a minute to return the pod. Then it counts as lost,
//     unless GetPod can't tell: then it stays as it is, and an event says so.
//   - A status that the API has or had, in a pod that GetPod or GetPods returns, is no evidence:
//     the provider has read it there. GetPodStatus is called in its place.
//   - A pod that runs on after DeletePod has succeeded counts as stopped after five minutes;
//     see Config.DeleteTimeout.
//   - Environment variables are resolved as by virtual-kubelet, with Config.Client.
//   - An error of CreatePod that is invalid input ends the pod; see Config.CreateError.
//   - An instance without a UID is stopped if the API has no pod with its name, and
//     GetPod returns it by this name. If GetPod does not, the names in GetPods are not
//     those of pods, and the adapter looks up each pod. Pods of other nodes count, too,
//     if the credentials can read them.
//
// Ping of a NodeProvider is called in each health check. A Node that it passes to the
// callback of NotifyNodeStatus is merged into the Node: fields that are empty stay. A Ready
// condition that is False or Unknown makes the Node not ready. Only [Node] writes taints.
//
// # Concurrency
//
// Methods of the provider are called concurrently for different pods, as by virtual-kubelet.
//
// # Failure modes
//
//   - If the provider's backend does not answer, nothing is decided, calls are repeated, and
//     the Node is not ready after 20 s.
//   - If GetPodStatus hangs or panics for one pod, that pod keeps its last status. So does
//     one that GetPods leaves out and GetPod hangs for. A call of GetPods that hangs is given
//     up after ten minutes, and GetPods is called again.
//   - If a call does not return after its context is done, Run of a Node returns an error after
//     24 s. The lease has expired then. The program must exit, because the call may still act.
//   - If GetPods begins something that goes on, as a loop, each call begins it again. That is
//     logged once if the loop uses the context of the call; see Config.ListOnce.
//   - If NotifyPods does not return, other methods are called after ten seconds, and that is
//     logged. What it reports counts.
//   - A panic in NotifyPods or NotifyNodeStatus is logged. What the provider has reported stays.
//   - If all methods return no error and no pods while the backend is away,
//     podsync.Policy.MassHold protects the pods, provided that there is more than one.
//   - If the process is killed after CreatePod has created an instance and before the
//     annotations of the pod are stored, the next process has the old annotations. It calls
//     CreatePod again if the provider does not find the instance without them.
//   - If another process on this machine runs a node with the same name, [Node.Run] waits.
//     If it is on another machine, the lease decides which of them acts.
//
// # Compatibility
//
// Tested with the interfaces of virtual-kubelet v1.13 and v1.14, and with public providers.
// docs/migrate.md has the order of steps, and docs/operations.md the permissions.
package vkadapter
