// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"fmt"
	"testing"
	"time"
)

func TestPhasesAreSpreadEvenlyForAnyCount(t *testing.T) {
	const interval = 10 * time.Second
	for _, n := range []int{10, 100, 1000, 10_000} {
		var perSecond [10]int
		p := firstPhase("node-0")
		for range n {
			perSecond[p.of(interval)/time.Second]++
			p = p.next()
		}
		for second, got := range perSecond {
			// The three-distance theorem bounds how far a bin can be off.
			if want := n / 10; got < want-2 || got > want+2 {
				t.Errorf("%d phases: second %d has %d, want %d±2", n, second, got, want)
			}
		}
	}
}

func TestFirstPhaseDiffersForSimilarNames(t *testing.T) {
	const interval = 10 * time.Second
	var perSecond [10]int
	for i := range 10_000 {
		perSecond[firstPhase(fmt.Sprintf("node-%d", i)).of(interval)/time.Second]++
	}
	for second, got := range perSecond {
		if got < 850 || got > 1150 {
			t.Errorf("second %d has %d of 10000 first phases, want about 1000", second, got)
		}
	}
}

func TestUntilSlot(t *testing.T) {
	const interval, gap = 10 * time.Second, 2500 * time.Millisecond
	const half = phase(1 << 63) // 5 s into the interval
	for _, tc := range []struct {
		name      string
		now, want time.Duration
	}{
		{"start", 0, 5 * time.Second},
		{"exactly the gap before the slot", 2500 * time.Millisecond, 2500 * time.Millisecond},
		{"the slot is nearer than the gap", 2500*time.Millisecond + 1, 12500*time.Millisecond - 1},
		{"on the slot", 5 * time.Second, 10 * time.Second},
		{"a little late", 5*time.Second + 20*time.Millisecond, 10*time.Second - 20*time.Millisecond},
		{"late by a third", 8 * time.Second, 7 * time.Second},
		{"many intervals on", 1000*time.Second + 5*time.Second, 10 * time.Second},
	} {
		if got := untilSlot(tc.now, half, interval, gap); got != tc.want {
			t.Errorf("%s: untilSlot(%v) = %v, want %v", tc.name, tc.now, got, tc.want)
		}
	}
}

func TestUntilSlotIsWithinBounds(t *testing.T) {
	const interval, gap = 10 * time.Second, 2500 * time.Millisecond
	p := firstPhase("node-0")
	for i := range 5000 {
		now := time.Duration(i) * 7_777_777
		if got := untilSlot(now, p, interval, gap); got < gap || got >= interval+gap {
			t.Fatalf("untilSlot(%v) = %v, want it in [%v, %v)", now, got, gap, interval+gap)
		} else if again := untilSlot(now+got, p, interval, gap); again != interval {
			t.Fatalf("from a slot to the next: %v, want the interval", again)
		}
		p = p.next()
	}
}

func TestBucket(t *testing.T) {
	b := bucket{tokens: 2}
	for range 2 {
		if wait := b.wait(0, 10, 2); wait != 0 {
			t.Fatalf("wait %v with a token there", wait)
		}
		b.take()
	}
	wait := b.wait(0, 10, 2)
	if wait < 100*time.Millisecond || wait > 101*time.Millisecond {
		t.Errorf("empty bucket at 10/s: wait %v, want 100ms", wait)
	}
	if got := b.wait(wait, 10, 2); got != 0 {
		t.Errorf("after the wait it named, wait %v", got)
	}
	b.take()
	if got := b.wait(time.Hour, 10, 2); got != 0 || b.tokens != 2 {
		t.Errorf("after an hour: wait %v, %v tokens, want 0 and the burst of 2", got, b.tokens)
	}
}
