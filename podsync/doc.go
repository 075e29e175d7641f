// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package podsync runs the pods that are bound to a node with a provider of the
// embedder's: it starts what is to run, stops what is not, and keeps the status
// in the API true. No pod is lost, run twice or killed by mistake, whatever
// fails in between and whenever.
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
// What a provider can do besides, it says by having the methods of [Updater],
// [Watcher], [Inspector], [Releaser] or [Admitter]. Package podsynctest has a
// provider in memory, and a test suite that any provider can be held to;
// package podstatus has the rules by which a status is made, package podenv
// resolves environment variables.
//
// The Node must exist and have a lease, or the control plane takes the pods
// away: those are the business of packages nodestatus and lease.
//
// # Behavior
//
// A pod is known by its UID, never by its name. It comes when the informer
// shows it, and is forgotten when the object is gone and the provider holds
// nothing of it any more. In between it goes through the stages of [Stage].
//
// Before anything is started or stopped, the informer has what the API has and
// the provider's List has succeeded once. A pod that the provider holds then is
// adopted. One that had started and that it does not hold is lost, and
// [Policy.Lost] decides about it. An instance whose pod does not exist is an
// orphan: it is stopped once the API has confirmed that. Pods that a LIST leaves
// out are confirmed too. If suspiciously many are gone, they run on for
// [Policy.MassHold]. An instance about which the API gives no answer, and that
// [State.NodeName] does not assign to the node, is kept and reported.
//
// Two processes with one node name run every pod twice unless [Config.Gate] lets
// only one of them act. The other one waits, and adopts the pods when it may act.
//
// A pod stops because it is deleted or gone, because its work is done, because
// spec.activeDeadlineSeconds is over, because it was evicted or rejected, or
// because somebody has given it a terminal phase. Stop is repeated until the
// provider has confirmed that nothing runs. Only then the terminal phase is
// written, and only after that the object is deleted, for the UID that was
// stopped. A pod of the same name waits until then, too.
//
// The status is a strategic merge patch of what has changed in it, with the UID
// as a precondition, so that it neither touches labels nor what other
// components write, and never meets another pod of the same name. It is computed
// by [podstatus.Next] from the provider's last report: see there for what is
// derived. A terminal phase never changes again, and is never Succeeded without
// an exit code 0 of every container that has to complete.
//
// A pod that runs and is deleted costs two PATCH and one DELETE, one that
// completes two PATCH, and one to which nothing happens costs nothing: there
// is neither a resync nor a GET.
//
// A change of the spec is known by metadata.generation, which API servers
// maintain for pods since 1.34; with older ones the fields that can change are
// compared. status.observedGeneration is the generation that the provider has
// accepted. Changes of labels and annotations are handed over only if
// [Policy.UpdateMetadata] says so.
//
// # Concurrency
//
// All methods of Controller may be called from any number of goroutines.
// For one pod there is at most one call of the provider and at most one request
// to the API under way; the two do not wait for each other, and no pod waits for
// another one, but for a place when [Config.MaxCalls] or [Config.StatusWriters]
// are taken. Stop has places of its own. Of several reports about a pod only the
// newest is written.
//
// A pod that waits costs no goroutine and no timer of its own.
//
// # Failure modes
//
// Every call that fails is repeated without limit with exponential backoff, or when
// the provider says ([RetryAfter]), or at once if the pod's spec changed or it is
// deleted. While the API server fails for all pods there is one request at a
// time; meanwhile pods are started and stopped as before, and the newest status
// of each is written when it is back.
//
// A panic in the provider, or in another function of Config, fails the call that
// it was made in, with a [PanicError], and ends neither the process nor the work on
// other pods. [Controller.CheckProvider] reports a provider that does not answer;
// it fits nodestatus.HealthCheck. [Controller.Check] is about the loop only.
//
// A List that fails says nothing about any pod. A call of the provider that
// hangs holds up its own pod only. A status that the API refuses as invalid is
// not sent again until it changes, and never keeps a pod from being deleted.
// Where a request is answered with "no such pod", nothing follows before the
// informer says so too, or the API has said it twice. A status that may have been
// stored although no answer came is read before it is written again.
//
// If the process dies, the next one finds what runs through List. What can be
// lost then is the exit code of a pod that had just stopped: a provider that is
// a [Releaser] keeps it until it is stored.
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
