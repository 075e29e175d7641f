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
//	if err != nil {
//		return err
//	}
//	return controller.Run(ctx)
//
// A provider may implement [Updater], [Watcher], [Inspector], [Releaser] and
// [Admitter] in addition. Package podsynctest has a provider in memory, and a test
// suite for providers. Package podstatus computes statuses, package podenv resolves
// environment variables.
//
// The Node must exist and have a lease, or the control plane evicts the pods. Packages
// nodestatus and lease maintain them.
//
// # Behavior
//
// A pod is identified by its UID, never by its name. The Controller tracks it from
// the first informer event until the object is gone and the provider no longer
// holds an instance. In between it passes through the stages of [Stage].
//
// Nothing is started or stopped before the informer has synced and the provider's
// List has succeeded once. A pod that the provider holds then is adopted. A pod that
// had started and that the provider does not hold is lost, and [Policy.Lost] decides
// about it. An instance without a pod is an orphan: it is stopped once the API has
// confirmed that the pod is gone. Pods that a LIST leaves out are confirmed too. If
// suspiciously many are gone, they keep running for [Policy.MassHold]. An instance
// is kept and reported if the API does not answer for it and [State.NodeName] does not
// assign it to the node.
//
// Two processes with one node name run every pod twice unless [Config.Gate] lets
// only one of them act. The other one waits, and adopts the pods when it may act.
//
// A pod is stopped if it is deleted or gone, if its work is done, if
// spec.activeDeadlineSeconds is over, if it was evicted or rejected, or if another
// client set a terminal phase. Stop is repeated until the provider has confirmed
// that nothing runs. Then the terminal phase is written, and then the object is
// deleted, with the UID as a precondition. A pod of the same name waits until then.
//
// A status is written as a strategic merge patch of the fields that changed, with
// the UID as a precondition. It touches neither labels nor fields of other
// components, and is refused for another pod of the same name. [podstatus.Next]
// computes it from the provider's last report. A terminal phase never changes again,
// and is never Succeeded without an exit code 0 of every container that must
// complete.
//
// A pod that runs and is deleted costs two PATCH and one DELETE, a pod that completes
// two PATCH. A pod that does not change costs no request: there is no resync and
// no GET.
//
// A change of the spec is detected by metadata.generation, which API servers
// maintain for pods since 1.34; with older servers the mutable fields are compared.
// status.observedGeneration is the generation that the provider has accepted.
// Changes of labels and annotations are passed to Update only if
// [Policy.UpdateMetadata] is set.
//
// Like a kubelet's, the status has the resources of the spec once the provider has
// accepted it, and, with [Config.HostIPs], the node's addresses.
// [Config.ContainerEvents] records a kubelet's events about containers. An error of
// Start that has the method WaitingReason(container string) string, as those of
// package podenv have, gives the reason with which a container waits.
//
// The informer keeps pods encoded: see [Compact] for the informer of a program.
//
// # Concurrency
//
// All methods of Controller may be called from any number of goroutines.
// For one pod at most one provider call and at most one API request are in flight.
// The two do not wait for each other, and no pod waits for another, except for a
// place if [Config.MaxCalls] or [Config.StatusWriters] are reached. Stop has places
// of its own. Of several reports about a pod only the newest is written.
//
// A pod that waits costs no goroutine and no timer of its own.
//
// # Failure modes
//
// Every call that fails is retried without limit: with exponential backoff, or after
// the delay that the provider asks for ([RetryAfter]), or at once if the pod's spec
// changes or the pod is deleted. While the API server fails for all pods, one request
// at a time is sent. Pods are still started and stopped, and the newest status of
// each is written when the server is back.
//
// A panic in the provider, or in another function of Config, fails the call that
// it was made in, with a [PanicError], and ends neither the process nor the work on
// other pods. [Controller.CheckProvider] reports a provider that does not answer;
// it fits nodestatus.HealthCheck. [Controller.Check] is about the loop only.
//
// A List that fails says nothing about any pod. A provider call that hangs blocks its
// own pod only. A status that the API refuses as invalid is not sent again until it
// changes, and never keeps a pod from being deleted. An answer "no such pod" has no
// effect until the informer, or a second answer, confirms it. If the answer to a
// write is lost, the pod is read before the status is written again.
//
// If the process dies, the next one finds the instances through List. The exit code
// of a pod that had just stopped can be lost then, unless the provider is a
// [Releaser], which keeps the exit code until it is stored.
//
// # Compatibility
//
// Written for and tested with Kubernetes 1.34 to 1.37. Like a kubelet, the
// program may be older than the API server by three minor versions, but not
// newer. Pods that exist on the node only (static pods) are out of scope.
//
// Metrics, events, log lines and permissions are in docs/operations.md of this
// repository.
package podsync
