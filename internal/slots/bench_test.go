// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"
)

// BenchmarkIdleNames reports the memory of a name that waits.
func BenchmarkIdleNames(b *testing.B) {
	const n = 10_000
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("node-%05d", i)
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for b.Loop() {
		before, goroutines := heap(), runtime.NumGoroutine()
		s := New(Config[*int]{Interval: 10 * time.Second, Workers: 64, Do: func(context.Context, string, *int) Next { return Next{} }})
		for _, name := range names {
			s.Add(name, nil)
		}
		b.ReportMetric(float64(heap()-before)/n, "B/name")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines")
		runtime.KeepAlive(s)
	}
}

// BenchmarkTurn is the scheduler's own cost of one run, with 10,000 names.
func BenchmarkTurn(b *testing.B) {
	const n = 10_000
	b.ReportAllocs()
	ctx, cancel := context.WithCancel(b.Context())
	left := b.N
	s := New(Config[int]{Interval: time.Nanosecond * n, Workers: 1, Do: func(context.Context, string, int) Next {
		if left--; left == 0 {
			cancel()
		}
		return Next{Wait: 1}
	}})
	for i := range n {
		s.Add(fmt.Sprintf("node-%05d", i), i)
	}
	b.ResetTimer()
	s.Run(ctx)
	cancel()
}
