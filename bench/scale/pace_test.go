// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestPace(t *testing.T) {
	for _, test := range []struct {
		name  string
		rate  float64
		count int
		takes time.Duration
		limit time.Duration // deadline of the context; 0 for none
		calls int
		took  time.Duration
	}{
		{"at its rate", 10, 31, 0, 0, 31, 3 * time.Second},
		{"work at the same time", 10, 31, time.Second, 0, 31, 4 * time.Second},
		{"slower than the rate", 100, 10 * inFlight, time.Second, 0, 10 * inFlight, 10*time.Second + 150*time.Millisecond},
		{"until the end", 2, 0, 0, 10*time.Second - 1, 20, 10*time.Second - 1},
		{"none", 1, 1, 0, 0, 1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if test.limit > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, test.limit)
					defer cancel()
				}
				var mu sync.Mutex
				seen := make(map[int]bool)
				var running, most atomic.Int64
				start := time.Now()
				pace(ctx, test.rate, test.count, func(i int) {
					most.Store(max(most.Load(), running.Add(1)))
					mu.Lock()
					seen[i] = true
					mu.Unlock()
					time.Sleep(test.takes)
					running.Add(-1)
				})
				if took := time.Since(start); took != test.took {
					t.Errorf("it took %v, want %v", took, test.took)
				}
				if len(seen) != test.calls {
					t.Errorf("%d calls, want %d", len(seen), test.calls)
				}
				if most.Load() > inFlight {
					t.Errorf("%d at once, want %d at most", most.Load(), inFlight)
				}
			})
		})
	}
}
