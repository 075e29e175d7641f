// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"sync"
	"time"
)

// A sleepWatch notices that the whole process did not run for a while.
type sleepWatch struct {
	limit time.Duration

	mu     sync.Mutex
	last   time.Time
	sleeps uint32
}

// tick returns the number of times that the process slept up to now. The clock is the
// wall's, because the monotonic one stands still while a machine is suspended;
// a step of the wall clock counts as a sleep, which costs one read per node.
func (w *sleepWatch) tick(now time.Time) uint32 {
	now = now.Round(0)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.last.IsZero() && now.Sub(w.last) > w.limit {
		w.sleeps++
	}
	w.last = now
	return w.sleeps
}
