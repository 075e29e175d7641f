// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubewright/kubewright/podsync"
)

// PodSync returns hooks that count the events of a podsync.Controller.
func PodSync(registry prometheus.Registerer, next podsync.Hooks) (podsync.Hooks, error) {
	s := set{registry: registry}
	var (
		provider = s.histogram("kubewright_podsync_provider_call_duration_seconds", "Duration of a provider call.", lagBuckets(), "op", "result")
		requests = s.histogram("kubewright_podsync_api_call_duration_seconds", "Duration of an API request about one pod, or of a list or the start of a watch of pods.", callBuckets(), "op", "result")
		lag      = s.histogram("kubewright_podsync_status_lag_seconds", "Time from the provider's report to the status in the API.", lagBuckets()).WithLabelValues()
		pods     = s.gauge("kubewright_podsync_pods", "Pods by stage, once the provider has reported whether it has them.", "stage")
		dropped  = s.counter("kubewright_podsync_dropped_total", "Objects, fields and actions that were skipped, by reason.", "reason")
		orphans  = s.gauge("kubewright_podsync_orphans_held_back", "Orphans that are not stopped because there are implausibly many of them.").WithLabelValues()
		losses   = s.gauge("kubewright_podsync_losses_held_back", "Pods that the provider's List leaves out and that are not taken for lost because there are implausibly many of them.").WithLabelValues()
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
		// Pods begin in StageUnsynced and never return to it, and no hook has
		// been called for it.
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
		held := orphans
		if e.Lost {
			held = losses
		}
		held.Set(float64(len(e.Refs)))
		call(next.MassOrphans, e)
	}
	return hooks, s.err()
}

// providerResultOf returns the label of a provider call.
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
