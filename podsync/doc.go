// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package podsync runs the pods that are bound to a node, through a provider that the
// program implements. It starts pods that should run, stops pods that should not,
// and updates their status in the API. No pod is lost, run twice or killed by
// mistake, even if calls fail or the process dies.
//
// # Usage
//
// Write a [Provider] of three methods, and give it to a [Controller]:
//
//	controller, err := podsync.New(podsync.Config{
//		Client:   clientset.CoreV1(),
//		Provider: provider,
//		NodeName: "node-1",
//	})
//	...
//	err = controller.Run(ctx)
//
// A provider may also implement [Updater], [Watcher], [Inspector], [Releaser], [Admitter]
// and [Annotator]. Package podsynctest has a provider in memory and a test suite for
// providers. Package podruntime makes a provider from a container runtime, podstatus
// computes statuses, and podenv resolves environment variables and volumes. The Node must
// exist and have a lease: packages nodestatus and lease maintain them.
//
// # Behavior
//
// A pod is identified by its UID, never by its name. It passes through the stages of
// [Stage] until the Pod object is gone and the provider no longer holds an instance.
//
// Nothing is started or stopped before the informer has synced and List has
// succeeded once. A pod that the provider holds then is adopted. A pod that had
// started and that the provider does not hold is lost, and [Policy.Lost] decides
// about it. An instance without a pod is an orphan. It is stopped when the API has
// confirmed that the pod is gone; see [Policy.MassHold] and [Policy.ExclusiveBackend].
// Two processes with one node name run every pod twice, unless [Config.Gate] lets only
// one of them act.
//
// A pod is stopped if it is deleted or gone, if its work is done, if
// spec.activeDeadlineSeconds is over, if it was evicted or rejected, or if another
// client set a terminal phase. Stop is repeated until the provider has confirmed
// that nothing runs. Then another pod with the same name may start, the terminal phase
// is written, and a deleted Pod object is removed.
//
// A status is written as a strategic merge patch of the fields that changed, with the
// UID as a precondition. A terminal phase never changes. It is Succeeded only if every
// container that must complete has the exit code 0. A pod that runs and is deleted costs
// two PATCH and one DELETE if no step takes longer than [Config.PendingAfter]. A pod that
// completes costs two PATCH, and a pod that does not change costs no request.
//
// A change of the spec is detected by metadata.generation, or by the mutable fields if
// the API server is older than 1.34. status.observedGeneration is the generation that the
// provider has accepted; the status also has the resources of that spec. An error of Start
// may have a method WaitingReason(container string) string, as the errors of podenv do. It
// returns the reason for which a container waits.
//
// # Concurrency
//
// All methods of Controller may be called from any number of goroutines. For one pod at
// most one provider call and at most one API request are in flight, and they do not wait
// for each other. A pod does not wait for pods with other names, unless [Config.MaxCalls]
// or the limit of 32 requests is reached. MaxCalls limits Start and Update together, and
// Stop and Release together. Admit is called for one pod at a time. A waiting pod has no
// goroutine and no timer.
//
// # Failure modes
//
//   - A failed call is retried without limit: with exponential backoff, after the
//     delay of [RetryAfter], or at once if the pod's spec changes or the pod must stop.
//   - While the API server fails for all pods, requests are sent one at a time. Pods
//     are still started and stopped, and their newest status is written afterwards.
//   - A panic in a function of the program fails that call with a [PanicError].
//   - A provider call that hangs blocks its own pod only. A List that fails has no
//     effect on any pod. [Controller.CheckProvider] reports that List does not answer.
//   - If the API refuses a field of a status as invalid, the status is not sent again
//     until it changes, and the pod can still be deleted. If an admission policy or a
//     proxy refuses a status, it is sent again.
//   - If the API answers that a pod does not exist, nothing happens until the informer
//     or a second answer confirms it. If the answer to a write is lost, the pod is read
//     before the next write.
//   - If the process dies, the next one finds the instances through List. No exit code is
//     lost if the provider is a [Releaser], because it keeps each until it is stored.
//
// # Compatibility
//
// The package is written for and tested with Kubernetes 1.34 to 1.37. Like a kubelet, the
// program may be up to three minor versions older than the API server, but not newer.
// Static pods are ignored.
//
// docs/operations.md has the metrics, events, log lines and permissions.
package podsync
