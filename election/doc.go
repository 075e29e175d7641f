// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package election elects one leader among the replicas of a program, with a Lease
// (coordination.k8s.io/v1). A [Strategy] decides which replica is the best leader. There
// are never two leaders at once.
//
// # Usage
//
//	candidate, err := election.New(election.Config{
//		Client:   clientset.CoordinationV1(),
//		Lease:    types.NamespacedName{Namespace: "agents", Name: "balancer"},
//		Self:     election.Peer{Identity: podName, BinaryVersion: "1.4.0"},
//		Strategy: election.NewestVersion(),
//		Lead: func(ctx context.Context, term election.Term) error {
//			for task := range tasks(ctx) {
//				if !term.Valid() {
//					break
//				}
//				task.Do(ctx, term.Token())
//			}
//			return nil
//		},
//	})
//	if err != nil {
//		return err
//	}
//	return candidate.Run(ctx)
//
// Each replica runs a [Candidate]. While it leads, it runs its work, [Config.Lead]. If the
// work returns on its own, Run returns. If the term ends before, the candidate stands for
// election again. A request that a leader sends to another system in time may arrive late.
// So such requests should contain [Term.Token], and the other system should reject a token
// that is smaller than one that it has seen.
//
// The module election/elected runs the controllers of a controller-runtime manager on the
// leader.
//
// # Behavior
//
// Only the Lease decides who leads. Candidates also write records about themselves, and
// the leader or a coordinator makes offers to better candidates. If these are lost or
// wrong, a worse candidate may lead, but some candidate will, and never two. A leader hands
// the lease over when its work has returned. So a change of leadership takes milliseconds,
// and no candidate has to wait for the lease to expire.
//
// A leader sends one PUT per RenewInterval. It leads until Timing.RenewDeadline after it
// sent the last PUT that succeeded. The other candidates wait for leaseDurationSeconds
// after they received that renewal. Each uses its own monotonic clock, so wall clocks may
// differ by any amount, and rates by [Timing.RateTolerance]. A candidate that waits watches
// the Lease, and sends one write in ten minutes. Candidates of one process that stand in many
// elections can share one watch of a namespace, a [SharedWatch]. Candidates claim a free lease
// in the order of their rank, half a second apart.
//
// With the registry [OnLease] the leader chooses. After Timing.MinTenure it offers the
// lease to a better candidate. If that candidate accepts, the leader cancels the context of
// its work, renews the lease until the work has returned, and makes the other candidate the
// holder. With [LeaseCandidates] a coordinator chooses, for example package
// election/coordinator. The candidates answer its pings, and the leader hands over to the
// preferredHolder in the same way.
//
// If another client empties or deletes the Lease, or makes a candidate the holder while
// another one leads, candidates wait until that leader must have stopped. They can't
// notice an edit that looks like a release (empty holder, one second, acquireTime equal
// to renewTime). A candidate that starts after such an edit also can't notice that the
// Lease was deleted, restored from a backup without a holder, or got a shorter
// leaseDurationSeconds.
//
// # Concurrency
//
// All methods are safe for concurrent use. Lead runs in its own goroutine, one call at a
// time. A timer cancels its context at the end of the term, even if a hook hangs.
//
// # Failure modes
//
// After a crash of the leader the next term begins within [Timing.CrashFailover], or
// sooner with [Candidate.HolderGone]. An API server outage of up to [Timing.MaxOutage]
// does not end the term. A longer one does, and the candidate stands for election again.
// Without permission to watch, a candidate reads the Lease every RenewInterval.
//
// If the work ignores its context, the lease is still renewed, so that no other candidate
// leads, and [Candidate.Check] fails after Timing.Drain. If the lease can't be renewed
// either, another candidate will lead while the work is still running. Only the end of the
// process prevents this, and [Config.OnOverrun] is the place for it. After the machine was
// suspended, [Term.Valid] returns false until a renewal has succeeded.
//
// # Compatibility
//
// OnLease needs only coordination.k8s.io/v1. Replicas that use client-go or
// controller-runtime can compete for the same Lease. Their LeaseDuration must be at most an
// hour. They must turn off ReleaseOnCancel, because with it client-go may release the lease
// while the work still runs.
// LeaseCandidates needs coordination.k8s.io/v1beta1 (Kubernetes 1.33 to 1.38, off by
// default) and a coordinator (KEP-4355). All candidates for one Lease must use the same
// [Registry].
//
// DESIGN.md has the states and the safety argument, docs/operations.md the metrics,
// events, log lines and permissions, and docs/migrate.md the migration from client-go.
package election
