// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodestatus registers Nodes and keeps their status true: capacity,
// addresses, conditions and other values from the embedder's functions, for one node
// or for ten thousand in one process.
//
// It does the work of the kubelet's node status manager, without the kubelet. It owns
// only the values that those functions set: it never changes conditions of other
// writers, taints and labels of administrators, and fields that no function sets.
//
// # Usage
//
// A node is described by a [Setter] or more, which fill in a scratch Node, and
// by [HealthCheck] functions, which decide about its Ready condition. Both get
// the name of the node, so that one function serves a fleet:
//
//	ns, err := nodestatus.New(nodestatus.Config{
//		Client:       clientset.CoreV1(),
//		NodeName:     "n1",
//		Setters:      []nodestatus.Setter{nodestatus.StandardLabels(), nodestatus.Capacity(capacity, nil)},
//		HealthChecks: []nodestatus.HealthCheck{runtimeIsUp},
//	})
//	if err != nil { ... }
//	err = ns.Run(ctx)
//
// With package lease it composes through functions, without import:
//
//	lc, err := lease.New(lease.Config{Owner: ns.OwnerReference, Gate: ns.Live, Hooks: lease.Hooks{
//		Recovered: func(r lease.Recovered) { ns.Resync(r.NodeName) },
//	}, ...})
//
// and nodestatus's hooks Registered, Deleted and Replaced call lc.Trigger, so
// that the lease has the new owner within one call. Set them through a variable
// that is assigned before either Run starts.
//
// [Controller.Add] and [Controller.Remove] change the set of nodes at any time.
// OnShutdown, the last write for a node, applies to Remove and to the end of Run.
//
// # Behavior
//
// Registration is one POST of the whole Node: labels, taints, and a status with
// its conditions, Ready last. The controller adopts a Node that exists: it reads
// the Node once and then patches it. The Node's taints, the rest of its spec, and
// the labels that the setters do not set stay as they are.
//
// After that the controller runs a round every SyncInterval (10 s), and at once
// after [Controller.Trigger]. A round runs the setters and health checks. It never
// waits for a request: requests have a queue of their own. The controller writes a
// change within 200 ms, and an unchanged status every ReportInterval (5 min; the
// first time after between half and one and a half of it). It sends no request in
// between: an unchanged hour costs 12 PATCHes and no GET.
//
// A write is one strategic merge patch of the status subresource. It carries
// the UID, so that it can't change another object of the same name; every
// condition that the controller owns, whole; the other fields that differ from
// the last state that the server showed, with lists replaced as a whole; and the
// removal of conditions, labels, annotations, resources and fields that this
// process set before and no longer sets.
//
// The transition time of a condition moves if and only if its status differs
// from the last one that the server showed. If another client may have written
// Unknown in the meantime (after GracePeriod without success, after the process
// was suspended, after [Controller.Resync]), the controller reads the Node before
// it writes.
//
// Run watches the Node of Config.NodeName, so it corrects a foreign change within a
// second and sees a deletion at once. A program with an informer of Nodes registers
// [Controller.EventHandler] with it before Run, and Run starts no watch; a fleet
// should have one. Without events (for a node that came with Add, or if the API
// server forbids the watch) a foreign Unknown stays until the next write, for up to
// one and a half of ReportInterval.
//
// By default the controller owns all conditions that kube-controller-manager
// expects from a kubelet: Ready, MemoryPressure, DiskPressure and PIDPressure. The
// kube-controller-manager sets all of them to Unknown after an outage, and a
// condition without an owner would stay Unknown.
//
// Config.Gate lets one of several processes act for a node. While it returns an
// error, the controller creates a missing Node and reads an existing one, because a
// Lease needs the Node as its owner, and writes nothing else.
//
// # Concurrency
//
// All methods are safe for concurrent use, and only Run blocks. The setters of one
// node run one after another in the order of Config, concurrently with its health
// checks and requests; at most Workers goroutines run rounds. The controller calls
// hooks without locks. SetterFailed may run at the same time as another hook of
// the same node. When Run returns, every function that it called has returned.
//
// A node that waits costs neither a goroutine nor a timer, and about 1.4 kB of
// memory (BenchmarkIdleNodes).
//
// # Failure modes
//
//   - A health check fails: Ready is False with the reason of the check within one
//     round, or at once with Trigger.
//   - A health check hangs: Ready is False after SetterTimeout with reason
//     HealthCheckTimeout. The controller does not call it a second time before it
//     returns. After three rounds [Controller.Live] fails, so the lease is no
//     longer renewed.
//   - A setter fails, panics or is late: its last values stay, and the other
//     setters run. A late result takes effect in the next round. Before every setter
//     has succeeded once, Ready is False with reason StatusSetterFailed.
//   - The API server is away: the controller retries without limit after 200 ms to
//     7 s, less up to half of it at random, each call under CallTimeout, and honors
//     Retry-After. After GracePeriod it reads the Node first and then writes it
//     whole. Live keeps returning nil.
//   - The API server refuses (401, 403, 422): retries after 7 s to 30 s, less up
//     to half of it at random. Parts of the status that the API server can't store
//     are left out and reported once. Credentials of another node are reported as
//     [IdentityError]. With Config.LiveNeedsStatus, Live fails after GracePeriod.
//   - The Node is deleted: [DeletedPolicy]. A 404 that is not about the Node,
//     such as a proxy's, does not count as a deletion.
//   - The Node is another object: [ReplacedPolicy]. No write changes it before the
//     controller has adopted it.
//   - Labels that a node identity may not set: see [MayLabel] and
//     Config.NodeCredentials.
//   - Two processes serve one node: with Gate one of them writes. Without Gate both
//     write, at most once a SyncInterval after a foreign change.
//   - The clock steps: only the times in conditions come from it. A forward step of
//     more than GracePeriod costs one read.
//
// # Compatibility
//
// Needs only core/v1, so every supported Kubernetes version will do. It compares
// resource versions, which are ordered by contract since Kubernetes 1.35 (KEP-5504),
// and on etcd always were.
//
// Metrics, events, log lines and permissions are in docs/operations.md of this
// repository.
package nodestatus
