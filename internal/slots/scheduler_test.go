// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// run is one call of Do as the tests see it.
type run struct {
	name  string
	value int
	start time.Duration
}

// world runs a scheduler in a bubble and records its calls.
type world struct {
	*Scheduler[int]
	t     *testing.T
	begin time.Time
	stop  func()

	mu       sync.Mutex
	runs     []run
	gone     []run
	goneFor  time.Duration // the duration of Gone
	order    []string      // of runs and calls of Gone
	inFlight map[string]int
	most     int
	do       func(ctx context.Context, name string, value int) Next
}

func newWorld(t *testing.T, workers int, do func(ctx context.Context, name string, value int) Next) *world {
	w := &world{t: t, begin: time.Now(), inFlight: make(map[string]int), do: do}
	w.Scheduler = New(Config[int]{
		Interval: 10 * time.Second,
		Workers:  workers,
		MinGap:   100 * time.Millisecond,
		Do:       w.record,
		Gone:     w.recordGone,
	})
	return w
}

func (w *world) recordGone(_ context.Context, name string, value int) {
	time.Sleep(w.goneFor)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = append(w.gone, run{name, value, time.Since(w.begin)})
	w.order = append(w.order, fmt.Sprint("gone ", value))
	if w.inFlight[name] > 0 {
		w.t.Errorf("Gone of %s during a run", name)
	}
}

func (w *world) record(ctx context.Context, name string, value int) Next {
	w.mu.Lock()
	w.runs = append(w.runs, run{name, value, time.Since(w.begin)})
	w.order = append(w.order, fmt.Sprint("run ", value))
	w.inFlight[name]++
	if w.inFlight[name] > 1 {
		w.t.Errorf("%d runs of %s at once", w.inFlight[name], name)
	}
	total := 0
	for _, n := range w.inFlight {
		total += n
	}
	w.most = max(w.most, total)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.inFlight[name]--; w.inFlight[name] == 0 {
			delete(w.inFlight, name)
		}
	}()
	return w.do(ctx, name, value)
}

// start runs the scheduler until the returned function, or the test, ends.
func (w *world) start() {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	w.stop = func() {
		cancel()
		<-done
	}
}

func (w *world) seen() []run {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.runs)
}

// peak returns the largest number of runs at once.
func (w *world) peak() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.most
}

// pass lets time pass, and then waits for the runs that are due.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// times returns when name ran.
func (w *world) times(name string) (at []time.Duration) {
	for _, r := range w.seen() {
		if r.name == name {
			at = append(at, r.start)
		}
	}
	return at
}

func steady(context.Context, string, int) Next { return Next{} }

func bubble(t *testing.T, workers int, do func(context.Context, string, int) Next, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, workers, do)
		test(w)
		if w.stop != nil {
			w.stop()
		}
	})
}

func TestOneNameRunsAtOnceThenAtItsSlot(t *testing.T) {
	bubble(t, 4, steady, func(w *world) {
		w.Add("n", 1)
		w.start()
		pass(95 * time.Second)
		at := w.times("n")
		if len(at) < 9 || at[0] != 0 {
			t.Fatalf("ran at %v, want at 0 and then every 10 s", at)
		}
		if gap := at[1] - at[0]; gap < 2500*time.Millisecond || gap > 12500*time.Millisecond {
			t.Errorf("first slot after %v", gap)
		}
		for i := 2; i < len(at); i++ {
			if at[i]-at[i-1] != 10*time.Second {
				t.Errorf("run %d came %v after the one before", i, at[i]-at[i-1])
			}
		}
	})
}

func TestTenThousandNamesAreFlatAndFlatAgainAfterAnOutage(t *testing.T) {
	const n = 10_000
	outage := [2]time.Duration{100 * time.Second, 160 * time.Second}
	var w *world
	do := func(context.Context, string, int) Next {
		time.Sleep(10 * time.Millisecond)
		if at := time.Since(w.begin); at >= outage[0] && at < outage[1] {
			return Next{Wait: 7 * time.Second, NoLaterThanSlot: true}
		}
		return Next{}
	}
	bubble(t, 64, do, func(world *world) {
		w = world
		for i := range n {
			w.Add(fmt.Sprintf("node-%d", i), i)
		}
		w.start()
		pass(250 * time.Second)
		perSecond := make([]int, 251)
		for _, r := range w.seen() {
			perSecond[r.start/time.Second]++
		}
		flat := func(from, to int) {
			for s := from; s < to; s++ {
				if perSecond[s] < 900 || perSecond[s] > 1100 {
					t.Errorf("second %d has %d runs, want 1000±10%%", s, perSecond[s])
				}
			}
		}
		flat(20, 100)
		flat(180, 250)
		for s, got := range perSecond {
			if got > 1600 {
				t.Errorf("second %d has %d runs, more than the pace allows", s, got)
			}
		}
		if got := w.peak(); got > 64 {
			t.Errorf("%d runs at once with 64 workers", got)
		}
	})
}

