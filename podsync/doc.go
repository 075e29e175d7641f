// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package podsync runs the pods that are bound to a node with a provider that the
// program implements. It starts pods that should run, stops pods that should not,
// and updates their status in the API. No pod is lost, run twice or killed by
// mistake, whichever calls fail, and whenever the process dies.
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
// A provider may implement [Updater], [Watcher], [Inspector], [Releaser], [Admitter] and
// [Annotator] in addition. Package podsynctest has a provider in memory and a test
// suite for providers; podruntime makes a provider out of a container runtime;
// podstatus computes statuses; podenv resolves environments and volumes. The Node must
// exist and have a lease: packages nodestatus and lease maintain them.
//
// # Behavior
//
// A pod is identified by its UID, never by its name. It passes through the stages of
// [Stage] until the object is gone and the provider no longer holds an instance.
//
// Nothing is started or stopped before the informer has synced and List has
// succeeded once. A pod that the provider holds then is adopted. A pod that had
// started and that the provider does not hold is lost, and [Policy.Lost] decides
// about it. An instance without a pod is an orphan: it is stopped once the API has
// confirmed that the pod is gone; see [Policy.MassHold] and [Policy.ExclusiveBackend].
// Two processes with one node name run every pod twice unless [Config.Gate] lets only
// one of them act.
//
// A pod is stopped if it is deleted or gone, if its work is done, if
// spec.activeDeadlineSeconds is over, if it was evicted or rejected, or if another
// client set a terminal phase. Stop is repeated until the provider has confirmed
// that nothing runs. Then another pod of the name may start, the terminal phase is
// written, and a deleted object is removed.
//
// A status is written as a strategic merge patch of the fields that changed, with the
// UID as a precondition. A terminal phase never changes again, and is never Succeeded
// without an exit code 0 of every container that must complete. A pod that runs and is
// deleted costs two PATCH and one DELETE if no step exceeds [Config.PendingAfter], a pod
// that completes two PATCH, and a pod that does not change no request.
//
// A change of the spec is detected by metadata.generation, or by the mutable fields
// with API servers before 1.34. status.observedGeneration is the generation that the
// provider has accepted; with it the status has the resources of the spec. An error of
// Start that has the method WaitingReason(container string) string, as those of podenv
// have, gives the reason with which a container waits.
//
// # Concurrency
//
// All methods of Controller may be called from any number of goroutines. For one pod
// at most one provider call and at most one API request are in flight, and they do
// not wait for each other. No pod waits for one of another name, unless
// [Config.MaxCalls] or the limit of 32 requests is reached; Stop has places of its own,
// and Admit is called for one pod at a time. A waiting pod has no goroutine and no timer.
//
// # Failure modes
//
//   - A failed call is retried without limit: with exponential backoff, after the
//     delay of [RetryAfter], or at once if the pod's spec changes or it must stop.
//   - While the API server fails for all pods, one request at a time is sent. Pods
//     are still started and stopped, and their newest status is written afterwards.
//   - A panic in a function of the program fails that call with a [PanicError].
//   - A provider call that hangs blocks its own pod only, and a List that fails has no
//     effect on any pod. [Controller.CheckProvider] reports that List does not answer.
//   - A status with a field that the API refuses as invalid is not sent again until it
//     changes, and never keeps a pod from being deleted. One that an admission policy or a
//     proxy refuses is sent again.
//   - An answer "no such pod" has no effect until the informer, or a second answer,
//     confirms it. If the answer to a write is lost, the pod is read first.
//   - If the process dies, the next one finds the instances through List. If the
//     provider is a [Releaser], no exit code is lost: it is kept until it is stored.
//
// # Compatibility
//
// Written for and tested with Kubernetes 1.34 to 1.37. Like a kubelet, the program may be
// older than the API server by three minor versions, but not newer. Static pods are ignored.
//
// docs/operations.md has the metrics, events, log lines and permissions.
package podsync
