// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"
	"time"
)

// pace calls work with 0, 1, 2 … at the given rate, until it has made count
// calls (0 means no limit) or ctx is done. At most inFlight calls run
// concurrently. If they are too slow for the rate, the rate is lower and pace
// catches up later. It returns when all calls have returned.
func pace(ctx context.Context, perSecond float64, count int, work func(i int)) {
	slots := make(chan struct{}, inFlight)
	var wg sync.WaitGroup
	defer wg.Wait()
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for i := 0; count == 0 || i < count; i++ {
		timer.Reset(time.Until(start.Add(time.Duration(float64(i) / perSecond * float64(time.Second)))))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		select {
		case <-ctx.Done():
			return
		case slots <- struct{}{}:
		}
		wg.Go(func() {
			defer func() { <-slots }()
			work(i)
		})
	}
}
