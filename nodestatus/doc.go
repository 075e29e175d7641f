// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodestatus registers Nodes and keeps their status true: capacity,
// addresses, conditions and other values from the program's functions, for one node
// or for ten thousand in one process.
//
// It does the work of the kubelet's node status manager. It owns the values that those
// functions set, Ready, and the three conditions of pressure, as False if no setter sets
// them: kube-controller-manager sets them to Unknown after an outage. It never changes
// conditions of other writers, taints and labels of administrators, and fields that no
// function sets.
//
// # Usage
//
// A [Setter] fills in a scratch Node, and a [HealthCheck] decides about its Ready
// condition. Both get the name of the node, so one function serves a fleet:
//
//	ns, err := nodestatus.New(nodestatus.Config{
//		Client:       clientset.CoreV1(),
//		NodeName:     "n1",
//		Setters:      []nodestatus.Setter{nodestatus.StandardLabels(), nodestatus.Capacity(capacity, nil)},
//		HealthChecks: []nodestatus.HealthCheck{runtimeIsUp},
//		Hooks:        nodestatus.Hooks{Registered: func(r nodestatus.Registered) { leases.Trigger(r.NodeName) }},
//	})
//	...
//	err = ns.Run(ctx)
//
// The documentation of the root package connects it with package lease.
// [Controller.Add] and [Controller.Remove] change the set of nodes at any time.
//
// # Behavior
//
// Registration is one POST of the whole Node, Ready last. A Node that exists is
// adopted: it is read once and then patched. Its taints, the rest of its spec, and
// the labels that no setter sets stay as they are.
//
// After that the controller runs a round of setters and health checks every
// SyncInterval (10 s), and at once after [Controller.Trigger]. A round never waits for
// a request. [Controller.Flush] waits until the API server has the status of a round. A
// change is written within 200 ms, and an unchanged status every ReportInterval (5 min),
// which costs 12 PATCHes an hour and no GET.
//
// A write is one strategic merge patch of the status subresource. It carries the UID,
// so that it can't change another object of the same name; every condition that the
// controller owns, whole; the other fields that differ from the last state that the
// server showed; and the removal of fields that this program set before and no longer
// sets. A condition's transition time moves if and only if its status differs from
// that last state. If another client may have written in the meantime (after GracePeriod
// without success, a suspension, [Controller.Resync], or a closed Gate), the controller
// reads the Node before it writes.
//
// Run watches the Node of Config.NodeName, so it corrects a foreign change within a
// second and sees a deletion at once. A fleet should have an informer of Nodes with
// [Controller.EventHandler]. Without it a foreign Unknown stays until the next write.
//
// # Concurrency
//
// All methods are safe for concurrent use, and only Run and Flush block. The setters of
// one node run one after another in the order of Config, concurrently with its health
// checks and requests. A round holds one of Workers for at most 100 ms and then goes on
// without it, so slow functions of some nodes hold up no others. Hooks are called without
// locks. SetterFailed, SpecChanged and Overloaded may run at the same time as another
// hook of the same node. A waiting node has no goroutine and no timer.
//
// # Failure modes
//
//   - A health check fails: Ready is False with its reason within one round.
//   - A health check hangs: Ready is False after 5 s with reason HealthCheckTimeout.
//     After three rounds [Controller.Live] fails, so the lease is no longer renewed. A
//     check that was late is called again when it has returned, but not waited for.
//   - A setter fails, panics or is late: its last values stay, also in a Node that is
//     created again; see [Setter]. The first creation waits for setters that have not
//     succeeded yet, for up to GracePeriod.
//   - There are too few Workers: the log and [Hooks.Overloaded] have the arithmetic.
//   - The API server is away: the controller retries without limit after 200 ms to
//     7 s, less up to half of it at random, and honors a Retry-After of up to 30 s.
//     Live keeps returning nil.
//   - The API server refuses (401, 403, 422): the same after 7 s to 30 s. Parts of the
//     status that it can't store are left out and reported once.
//   - The Node is deleted, or is another object: [DeletedPolicy]; another object is
//     adopted, because the name is the identity. A
//     404 that is not about the Node, such as a proxy's, is no deletion.
//   - Two processes serve one node: with Gate one of them writes. Without Gate both
//     write, at most once a SyncInterval after a foreign change.
//   - The clock steps: only the times in conditions come from it. A forward step of
//     more than GracePeriod costs one read.
//
// # Compatibility
//
// Needs only core/v1. It compares resource versions, which are ordered by contract
// since Kubernetes 1.35 (KEP-5504), and on etcd always were.
//
// docs/operations.md has the metrics, events, log lines and permissions.
package nodestatus
