// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Too few workers are reported once, with the arithmetic, and so is the end of it.
func TestTooFewWorkersAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took atomic.Int64
		var said []string
		took.Store(int64(250 * time.Millisecond))
		s := New(Config[int]{
			Interval: 10 * time.Second, Workers: 4,
			Do: func(context.Context, string, int) Next { time.Sleep(time.Duration(took.Load())); return Next{} },
			Overloaded: func(_ context.Context, l Load, overloaded bool) {
				said = append(said, fmt.Sprintf("%v: %+v", overloaded, l))
			},
		})
		for i := range 400 {
			s.Add(fmt.Sprint(i), 0)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if _, overloaded := s.Overloaded(); !overloaded || len(said) != 1 || said[0][:4] != "true" {
			t.Errorf("overloaded %v, said %q", overloaded, said)
		}
		if load, _ := s.Overloaded(); load.Possible() < 15.9 || load.Possible() > 16.1 {
			t.Errorf("%v runs a second are possible, want 16", load.Possible())
		}
		took.Store(0)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if _, overloaded := s.Overloaded(); overloaded || len(said) != 2 || said[1][:5] != "false" {
			t.Errorf("overloaded %v, said %q after runs are fast again", overloaded, said)
		}
		cancel()
		<-done
	})
}

// Neither a start of many names nor a process that was frozen is an overload.
func TestLateRunsOfAFrozenProcessAreNoOverload(t *testing.T) {
	l := load{average: time.Millisecond}
	few := Load{Names: 100, Interval: 10 * time.Second, Workers: 4, Run: l.average}
	l.started(time.Hour, time.Minute, few)
	if l.overloaded || l.changed {
		t.Error("workers that are idle most of the time are said to be too few")
	}
	few.Run = time.Second
	l.started(time.Hour, 10*time.Second, few)
	if l.overloaded {
		t.Error("a run that starts an interval late is said to be later")
	}
	l.started(time.Hour, 10*time.Second+1, few)
	if !l.overloaded || !l.changed {
		t.Error("a run that starts more than an interval late is not reported")
	}
	l.changed = false
	l.drained(time.Hour+20*time.Second, few.Interval)
	if !l.overloaded || l.changed {
		t.Error("the overload has ended after two intervals")
	}
	l.drained(time.Hour+20*time.Second+1, few.Interval)
	if l.overloaded || !l.changed || l.late != 0 {
		t.Error("the overload has not ended after more than two intervals")
	}
}

// While runs hang, names that are due at their slots take few of the workers for a
// fortieth of the interval. A server that is held up for a moment has few of their
// requests to answer when it goes on. After that they take all workers.
func TestNamesAtTheirSlotsTakeFewWorkersForAMoment(t *testing.T) {
	for _, test := range []struct {
		names, workers int
		held           time.Duration
		atOnce         int
	}{
		{names: 1000, workers: 40, held: 250 * time.Millisecond, atOnce: 4},
		{names: 1000, workers: 40, held: 2 * time.Second, atOnce: 40},
		{names: 4001, workers: 40, held: 250 * time.Millisecond, atOnce: 9}, // those of a place
		{names: 1000, workers: 2, held: 250 * time.Millisecond, atOnce: 2},
	} {
		t.Run(fmt.Sprintf("%d names, %d workers, %v", test.names, test.workers, test.held), func(t *testing.T) {
			var hold atomic.Int64 // until then, since the start
			var w *world
			do := func(context.Context, string, int) Next {
				time.Sleep(time.Duration(hold.Load()) - time.Since(w.begin))
				return Next{}
			}
			bubble(t, test.workers, do, func(world *world) {
				w = world
				for i := range test.names {
					w.Add(fmt.Sprint(i), i)
				}
				w.start()
				pass(40 * time.Second)
				w.mu.Lock()
				w.most = 0
				w.mu.Unlock()
				hold.Store(int64(40*time.Second + test.held))
				pass(test.held - 1)
				if got := w.peak(); got != test.atOnce {
					t.Errorf("%d runs at once, want %d", got, test.atOnce)
				}
				pass(20 * time.Second)
				seen := map[string]int{}
				for _, r := range w.seen() {
					if r.start >= 50*time.Second {
						seen[r.name]++
					}
				}
				if len(seen) != test.names {
					t.Errorf("%d of %d names ran in the interval afterwards", len(seen), test.names)
				}
			})
		})
	}
}

