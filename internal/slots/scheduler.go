// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"context"
	"sync"
	"time"
)

// catchUp is how much faster than the steady rate runs may start: enough to
// be through with a backlog in two thirds of an interval.
const catchUp = 1.5

// minRate is the least number of starts a second, whatever the number of
// names: retries of a single node must not wait for tokens.
const minRate = 100

// Scheduler runs names. Make it with New.
type Scheduler[E any] struct {
	cfg   Config[E]
	epoch time.Time
	wake  chan struct{}

	mu      sync.Mutex
	entries map[string]*entry[E]
	phase   phase
	wakeAt  time.Duration // when Run looks next if nobody wakes it
	waiting queue[E]      // not due yet
	ready   queue[E]      // due, and the deadline ahead
	lost    queue[E]      // due, and the deadline past
	gone    []*entry[E]   // removed, and Gone not called yet
	begun   bool          // Run runs
	running int
	bucket  bucket
}

// New returns a Scheduler without names.
func New[E any](cfg Config[E]) *Scheduler[E] {
	s := &Scheduler[E]{
		cfg:     cfg,
		epoch:   time.Now(),
		wake:    make(chan struct{}, 1),
		entries: make(map[string]*entry[E]),
		waiting: queue[E]{before: byDue[E]},
		ready:   queue[E]{before: byDeadline[E]},
		lost:    queue[E]{before: byDue[E]},
	}
	s.bucket.tokens = s.burst()
	return s
}

// Add adds a name that is due at once. It reports false, and changes nothing,
// where the name is there already.
func (s *Scheduler[E]) Add(name string, value E) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.entries[name]; ok {
		if !e.removed || e.revived != nil {
			return false
		}
		// The run that Remove cancelled has not come back yet, or Gone has not.
		// Two chains for one name must not exist, so the new one begins where
		// that ends.
		e.revived = &value
		return true
	}
	if len(s.entries) == 0 && s.phase == 0 {
		s.phase = firstPhase(name)
	} else {
		s.phase = s.phase.next()
	}
	now := s.now()
	e := &entry[E]{name: name, value: value, phase: s.phase, due: now, deadline: s.startBy(now), ended: -forever}
	s.entries[name] = e
	s.wait(e)
	return true
}

// Remove removes a name and cancels its run if one is under way; it does not
// wait for it. It returns the value the name had, and false where there was
// none.
func (s *Scheduler[E]) Remove(name string) (value E, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[name]
	if !ok {
		return value, false
	}
	switch {
	case e.removed && e.revived == nil:
		return value, false
	case e.removed:
		value = *e.revived
		e.revived = nil
		return value, true
	case e.running:
		e.removed = true
		e.cancel()
		return e.value, true
	}
	e.leave()
	if s.cfg.Gone == nil || !s.begun {
		delete(s.entries, name)
		return e.value, true
	}
	e.removed, e.told = true, true
	s.gone = append(s.gone, e)
	s.poke()
	return e.value, true
}

// Trigger makes a name due now, or MinGap after its last run. Triggers that
// come before the run they ask for has begun are one. It reports whether the
// name is there.
func (s *Scheduler[E]) Trigger(name string) bool { return s.TriggerAfter(name, 0) }

// TriggerAfter makes a name due after wait, or MinGap after its last run if that is
// later, unless it is due sooner anyway. It reports whether the name is there.
func (s *Scheduler[E]) TriggerAfter(name string, wait time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[name]
	if !ok || e.removed && e.revived == nil {
		return false
	}
	due := s.now() + max(wait, 0)
	if e.running {
		if !e.again || due < e.againAt {
			e.again, e.againAt = true, due
		}
		return true
	}
	if e.removed {
		return true // it runs after Gone
	}
	if e.ended >= 0 {
		due = max(due, e.ended+s.cfg.MinGap)
	}
	if e.queue != nil && (e.queue != &s.waiting || e.due <= due) {
		return true // it runs as soon as it can, or sooner
	}
	e.leave()
	e.due = due
	s.wait(e)
	return true
}

// Get returns the value of a name.
func (s *Scheduler[E]) Get(name string) (value E, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[name]
	switch {
	case !ok || e.removed && e.revived == nil:
		return value, false
	case e.removed:
		return *e.revived, true
	}
	return e.value, true
}

// Len returns the number of names.
func (s *Scheduler[E]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries)
}

// Names returns the names, in no order.
func (s *Scheduler[E]) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]string, 0, len(s.entries))
	for name, e := range s.entries {
		if !e.removed || e.revived != nil {
			names = append(names, name)
		}
	}
	return names
}

// Run runs names until ctx is done, and returns when the last run has.
// It must be called once.
func (s *Scheduler[E]) Run(ctx context.Context) {
	s.mu.Lock()
	s.begun = true
	s.mu.Unlock()
	var runs sync.WaitGroup
	defer s.end(ctx)
	defer runs.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		timer.Reset(s.start(ctx, &runs))
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-timer.C:
		}
	}
}

