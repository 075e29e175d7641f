// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubewright/kubewright/nodestatus"
)

// NodeStatus returns hooks that count the events of a nodestatus.Controller.
func NodeStatus(registry prometheus.Registerer, next nodestatus.Hooks) (nodestatus.Hooks, error) {
	s := set{registry: registry}
	var (
		writes        = s.counter("kubewright_nodestatus_writes_total", "Status writes that the API server accepted, by cause.", "cause")
		latency       = s.histogram("kubewright_nodestatus_write_duration_seconds", "Duration of a status write.", callBuckets(), "cause")
		size          = s.histogram("kubewright_nodestatus_write_bytes", "Size of the patch of a status write.", sizeBuckets(), "cause")
		failures      = s.counter("kubewright_nodestatus_failures_total", "API calls that failed, by verb and class of error.", "verb", "class")
		outage        = s.histogram("kubewright_nodestatus_outage_duration_seconds", "Time from the first of consecutive failures to the next success.", outageBuckets()).WithLabelValues()
		setters       = s.counter("kubewright_nodestatus_setter_failures_total", "Setters and health checks that failed, or were late, by their place in the Config.", "field", "late")
		registrations = s.counter("kubewright_nodestatus_registrations_total", "Nodes created (created=true) or adopted.", "created")
		rebooted      = s.counter("kubewright_nodestatus_reboots_total", "Machines with another boot ID than the Node of an earlier process.").WithLabelValues()
		deleted       = s.counter("kubewright_nodestatus_deletions_total", "Nodes deleted by another client.").WithLabelValues()
		replaced      = s.counter("kubewright_nodestatus_replacements_total", "Nodes that were replaced by another object with the same name.").WithLabelValues()
		overloads     = s.counter("kubewright_nodestatus_overloads_total", "Times that rounds of setters and health checks began to be late because all workers were busy.").WithLabelValues()
		conditions    = s.counter("kubewright_nodestatus_condition_changes_total", "Changes of conditions, by type and new status.", "type", "status")
	)
	hooks := next
	hooks.Written = func(e nodestatus.Written) {
		cause := string(e.Cause)
		writes.WithLabelValues(cause).Inc()
		latency.WithLabelValues(cause).Observe(e.Latency.Seconds())
		size.WithLabelValues(cause).Observe(float64(e.Bytes))
		call(next.Written, e)
	}
	hooks.Failed = func(e nodestatus.Failed) {
		failures.WithLabelValues(e.Verb, e.Class).Inc()
		call(next.Failed, e)
	}
	hooks.Recovered = func(e nodestatus.Recovered) {
		outage.Observe(e.Outage.Seconds())
		call(next.Recovered, e)
	}
	hooks.SetterFailed = func(e nodestatus.SetterFailed) {
		setters.WithLabelValues(e.Field, strconv.FormatBool(e.Late)).Inc()
		call(next.SetterFailed, e)
	}
	hooks.Registered = func(e nodestatus.Registered) {
		registrations.WithLabelValues(strconv.FormatBool(e.Created)).Inc()
		call(next.Registered, e)
	}
	hooks.Rebooted = func(e nodestatus.Rebooted) {
		rebooted.Inc()
		call(next.Rebooted, e)
	}
	hooks.Deleted = func(e nodestatus.Deleted) {
		deleted.Inc()
		call(next.Deleted, e)
	}
	hooks.Replaced = func(e nodestatus.Replaced) {
		replaced.Inc()
		call(next.Replaced, e)
	}
	hooks.Overloaded = func(e nodestatus.Overloaded) {
		if !e.Ended {
			overloads.Inc()
		}
		call(next.Overloaded, e)
	}
	hooks.ConditionChanged = func(e nodestatus.ConditionChanged) {
		conditions.WithLabelValues(string(e.Condition.Type), string(e.Condition.Status)).Inc()
		call(next.ConditionChanged, e)
	}
	return hooks, s.err()
}
