// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubewright is the root of a library of node controllers for programs
// that are nodes: custom kubelets, virtual nodes and device drivers. It contains
// no code. Each controller is a separate package that imports none of the others:
//
//   - [github.com/kubewright/kubewright/lease] renews the Lease of a node, for
//     one node or thousands in a process.
//   - [github.com/kubewright/kubewright/nodestatus] registers the Node, keeps
//     conditions and status up to date, and notices when the Node is deleted
//     or replaced.
//   - [github.com/kubewright/kubewright/podsync] reconciles the Pods bound to a
//     node with a provider that the program implements.
//   - [github.com/kubewright/kubewright/election] elects the best of the
//     replicas of a program as its leader, and never two at once.
//   - [github.com/kubewright/kubewright/resourceslice] publishes devices as
//     ResourceSlices for Dynamic Resource Allocation.
//   - [github.com/kubewright/kubewright/configcheckpoint] stores, tries out and
//     rolls back configurations, so that a node always has a good one.
//
// Some have parts that are useful alone: podsync/podruntime makes a provider of a
// container runtime, podsync/podenv resolves environments and volumes,
// election/coordinator elects candidates of other programs, and
// resourceslice/claimstore records the prepared claims of a DRA driver. Package
// [github.com/kubewright/kubewright/apitest] is an API server in memory for tests,
// and apitest/explore runs a controller with every fault at every place. The module
// [github.com/kubewright/kubewright/nodeapi] serves kubectl logs, exec, attach and
// port-forward.
//
// # Composition
//
// A program connects the controllers in its main function: if one controller
// depends on another, its Config has a function field for it. This is a complete
// node with the three controllers that every node needs:
//
//	func serve(ctx context.Context, client kubernetes.Interface, name string, provider podsync.Provider) error {
//		var leases *lease.Controller
//		holds := func(ctx context.Context, name string) error { return leases.Holds(ctx, name) } // of two processes one acts
//		pods, err1 := podsync.New(podsync.Config{Client: client.CoreV1(), NodeName: name, Provider: provider, Gate: holds})
//		node, err2 := nodestatus.New(nodestatus.Config{
//			Client: client.CoreV1(), NodeName: name, Gate: holds,
//			Setters: []nodestatus.Setter{
//				nodestatus.Capacity(corev1.ResourceList{"pods": resource.MustParse("110")}, nil), // without it no pod comes
//				nodestatus.HostInfo(corev1.NodeSystemInfo{KubeletVersion: "v1.37.0"}),
//				nodestatus.Addresses(corev1.NodeAddress{Type: corev1.NodeHostName, Address: name}), // kubectl logs needs one
//				nodestatus.StandardLabels(),
//			},
//			// The loop of podsync moves; the pods are known, and the provider answers.
//			HealthChecks: []nodestatus.HealthCheck{func(context.Context, string) error { return pods.Check(nil) }, pods.CheckProvider},
//			OnShutdown:   nodestatus.ShutdownNotReady,
//			Hooks:        nodestatus.Hooks{Registered: func(r nodestatus.Registered) { leases.Trigger(r.NodeName) }},
//		})
//		leases, err3 := lease.New(lease.Config{
//			Client: client.CoordinationV1(), NodeName: name,
//			Owner: node.OwnerReference, // no lease without its Node
//			Gate:  node.Live,           // a stuck process must not look alive
//			// In a Deployment set Process to its name, and OnShutdown to lease.ShutdownExpire: else the next Pod waits.
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
// If two processes run this for one node, the second waits, and reports that it
// does, until the first no longer renews the lease. After a process was frozen or
// disconnected, its gates are closed. The Node may be created while the gates are
// closed, because the lease needs it as its owner.
//
// The other controllers are connected in the same way. An election.Candidate has
// such a function as its Lead, so that one of several replicas manages the node.
// The Owner of a resourceslice.Config calls OwnerReference of the
// nodestatus.Controller. The NodeCondition of a configcheckpoint.Controller is one
// of the Setters of nodestatus. The examples directory has programs to copy, and
// examples/composetest shows how to test a composition in virtual time.
package kubewright
