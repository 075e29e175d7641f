// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubewright/kubewright/resourceslice"
)

// ResourceSlice returns hooks that count the events of a
// resourceslice.Controller.
func ResourceSlice(registry prometheus.Registerer, next resourceslice.Hooks) (resourceslice.Hooks, error) {
	s := set{registry: registry}
	var (
		writes     = s.counter("kubewright_resourceslice_writes_total", "Requests that write a slice, by verb and result.", "driver", "verb", "result")
		latency    = s.histogram("kubewright_resourceslice_publish_duration_seconds", "Time from Set, or from a change by another client, to the pool being published.", lagBuckets(), "driver")
		incomplete = s.counter("kubewright_resourceslice_incomplete_seconds_total", "Time for which a pool was incomplete, so that none of its devices could be allocated.", "driver")
		repairs    = s.counter("kubewright_resourceslice_repairs_total", "Publishes that undid a change by another client.", "driver")
		watches    = s.counter("kubewright_resourceslice_watch_failures_total", "Lists and watches of ResourceSlices that failed, by result.", "result")
		devices    = s.gauge("kubewright_resourceslice_devices", "Published devices.", "driver")
	)
	// The gauges are sums over the pools of a driver.
	var (
		mu    sync.Mutex
		pools = map[resourceslice.PoolID]int{}
	)
	hooks := next
	hooks.APICall = func(e resourceslice.APICall) {
		writes.WithLabelValues(e.Pool.Driver, e.Verb, resultOf(e.Err)).Inc()
		call(next.APICall, e)
	}
	hooks.WatchFailed = func(e resourceslice.WatchFailed) {
		watches.WithLabelValues(resultOf(e.Err)).Inc()
		call(next.WatchFailed, e)
	}
	hooks.Published = func(e resourceslice.Published) {
		latency.WithLabelValues(e.Pool.Driver).Observe(e.Latency.Seconds())
		incomplete.WithLabelValues(e.Pool.Driver).Add(e.Window.Seconds())
		n := 0.0
		if e.Repair {
			n = 1
		}
		repairs.WithLabelValues(e.Pool.Driver).Add(n) // also for 0, so that the series exists before its first increase
		mu.Lock()
		devices.WithLabelValues(e.Pool.Driver).Add(float64(e.Devices - pools[e.Pool]))
		pools[e.Pool] = e.Devices
		if e.Slices == 0 {
			delete(pools, e.Pool) // the pool was removed
		}
		mu.Unlock()
		call(next.Published, e)
	}
	return hooks, s.err()
}
