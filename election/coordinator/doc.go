// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package coordinator elects leaders for Leases that have LeaseCandidate objects
// (coordination.k8s.io/v1beta1), like the controller inside kube-apiserver that
// the feature gate CoordinatedLeaderElection enables (KEP-4355).
//
// If a Lease has no holder, a [Controller] pings its candidates and makes the best one
// that answers the holder. It asks a holder to give way to a better candidate. The
// candidates may use package election with the registry election.LeaseCandidates, or
// client-go.
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
// If the candidates run in the same processes, a Controller in each process without such a
// candidate is simpler: all of them work, and restrict them with [Config.Namespace]. This also
// makes the fail-over shorter, see below.
//
// With that Lease name it replaces the controllers inside the API servers, because they
// compete for the same Lease. If the feature gate is off, there are no such controllers,
// and any other name works. To take the Lease from a built-in controller, release it as
// that controller does, with the same acquireTime and renewTime:
//
//	now=$(date -u +%Y-%m-%dT%H:%M:%S.000000Z)
//	kubectl patch lease -n kube-system leader-election-controller --type=merge -p \
//		'{"spec":{"holderIdentity":"","leaseDurationSeconds":1,"acquireTime":"'$now'","renewTime":"'$now'"}}'
//
// The candidate watches the Lease. So it claims the Lease before the built-in controllers,
// which poll every two seconds. If a poll comes in between, a built-in controller holds the
// Lease again: release it once more. The built-in controller may continue to work for up to
// ten seconds. This is harmless: two controllers send more requests, but there is still one
// leader.
//
// The built-in controller (Kubernetes 1.33 to 1.37) has a defect. If two candidates have
// equal versions and their LeaseCandidates were created in the same second, as happens in
// a Deployment, it chooses at random each time. So it asks the leader again and again to
// give way. A candidate of package election ignores this unless the other candidate is
// better and MinTenure is over, but the requests remain. This Controller prefers the
// holder, and then the older candidate.
//
// # Behavior
//
// The Controller uses the times at which it observes changes, and never a time that
// another machine has written. If it has not seen the holder renew for almost the duration
// of the Lease, it pings the best of the other candidates, so that it can elect that
// candidate when the Lease expires. A candidate that does not answer within five seconds
// is ignored until it renews its LeaseCandidate. If candidates are equal, the holder stays.
// A holder without a LeaseCandidate keeps the Lease until its term ends.
//
// In an idle cluster the only requests are two watches. An election costs three
// writes: the ping, its answer and the Lease. If the holder stopped renewing, it also costs
// one read. The work for a change depends only on the number of candidates for that Lease.
//
// # Concurrency
//
// All methods may be called by any number of goroutines. Hooks are called one at a
// time for each Lease. ErrorHandler may be called by several goroutines at once.
//
// # Failure modes
//
// A Controller can't cause two leaders, because only the Lease and the timing of the
// candidates decide that. If two Controllers run, or a Controller and the built-in one,
// there are more requests, and their choices may differ. If there is none, no candidate
// is preferred. Then candidates of package election claim a free Lease after another
// LeaseDuration, and candidates of client-go wait. If the leader crashes together with the
// only Controller that works, the next Controller must watch the Lease for a LeaseDuration
// first, so the fail-over takes two.
//
// If a permission or the API ([election.ErrNoCandidateAPI]) is missing, the Controller
// reports this and tries again. If the API server drops preferredHolder, better candidates
// wait until the term of the holder ends ([ErrOffersDropped]).
//
// # Compatibility
//
// The Controller needs coordination.k8s.io/v1beta1 (Kubernetes 1.33 to 1.38, off
// by default) and permission to get, list, watch, create and patch leases and to
// get, list, watch, patch and delete leasecandidates. Metrics, events and log
// lines are listed in docs/operations.md.
package coordinator
