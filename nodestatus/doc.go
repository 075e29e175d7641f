// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodestatus registers Nodes and keeps their status true: capacity,
// addresses, conditions and what else the embedder's functions say, for one
// node or for ten thousand in one process.
//
// It does what the kubelet's node status manager does, without the kubelet, and
// owns only what it was given: conditions of other writers, taints and labels
// that administrators have added, and every field that nobody here sets are
// never touched.
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
// OnShutdown, which says what is written last for a node, applies to Remove as
// to the end of Run.
//
// # Behavior
//
// Registration is one POST of the whole Node: labels, taints, and a status with
// its conditions, Ready last. A Node that exists is adopted: read once, then
// patched. Its taints and the rest of its spec stay as they are, and so do the
// labels that the setters do not set.
//
// After that every SyncInterval (10 s), and at once after [Controller.Trigger],
// a round runs the setters and health checks. A change of what they say is
// written within 200 ms; an unchanged status is written every ReportInterval
// (5 min), the first time after between half and one and a half of it. In
// between no request is sent: an unchanged hour costs 12 PATCHes and no GET.
//
// A write is one strategic merge patch of the status subresource. It carries
// the UID, so that it can't land on another object of the same name; every
// condition that the controller owns, whole; of the other fields those that
// differ from what the server showed last, lists replaced as a whole; and the
// removal of conditions, labels, annotations, resources and fields that were
// set before and are no longer.
//
// The transition time of a condition moves if and only if its status differs
// from what the server showed last. The server's view is that of the last
// answer or, better, of the informer behind [Controller.EventHandler]; with
// one, a write also carries the resourceVersion, so that a write of somebody
// else that came between is never dated wrongly. Where somebody may have
// written Unknown meanwhile (after GracePeriod without success, after a sleep
// of the process, after [Controller.Resync]) the Node is read before it is
// written. Without any of these a flip to Unknown that nobody tells of is
// undone by the next write, with the older transition time.
//
// What comes back is compared with what was said. What another writer has
// changed is said once more at once, and after that at most once a
// SyncInterval.
//
// By default all of the conditions that kube-controller-manager takes for the
// kubelet's are owned: Ready, MemoryPressure, DiskPressure and PIDPressure. It
// sets all of them to Unknown after an outage, and of those without an owner
// nobody would ever take that back.
//
// # Concurrency
//
// All methods may be called by anybody at any time, and none but Run blocks.
// Setters of one node run one after another in the order of Config, its health
// checks beside them; nodes are worked on by at most Workers goroutines. Hooks
// are called without locks by the goroutine that works on the node. When Run
// returns, every function it has called has returned.
//
// A node that waits costs neither a goroutine nor a timer, and about 1.5 kB of
// memory: the Node is kept encoded, which here takes 0.9 kB of it
// (BenchmarkIdleNodes). A round that finds nothing to write takes about 50 µs.
//
// # Failure modes
//
//   - A health check fails: Ready is False with its reason within one round.
//     It is at once with Trigger. The node does not go silent: an honest reason
//     after seconds is better than Unknown after 50 s.
//   - A setter or health check hangs: Ready is False after SetterTimeout with
//     reason StatusSetterTimeout or HealthCheckTimeout, and it is not called a
//     second time before it returns. After three rounds [Controller.Live] fails
//     and the lease is no longer renewed.
//   - A setter fails: what it set last stays, and the others go on. Before all
//     have succeeded once Ready is False with reason StatusSetterFailed.
//   - The API server is away: retries after 200 ms to 7 s, less up to half of
//     it at random, for ever, each call under CallTimeout, Retry-After
//     honoured. After GracePeriod the Node is read first and then written whole.
//   - The API server refuses (401, 403, 422): retries after 7 s to 30 s, less up
//     to half of it at random. Credentials of another node are reported as
//     [IdentityError]. After GracePeriod Live fails: a lease would vouch for a
//     status that is not known to anybody.
//   - The Node is deleted: [DeletedPolicy]. A 404 that is not about the Node,
//     such as a proxy's, is not taken for that.
//   - The Node is another object: [ReplacedPolicy]. No write lands on it before
//     it is adopted.
//   - Another writer is faster than a write that carries the resourceVersion:
//     the Node is read and written again, at once and twice at most; then it is
//     written without.
//   - Labels that a node identity may not set: see [MayLabel] and
//     Config.NodeCredentials.
//   - Two processes serve one node: both write what they say, whenever they see
//     the other's, at most once a SyncInterval. Package lease tells of it.
//   - The clock steps: nothing. Only the times in conditions come from it. A
//     forward step of more than GracePeriod costs one read.
//
// # Compatibility
//
// Needs only core/v1, so every supported Kubernetes version will do. The
// comparison of resource versions relies on them being ordered, as they are for
// every API server on etcd and by contract since Kubernetes 1.35 (KEP-5504). A
// Node's status is honoured when it is created since Kubernetes 1.0.
//
// Metrics, events, log lines and permissions are in docs/operations.md of this
// repository.
package nodestatus
