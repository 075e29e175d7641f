// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"context"
	"time"
)

// Config configures a Scheduler. All fields are required except for Hold,
// MinGap, StartWithin, Farewell, Gone and Overloaded.
type Config[E any] struct {
	// Interval is the steady time between two runs of a name.
	Interval time.Duration
	// Workers is the largest number of runs that hold a worker at once.
	Workers int
	// Hold is the longest time that a run holds a worker. After that it goes on without
	// one, so that slow runs of some names hold up no others; 0 means no limit.
	Hold time.Duration
	// MinGap is the least time between the end of a run and the start of the
	// next one that a Trigger asks for.
	MinGap time.Duration
	// StartWithin is how long after it was added, or after a run that gave no
	// deadline, a name is lost if it has not run; 0 means that it can't be
	// lost. If some names have deadlines all must have one, or an overload never
	// gets to the others.
	StartWithin time.Duration
	// Do runs a name. Its context ends with that of Run and when the name is
	// removed.
	Do func(ctx context.Context, name string, value E) Next
	// Farewell is called by Part and End, before a name goes. If ctx is done when it
	// returns to Part, End calls it again. Nil: names go without.
	Farewell func(ctx context.Context, name string, value E)
	// Gone is called once for each name that is removed while Run runs, after its
	// last run and its farewell, and before the first run of the same name added
	// again; and by End for the names that are left. A name that is added again and
	// removed before it runs has no Gone of its own. The context is that of Run or
	// End. Gone counts as a run of the name, but waits for no slot and no token.
	// Nil calls nothing.
	Gone func(ctx context.Context, name string, value E)
	// Overloaded is called when runs begin to start more than an Interval after they
	// were due, because the workers can't do them all; and with false when they start
	// in time again. It is called by Run and must not block. Nil calls nothing.
	Overloaded func(ctx context.Context, load Load, overloaded bool)
}

// A Load is the work that a Scheduler has, and how much it can do.
type Load struct {
	Names    int           // that run
	Interval time.Duration // each of them once in this time
	Workers  int           // so many at once
	Run      time.Duration // the average time for which the last runs held a worker
	Late     time.Duration // after it was due, a run started
}

// Needed returns the number of runs a second that are necessary.
func (l Load) Needed() float64 { return float64(l.Names) / l.Interval.Seconds() }

// Possible returns the number of runs a second that the workers can do.
func (l Load) Possible() float64 { return float64(l.Workers) / max(l.Run.Seconds(), 1e-9) }

// Next says when a name runs next. The zero value: at its next slot.
type Next struct {
	// Wait is the time from the end of this run; 0 means the next slot.
	Wait time.Duration
	// NoLaterThanSlot cuts Wait short at the next slot.
	NoLaterThanSlot bool
	// Deadline is when the name is lost if it has not run again; the zero time
	// means Config.StartWithin after this run.
	Deadline time.Time
	// Idle leaves the name alone until it is triggered. Wait does not count.
	Idle bool
	// Unpaced returns the token of this run, which only found that it must wait.
	Unpaced bool
}
