// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package metrics turns the hooks of Kubewright's packages into Prometheus
// metrics, with the names in docs/operations.md. Copy it: this file and the
// files of the packages that a program uses.
//
// Each function registers the metrics of one package and returns hooks that
// count events and then call the program's own hooks:
//
//	hooks, err := metrics.Lease(registry, lease.Hooks{
//		Contended: func(c lease.Contended) { alert("two processes renew the lease of " + c.NodeName) },
//	})
//
// Call it once for each registry. The error names metrics that are already
// registered. A process with two controllers of one package distinguishes them
// with prometheus.WrapRegistererWith and an additional label.
//
// No label contains the name of a node, a pod or a device, or the text of an
// error: a fleet of ten thousand nodes has as many series as one node.
package metrics

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Handler serves the registered metrics. It omits a metric that cannot be
// collected and counts it in promhttp_metric_handler_errors_total, so that the
// other metrics remain available.
func Handler(registry *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry, ErrorHandling: promhttp.ContinueOnError})
}

// A Checker reports whether the loop of a controller makes progress. All controllers
// of the library are Checkers.
type Checker interface {
	Name() string
	Check(*http.Request) error
}

// Health registers a metric that is 1 for each controller whose Check returns nil, and
// 0 for the others. Their names must differ.
func Health(registry prometheus.Registerer, controllers ...Checker) error {
	s := set{registry: registry}
	for _, c := range controllers {
		const name = "kubewright_healthy"
		s.register(name, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: name, Help: "1 if the controller makes progress, as its Check reports.",
			ConstLabels: prometheus.Labels{"controller": c.Name()},
		}, func() float64 {
			if c.Check(&http.Request{}) != nil {
				return 0
			}
			return 1
		}))
	}
	return s.err()
}

// Buckets of histograms. Calls end within CallTimeout, 10 s. An outage begins
// to matter when a lease expires, after 40 s. Pools and statuses that take
// minutes should be visible.
func callBuckets() []float64   { return prometheus.ExponentialBuckets(0.005, 2, 12) }   // 5 ms to 10 s
func lagBuckets() []float64    { return prometheus.ExponentialBuckets(0.025, 2.5, 11) } // 25 ms to 4 min
func outageBuckets() []float64 { return prometheus.ExponentialBuckets(1, 2, 14) }       // 1 s to 2 h 16 min
func termBuckets() []float64   { return prometheus.ExponentialBuckets(60, 4, 9) }       // 1 min to 45 days
func sizeBuckets() []float64   { return prometheus.ExponentialBuckets(256, 2, 10) }     // 256 B to 128 KiB

// A set collects the metrics of one package before they are registered.
type set struct {
	registry prometheus.Registerer
	errs     []error
}

func (s *set) counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	s.register(name, c)
	return c
}

func (s *set) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	s.register(name, g)
	return g
}

func (s *set) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	s.register(name, h)
	return h
}

func (s *set) register(name string, c prometheus.Collector) {
	if err := s.registry.Register(c); err != nil {
		s.errs = append(s.errs, fmt.Errorf("metrics: %s: %w", name, err))
	}
}

func (s *set) err() error { return errors.Join(s.errs...) }

// call calls the program's own hook, if it has one.
func call[T any](hook func(T), event T) {
	if hook != nil {
		hook(event)
	}
}

// resultOf returns the label of an API request: ok, the status code of a
// refusal, or unanswered. It does not use the reason of a refusal, because an
// admission webhook may set it to any text.
func resultOf(err error) string {
	if err == nil {
		return "ok"
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Code != 0 {
		return strconv.Itoa(int(status.Status().Code))
	}
	return "unanswered"
}
