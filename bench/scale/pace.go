// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"
	"time"
)

// pace calls work with 0, 1, 2 … at so many a second, until it has been called
// count times, or without end if that is 0, or ctx is done. Calls run at the same
// time, inFlight of them at most; when they are too slow for the rate, it is lower,
// and what was missed is caught up. It returns when all calls have.
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