func TestOverloadSavesWhoCanBeSaved(t *testing.T) {
	// One worker, a backlog of four: first those that are lost within an
	// interval, the one with less time left before the other, then the one
	// that is lost already, and last the one with time to spare.
	var order []string
	var w *world
	do := func(_ context.Context, name string, _ int) Next {
		if time.Since(w.begin) < 10*time.Second {
			left := map[string]time.Duration{"lost": 12 * time.Second, "spare": time.Minute, "later": 30 * time.Second, "sooner": 29 * time.Second, "block": time.Hour}[name]
			wait := map[string]time.Duration{"lost": 15 * time.Second, "spare": 14 * time.Second, "later": 14 * time.Second, "sooner": 16 * time.Second, "block": 13 * time.Second}[name]
			return Next{Wait: wait, Deadline: time.Now().Add(left)}
		}
		order = append(order, name)
		if name == "block" {
			time.Sleep(10 * time.Second)
		}
		return Next{Idle: true}
	}
	bubble(t, 1, do, func(world *world) {
		w = world
		for _, name := range []string{"lost", "spare", "later", "sooner", "block"} {
			w.Add(name, 0)
		}
		w.start()
		pass(time.Minute)
		if want := []string{"block", "sooner", "later", "lost", "spare"}; !slices.Equal(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
	})
}

func TestOverloadStarvesNobody(t *testing.T) {
	// Thirty names, and a worker that can run ten in an interval: each of them
	// can still run in time, every three intervals, if none runs more often.
	do := func(context.Context, string, int) Next {
		time.Sleep(time.Second)
		return Next{Deadline: time.Now().Add(40 * time.Second)}
	}
	bubble(t, 1, do, func(w *world) {
		w.cfg.StartWithin = 20 * time.Second // a third of them are late from the beginning
		for i := range 30 {
			w.Add(fmt.Sprint(i), 0)
		}
		w.start()
		pass(12 * time.Minute)
		last := make(map[string]time.Duration)
		for _, r := range w.seen() {
			if gap := r.start - last[r.name]; gap > 40*time.Second && r.start > 2*time.Minute {
				t.Errorf("%v after the start: name %s had not run for %v", r.start, r.name, gap)
			}
			last[r.name] = r.start
		}
		if len(last) != 30 {
			t.Errorf("%d of 30 names have run", len(last))
		}
	})
}

func TestOverloadStarvesNobodyWithoutADeadline(t *testing.T) {
	// The first run of each of twenty names fails, as in an outage, so that
	// none has a deadline yet. Then a worker can run ten in an interval.
	var seen sync.Map
	do := func(_ context.Context, name string, _ int) Next {
		if _, again := seen.LoadOrStore(name, true); !again {
			return Next{Wait: 5 * time.Second}
		}
		time.Sleep(time.Second)
		return Next{Deadline: time.Now().Add(40 * time.Second)}
	}
	bubble(t, 1, do, func(w *world) {
		w.cfg.StartWithin = 40 * time.Second
		for i := range 20 {
			w.Add(fmt.Sprint(i), 0)
		}
		w.start()
		pass(2 * time.Minute)
		for i := range 20 {
			if got := w.times(fmt.Sprint(i)); len(got) < 2 {
				t.Errorf("name %d has run at %v only: those with a deadline go before it for ever", i, got)
			}
		}
	})
}

func TestTriggersBeforeARunAreOne(t *testing.T) {
	bubble(t, 4, func(context.Context, string, int) Next { return Next{Idle: true} }, func(w *world) {
		w.Add("n", 0)
		w.start()
		pass(time.Second)
		for range 1000 {
			if !w.Trigger("n") {
				t.Fatal("Trigger says the name is not there")
			}
			time.Sleep(100 * time.Microsecond)
		}
		pass(time.Minute)
		if got := w.times("n"); len(got) != 3 || got[2]-got[1] != 100*time.Millisecond {
			t.Errorf("ran at %v, want the start, once at the first trigger and once 100 ms later", got)
		}
		if w.Trigger("unknown") {
			t.Error("Trigger says an unknown name is there")
		}
	})
}

func TestTriggerDuringARunRunsAgain(t *testing.T) {
	do := func(context.Context, string, int) Next {
		pass(time.Second)
		return Next{Idle: true}
	}
	bubble(t, 4, do, func(w *world) {
		w.Add("n", 0)
		w.start()
		pass(500 * time.Millisecond)
		w.Trigger("n")
		pass(time.Minute)
		if got, want := w.times("n"), []time.Duration{0, 1100 * time.Millisecond}; !slices.Equal(got, want) {
			t.Errorf("ran at %v, want %v", got, want)
		}
	})
}

func TestWaitMayBeCutShortAtTheSlot(t *testing.T) {
	var cut atomic.Bool
	do := func(context.Context, string, int) Next {
		return Next{Wait: time.Minute, NoLaterThanSlot: cut.Load()}
	}
	bubble(t, 4, do, func(w *world) {
		w.Add("n", 0)
		w.start()
		pass(61 * time.Second)
		if got := w.times("n"); len(got) != 2 || got[1] != time.Minute {
			t.Errorf("ran at %v, want at 0 and 1m0s", got)
		}
		cut.Store(true)
		pass(2 * time.Minute)
		got := w.times("n")
		if gap := got[3] - got[2]; gap > 12500*time.Millisecond {
			t.Errorf("ran %v after the one before, want the slot to come first", gap)
		}
	})
}

func TestRemoveAndAddDuringARunKeepOneChain(t *testing.T) {
	var cancelled atomic.Int32
	do := func(ctx context.Context, _ string, _ int) Next {
		select {
		case <-ctx.Done():
			cancelled.Add(1)
			time.Sleep(3 * time.Second) // a call that does not heed its context at once
		case <-time.After(5 * time.Second):
		}
		return Next{}
	}
	bubble(t, 4, do, func(w *world) {
		w.Add("n", 0)
		w.start()
		pass(time.Second)
		for i := range 100 {
			if got, ok := w.Remove("n"); !ok || got != i {
				t.Fatalf("Remove %d = %d, %v", i, got, ok)
			}
			if _, ok := w.Get("n"); ok || w.Trigger("n") || len(w.Names()) != 0 {
				t.Fatal("the name is still there after Remove")
			}
			if _, ok := w.Remove("n"); ok {
				t.Fatal("the second Remove found it")
			}
			if !w.Add("n", i+1) {
				t.Fatalf("Add %d after Remove was refused", i+1)
			}
			if w.Add("n", -1) {
				t.Fatal("the second Add was accepted")
			}
			if got, ok := w.Get("n"); !ok || got != i+1 {
				t.Fatalf("Get = %d, %v, want %d", got, ok, i+1)
			}
		}
		pass(9 * time.Second)
		if got := w.seen(); len(got) != 2 || got[0].value != 0 || got[1].value != 100 || cancelled.Load() != 1 {
			t.Errorf("runs %v (%d cancelled), want one with 0, cancelled, and one with 100", got, cancelled.Load())
		}
		pass(time.Minute)
		if got := len(w.seen()); got > 8 {
			t.Errorf("%d runs in a minute: more than one chain", got)
		}
		w.Remove("n")
	})
}

func TestANameRemovedBeforeRunDoesNotRun(t *testing.T) {
	bubble(t, 4, steady, func(w *world) {
		w.Add("gone", 0)
		w.Remove("gone")
		w.start()
		pass(time.Minute)
		if len(w.seen()) != 0 || w.Len() != 0 || len(w.gone) != 0 {
			t.Errorf("runs %v, %d names left, Gone of %v, want none", w.seen(), w.Len(), w.gone)
		}
	})
}

func TestGoneComesBetweenTheRunsOfANameAddedAgain(t *testing.T) {
	for _, during := range []bool{false, true} {
		do := func(ctx context.Context, _ string, _ int) Next {
			if during {
				<-ctx.Done()
				pass(time.Second)
			}
			return Next{}
		}
		bubble(t, 1, do, func(w *world) {
			w.goneFor = time.Second // so that the calls below come before its end
			w.start()
			w.Add("n", 1)
			pass(2 * time.Second)
			if _, ok := w.Remove("n"); !ok {
				t.Error("not removed")
			}
			if _, ok := w.Remove("n"); ok || w.Trigger("n") || len(w.Names()) != 0 {
				t.Error("it is still there after Remove")
			}
			if !w.Add("n", 2) || w.Add("n", 3) || !w.Trigger("n") {
				t.Error("it can't be added again, or twice")
			}
			pass(3 * time.Second)
			w.stop()
			if want := []string{"run 1", "gone 1", "run 2"}; !slices.Equal(w.order, want) {
				t.Errorf("during a run %v: %q, want %q", during, w.order, want)
			}
		})
	}
}

func TestGoneIsCalledBeforeRunReturns(t *testing.T) {
	bubble(t, 1, steady, func(w *world) {
		w.start()
		w.Add("n", 1)
		pass(time.Second)
		w.Remove("n")
		w.stop()
		if len(w.gone) != 1 || w.Len() != 0 {
			t.Errorf("Gone was called %d times, %d names left", len(w.gone), w.Len())
		}
		w.Add("m", 1)
		w.Remove("m")
		if len(w.gone) != 1 || w.Len() != 0 {
			t.Errorf("after Run: Gone was called %d times, %d names left", len(w.gone), w.Len())
		}
	})
}

func TestRunWaitsForRunsAndNothingRunsAfterIt(t *testing.T) {
	var ended time.Duration
	var w *world
	do := func(ctx context.Context, _ string, _ int) Next {
		<-ctx.Done()
		pass(time.Second)
		ended = time.Since(w.begin)
		return Next{}
	}
	bubble(t, 4, do, func(world *world) {
		w = world
		w.Add("n", 0)
		w.start()
		pass(5 * time.Second)
		w.stop()
		if ended != 6*time.Second || time.Since(w.begin) != ended {
			t.Errorf("the run ended at %v, Run returned at %v, want both at 6s", ended, time.Since(w.begin))
		}
		w.Trigger("n")
		w.Add("m", 0)
		pass(time.Minute)
		if len(w.seen()) != 1 {
			t.Errorf("runs after Run returned: %v", w.seen())
		}
	})
}

func TestRetriesOfOneNameDoNotWaitForTokens(t *testing.T) {
	bubble(t, 1, func(context.Context, string, int) Next { return Next{Wait: 200 * time.Millisecond} }, func(w *world) {
		w.Add("n", 0)
		w.start()
		pass(10*time.Second + time.Millisecond)
		if got := len(w.seen()); got != 51 {
			t.Errorf("%d runs in 10 s at 200 ms, want 51", got)
		}
	})
}

// TestRandomUse holds the invariants (record checks them) under every call in
// any order.
func TestRandomUse(t *testing.T) {
	for seed := range uint64(20) {
		do := func(ctx context.Context, _ string, _ int) Next {
			select {
			case <-ctx.Done():
			case <-time.After(rand.N(time.Second)):
			}
			return Next{Wait: max(0, rand.N(5*time.Second)-time.Second), NoLaterThanSlot: rand.N(2) == 0, Idle: rand.N(4) == 0, Deadline: time.Now().Add(rand.N(10 * time.Second))}
		}
		bubble(t, 6, do, func(w *world) {
			r := rand.New(rand.NewPCG(seed, seed))
			w.start()
			for range 3000 {
				name := fmt.Sprint(r.IntN(12))
				switch r.IntN(5) {
				case 0:
					w.Add(name, r.Int())
				case 1:
					w.Remove(name)
				case 2:
					w.Trigger(name)
				case 3:
					w.Get(name)
				case 4:
					time.Sleep(time.Duration(r.IntN(int(100 * time.Millisecond))))
				}
			}
			if got := w.peak(); got > 6 {
				t.Errorf("seed %d: %d runs at once with 6 workers", seed, got)
			}
			for _, name := range w.Names() {
				w.Remove(name)
			}
			pass(2 * time.Second)
			if w.Len() != 0 {
				t.Errorf("seed %d: %d names left after all were removed", seed, w.Len())
			}
			told := map[int]bool{}
			for _, g := range w.gone {
				if told[g.value] {
					t.Errorf("seed %d: Gone was called twice for %v", seed, g)
				}
				told[g.value] = true
			}
			for _, r := range w.seen() {
				if !told[r.value] {
					t.Errorf("seed %d: Gone was not called for %v", seed, r)
				}
			}
			before := len(w.seen())
			pass(time.Minute)
			if after := len(w.seen()); after != before {
				t.Errorf("seed %d: %d runs of removed names", seed, after-before)
			}
		})
	}
}

func TestTriggerAfterMakesANameDueThenAndNoLaterThanItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		begin := time.Now()
		s := New(Config[int]{Interval: 10 * time.Second, Workers: 1, MinGap: 100 * time.Millisecond, Do: func(context.Context, string, int) Next {
			at = append(at, time.Since(begin))
			time.Sleep(time.Second)
			return Next{Wait: 5 * time.Second}
		}})
		s.Add("a", 0)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); s.Run(ctx) }()
		defer func() { cancel(); <-done }()
		synctest.Wait()
		s.TriggerAfter("a", 20*time.Second) // it is due after 6 s anyway
		s.TriggerAfter("a", 3*time.Second)  // during the run that ends after 1 s
		time.Sleep(3500 * time.Millisecond) // the second run has begun after 3 s
		s.TriggerAfter("a", 3*time.Second)
		s.TriggerAfter("a", 0)
		time.Sleep(5 * time.Second) // it has ended after 4 s, and the third began after 4.1 s
		s.TriggerAfter("a", time.Second)
		s.TriggerAfter("a", -time.Second)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		want := []time.Duration{0, 3 * time.Second, 4100 * time.Millisecond, 8500 * time.Millisecond}
		if !slices.Equal(at, want) {
			t.Errorf("runs at %v, want %v", at, want)
		}
		if s.TriggerAfter("b", 0) {
			t.Error("a name that is not there was triggered")
		}
	})
}

