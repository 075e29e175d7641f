// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodestatus registers Nodes and keeps their status up to date. Functions of the
// program provide capacity, addresses, conditions and other values. One process can serve
// one node or ten thousand.
//
// It does the work of the kubelet's node status manager. It owns the values that these
// functions set and the Ready condition. It also owns MemoryPressure, DiskPressure and
// PIDPressure, and sets them to False if no function sets them, because
// kube-controller-manager sets them to Unknown during an outage. It never changes other
// conditions, an administrator's taints and labels, and fields that no function sets. A
// Node that a kubelet maintains must not have a second owner: package
// configcheckpoint/kube shows how an agent next to a kubelet writes a condition.
//
// # Usage
//
// A [Setter] fills in the fields of a Node, and a [HealthCheck] decides about its Ready
// condition. Both get the name of the node, so that one function can serve a fleet:
//
//	node, err := nodestatus.New(nodestatus.Config{
//		Client:       clientset.CoreV1(),
//		NodeName:     "n1",
//		Lease:        leases, // a *lease.Controller
//		Setters:      nodestatus.Standard(nodestatus.Capacity(capacity, nil)),
//		HealthChecks: []nodestatus.HealthCheck{runtimeIsUp},
//	})
//	...
//	err = kubewright.Run(ctx, leases, node)
//
// Config.Lease connects the Node with its lease in both directions. In a
// fleet, [Controller.Add] and [Controller.Remove] add and remove nodes at any time, and the
// program also adds and removes them at the lease.
//
// # Behavior
//
// A Node is registered by one POST of the whole object. A Node that exists already is
// read once and then patched. Its taints, the rest of its spec, and the labels that no
// setter sets stay as they are.
//
// After that the controller runs a round of setters and health checks every
// SyncInterval (10 s), and at once after [Controller.Trigger]. A round never waits for
// a request. [Controller.Flush] waits until the API server has the status of a round. A
// change is written within 200 ms. An unchanged status is written every ReportInterval
// (5 min), which costs 12 PATCHes an hour and no GET.
//
// A write is one strategic merge patch of the status subresource. It contains the UID, so
// that it can't change another Node of the same name. It contains all conditions that the
// controller owns, and other fields only if they differ from the Node that the API server
// returned last. Fields that this program no longer sets are removed. The transition time
// of a condition changes only with its status. Before a write the controller reads the Node
// if another client may have changed it: after a suspension of the process, after
// [Controller.Resync], when the Gate opens, and when a health check that hung returns. After
// a write that failed, which may have been stored, the next one has the whole status. If the
// Node has changed in the meantime, it is read first.
//
// Run watches the Node of Config.NodeName. So it notices a deletion at once, and corrects
// changes of other clients within a second. A fleet should have an informer of Nodes with
// [Controller.EventHandler]. Without one, a condition that kube-controller-manager has
// set to Unknown stays until the next write.
//
// # Concurrency
//
// All methods are safe for concurrent use, and only Run and Flush block. The setters of
// one node run one after another in the order of Config, concurrently with its health
// checks and requests. A round uses a worker for at most 100 ms and then continues without
// it, so slow functions of one node do not delay other nodes. Hooks are called without
// locks. SetterFailed, SpecChanged and Overloaded may be called at the same time as another
// hook of the same node. A waiting node has no goroutine and no timer.
//
// # Failure modes
//
//   - If a health check fails, Ready is False within one round, with the error's reason.
//   - If a health check hangs, Ready is False after 5 s with reason HealthCheckTimeout.
//     After three rounds [Controller.Live] fails, so that the lease is not renewed. Until
//     the check returns, only a changed status is written, because each write would make
//     the node look alive.
//   - If a setter fails, panics or is late, its last values stay. A Node that is created
//     again has them, too; see [Setter]. The first creation waits for setters that have
//     not succeeded yet, for up to GracePeriod.
//   - If there are too few Workers, [Hooks.Overloaded] and the log show the numbers.
//   - If the API server is away, the controller retries without limit. The delay grows
//     from 200 ms to 7 s, and a random part of it, up to half, is left out. It honors a
//     Retry-After of up to 30 s. Live keeps returning nil.
//   - If the API server refuses a write (401, 403, 422), the delay is 7 s to 30 s. Parts
//     of the status that it can't store are left out and reported once.
//   - If the Node is deleted, [DeletedPolicy] decides. If another object replaces it, the
//     controller adopts that one, because a node is identified by its name. A 404 that is
//     not about the Node, such as that of a proxy, does not count.
//   - If two processes serve one node, a Gate lets one of them write. Without Gate both
//     write, and each corrects the other at most once a SyncInterval.
//   - If the clock is set, only the times of conditions change. A step forward of more
//     than GracePeriod costs one read.
//
// # Compatibility
//
// The package needs only core/v1. It compares resource versions, whose order Kubernetes
// guarantees since 1.35 (KEP-5504); with etcd they always had it.
//
// docs/operations.md has the metrics, events, log lines and permissions.
package nodestatus
