// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"context"
	"fmt"
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
