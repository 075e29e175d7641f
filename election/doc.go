// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package election elects one leader among the replicas of a program, by a Lease
// (coordination.k8s.io/v1): the best one by a [Strategy], and never two at once.
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
// Each replica runs a [Candidate], whose work, [Config.Lead], runs while it leads. Run
// stands for election again after every term. Writes of a leader to other systems should
// carry [Term.Token], and those systems should reject a smaller one, because a request
// that is sent in time may arrive late.
//
// # Behavior
//
// The Lease is the only arbiter. Records of candidates, offers and coordinators are
// hints: if they are lost or wrong, another candidate may lead, but not two, and not
// none. A leader hands over to a better candidate only after its work has returned, so
// a change of leadership costs milliseconds instead of the length of a lease.
//
// A leader sends one PUT per RenewInterval, and leads until Timing.RenewDeadline after
// it has sent the last successful one. The others wait for leaseDurationSeconds after
// they have received it, each by its own monotonic clock. So the wall clocks may differ
// by any amount, and the rates by [Timing.RateTolerance]. A standby with a record watches
// the Lease, and sends one write in ten minutes. Candidates claim a free lease in the
// order of their rank, half a second apart.
//
// With the registry [OnLease] the leader chooses. After Timing.MinTenure it offers the
// lease to a better candidate. If that accepts, the leader cancels the context of its
// work, renews until the work has returned, and names the other candidate as the holder.
// With [LeaseCandidates] a coordinator chooses, such as package election/coordinator.
// The candidate answers its pings, and gives way to preferredHolder in the same order.
//
// If another client empties or deletes the Lease, or names a candidate over a live
// leader, candidates wait until that leader must have stopped. They can't notice an edit
// that looks like a release (empty holder, one second, acquireTime equal to renewTime),
// nor, if they start later, a deletion, a shorter leaseDurationSeconds, or a restored
// backup with a free Lease.
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
// costs no term. A longer one ends it, and the candidate stands again. Without
// permission to watch, a candidate reads the Lease every RenewInterval.
//
// Work that ignores its context keeps the lease: it is renewed, no other candidate
// leads, and [Candidate.Check] fails after Timing.Drain. If it can't be renewed either,
// another candidate will lead while the work goes on. Only the end of the process
// prevents that. After a suspension of the machine [Term.Valid] is false until a renewal
// has succeeded.
//
// # Compatibility
//
// OnLease needs nothing except coordination.k8s.io/v1, and shares a Lease with electors
// of client-go and controller-runtime. In a mixed fleet turn off ReleaseOnCancel of
// client-go, which may release the lease while its work still runs. LeaseCandidates
// needs coordination.k8s.io/v1beta1 (Kubernetes 1.33 to 1.38, off by default) and a
// coordinator (KEP-4355). All candidates for one Lease must use the same [Registry].
//
// DESIGN.md has the states and the safety argument, docs/operations.md the metrics,
// events, log lines and permissions, docs/migrate.md the way from client-go.
package election
