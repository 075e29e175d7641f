// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package callback

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const (
	limit    = 10 * time.Second
	patience = 50 * time.Millisecond
)

// A program is a function that returns the number of its call when the test lets it, and
// what the room has said about it.
type program struct {
	Room[int]
	line Line[int]
	took atomic.Int64 // time.Duration of the next calls
	ends bool         // at the end of their contexts

	mu           sync.Mutex
	calls, under int
	late         []time.Duration
	begun        time.Time
}

func newProgram() *program {
	p := &program{Room: Room[int]{Name: "Gate", Limit: limit, Patience: patience}, begun: time.Now()}
	p.Late = func(string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.late = append(p.late, time.Since(p.begun))
	}
	return p
}

func (p *program) call(ctx context.Context) (int, error) {
	p.mu.Lock()
	p.calls++
	p.under++
	n, under := p.calls, p.under
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.under--
		p.mu.Unlock()
	}()
	if under > 1 {
		return 0, errors.New("two calls at once")
	}
	timer := time.NewTimer(time.Duration(p.took.Load()))
	defer timer.Stop()
	if p.ends {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		return n, nil
	}
	<-timer.C
	return n, nil
}

func (p *program) ask(t *testing.T) (int, error) { return p.Ask(t.Context(), "n1", &p.line, p.call) }

func (p *program) visit(t *testing.T) (int, error, time.Duration, bool) {
	return p.Visit(t.Context(), "n1", &p.line, p.call)
}

func (p *program) lates() []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]time.Duration(nil), p.late...)
}

// Callers that ask at once share a call, and one that asks during it has the next.
func TestNoCallerHasTheAnswerToAnEarlierQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProgram()
		p.took.Store(int64(time.Second))
		var all sync.WaitGroup
		got := make([]int, 6)
		at := make([]time.Duration, 6)
		for i := range got {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 300 * time.Millisecond)
				got[i], _ = p.ask(t)
				at[i] = time.Since(p.begun)
			})
		}
		all.Wait()
		for i, want := range []int{1, 2, 2, 2, 3, 3} { // call 2 begins after 1 s, and call 3 after 2 s
			if got[i] != want || at[i] != time.Duration(want)*time.Second {
				t.Errorf("the caller of %d ms has answer %d after %v, want %d", 300*i, got[i], at[i], want)
			}
		}
		if late := p.lates(); len(late) > 0 {
			t.Errorf("late at %v, and no caller had left", late)
		}
	})
}

func TestACallThatHangsEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProgram()
		p.took.Store(int64(time.Minute))
		if _, err := p.ask(t); !Failed(err) || time.Since(p.begun) != limit {
			t.Errorf("%v after %v", err, time.Since(p.begun))
		}
		p.took.Store(0)
		if _, err := p.ask(t); !Failed(err) || time.Since(p.begun) != limit {
			t.Errorf("a caller waits for a call that hangs: %v after %v", err, time.Since(p.begun))
		}
		if p.WaitFor(time.Second) {
			t.Error("no call is under way")
		}
		time.Sleep(50 * time.Second)
		synctest.Wait()
		if late := p.lates(); len(late) != 1 || late[0] != time.Minute {
			t.Errorf("late at %v, want a minute", late)
		}
		if n, err := p.ask(t); n != 2 || err != nil {
			t.Errorf("answer %d, %v", n, err)
		}
		if !p.WaitFor(time.Second) {
			t.Error("a call is under way")
		}
	})
}

func TestAnAnswerAtTheEndOfTheContextIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProgram()
		p.ends = true
		p.took.Store(int64(time.Minute))
		for range 3 {
			if _, err := p.ask(t); !Failed(err) {
				t.Errorf("%v", err)
			}
			synctest.Wait()
		}
		if p.calls != 3 {
			t.Errorf("%d calls", p.calls)
		}
	})
}

func TestAPanicIsAnErrorOfItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProgram()
		_, err := p.Ask(t.Context(), "n1", &p.line, func(context.Context) (int, error) { panic("boom") })
		if !Failed(err) || err.Error() != "panic in Gate: boom" {
			t.Errorf("%v", err)
		}
		no := errors.New("no")
		if _, err := p.Ask(t.Context(), "n1", &p.line, func(context.Context) (int, error) { return 0, no }); err != no || Failed(err) {
			t.Errorf("an answer that is an error: %v", err)
		}
	})
}

func TestACallerLeavesWhenItsContextIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProgram()
		p.took.Store(int64(time.Second))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := p.Ask(ctx, "n1", &p.line, p.call); !errors.Is(err, context.DeadlineExceeded) || Failed(err) {
			t.Errorf("%v", err)
		}
		p.Wait()
	})
}

// A visit leaves a slow call, and the visit that Late asks for takes its answer. The worker
// waits once.
func TestAVisitComesBackForTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProgram()
		p.took.Store(int64(time.Second))
		if _, _, wait, ok := p.visit(t); ok || wait != limit-patience || time.Since(p.begun) != patience {
			t.Errorf("ok %v, wait %v, after %v", ok, wait, time.Since(p.begun))
		}
		time.Sleep(time.Second - patience)
		synctest.Wait()
		if late := p.lates(); len(late) != 1 || late[0] != time.Second {
			t.Fatalf("late at %v, want a second", late)
		}
		if n, err, _, ok := p.visit(t); n != 1 || err != nil || !ok {
			t.Errorf("answer %d, %v, %v", n, err, ok)
		}
		begun := time.Now()
		if _, _, _, ok := p.visit(t); ok || time.Since(begun) > 0 {
			t.Errorf("a line that was slow: %v after %v", ok, time.Since(begun))
		}
		p.took.Store(0)
		time.Sleep(time.Second)
		synctest.Wait()
		p.visit(t)
		if n, _, _, ok := p.visit(t); n != 3 || !ok || p.calls != 3 {
			t.Errorf("answer %d of %d calls, %v", n, p.calls, ok)
		}
		if p.line != (Line[int]{}) {
			t.Errorf("a quiet line keeps %+v", p.line)
		}
	})
}

