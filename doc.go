// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubewright is the root of a library of node controllers for people
// who build their own kubelets, virtual nodes and device drivers. It holds no
// code. Each controller is a package of its own that imports none of the
// others:
//
//   - [github.com/kubewright/kubewright/lease] keeps the Lease of a node
//     renewed, for one node or thousands in a process.
//   - [github.com/kubewright/kubewright/nodestatus] registers the Node, keeps
//     its conditions and status true, and notices when it is deleted or
//     replaced.
//   - [github.com/kubewright/kubewright/podsync] reconciles the Pods bound to a
//     node with a provider that the embedder writes.
//   - [github.com/kubewright/kubewright/election] elects a leader among the
//     replicas of a program, the best of them, and never two at once.
//   - [github.com/kubewright/kubewright/resourceslice] publishes devices as
//     ResourceSlices for Dynamic Resource Allocation.
//   - [github.com/kubewright/kubewright/configcheckpoint] keeps the last-known-good
//     configuration: checkpoint, trial, promotion, roll-back.
//
// # Composition
//
// An embedder composes them in its own main, through functions: what one
// controller needs to know of another is a field of its Config. This is a whole
// node, of the three controllers that every one needs:
//
//	func serve(ctx context.Context, client kubernetes.Interface, name string, provider podsync.Provider) error {
//		var leases *lease.Controller
//		holds := func(ctx context.Context, name string) error { return leases.Holds(ctx, name) } // of two processes one acts
//		pods, err1 := podsync.New(podsync.Config{Client: client.CoreV1(), NodeName: name, Provider: provider, Gate: holds})
//		node, err2 := nodestatus.New(nodestatus.Config{
//			Client: client.CoreV1(), NodeName: name, Gate: holds,
//			HealthChecks: []nodestatus.HealthCheck{func(context.Context, string) error { return pods.Check(nil) }, pods.CheckProvider},
//			Hooks:        nodestatus.Hooks{Registered: func(r nodestatus.Registered) { leases.Trigger(r.NodeName) }},
//		})
//		leases, err3 := lease.New(lease.Config{
//			Client: client.CoordinationV1(), NodeName: name,
//			Owner: node.OwnerReference, // no lease without its Node
//			Gate:  node.Live,           // a stuck process must not look alive
//			Hooks: lease.Hooks{
//				PhaseChanged: func(p lease.PhaseChanged) { node.Trigger(p.NodeName) }, // the gates may be open
//				Recovered:    func(r lease.Recovered) { node.Resync(r.NodeName) },     // after an outage
//				Deleted:      func(d lease.Deleted) { node.Resync(d.NodeName) },       // is the Node gone, too?
//			},
//		})
//		if err := errors.Join(err1, err2, err3); err != nil {
//			return err
//		}
//		ctx, cancel := context.WithCancel(ctx)
//		alive, stop := context.WithCancel(context.WithoutCancel(ctx)) // a node is alive while it ends
//		var work, heart sync.WaitGroup
//		heart.Go(func() { err3 = leases.Run(alive); cancel() })
//		work.Go(func() { err2 = node.Run(ctx); cancel() })
//		work.Go(func() { err1 = pods.Run(ctx); cancel() })
//		work.Wait()
//		stop()
//		heart.Wait()
//		return errors.Join(err1, err2, err3)
//	}
//
// Of two processes that run this for one node the second waits, and says so, until
// the first no longer renews the lease. A process that was frozen or cut off finds
// its gates closed. The Node may be created with the gates closed, because the lease
// needs it for an owner.
//
// The rest composes in the same way: an election.Candidate has such a function as
// its Lead, so that one replica of several serves the node; the
// resourceslice.Config of a node has a function that calls OwnerReference of the
// nodestatus.Controller as its Owner; and the NodeCondition of a
// configcheckpoint.Controller is one of the Setters of nodestatus. The examples
// are programs to copy, and examples/composetest shows how to test a composition
// in virtual time.
package kubewright
