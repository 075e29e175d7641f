// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubewright is the root of a library for programs that act as Kubernetes
// nodes: custom kubelets, virtual nodes and device drivers. This package has one
// function, Run. Each controller is a package that does not import the others:
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
// provider from a container runtime, and podsync/podsim pretends to run pods. Package
// podsync/podenv resolves environment variables and volumes. Package election/coordinator
// elects leaders among the candidates of other programs. The module election/elected runs
// the controllers of a controller-runtime manager on the leader. For a DRA driver, package
// resourceslice/claimstore records which claims it has prepared, resourceslice/claimstatus
// writes the status of their devices, and resourceslice/sysfs reads the attributes of PCI
// devices.
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
// A program connects the controllers in its main function, through fields of their Configs:
// a function of another controller, or an interface that another controller implements.
// [Run] runs them, and stops them in order. This is a complete node, with the three
// controllers that every node needs:
//
//	func serve(ctx context.Context, client kubernetes.Interface, name string, provider podsync.Provider) error {
//		leases, err1 := lease.New(lease.Config{Client: client.CoordinationV1(), NodeName: name})
//		pods, err2 := podsync.New(podsync.Config{Client: client.CoreV1(), NodeName: name, Provider: provider, Gate: leases.Holds})
//		node, err3 := nodestatus.New(nodestatus.Config{
//			Client: client.CoreV1(), NodeName: name, Lease: leases,
//			Setters:      nodestatus.Standard(),                        // and your own, as arguments
//			HealthChecks: []nodestatus.HealthCheck{pods.CheckProvider}, // the pods are known, and the provider answers
//			OnShutdown:   nodestatus.ShutdownNotReady,
//		})
//		if err := errors.Join(err1, err2, err3); err != nil {
//			return err
//		}
//		return kubewright.Run(ctx, leases, node, pods) // stops the last one first
//	}
//
// The Lease field binds node and lease in both directions. The lease is renewed while the Node
// is registered and alive. The Node is written while this process holds the lease, and read
// again after an outage. Each of these links is a field of its own, too, for a program with
// other gates, an informer, or a fleet of nodes: examples/fleet sets them.
//
// If two processes run this for one node, also on one host, the second one reports that
// it waits. It acts when the first one no longer renews the lease. The gates of a process
// are closed until it holds the lease, and again if it was frozen or disconnected for too
// long. Only the Node may be created before, because the Node must own the lease.
//
// The other controllers are connected in the same way. If several replicas should share
// a node, a function that runs it becomes the Lead of an election.Config. The Owner of a
// resourceslice.Config calls OwnerReference of the nodestatus.Controller. The
// NodeCondition of package configcheckpoint/kube is one of the Setters of nodestatus.
// The examples directory has programs to copy, and examples/composetest shows how to
// test a composition in virtual time.
package kubewright