// An answer that nothing has taken in time is none in a room that is Fresh.
func TestAFreshRoomTakesNoOldAnswer(t *testing.T) {
	for _, fresh := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := newProgram()
			p.Fresh = fresh
			p.took.Store(int64(time.Second))
			p.visit(t)
			time.Sleep(limit)
			p.took.Store(0)
			want := map[bool]int{false: 1, true: 2}[fresh]
			if n, err, _, ok := p.visit(t); n != want || err != nil || !ok {
				t.Errorf("fresh %v: answer %d, %v, %v", fresh, n, err, ok)
			}
			p.Wait()
		})
	}
}

// A visit during a call asks for something newer, so another look follows the answer.
func TestAVisitDuringACallIsFollowedByAnotherLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProgram()
		p.took.Store(int64(time.Second))
		p.visit(t)
		p.visit(t)
		time.Sleep(time.Second)
		synctest.Wait()
		if late := p.lates(); len(late) != 1 {
			t.Fatalf("late at %v", late)
		}
		if n, _, _, ok := p.visit(t); n != 1 || !ok {
			t.Errorf("answer %d, %v", n, ok)
		}
		if late := p.lates(); len(late) != 2 {
			t.Errorf("late at %v, want another look", late)
		}
	})
}

// While a call hangs, each visit has an answer at once, and none of them another look.
func TestVisitsOfACallThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProgram()
		p.took.Store(int64(time.Minute))
		_, _, wait, _ := p.visit(t)
		time.Sleep(wait)
		for range 3 {
			begun := time.Now()
			if _, err, _, ok := p.visit(t); !ok || !Failed(err) || time.Since(begun) > 0 {
				t.Errorf("%v, %v after %v", err, ok, time.Since(begun))
			}
			time.Sleep(10 * time.Second)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, err, _, ok := p.visit(t); !ok || !Failed(err) {
			t.Errorf("an answer after a minute: %v, %v", err, ok)
		}
		if late := p.lates(); len(late) != 1 || p.calls != 1 {
			t.Errorf("late at %v, %d calls", late, p.calls)
		}
	})
}

// A visit does not take the answer of a caller that asked before, and comes back.
func TestAVisitDuringTheCallOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProgram()
		p.took.Store(int64(time.Second))
		var other sync.WaitGroup
		other.Go(func() { p.ask(t) })
		synctest.Wait()
		if _, _, _, ok := p.visit(t); ok {
			t.Error("the visit has an answer")
		}
		other.Wait()
		synctest.Wait()
		if late := p.lates(); len(late) != 1 {
			t.Fatalf("late at %v", late)
		}
		p.took.Store(0)
		if n, _, _, ok := p.visit(t); n != 2 || !ok {
			t.Errorf("answer %d, %v", n, ok)
		}
	})
}

// A process that was stopped has not waited: each of the steps counts for no more than its
// length.
func TestATimeInWhichTheProcessWasStoppedIsNoPatience(t *testing.T) {
	for stopped, want := range map[int]bool{1: true, steps - 1: true, steps: false} {
		done := make(chan struct{})
		waits := 0
		after := func(time.Duration) <-chan time.Time {
			if waits++; waits == stopped+1 {
				close(done)
				return nil
			}
			c := make(chan time.Time, 1)
			c <- time.Time{}
			return c
		}
		if got := await(t.Context(), done, limit, after); got != want {
			t.Errorf("%d timers have fired: %v", stopped, got)
		}
	}
}

// Whatever callers do, a line has one call at a time, a caller has an answer to a call that
// began after its question, and each answer that was left is followed by a look.
func TestRandomCallers(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			p := newProgram()
			looks := make(chan struct{}, 1)
			p.Late = func(string) {
				select {
				case looks <- struct{}{}:
				default:
				}
			}
			var callers sync.WaitGroup
			for range 3 {
				pause := time.Duration(random.Int64N(int64(3 * time.Second)))
				callers.Go(func() {
					for range 5 {
						time.Sleep(pause)
						p.mu.Lock()
						before := p.calls
						p.mu.Unlock()
						if n, err := p.ask(t); err == nil && n <= before {
							t.Errorf("seed %d: answer %d to a question after call %d", seed, n, before)
						} else if err != nil && !Failed(err) {
							t.Errorf("seed %d: %v", seed, err)
						}
					}
				})
			}
			took := []time.Duration{0, time.Millisecond, patience, time.Second, limit, 15 * time.Second}
			for range 20 {
				p.took.Store(int64(took[random.IntN(len(took))]))
				for open := true; open; {
					_, err, wait, ok := p.visit(t)
					if err != nil && !Failed(err) {
						t.Errorf("seed %d: %v", seed, err)
					}
					if open = !ok; open {
						if wait <= 0 || wait > limit {
							t.Errorf("seed %d: wait %v", seed, wait)
						}
						select {
						case <-looks:
						case <-time.After(wait):
						}
					}
				}
				time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second))))
			}
			callers.Wait()
			p.Wait()
		})
	}
}
