// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubewright/kubewright/podsync"
)

// PodSync counts what a podsync.Controller does.
func PodSync(registry prometheus.Registerer, next podsync.Hooks) (podsync.Hooks, error) {
	s := set{registry: registry}
	var (
		provider = s.histogram("kubewright_podsync_provider_call_duration_seconds", "Time that a call of the provider took.", lagBuckets(), "op", "result")
		requests = s.histogram("kubewright_podsync_api_call_duration_seconds", "Time that an API request about one pod took.", callBuckets(), "op", "result")
		lag      = s.histogram("kubewright_podsync_status_lag_seconds", "Time from the provider's report to the status in the API.", lagBuckets()).WithLabelValues()
		pods     = s.gauge("kubewright_podsync_pods", "Pods by stage; a pod is counted from when the provider has said whether it holds it.", "stage")
		dropped  = s.counter("kubewright_podsync_dropped_total", "Things that were left out, by reason.", "reason")
		orphans  = s.gauge("kubewright_podsync_orphans_held_back", "Orphans that are held back because there are too many of them to believe it.").WithLabelValues()
	)
	hooks := next
	hooks.ProviderCall = func(e podsync.ProviderCall) {
		provider.WithLabelValues(string(e.Op), providerResultOf(e.Err)).Observe(e.Latency.Seconds())
		call(next.ProviderCall, e)
	}
	hooks.APICall = func(e podsync.APICall) {
		requests.WithLabelValues(string(e.Op), resultOf(e.Err)).Observe(e.Latency.Seconds())
		call(next.APICall, e)
	}
	hooks.StatusStored = func(e podsync.StatusStored) {
		lag.Observe(e.Lag.Seconds())
		call(next.StatusStored, e)
	}
	hooks.StageChanged = func(e podsync.StageChanged) {
		// StageUnsynced is where pods begin and never come back to: nobody has
		// told of them before.
		if e.From != podsync.StageUnsynced {
			pods.WithLabelValues(e.From.String()).Dec()
		}
		if !e.Forgotten {
			pods.WithLabelValues(e.To.String()).Inc()
		}
		call(next.StageChanged, e)
	}
	hooks.Dropped = func(e podsync.Dropped) {
		dropped.WithLabelValues(e.Reason).Inc()
		call(next.Dropped, e)
	}
	hooks.MassOrphans = func(e podsync.MassOrphans) {
		orphans.Set(float64(len(e.Refs)))
		call(next.MassOrphans, e)
	}
	return hooks, s.err()
}

// providerResultOf is the label of a call of the provider.
func providerResultOf(err error) string {
	_, rejected := errors.AsType[*podsync.RejectError](err)
	switch {
	case err == nil:
		return "ok"
	case rejected:
		return "rejected"
	case errors.Is(err, podsync.ErrNotFound):
		return "not_found"
	}
	return "error"
}
