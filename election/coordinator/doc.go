// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package coordinator elects leaders for Leases that have LeaseCandidate objects
// (coordination.k8s.io/v1beta1), like the controller inside kube-apiserver that
// the feature gate CoordinatedLeaderElection enables (KEP-4355).
//
// A [Controller] makes the best candidate that answers the holder of a vacant
// Lease, and asks a holder to give way to a better candidate. Candidates may be
// those of package election with the registry election.LeaseCandidates, or
// client-go's.
//
// # Usage
//
// Run a Controller in each replica of a program, inside the Lead of an election
// candidate:
//
//	election.Config{
//		Lease: types.NamespacedName{Namespace: "kube-system", Name: coordinator.BuiltInLease},
//		Lead: func(ctx context.Context, _ election.Term) error {
//			controller, err := coordinator.New(coordinator.Config{ … })
//			if err != nil {
//				return err
//			}
//			return controller.Run(ctx)
//		},
//		…
//	}
//
// With that Lease name it replaces the controllers inside the API servers, which
// compete for the Lease like any elector. If the gate is off they don't exist,
// and any other name works. To take the Lease from a built-in controller,
// release it in that controller's name, with acquireTime and renewTime equal:
//
//	now=$(date -u +%Y-%m-%dT%H:%M:%S.000000Z)
//	kubectl patch lease -n kube-system leader-election-controller --type=merge -p \
//		'{"spec":{"holderIdentity":"","leaseDurationSeconds":1,"acquireTime":"'$now'","renewTime":"'$now'"}}'
//
// The candidate, which watches the Lease, claims it before an elector that polls
// every two seconds. The built-in controller works on for up to ten seconds,
// which is harmless: two controllers cost requests, not safety.
//
// The built-in controller (Kubernetes 1.33 to 1.37) breaks full ties at random, in each
// step again. Candidates whose LeaseCandidates were created in the same second, as those
// of a Deployment are, tie. It then asks the leader to give way, again and again. A
// candidate of package election gives way to a better one only, and not before MinTenure.
// The pings and writes of the built-in controller remain. This Controller breaks ties by
// the incumbent, then by age.
//
// # Behavior
//
// The Controller decides by its observations and their times, never by a time that
// another machine has written. A holder is silent if the Controller did not see
// it renew for almost the duration of the Lease. The best of the other
// candidates is then pinged, so that it can be elected at the moment of expiry.
// A candidate that does not answer within five seconds is passed over until it
// renews its LeaseCandidate. Among equals the holder stays. A holder that is not
// a candidate, such as an elector without LeaseCandidate, keeps the Lease until
// its term ends.
//
// In an idle cluster the only requests are two watches. An election costs three
// writes (the ping, its answer and the Lease) and one read if the holder fell
// silent. The work for a change is proportional to the candidates of its Lease.
//
// # Concurrency
//
// All methods may be called by any number of goroutines. Hooks are called one at a
// time for each Lease. ErrorHandler may be called by several goroutines at once.
//
// # Failure modes
//
// The Controller is no part of what makes leadership safe: the Lease and the
// timing of candidates are. Two Controllers, or one next to the API server's,
// cost requests and changes of mind. Without any, no candidate is preferred;
// candidates of package election then claim a vacant Lease themselves after
// another LeaseDuration, and those of client-go wait.
//
// A missing permission or API ([election.ErrNoCandidateAPI]) is reported and tried
// again. If the API server drops preferredHolder, better candidates wait until the
// term of the holder ends ([ErrOffersDropped]).
//
// # Compatibility
//
// The Controller needs coordination.k8s.io/v1beta1 (Kubernetes 1.33 to 1.38, off
// by default) and permission to get, list, watch, create and patch leases and to
// get, list, watch, patch and delete leasecandidates. Metrics, events and log
// lines are listed in docs/operations.md.
package coordinator
