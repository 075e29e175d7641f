// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/coordinator"
)

// Election returns hooks that count the events of an election.Candidate. The label
// election has the given name, for example that of the Lease, because a process may
// stand in several elections.
func Election(registry prometheus.Registerer, name string, next election.Hooks) (election.Hooks, error) {
	s := set{registry: prometheus.WrapRegistererWith(prometheus.Labels{"election": name}, registry)}
	var (
		leader   = s.gauge("kubewright_election_leader", "1 while this process leads, until its work has returned.").WithLabelValues()
		terms    = s.counter("kubewright_election_terms_total", "Terms of this process that have ended, by cause.", "cause")
		length   = s.histogram("kubewright_election_term_duration_seconds", "Duration of those terms.", termBuckets()).WithLabelValues()
		drain    = s.histogram("kubewright_election_drain_duration_seconds", "Time that the work took to return after its term.", lagBuckets()).WithLabelValues()
		vacancy  = s.histogram("kubewright_election_vacancy_duration_seconds", "Time without a visible leader before a term of this process.", outageBuckets()).WithLabelValues()
		renewal  = s.histogram("kubewright_election_renewal_duration_seconds", "Duration of a renewal.", callBuckets()).WithLabelValues()
		failures = s.counter("kubewright_election_failures_total", "Requests that failed, by request and class of error.", "op", "class")
		offers   = s.counter("kubewright_election_offers_total", "Offers to a better candidate that were accepted (accepted=true) or withdrawn.", "accepted")
	)
	hooks := next
	hooks.TermStarted = func(e election.TermStarted) {
		leader.Set(1)
		if e.Vacant > 0 { // 0 if not known
			vacancy.Observe(e.Vacant.Seconds())
		}
		call(next.TermStarted, e)
	}
	hooks.TermEnded = func(e election.TermEnded) {
		leader.Set(0)
		terms.WithLabelValues(causeOf(e.Cause)).Inc()
		length.Observe(e.Duration.Seconds())
		drain.Observe(e.Drained.Seconds())
		call(next.TermEnded, e)
	}
	hooks.Renewed = func(e election.Renewed) {
		renewal.Observe(e.Latency.Seconds())
		call(next.Renewed, e)
	}
	hooks.Failed = func(e election.Failed) {
		failures.WithLabelValues(string(e.Op), e.Class).Inc()
		call(next.Failed, e)
	}
	hooks.OfferEnded = func(e election.OfferEnded) {
		offers.WithLabelValues(strconv.FormatBool(e.Accepted)).Inc()
		call(next.OfferEnded, e)
	}
	return hooks, s.err()
}

// ElectionController returns hooks that count the events of a
// coordinator.Controller. It has no metric per Lease, because a cluster may
// have thousands.
func ElectionController(registry prometheus.Registerer, next coordinator.Hooks) (coordinator.Hooks, error) {
	s := set{registry: registry}
	var (
		elections   = s.counter("kubewright_election_controller_elections_total", "Candidates made the holder of a Lease, by strategy.", "strategy")
		vacancy     = s.histogram("kubewright_election_controller_vacancy_duration_seconds", "Time for which a Lease was not seen to be renewed before its election.", outageBuckets()).WithLabelValues()
		preferences = s.counter("kubewright_election_controller_preferences_total", "Holders asked to give way to a better candidate.").WithLabelValues()
		silences    = s.counter("kubewright_election_controller_silences_total", "Pings that a candidate has left unanswered.").WithLabelValues()
		collected   = s.counter("kubewright_election_controller_collections_total", "LeaseCandidates deleted because they were not renewed.").WithLabelValues()
		failures    = s.counter("kubewright_election_controller_failures_total", "Requests that failed, by action and class of error.", "action", "class")
	)
	hooks := next
	hooks.Elected = func(e coordinator.Elected) {
		elections.WithLabelValues(e.Strategy).Inc()
		if e.Unrenewed > 0 { // 0 if the Lease had no holder
			vacancy.Observe(e.Unrenewed.Seconds())
		}
		call(next.Elected, e)
	}
	hooks.Preferred = func(e coordinator.Preferred) {
		preferences.Inc()
		call(next.Preferred, e)
	}
	hooks.Silent = func(e coordinator.Silent) {
		silences.Inc()
		call(next.Silent, e)
	}
	hooks.Collected = func(e coordinator.Collected) {
		collected.Inc()
		call(next.Collected, e)
	}
	hooks.RequestFailed = func(e coordinator.RequestFailed) {
		failures.WithLabelValues(e.Action, e.Class).Inc()
		call(next.RequestFailed, e)
	}
	return hooks, s.err()
}

// causeOf returns the label of the cause that ended a term.
func causeOf(err error) string {
	switch {
	case err == nil:
		return "finished" // the work returned on its own
	case errors.Is(err, election.ErrLost):
		return "lost"
	case errors.Is(err, election.ErrExpired):
		return "expired"
	case errors.Is(err, election.ErrSuperseded):
		return "superseded"
	case errors.Is(err, election.ErrResigned):
		return "resigned"
	}
	return "stopped" // the context of Run is done
}
