// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubewright is the root of a library for programs that act as Kubernetes
// nodes: custom kubelets, virtual nodes and device drivers. This package has no
// code. Each controller is a package that does not import the others:
//
//   - [github.com/kubewright/kubewright/lease] renews the Lease of a node. One
//     process can do this for thousands of nodes.
//   - [github.com/kubewright/kubewright/nodestatus] registers the Node, keeps
//     conditions and status up to date, and notices when the Node is deleted
//     or replaced.
//   - [github.com/kubewright/kubewright/podsync] runs the Pods that are bound to
//     a node, through a provider that the program implements.
//   - [github.com/kubewright/kubewright/election] elects the best replica of a
//     program as its leader, and never two at once.
//   - [github.com/kubewright/kubewright/resourceslice] publishes devices as
//     ResourceSlices for Dynamic Resource Allocation.
//   - [github.com/kubewright/kubewright/configcheckpoint] stores a new
//     configuration, tries it out, and rolls it back if it is bad.
//
// Some packages below these can be used alone. Package podsync/podruntime makes a
// provider from a container runtime. Package podsync/podenv resolves environment
// variables and volumes. Package election/coordinator elects leaders among the
// candidates of other programs. For a DRA driver, package resourceslice/claimstore records
// which claims it has prepared, resourceslice/claimstatus writes the status of their
// devices, and resourceslice/sysfs reads the attributes of PCI devices.
//
// For tests, [github.com/kubewright/kubewright/apitest] is an API server in memory, and
// apitest/explore runs a controller again and again, each time with another fault. The
// module apitest/crdschema gives that server the schemas of CustomResourceDefinitions.
//
// The module [github.com/kubewright/kubewright/nodeapi] serves kubectl logs, exec, attach
// and port-forward. The module [github.com/kubewright/kubewright/vkadapter] runs a provider
// that was written for virtual-kubelet.
//
// # Composition
//
// A program connects the controllers in its main function. If a controller depends on
// another one, its Config has a field for a function of that other controller. This is
// a complete node, with the three controllers that every node needs:
//
//	func serve(ctx context.Context, client kubernetes.Interface, name string, provider podsync.Provider) error {
//		var leases *lease.Controller
//		holds := func(ctx context.Context, name string) error { return leases.Holds(ctx, name) } // so that only one process acts
//		pods, err1 := podsync.New(podsync.Config{Client: client.CoreV1(), NodeName: name, Provider: provider, Gate: holds})
//		node, err2 := nodestatus.New(nodestatus.Config{
//			Client: client.CoreV1(), NodeName: name, Gate: holds,
//			Setters: []nodestatus.Setter{
//				nodestatus.Capacity(corev1.ResourceList{"pods": resource.MustParse("110")}, nil), // without it the node gets no pods
//				nodestatus.HostInfo(corev1.NodeSystemInfo{KubeletVersion: "v1.37.0"}),
//				nodestatus.Addresses(corev1.NodeAddress{Type: corev1.NodeHostName, Address: name}), // kubectl logs needs one
//				nodestatus.StandardLabels(),
//			},
//			// The node is ready if the loop of podsync runs, the pods are known, and the provider answers.
//			HealthChecks: []nodestatus.HealthCheck{func(context.Context, string) error { return pods.Check(nil) }, pods.CheckProvider},
//			OnShutdown:   nodestatus.ShutdownNotReady,
//			Hooks:        nodestatus.Hooks{Registered: func(r nodestatus.Registered) { leases.Trigger(r.NodeName) }},
//		})
//		leases, err3 := lease.New(lease.Config{
//			Client: client.CoordinationV1(), NodeName: name,
//			Owner: node.OwnerReference, // no lease without its Node
//			Gate:  node.Live,           // a stuck process must not look alive
//			// In a Deployment, set Process to its name and OnShutdown to lease.ShutdownExpire. Otherwise the next Pod waits.
//			Hooks: lease.Hooks{
//				PhaseChanged: func(p lease.PhaseChanged) { node.Trigger(p.NodeName) }, // the gates may be open
//				Recovered:    func(r lease.Recovered) { node.Resync(r.NodeName) },     // after an outage
//				Deleted:      func(d lease.Deleted) { node.Resync(d.NodeName) },       // the Node may be gone, too
//			},
//		})
//		if err := errors.Join(err1, err2, err3); err != nil {
//			return err
//		}
//		ctx, cancel := context.WithCancel(ctx)
//		alive, stop := context.WithCancel(context.WithoutCancel(ctx)) // the lease is renewed until the rest has ended
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
// If two processes on different hosts run this for one node, the second one reports that
// it waits. It acts when the first one no longer renews the lease. The gates of a process
// are closed until it holds the lease, and again if it was frozen or disconnected for too
// long. Only the Node may be created before, because the Node must own the lease.
//
// The other controllers are connected in the same way. If several replicas should share
// a node, such a function becomes the Lead of an election.Config. The Owner of a
// resourceslice.Config calls OwnerReference of the nodestatus.Controller. The
// NodeCondition of a configcheckpoint.Controller is one of the Setters of nodestatus.
// The examples directory has programs to copy, and examples/composetest shows how to
// test a composition in virtual time.
package kubewright
