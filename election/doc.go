// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package election chooses one leader among the replicas of a program, by a
// Lease (coordination.k8s.io/v1): the best of them by a [Strategy], on every
// cluster, and never two at once.
//
// A [Candidate] is what each replica runs. Its work, [Config.Lead], is called
// while it leads. A leader hands over to a better candidate only after its work
// has returned, so that a change of leadership costs milliseconds and not the
// length of a lease. Package election/coordinator elects for LeaseCandidate
// objects (KEP-4355).
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
// Run campaigns again after every term, in the same process. Only Lead that
// returns while its context is not done ends it.
//
// What a leader does to other systems should carry [Term.Token] where those can
// refuse a smaller one. No lease can do that for them: a request that is sent in
// time may arrive late.
//
// # Behavior
//
// The Lease is the only arbiter. Whatever else there is, records of candidates,
// offers and controllers, is a hint: where hints are lost or wrong the wrong one
// may lead, but not two, and not nobody.
//
// Every write carries the resourceVersion of what was seen last. A leader leads
// for Timing.RenewDeadline after it has sent the last renewal that succeeded.
// The others wait for leaseDurationSeconds after they have received it, each by
// its own monotonic clock. Times that another machine has written are compared
// for equality only, so it does not matter what clocks show; how much their
// rates may differ is [Timing.RateTolerance].
//
// A candidate that stands by watches the one Lease and sends nothing. A leader
// sends one PUT per RenewInterval. When the lease is free candidates claim it in
// the order of their rank, half a second apart, so that there is no herd.
//
// With the registry [OnLease] the leader chooses. After Timing.MinTenure it
// offers the lease to a better candidate, if there is one; that accepts in its
// record; the leader cancels the context of its work, goes on renewing until the
// work has returned, and then writes the other one's name as holder. A candidate
// that does not accept within Timing.AckTimeout costs nothing: its record is
// dropped and it is left alone for a minute, then two, up to sixteen. A candidate
// without sign of life for half an hour loses its record, too.
//
// With [LeaseCandidates] a controller chooses. The candidate keeps its
// LeaseCandidate, answers pings, and gives way to the preferredHolder of the
// Lease in the same order: cancel, wait, hand over.
//
// Where a candidate is written as holder over a leader who has not given the
// lease away, by a user or a controller that went by a wrong clock, it waits
// until that one must have stopped. A Lease that was deleted, or whose holder
// was emptied by somebody else, is left alone for as long.
// That goes by what a candidate has seen itself, so it is a precaution and no
// promise: don't edit or delete the Lease while somebody leads.
//
// A leader that ends in order releases the lease (empty holder, one second, as
// client-go does), and the next one claims it at once.
//
// # Concurrency
//
// All methods may be called by any number of goroutines. Lead runs in a
// goroutine of its own, one call at a time; hooks are called by the loop, one at
// a time. Run has returned only after Lead and all that it started itself have
// ended; nothing is sent before it is called or after it has returned.
//
// The context of Lead is cancelled at the end of the term by a timer of its own,
// also while a hook that hangs holds up the loop.
//
// # Failure modes
//
// A crash of the leader is followed by the next term after at most
// [Timing.CrashFailover]. An API server that is away for [Timing.MaxOutage] costs
// no term; one that is away longer costs the term and nothing else, and the same
// candidate claims the lease again if nobody else has.
//
// Failed requests are repeated after 0.25 s at first, doubled up to 5 s (a leader:
// up to 1 s), with jitter, and no sooner than Retry-After asks, but for
// renewals: a term is at stake there and it is one small request. A candidate
// that meets conflict after conflict waits as well.
//
// Work that ignores its context keeps the lease: it is renewed, nobody else
// leads, and [Candidate.Check] fails after Timing.Drain. If it can't be renewed
// either, others will lead while that work goes on. Nothing in this process can
// prevent that; to end the process can.
//
// A machine that was suspended does not notice by its monotonic clock.
// [Term.Valid] compares it with the wall clock and is false until a renewal has
// succeeded; the context is not cancelled before that has failed. A process that
// is frozen between Valid and what it does next is what the token is for.
//
// A process without permission to watch reads the Lease every RenewInterval; one
// without permission to patch writes its record with a PUT. A record that can't
// be read is no candidate. Where the LeaseCandidate API is not served
// [ErrNoCandidateAPI] is reported, and candidates claim a lease that has been
// free for [Config.FallbackAfter].
//
// Candidates that disagree about the strategy elect by that of the highest
// BinaryVersion. Where those disagree nobody loses the lease over it.
//
// The soak test models what happens to a fleet: partitions, writes that land up
// to 13 s after they were sent, lost answers, watches that stall or lose their
// place, API outages, wall clocks that step by up to an hour, monotonic clocks
// that run wrong by all of RateTolerance, hooks that hang, and work that takes
// all of Drain to stop. A clock that runs wrong is modelled by scaling the
// monotonic time of a process, its timers included. Suspension is modelled as a
// step of the wall clock; a process that is frozen in the middle of its work is
// not modelled. It checks at every moment that one Lead at most is running.
//
// # Events and hooks
//
// Events about the Lease, where Config.EventRecorder is set, of the action Lead:
//
//	BecameLeader    Normal   the candidate begins to lead
//	StoppedLeading  Normal   it has resigned, ended or was superseded
//	LeadershipLost  Warning  somebody else has the lease, or it could not be renewed
//
// Recommended names for metrics, fed by [Hooks]:
//
//	kubewright_election_leader                       TermStarted, TermEnded: 1 in between
//	kubewright_election_terms_total{cause}           TermEnded, Cause
//	kubewright_election_term_duration_seconds        TermEnded, Duration
//	kubewright_election_drain_duration_seconds       TermEnded, Drained
//	kubewright_election_vacancy_duration_seconds     TermStarted, Vacant
//	kubewright_election_renewal_duration_seconds     Renewed, Latency
//	kubewright_election_failures_total{op,class}     Failed, Op and Class
//	kubewright_election_offers_total{accepted}       OfferEnded, Accepted
//
// and by coordinator.Hooks:
//
//	kubewright_election_controller_elections_total{strategy}     Elected, Strategy
//	kubewright_election_controller_vacancy_duration_seconds      Elected, Unrenewed
//	kubewright_election_controller_preferences_total             Preferred
//	kubewright_election_controller_silences_total                Silent
//	kubewright_election_controller_collections_total             Collected
//	kubewright_election_controller_failures_total{action,class}  RequestFailed, Action and Class
//
// The log has at V0 that leadership was lost, and the first of each kind of
// failure with its end; at V2 terms, offers and other leaders; at V4 each
// request. A renewal prints nothing below V4.
//
// # Permissions
//
// In the namespace of the Lease the client needs get, list, watch, update and
// patch of leases with resourceNames, and create (which can't have them). With
// LeaseCandidates also get, list, watch, create, update and delete of
// leasecandidates; their names are those of the candidates. Config.EventRecorder
// needs create and patch of events.k8s.io events. The credentials of a node are not enough:
// they reach kube-node-lease only.
//
// # Compatibility
//
// OnLease needs nothing but coordination.k8s.io/v1, and shares a Lease with
// electors of client-go and controller-runtime: they ignore offers, and each
// side waits out the other's lease. All candidates for one Lease must use the
// same [Registry].
//
// LeaseCandidates needs coordination.k8s.io/v1beta1 (Kubernetes 1.33 to 1.38,
// off by default) and a controller: the gate CoordinatedLeaderElection, or a
// package coordinator, which also works if the gate is off.
package election
