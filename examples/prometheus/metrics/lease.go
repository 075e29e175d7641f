// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubewright/kubewright/lease"
)

// Lease returns hooks that count the events of a lease.Controller.
func Lease(registry prometheus.Registerer, next lease.Hooks) (lease.Hooks, error) {
	s := set{registry: registry}
	var (
		renewals    = s.counter("kubewright_lease_renewals_total", "Renewals that the API server accepted.").WithLabelValues()
		latency     = s.histogram("kubewright_lease_renewal_duration_seconds", "Duration of a renewal.", callBuckets()).WithLabelValues()
		failures    = s.counter("kubewright_lease_failures_total", "Lease requests that failed, by class of error.", "class")
		outage      = s.histogram("kubewright_lease_outage_duration_seconds", "Time between two renewals if the lease expired in between.", outageBuckets()).WithLabelValues()
		nodes       = s.gauge("kubewright_lease_nodes", "Nodes by the phase of their lease, except for pending and stopped ones.", "phase")
		contentions = s.counter("kubewright_lease_contentions_total", "Leases that another client keeps writing.").WithLabelValues()
		takeovers   = s.counter("kubewright_lease_takeovers_total", "Leases taken from another holder.").WithLabelValues()
		overloads   = s.counter("kubewright_lease_overloads_total", "Times that renewals began to be late because all workers were busy.").WithLabelValues()
	)
	hooks := next
	hooks.Renewed = func(e lease.Renewed) {
		renewals.Inc()
		latency.Observe(e.Latency.Seconds())
		call(next.Renewed, e)
	}
	hooks.Failed = func(e lease.Failed) {
		failures.WithLabelValues(e.Class).Inc()
		call(next.Failed, e)
	}
	hooks.Recovered = func(e lease.Recovered) {
		outage.Observe(e.Outage.Seconds())
		call(next.Recovered, e)
	}
	hooks.PhaseChanged = func(e lease.PhaseChanged) {
		// A node begins in PhasePending, for which the hook is not called, and
		// ends in PhaseStopped: neither is counted.
		if e.From != lease.PhasePending {
			nodes.WithLabelValues(e.From.String()).Dec()
		}
		if e.To != lease.PhasePending && e.To != lease.PhaseStopped {
			nodes.WithLabelValues(e.To.String()).Inc()
		}
		call(next.PhaseChanged, e)
	}
	hooks.Contended = func(e lease.Contended) {
		contentions.Inc()
		call(next.Contended, e)
	}
	hooks.TakenOver = func(e lease.TakenOver) {
		takeovers.Inc()
		call(next.TakenOver, e)
	}
	hooks.Overloaded = func(e lease.Overloaded) {
		if !e.Ended {
			overloads.Inc()
		}
		call(next.Overloaded, e)
	}
	return hooks, s.err()
}
