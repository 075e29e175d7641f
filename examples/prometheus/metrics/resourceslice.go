// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubewright/kubewright/resourceslice"
)

// ResourceSlice counts what a resourceslice.Controller does.
func ResourceSlice(registry prometheus.Registerer, next resourceslice.Hooks) (resourceslice.Hooks, error) {
	s := set{registry: registry}
	var (
		writes     = s.counter("kubewright_resourceslice_writes_total", "Requests that write a slice, by verb and result.", "driver", "verb", "result")
		latency    = s.histogram("kubewright_resourceslice_publish_duration_seconds", "Time from Set, or from a change by somebody else, to the pool being published.", lagBuckets(), "driver")
		incomplete = s.counter("kubewright_resourceslice_incomplete_seconds_total", "Time for which a pool was half published, so that none of its devices could be allocated.", "driver")
		repairs    = s.counter("kubewright_resourceslice_repairs_total", "Publishes that undid a change by somebody else.", "driver")
		devices    = s.gauge("kubewright_resourceslice_devices", "Devices that are published.", "driver")
	)
	// The gauge is a sum over the pools of a driver.
	var (
		mu    sync.Mutex
		pools = map[resourceslice.PoolID]int{}
	)
	hooks := next
	hooks.APICall = func(e resourceslice.APICall) {
		writes.WithLabelValues(e.Pool.Driver, e.Verb, resultOf(e.Err)).Inc()
		call(next.APICall, e)
	}
	hooks.Published = func(e resourceslice.Published) {
		latency.WithLabelValues(e.Pool.Driver).Observe(e.Latency.Seconds())
		incomplete.WithLabelValues(e.Pool.Driver).Add(e.Window.Seconds())
		n := 0.0
		if e.Repair {
			n = 1
		}
		repairs.WithLabelValues(e.Pool.Driver).Add(n) // also 0, so that the series begins before its first increase
		mu.Lock()
		devices.WithLabelValues(e.Pool.Driver).Add(float64(e.Devices - pools[e.Pool]))
		pools[e.Pool] = e.Devices
		if e.Slices == 0 {
			delete(pools, e.Pool) // it was removed
		}
		mu.Unlock()
		call(next.Published, e)
	}
	return hooks, s.err()
}
