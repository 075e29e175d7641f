// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package lease renews the Lease objects by which nodes report that they are
// alive (KEP-589), for one node or ten thousand in a process.
//
// It does the work of the kubelet's lease controller in
// k8s.io/component-helpers, and also handles a clock that is set back, a Node that
// was re-created, a second process with the same name, and a connection whose
// other end has vanished.
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
//			PhaseChanged: func(p lease.PhaseChanged) { nodes.Trigger(p.NodeName) },
//			Recovered:    func(r lease.Recovered) { nodes.Resync(r.NodeName) },
//			Deleted:      func(d lease.Deleted) { nodes.Resync(d.NodeName) },
//		},
//	})
//	...
//	err = controller.Run(ctx)
//
// For many nodes, set Fleet instead of NodeName and call [Controller.Add] and
// [Controller.Remove]. With a Node informer, use [NodeOwner] as Owner, and call
// [Controller.Trigger] from the informer's handlers. End this controller last: a
// node is alive while its pods are being stopped. The client should have no rate limit
// and a connection of its own: examples/lease/heartbeat.go makes one.
//
// # Behavior
//
// A visit to a node asks Gate and Owner, and then sends one PUT with the
// resourceVersion and UID of the last answer. Only a lease that was not written
// before is read: it is created if Owner returns its Node, taken if it has no holder
// or is ours, and waited for if another process holds it, until it has expired. After a
// conflict it is read too, and if it is gone, Owner is asked again, because usually
// the Node is gone too. A start costs a GET and one write.
//
// The controller corrects the holder, the duration and the reference to the Node.
// Labels, annotations, finalizers and other owners stay. RenewTime is the wall
// clock, but grows with every write. Nothing else depends on the wall clock, except
// that [Controller.Holds] fails when it has moved on by more than the lease lasts.
//
// The renewals of a fleet are spread evenly over RenewInterval. Starts are limited
// to one and a half times the steady rate, or to a hundred a second if that is
// more. Nothing is sent for a node while its Gate returns an error, or while Owner
// reports that its Node does not exist.
//
// # Concurrency
//
// All methods may be called by any number of goroutines. A node has at most one
// visit at a time, and at most Workers nodes are visited at once. Gate, Owner and
// hooks are called without locks, and may call the Controller. A hook that hangs blocks
// its node and one worker; a Gate or Owner that hangs blocks its node only, and Run at
// its end. A waiting node has no goroutine and no timer.
//
// # Failure modes
//
//   - Failed requests are retried without limit, after 0.2 s, doubled up to 7 s,
//     with jitter, and not before Retry-After. After 401, 403 and 422 the wait is 5
//     to 7 s from the first on.
//   - With the defaults, an API server outage of 23 s makes no node Unknown; in a
//     large fleet, one of 16 s (see DESIGN.md). If the lease had expired,
//     [Hooks.Recovered] is called: the status of the node must be written again.
//   - If the answer to a write is lost, the next write meets a conflict. The read
//     after it shows our own RenewTime, which counts as a renewal.
//   - A dead connection is noticed after 45 s, or sooner with
//     [Config.ResetConnections].
//   - Of two processes for one node, the second waits until the first no longer
//     renews, and reports that once. [Controller.Holds] reports which of them may
//     act. A client that writes regardless, such as a kubelet of the same name, is
//     reported by [Hooks.Contended].
//   - If the visits of a fleet start late, because Workers are too few for the latency of
//     the API server or the client has a rate limit, one log line and
//     [Hooks.Overloaded] have the arithmetic.
//   - A Pod with another host name than its predecessor waits until the predecessor's
//     lease has expired, which is too long for kube-controller-manager if the Pod also
//     started late: set [Config.Process] or [ShutdownExpire] (see DESIGN.md).
//   - A panic in Gate or Owner counts as its error; one in a hook is only reported.
//
// # Compatibility
//
// coordination.k8s.io/v1, served since Kubernetes 1.14. A write drops Lease fields
// that are newer than the client library, as with any typed client. The kubelet and
// this package can take over a lease from one another.
//
// docs/operations.md has the metrics, events, log lines and permissions.
package lease
