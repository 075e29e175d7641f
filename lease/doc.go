// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package lease renews the Lease objects by which nodes report that they are
// alive (KEP-589). One process can do this for one node or for ten thousand.
//
// It does the work of the kubelet's lease controller in k8s.io/component-helpers. In
// addition it handles a clock that is set back, a Node that was re-created, a second
// process with the same node name, and a connection that is dead but was never closed.
//
// # Usage
//
// This is for one node. The controller of package nodestatus registers its Node, and the
// two work together:
//
//	leases, err := lease.New(lease.Config{Client: clientset.CoordinationV1(), NodeName: "node-1"})
//	...
//	node, err := nodestatus.New(nodestatus.Config{Client: clientset.CoreV1(), NodeName: "node-1", Lease: leases})
//	...
//	err = kubewright.Run(ctx, leases, node)
//
// If another component registers the Node, set Owner:
//
//	controller, err := lease.New(lease.Config{
//		Client:   clientset.CoordinationV1(),
//		NodeName: "node-1",
//		Owner:    lease.NodeOwner(nodeLister),
//	})
//	...
//	err = controller.Run(ctx)
//
// For many nodes, set Fleet instead of NodeName and call [Controller.Add] and
// [Controller.Remove]. With [NodeOwner], call [Controller.Trigger] from the informer's
// handlers. Stop this controller last, because the node must stay alive while its pods are
// being stopped. The client should have a separate connection and no rate limit:
// examples/lease/heartbeat.go makes one.
//
// # Behavior
//
// To renew a lease, the controller calls Gate and Owner. Then it sends one PUT with the
// resourceVersion and UID that the API server returned last. It reads a lease before the
// first write and after a write that is refused. So a start costs a GET and one write. If
// the lease does not exist, it is created, but only if Owner returns its Node. If it has
// no holder, or belongs to this process, the controller takes it. If another process holds
// it, the controller waits until it has expired. If a conflict shows that it was deleted,
// Owner is called again, because usually the Node was deleted too.
//
// The controller corrects the holder, the duration and the reference to the Node. Labels,
// annotations, finalizers and other owners stay. RenewTime is taken from the wall clock,
// but grows with every write. [Controller.Holds] uses the wall clock, too: it returns an
// error if that clock has advanced by more than the duration of the lease.
//
// The renewals of a fleet are spread evenly over RenewInterval. At most 100 visits start
// in a second. In a large fleet the limit is one and a half times the average rate.
// Nothing is sent for a node while its Gate returns an error, or its Node does not exist.
//
// # Concurrency
//
// All methods may be called by any number of goroutines. A visit to a node calls Gate and
// Owner and sends the requests. A node has one visit at a time, and there are at most
// Workers at once. Gate, Owner and hooks are called without locks, and may call the
// Controller. A hook that hangs blocks its node and one worker; if several do, renewals
// of other nodes begin up to RenewInterval/40 late. A Gate or Owner that hangs blocks its
// node, and keeps Run from returning. A waiting node has no goroutine and no timer.
//
// # Failure modes
//
//   - Failed requests are retried without limit. The first delay is 0.2 s. Each delay is
//     twice the one before, up to 7 s, with jitter, and at least Retry-After. After 401,
//     403 and 422 each delay is 5 to 7 s.
//   - With the defaults, an API server outage of up to 23 s makes no node Unknown. In a
//     large fleet, this holds for up to 16 s (see DESIGN.md). If the lease had expired,
//     [Hooks.Recovered] is called, because the node's status must be written again.
//   - If the answer to a write is lost, the next write gets a conflict. The lease is then
//     read, and if it has our own RenewTime, the lost write counts as a renewal.
//   - A dead connection is noticed after 45 s, or sooner with [Config.ResetConnections].
//   - If two processes run for one node, also on one machine, the second waits until the
//     first no longer renews the lease, and reports this once. Only if [Config.Process] is
//     set to one value in both, both act. [Controller.Holds] reports whether this
//     process may act. If a client takes the lease without waiting, as a kubelet with the
//     same node name does, [Hooks.Contended] is called.
//   - If visits start late, because there are too few Workers or the client has a rate
//     limit, [Hooks.Overloaded] and one log line show the numbers.
//   - A Pod that replaces one with another host name waits until the old Pod's lease has
//     expired. If it also started late, its node becomes Unknown. To prevent this, set
//     [Config.Process] or [ShutdownExpire] (see DESIGN.md).
//   - A panic in Gate or Owner counts as an error. A panic in a hook is only reported.
//
// # Compatibility
//
// The package needs coordination.k8s.io/v1 (Kubernetes 1.14). A write drops Lease fields
// that the client library does not know yet, as with any typed client. A lease can pass
// from the kubelet to this package and back.
//
// docs/operations.md has the metrics, events, log lines and permissions.
package lease