// end calls Gone for the names that were removed in the last moment.
func (s *Scheduler[E]) end(ctx context.Context) {
	s.mu.Lock()
	gone := s.gone
	s.gone, s.begun = nil, false
	s.running += len(gone)
	s.mu.Unlock()
	for _, e := range gone {
		s.cfg.Gone(ctx, e.name, e.value)
		s.finish(e, Next{})
	}
}

// start starts what is due and can run, and returns how long it is until there
// may be more.
func (s *Scheduler[E]) start(ctx context.Context, runs *sync.WaitGroup) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	wait := s.startDue(ctx, runs, now)
	s.wakeAt = forever
	if wait < forever-now {
		s.wakeAt = now + wait
	}
	return wait
}

func (s *Scheduler[E]) startDue(ctx context.Context, runs *sync.WaitGroup, now time.Duration) time.Duration {
	for e := s.waiting.first(); e != nil && e.due <= now; e = s.waiting.first() {
		s.ready.add(s.waiting.take())
	}
	for ; s.running < s.cfg.Workers && len(s.gone) > 0; s.running++ {
		e := s.gone[0]
		s.gone = s.gone[1:]
		e.running = true
		runs.Go(func() {
			s.cfg.Gone(ctx, e.name, e.value)
			s.finish(e, Next{})
		})
	}
	for s.running < s.cfg.Workers {
		e := s.mostUrgent(now)
		if e == nil {
			break
		}
		if wait := s.bucket.wait(now, s.rate(), s.burst()); wait > 0 {
			return min(wait, s.untilDue(now))
		}
		s.bucket.take()
		e.leave()
		e.running, e.again = true, false
		s.running++
		runCtx, cancel := context.WithCancel(ctx)
		e.cancel = cancel
		runs.Go(func() {
			defer cancel()
			next := s.cfg.Do(runCtx, e.name, e.value)
			for !s.finish(e, next) {
				s.cfg.Gone(ctx, e.name, e.value)
			}
		})
	}
	return s.untilDue(now)
}

// mostUrgent returns the entry that runs next, still in its queue, or nil.
func (s *Scheduler[E]) mostUrgent(now time.Duration) *entry[E] {
	for e := s.ready.first(); e != nil && e.deadline <= now; e = s.ready.first() {
		s.lost.add(s.ready.take())
	}
	ready, lost := s.ready.first(), s.lost.first()
	if ready == nil || lost != nil && ready.deadline-now > s.cfg.Interval {
		// What can wait for an interval more makes room for what is lost, or
		// those that run in time would run again and again, and those that
		// came too late once never.
		return lost
	}
	return ready
}

func (s *Scheduler[E]) untilDue(now time.Duration) time.Duration {
	if e := s.waiting.first(); e != nil {
		return e.due - now
	}
	return forever
}

// finish takes back an entry whose run has ended. It reports false, and does
// nothing, where Gone has to be called before.
func (s *Scheduler[E]) finish(e *entry[E], next Next) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.removed = e.removed || next.Done
	if e.removed && !e.told && s.cfg.Gone != nil {
		e.told = true
		return false
	}
	now := s.now()
	s.running--
	if len(s.ready.entries)+len(s.lost.entries)+len(s.gone) > 0 {
		s.poke() // a worker is free
	}
	e.running, e.cancel, e.ended = false, nil, now
	if e.removed {
		if e.revived == nil {
			delete(s.entries, e.name)
			return true
		}
		e.value, e.revived, e.removed, e.told = *e.revived, nil, false, false
		e.due, e.deadline, e.ended = now, s.startBy(now), -forever
		s.wait(e)
		return true
	}
	e.deadline = s.startBy(now)
	if !next.Deadline.IsZero() {
		e.deadline = next.Deadline.Sub(s.epoch)
	}
	e.due = forever
	if !next.Idle {
		e.due = now + s.until(e, now, next)
	}
	if e.again {
		e.due = min(e.due, max(now+s.cfg.MinGap, e.againAt))
	}
	if e.due == forever {
		return true
	}
	s.wait(e)
	return true
}

// wait makes an entry wait until it is due, and wakes Run where that is before
// it looks by itself.
func (s *Scheduler[E]) wait(e *entry[E]) {
	s.waiting.add(e)
	if e.due < s.wakeAt {
		s.poke()
	}
}

// until returns how long it is from now to the next run.
func (s *Scheduler[E]) until(e *entry[E], now time.Duration, next Next) time.Duration {
	slot := untilSlot(now, e.phase, s.cfg.Interval, s.cfg.Interval/4)
	switch {
	case next.Wait <= 0:
		return slot
	case next.NoLaterThanSlot:
		return min(next.Wait, slot)
	}
	return next.Wait
}

// startBy is the deadline of a name that has none of its own.
func (s *Scheduler[E]) startBy(now time.Duration) time.Duration {
	if s.cfg.StartWithin == 0 {
		return forever
	}
	return now + s.cfg.StartWithin
}

func (s *Scheduler[E]) rate() float64 {
	return max(minRate, catchUp*float64(len(s.entries))/s.cfg.Interval.Seconds())
}

func (s *Scheduler[E]) burst() float64 { return float64(s.cfg.Workers) }

func (s *Scheduler[E]) now() time.Duration { return time.Since(s.epoch) }

// poke wakes Run.
func (s *Scheduler[E]) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