// leavers is a scheduler with farewells whose runs call Part, and the order of all
// calls.
func leavers(t *testing.T, farewell func(ctx context.Context, name string, value int), f func(s *Scheduler[int], stop func(), order func() []string)) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var calls []string
		note := func(what string, value int) {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, fmt.Sprint(what, " ", value))
		}
		var s *Scheduler[int]
		s = New(Config[int]{
			Interval: 10 * time.Second, Workers: 2, MinGap: 100 * time.Millisecond,
			Do: func(ctx context.Context, name string, value int) Next {
				if s.Leaving(name) != s.Part(ctx, name) {
					t.Error("Leaving and Part disagree")
				}
				note("run", value)
				return Next{}
			},
			Farewell: func(ctx context.Context, name string, value int) {
				farewell(ctx, name, value)
				note("farewell", value)
			},
			Gone: func(_ context.Context, _ string, value int) { note("gone", value) },
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); s.Run(ctx) }()
		stop := func() { cancel(); <-done }
		synctest.Wait()
		f(s, stop, func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(calls)
		})
		stop()
	})
}

func silent(context.Context, string, int) {}

func TestANameThatLeavesHasAFarewellAndIsGone(t *testing.T) {
	slow := func(context.Context, string, int) { time.Sleep(time.Second) } // it leaves for as long
	leavers(t, slow, func(s *Scheduler[int], _ func(), order func() []string) {
		s.Add("n", 1)
		pass(time.Second)
		//lint:ignore SA4000 the second call must return false too
		if s.Leave("n") || s.Leave("n") || s.Leave("absent") {
			t.Error("Leave has removed a name that needs a farewell")
		}
		if _, ok := s.Get("n"); ok || s.Trigger("n") || len(s.Names()) != 0 || s.Len() != 1 {
			t.Error("a name that is leaving exists")
		}
		if _, ok := s.Remove("n"); ok {
			t.Error("a name that is leaving was removed")
		}
		pass(time.Minute)
		if want := []string{"run 1", "farewell 1", "run 1", "gone 1"}; !slices.Equal(order(), want) || s.Len() != 0 {
			t.Errorf("%q, %d names left, want %q", order(), s.Len(), want)
		}
	})
}

