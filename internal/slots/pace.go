// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"hash/fnv"
	"math/bits"
	"time"
)

// goldenRatio is 2^64 divided by the golden ratio, made odd. Multiples of it
// modulo 2^64 are spread evenly for any count of them (Weyl's theorem; three-
// distance theorem).
const goldenRatio = 0x9E3779B97F4A7C15

// places is how many starts there are in an interval. Names that share one run
// together, which saves most wake-ups of a process that keeps thousands: a
// renewal costs it a fifth less. It is 20 ms of the ten seconds of a lease.
const places = 500

// A phase is a place within the interval as a fraction of 2^64.
type phase uint64

// firstPhase returns the phase of a scheduler's first name. It depends on the name so
// that the schedulers of many processes started together differ.
func firstPhase(name string) phase {
	h := fnv.New64a()
	h.Write([]byte(name)) // never fails
	// FNV leaves the high bits of similar short names alike; one more mixing
	// step makes node-1 and node-2 far apart.
	return phase(h.Sum64() * goldenRatio)
}

// next returns the phase of the name after the one at p.
func (p phase) next() phase { return p + goldenRatio }

// of returns the phase as a time within the interval, at one of its places.
func (p phase) of(interval time.Duration) time.Duration {
	place, _ := bits.Mul64(uint64(p), places)
	return interval * time.Duration(place) / places
}

// untilSlot returns how long it is from now (since the epoch) to the next slot
// of p that is at least gap away: after a late run the slot that comes at once
// is left out.
func untilSlot(now time.Duration, p phase, interval, gap time.Duration) time.Duration {
	earliest := now + gap
	slot := earliest - earliest%interval + p.of(interval)
	if slot < earliest {
		slot += interval
	}
	return slot - now
}

// A bucket paces starts. Its time is a duration since the epoch.
type bucket struct {
	tokens float64
	last   time.Duration
}

// wait adds the tokens since the last call, at rate per second and up to burst, and
// returns the time until there is a token: 0 if there is one now.
func (b *bucket) wait(now time.Duration, rate, burst float64) time.Duration {
	b.tokens = min(burst, b.tokens+rate*(now-b.last).Seconds())
	b.last = now
	if b.tokens >= 1 {
		return 0
	}
	// Rounded up: waking a moment too early would only mean to wait again.
	return time.Duration((1-b.tokens)/rate*float64(time.Second)) + 1
}

// take takes the token that wait reported.
func (b *bucket) take() { b.tokens-- }

// A load remembers whether the workers can do the runs that are necessary.
type load struct {
	average    time.Duration // of the last runs
	late       time.Duration // by which the last late run started late
	lateAt     time.Duration // when that was
	overloaded bool
	changed    bool // since it was last reported
}

// averaged is the number of runs that the average is mostly about.
const averaged = 64

// ran records the duration of a run.
func (l *load) ran(took time.Duration) { l.average += (took - l.average) / averaged }

// started records that a run started so much after it was due. It is an overload only
// if the workers are short, too: after a process that was frozen all runs are late
// once.
func (l *load) started(now, late time.Duration, all Load) {
	if late > all.Interval && all.Needed() > all.Possible()/2 {
		l.late, l.lateAt = late, now
		l.changed = l.changed || !l.overloaded
		l.overloaded = true
	}
}

// drained records that no name that is due waits for a worker. While some names starve
// others start in time, so that alone does not end an overload.
func (l *load) drained(now, interval time.Duration) {
	if l.overloaded && now-l.lateAt > 2*interval {
		l.late, l.overloaded, l.changed = 0, false, true
	}
}
