// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubewright/kubewright/configcheckpoint"
)

// ConfigCheckpoint returns hooks that count the events of a
// configcheckpoint.Controller.
func ConfigCheckpoint(registry prometheus.Registerer, next configcheckpoint.Hooks) (configcheckpoint.Hooks, error) {
	s := set{registry: registry}
	var (
		info       = s.gauge("kubewright_configcheckpoint_info", "1 for the role of the running configuration.", "role")
		trial      = s.gauge("kubewright_configcheckpoint_trial", "1 while the running configuration is on trial.").WithLabelValues()
		deliveries = s.counter("kubewright_configcheckpoint_deliveries_total", "Deliveries of the source: a payload, nothing (unassigned) or an error.", "result")
		promotions = s.counter("kubewright_configcheckpoint_promotions_total", "Configurations that have passed their trial.").WithLabelValues()
		rejections = s.counter("kubewright_configcheckpoint_rejections_total", "Configurations that were rejected, before or after they ran.", "reason")
		condition  = s.gauge("kubewright_configcheckpoint_condition", "The condition with its current reason: 1 for True, 0 for False, -1 for Unknown.", "reason")
	)
	role, reason := only{gauge: info}, only{gauge: condition}
	hooks := next
	hooks.Delivered = func(e configcheckpoint.Delivered) {
		deliveries.WithLabelValues(deliveryOf(e)).Inc()
		call(next.Delivered, e)
	}
	hooks.Promoted = func(e configcheckpoint.Promoted) {
		promotions.Inc()
		call(next.Promoted, e)
	}
	hooks.Rejected = func(e configcheckpoint.Rejected) {
		rejections.WithLabelValues(string(e.Reason)).Inc()
		call(next.Rejected, e)
	}
	hooks.StatusChanged = func(e configcheckpoint.Status) {
		role.set(string(e.Role), 1)
		reason.set(string(e.Reason), conditionValue(e))
		trial.Set(0)
		if e.Phase == configcheckpoint.PhaseTrial {
			trial.Set(1)
		}
		call(next.StatusChanged, e)
	}
	return hooks, s.err()
}

// only keeps a gauge with one label at a single series. It removes the old
// series instead of setting it to 0, which would mean False for the condition,
// and does so after adding the new one, so that every scrape sees a series.
type only struct {
	gauge *prometheus.GaugeVec
	value string
}

func (o *only) set(label string, value float64) {
	o.gauge.WithLabelValues(label).Set(value)
	if label != o.value {
		o.gauge.DeleteLabelValues(o.value)
	}
	o.value = label
}

// deliveryOf returns the label of a delivery.
func deliveryOf(e configcheckpoint.Delivered) string {
	switch {
	case e.Err != nil:
		return "error"
	case e.Ref.Digest.IsZero():
		return "unassigned"
	}
	return "payload"
}

func conditionValue(s configcheckpoint.Status) float64 {
	switch {
	case s.Phase == configcheckpoint.PhasePending:
		return -1
	case s.OK:
		return 1
	}
	return 0
}