func TestANameAddedAgainBeginsAfterTheFarewell(t *testing.T) {
	for _, wait := range []time.Duration{0, 500 * time.Millisecond} { // before and during the farewell
		slow := func(context.Context, string, int) { time.Sleep(time.Second) }
		leavers(t, slow, func(s *Scheduler[int], stop func(), order func() []string) {
			s.Add("n", 1)
			pass(time.Second)
			s.Leave("n")
			pass(wait)
			if !s.Add("n", 2) || s.Add("n", 3) {
				t.Error("it can't be added again, or twice")
			}
			if v, ok := s.Get("n"); !ok || v != 2 || len(s.Names()) != 1 {
				t.Errorf("Get = %d, %v", v, ok)
			}
			pass(5 * time.Second)
			if want := []string{"run 1", "farewell 1", "run 1", "gone 1", "run 2"}; !slices.Equal(order(), want) {
				t.Errorf("after %v: %q, want %q", wait, order(), want)
			}
			s.Leave("n")
			s.Add("n", 4)
			if s.Leave("n") {
				t.Error("it has no farewell")
			}
			pass(5 * time.Second)
			if got := order(); !slices.Equal(got[5:], []string{"farewell 2", "run 2", "gone 2"}) || s.Len() != 0 {
				t.Errorf("added and removed again: %q, %d names left", got, s.Len())
			}
		})
	}
}

