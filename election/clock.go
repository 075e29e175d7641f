// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import "time"

// maxDrift is the largest difference between the advances of the wall clock and the
// monotonic clock since a renewal. A larger one means that the machine was
// suspended, because the monotonic clock stands still then.
const maxDrift = time.Second

// clock reads the two clocks of a process. Safety depends on the monotonic clock
// only. The wall clock is written to the Lease, and shows that the machine was
// suspended.
type clock struct {
	epoch time.Time
	// rate is the speed of the monotonic clock, 1 if it is right. step returns the
	// error of the wall clock. Tests set them, because a bubble has one clock.
	rate float64
	step func() time.Duration
}

func newClock() *clock {
	return &clock{epoch: time.Now(), rate: 1, step: func() time.Duration { return 0 }}
}

// instant is a reading of both clocks.
type instant struct {
	mono time.Duration // since the epoch
	wall time.Time
}

// drift is the difference of the two clocks, except for a constant.
func (i instant) drift() time.Duration { return time.Duration(i.wall.UnixNano()) - i.mono }

func (c *clock) now() instant {
	t := time.Now()
	mono, wall := t.Sub(c.epoch), t.Round(0)
	if c.rate != 1 {
		fast := time.Duration(float64(mono)*c.rate) - mono
		mono, wall = mono+fast, wall.Add(fast)
	}
	return instant{mono: mono, wall: wall.Add(c.step())}
}

// span returns the time in which this clock advances by d, rounded up so that a
// timer does not fire a nanosecond early.
func (c *clock) span(d time.Duration) time.Duration {
	if c.rate == 1 {
		return d
	}
	return time.Duration(float64(d)/c.rate) + 1
}
