// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package lease renews the Lease objects by which nodes say that they are
// alive (KEP-589), for one node or ten thousand in a process.
//
// A [Controller] creates the Lease kube-node-lease/NAME of each of its nodes,
// renews it with one PUT per RenewInterval, ties it to its Node, and stops when
// the Node is gone or Gate closes. It does the work of the kubelet's lease
// controller in k8s.io/component-helpers. It also handles failures that
// component-helpers does not: a clock that is set back, a Node that was re-created,
// a second process with the same name, a connection whose other end has vanished.
//
// # Usage
//
// For one node, whose Node package nodestatus or another component registers:
//
//	controller, err := lease.New(lease.Config{
//		Client:   clientset.CoordinationV1(),
//		NodeName: "node-1",
//		Owner:    nodes.OwnerReference, // of a nodestatus.Controller
//		Gate:     nodes.Live,
//		Hooks: lease.Hooks{
//			Recovered: func(r lease.Recovered) { nodes.Resync(r.NodeName) },
//			Deleted:   func(d lease.Deleted) { nodes.Resync(d.NodeName) },
//		},
//	})
//	if err != nil {
//		return err
//	}
//	return controller.Run(ctx)
//
// For many, set Fleet instead of NodeName and call [Controller.Add] and
// [Controller.Remove], before or during Run. With a Node informer,
// [NodeOwner] answers for Owner, and its handlers call [Controller.Trigger].
//
// A process that ends cleanly ends this controller last: the node is alive
// while its pods are being stopped. (If its Node is deleted before that, renewal
// stops on its own.)
//
// The client should have a connection of its own, so that a reset of it breaks
// no watch, and no rate limit:
//
//	heartbeats := rest.CopyConfig(config)
//	heartbeats.QPS = -1
//	dialer := connrotation.NewDialer((&net.Dialer{}).DialContext) // k8s.io/client-go/util/connrotation
//	heartbeats.Dial = dialer.DialContext                          // and dialer.CloseAll for ResetConnections
//	clientset, err := kubernetes.NewForConfig(heartbeats)
//
// # Behavior
//
// Every visit to a node begins with Gate and Owner, which cost nothing. Then:
//
//   - A lease that was written before is written again, with the
//     resourceVersion and UID of that answer: one PUT, no GET, no watch.
//   - Else it is read. One that does not exist is created, if Owner names its
//     Node; one that is ours or has no holder is taken as it is; for one that
//     another process holds see [ForeignPolicy].
//   - A conflict is answered by a read. If the lease is gone Owner is asked
//     again before it is created, because usually the garbage collector has
//     deleted it and the Node is gone too.
//
// A start costs a GET and a POST, or a GET and a PUT. Entries of other clients
// stay on a lease: labels, annotations, finalizers, owners other than the Node. The
// holder, the duration and the reference to the Node are corrected.
//
// RenewTime is the wall clock, but grows with every write, whatever that clock
// does: kube-controller-manager ignores a renewal that is not later than the
// one it has seen. Nothing else depends on the wall clock.
//
// The nodes of a Controller renew in turn, evenly spread over RenewInterval.
// Starts are limited to one and a half times the steady rate, or a hundred a
// second if that is more, so that neither ten thousand nodes that come together nor
// the end of an outage is a storm. A node that waits has no goroutine and no timer.
//
// A node whose Gate says no is paused: nothing is sent for it. A node whose
// Node does not exist is not read or written either, until Owner says that it
// is back, at the next RenewInterval or [Controller.Trigger].
//
// # Concurrency
//
// All methods may be called by any number of goroutines, before, during and
// after Run; only Run blocks. Run has returned only after all that it started
// has ended; nothing is sent before it is called or after it has returned.
//
// A node has at most one visit at a time, also when it is removed and added
// again; Workers nodes at most are visited at once. Gate, Owner and hooks are
// called from these visits, without locks, and may call the Controller. One
// that does not return holds up its node and one worker.
//
// # Failure modes
//
// Any failure of the API is retried for as long as Run runs, after 0.2 s at
// first, doubled up to 7 s, with jitter, and no sooner than Retry-After asks.
// Refusals that no repetition helps, 401, 403 and 422, wait 5 to 7 s from the
// beginning.
//
// With the defaults, an outage of the API server of 23 s makes no node Unknown; in
// a large fleet, one of 16 s. DESIGN.md has the arithmetic. [Hooks.Recovered] is
// called if the lease had expired; the status of the node must be written then,
// because a renewal does not make a node Ready again.
//
// A request whose answer is lost may have been stored. The next write then
// meets a conflict, and the read that follows shows our own RenewTime: that is
// a renewal, not a foreign one.
//
// A connection that is dead looks like a server that does not answer, for 45 s:
// Config.ResetConnections is for that.
//
// The API server refuses (403) a client with the credentials of one node that
// writes the lease of another: reported as an [*IdentityError] that names both.
// A missing namespace kube-node-lease is reported as [ErrNoNamespace].
//
// Of two processes that serve the same node the second waits, and says so once,
// until the first no longer renews the lease: Config.Process tells them apart.
// [Controller.Holds] says which of them may act. A client that writes the lease
// without regard to that, such as a kubelet of the same name, makes it contended,
// which Hooks.Contended reports.
//
// # Compatibility
//
// coordination.k8s.io/v1, served since Kubernetes 1.14. Fields of the Lease that
// are newer than the client library are dropped by a write, as by any typed
// client. The kubelet and this package can follow each other on the same lease.
//
// Metrics, events, log lines and permissions are in docs/operations.md of this
// repository.
package lease
