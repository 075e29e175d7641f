// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubewright/kubewright/nodeapi"
)

// NodeAPI returns hooks that count the requests to a nodeapi.Server.
func NodeAPI(registry prometheus.Registerer, next nodeapi.Hooks) (nodeapi.Hooks, error) {
	s := set{registry: registry}
	var (
		requests = s.histogram("kubewright_nodeapi_request_duration_seconds", "Duration of a request, that of a stream included.", callBuckets(), "endpoint", "method", "code")
		open     = s.gauge("kubewright_nodeapi_streams", "Open exec, attach, port-forward and log streams.").WithLabelValues()
		rejected = s.counter("kubewright_nodeapi_streams_rejected_total", "Requests that were rejected because too many streams are open.").WithLabelValues()
		expiry   = s.gauge("kubewright_nodeapi_certificate_expiry_seconds", "Unix time at which the serving certificate expires.").WithLabelValues()
	)
	hooks := next
	hooks.Request = func(e nodeapi.Request) {
		requests.WithLabelValues(e.Endpoint, methodOf(e.Method), strconv.Itoa(e.Code)).Observe(e.Latency.Seconds())
		call(next.Request, e)
	}
	hooks.Streams = func(e nodeapi.StreamsOpen) {
		open.Set(float64(e.Open))
		if e.Rejected {
			rejected.Inc()
		}
		call(next.Streams, e)
	}
	hooks.Certificate = func(e nodeapi.CertificateUsed) {
		expiry.Set(float64(e.NotAfter.Unix()))
		call(next.Certificate, e)
	}
	return hooks, s.err()
}

// methodOf returns the label of an HTTP method, which is any text that a client sends.
func methodOf(method string) string {
	switch method {
	case "GET", "HEAD", "POST", "PUT":
		return method
	}
	return "other"
}