func TestEndCallsTheFarewellsThatAreLeft(t *testing.T) {
	var most, now atomic.Int32
	slow := func(ctx context.Context, _ string, _ int) {
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	leavers(t, slow, func(s *Scheduler[int], stop func(), order func() []string) {
		for i := range 5 {
			s.Add(fmt.Sprint(i), i)
		}
		pass(5 * time.Second)
		s.Leave("0")
		pass(500 * time.Millisecond)
		stop() // cuts the farewell of 0 short
		begin := len(order())
		ctx, cancel := context.WithTimeout(context.Background(), 2500*time.Millisecond)
		defer cancel()
		// Two at a time for one second each: the fifth is cut short.
		if without := s.End(ctx); without != 0 {
			t.Errorf("%d names had no farewell", without)
		}
		got := order()[begin:]
		for i := range 5 {
			for _, call := range []string{"farewell", "gone"} {
				if n := len(slices.DeleteFunc(slices.Clone(got), func(c string) bool { return c != fmt.Sprint(call, " ", i) })); n != 1 {
					t.Errorf("%d times %s %d: %q", n, call, i, got)
				}
			}
		}
		isGone := func(call string) bool { return strings.HasPrefix(call, "gone") }
		if first := slices.IndexFunc(got, isGone); slices.ContainsFunc(got[first:], func(call string) bool { return !isGone(call) }) {
			t.Errorf("a name was gone before the last farewell: %q", got)
		}
		if most.Load() != 2 {
			t.Errorf("%d farewells at once, want 2", most.Load())
		}
		over, cancel := context.WithCancel(context.Background())
		cancel()
		if without := s.End(over); without != 5 {
			t.Errorf("with no time left %d names had no farewell, want 5", without)
		}
	})
}

func TestLeaveWithoutAFarewellRemoves(t *testing.T) {
	bubble(t, 1, steady, func(w *world) {
		w.start()
		w.Add("n", 1)
		pass(time.Second)
		if !w.Leave("n") || w.Leave("n") {
			t.Error("it was not removed at once")
		}
		w.Add("m", 2)
		pass(time.Second)
		w.stop()
		if without := w.End(context.Background()); without != 0 || len(w.gone) != 2 {
			t.Errorf("%d names without a farewell, Gone of %v", without, w.gone)
		}
	})
	leavers(t, silent, func(s *Scheduler[int], stop func(), order func() []string) {
		stop()
		s.Add("n", 1)
		if !s.Leave("n") || s.Len() != 0 || len(order()) != 0 {
			t.Errorf("after Run it was not removed at once: %q", order())
		}
	})
}

// Runs that take long do not hold up other names, and a name still has one run at a time.
func TestASlowRunGivesItsWorkerBack(t *testing.T) {
	for _, hold := range []time.Duration{0, 100 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 2, func(ctx context.Context, _ string, value int) Next {
				if value < 8 {
					select {
					case <-time.After(25 * time.Second):
					case <-ctx.Done():
					}
				}
				return Next{}
			})
			w.cfg.Hold = hold
			for i := range 16 {
				w.Add(fmt.Sprint("n", i), i)
			}
			w.start()
			time.Sleep(time.Minute)
			synctest.Wait()
			w.mu.Lock()
			runs := make(map[int]int)
			for _, r := range w.runs {
				runs[r.value]++
			}
			w.mu.Unlock()
			for i := range 16 {
				if held := runs[i] >= 2; held != (hold > 0) && i >= 8 {
					t.Errorf("hold %v: n%d has run %d times in a minute", hold, i, runs[i])
				}
			}
			if w.Remove("n0"); hold > 0 {
				time.Sleep(time.Second)
				if _, ok := w.Get("n0"); ok {
					t.Error("a name whose slow run was cancelled is still there")
				}
			}
			w.stop()
			if w.running != 0 {
				t.Errorf("%d workers are held at the end", w.running)
			}
		})
	}
}
