// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"testing"
	"time"
)

// TestADeadlineDoesNotWaitForTheClock: the next process may have another clock.
func TestADeadlineDoesNotWaitForTheClock(t *testing.T) {
	stop := stopRecord{Deadline: now.Add(30 * time.Second), Kept: now}
	for step, left := range map[time.Duration]time.Duration{
		-48 * time.Hour: 30 * time.Second, -time.Second: 30 * time.Second, 0: 30 * time.Second, 10 * time.Second: 20 * time.Second, 48 * time.Hour: 30*time.Second - 48*time.Hour,
	} {
		if got := stop.due(now.Add(step)).Sub(now.Add(step)); got != left {
			t.Errorf("after a step of %v: %v are left, want %v", step, got, left)
		}
	}
	if old := (stopRecord{Deadline: now}); !old.due(now.Add(-time.Hour)).Equal(now) {
		t.Error("a record of an earlier version has no time of its own")
	}
}