// Names that are triggered, that retry or that are new do not wait for one of the few.
func TestOnlyNamesAtTheirSlotsWaitForOneOfTheFew(t *testing.T) {
	var hang atomic.Bool
	do := func(_ context.Context, name string, _ int) Next {
		switch {
		case name == "retries":
			return Next{Wait: 10 * time.Millisecond}
		case name == "probe" || name == "new" || !hang.Load():
			return Next{}
		}
		time.Sleep(time.Second)
		return Next{}
	}
	bubble(t, 40, do, func(w *world) {
		for i := range 5000 {
			w.Add(fmt.Sprint(i), i)
		}
		w.Add("probe", 0)
		w.Add("retries", 0)
		w.start()
		pass(29 * time.Second)
		at := w.times("probe")
		slot := at[len(at)-1] + 10*time.Second
		time.Sleep(slot - 100*time.Millisecond - time.Since(w.begin))
		hang.Store(true) // all of the few are taken at the probe's slot
		pass(101 * time.Millisecond)
		if got := len(w.times("probe")); got != len(at) {
			t.Error("the probe runs at its slot, beside runs that hang")
		}
		retries := len(w.times("retries"))
		again := w.Scheduler.calm.first().name // it waits, too
		w.Trigger("probe")
		w.Add("new", 0)
		w.Remove(again)
		w.Add(again, -1)
		pass(20 * time.Millisecond)
		if got := len(w.times("probe")); got != len(at)+1 {
			t.Errorf("the triggered probe ran %d times, want %d", got, len(at)+1)
		}
		if got := len(w.times("new")); got != 1 {
			t.Errorf("the new name ran %d times", got)
		}
		if runs := w.seen(); !slices.ContainsFunc(runs, func(r run) bool { return r.value == -1 }) {
			t.Error("a name that was added again waits")
		}
		if got := len(w.times("retries")); got <= retries {
			t.Error("a retry waits")
		}
	})
}

// The fifth of five names, while the others' runs hang.
func TestANameAtItsSlotWaitsForTheEndOfARunOrAMoment(t *testing.T) {
	for _, test := range []struct {
		name    string
		held    time.Duration // after the slot of the fifth
		trigger bool          // the fifth, during its run of 20 ms
		want    []time.Duration
	}{
		{name: "they end", held: 100 * time.Millisecond, want: []time.Duration{100 * time.Millisecond}},
		{name: "they hang", held: 5 * time.Second, want: []time.Duration{250 * time.Millisecond}},
		{name: "triggered", held: 5 * time.Second, trigger: true, want: []time.Duration{250 * time.Millisecond, 370 * time.Millisecond}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last string
			var until time.Time
			do := func(_ context.Context, name string, _ int) Next {
				if name == last {
					time.Sleep(20 * time.Millisecond)
				} else {
					time.Sleep(time.Until(until))
				}
				return Next{}
			}
			bubble(t, 40, do, func(w *world) {
				for i := range 5 {
					w.Add(fmt.Sprint(i), i)
				}
				w.start()
				pass(40 * time.Second)
				runs := w.seen() // the five latest are a round, in the order of the slots
				fifth := runs[len(runs)-1]
				slot := fifth.start + 10*time.Second
				last, until = fifth.name, w.begin.Add(slot+test.held)
				before := len(w.times(last))
				pass(slot + 260*time.Millisecond - time.Since(w.begin))
				if test.trigger {
					w.Trigger(last)
				}
				pass(time.Second)
				var got []time.Duration
				for _, at := range w.times(last)[before:] {
					got = append(got, at-slot)
				}
				if !slices.Equal(got, test.want) {
					t.Errorf("it ran %v after its slot, want %v", got, test.want)
				}
			})
		})
	}
}
