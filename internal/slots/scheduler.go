// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// catchUp is the highest rate of starts, as a multiple of the steady rate. It works
// off a backlog in two thirds of an interval.
const catchUp = 1.5

// minRate is the lowest limit of starts per second, so that retries of a single node
// do not wait for tokens.
const minRate = 100

// minFew is the least number of workers for runs at their places.
const minFew = 4

// A Scheduler runs names. Use New to make one.
type Scheduler[E any] struct {
	cfg   Config[E]
	epoch time.Time
	wake  chan struct{}

	mu      sync.Mutex
	entries map[string]*entry[E]
	phase   phase
	wakeAt  time.Duration // when Run's timer fires
	waiting queue[E]      // not due yet
	calm    queue[E]      // due at their slot, and not late yet
	ready   queue[E]      // due, and the deadline ahead
	lost    queue[E]      // due, and the deadline past
	gone    []*entry[E]   // removed, and Gone not called yet
	begun   bool          // Run is running
	running int
	bucket  bucket
	load    load
}

// New returns a Scheduler without names.
func New[E any](cfg Config[E]) *Scheduler[E] {
	s := &Scheduler[E]{
		cfg:     cfg,
		epoch:   time.Now(),
		wake:    make(chan struct{}, 1),
		entries: make(map[string]*entry[E]),
		waiting: queue[E]{before: byDue[E]},
		calm:    queue[E]{before: byDue[E]},
		ready:   queue[E]{before: byDeadline[E]},
		lost:    queue[E]{before: byDue[E]},
	}
	s.bucket.tokens = s.burst()
	return s
}

// Add adds a name that is due at once. It reports false, and changes nothing, if
// the name exists. A name that is leaving or removed begins with the new value when
// it is gone.
func (s *Scheduler[E]) Add(name string, value E) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.entries[name]; ok {
		if e.exists() {
			return false
		}
		// The run that Remove cancelled has not returned yet, or the farewell or
		// Gone has not. A name has one chain of runs, so the new one begins when
		// the old one ends.
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

// Remove removes a name without a farewell and cancels its run if one is under way;
// it does not wait for it. It returns the value of the name, and false if the name
// does not exist.
func (s *Scheduler[E]) Remove(name string) (value E, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[name]
	switch {
	case !ok || !e.exists():
		return value, false
	case e.revived != nil:
		value, e.revived = *e.revived, nil
		return value, true
	}
	s.remove(e)
	return e.value, true
}

// remove removes an entry that is not removed yet. s.mu must be held.
func (s *Scheduler[E]) remove(e *entry[E]) {
	if e.running {
		e.removed = true
		e.cancel()
		return
	}
	e.leave()
	if s.cfg.Gone == nil || !s.begun {
		s.forget(e)
		return
	}
	e.removed, e.parted = true, true
	s.gone = append(s.gone, e)
	s.poke()
}

// forget drops an entry that has gone, or begins its next chain of runs if the name
// was added again. s.mu must be held.
func (s *Scheduler[E]) forget(e *entry[E]) {
	if e.revived == nil {
		delete(s.entries, e.name)
		return
	}
	now := s.now()
	e.value, e.revived, e.leaving, e.removed, e.parted = *e.revived, nil, false, false, false
	e.due, e.atSlot, e.deadline, e.ended = now, false, s.startBy(now), -forever
	s.wait(e)
}

// Leave removes a name after its farewell: the name no longer exists, but is due now,
// and its runs must call Part. If Config has no Farewell, or Run does not run, Leave
// removes the name at once and reports true.
func (s *Scheduler[E]) Leave(name string) (removed bool) {
	if s.cfg.Farewell == nil {
		_, removed = s.Remove(name)
		return removed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[name]
	switch {
	case !ok || !e.exists():
		return false
	case e.revived != nil: // it was added again, and leaves again
		e.revived = nil
		return false
	case !s.begun:
		s.remove(e)
		return true
	}
	e.leaving = true
	s.trigger(e, s.now())
	return false
}

// Leaving reports whether a name is leaving, and a call of Part is due.
func (s *Scheduler[E]) Leaving(name string) bool {
	_, ok := s.leaver(name)
	return ok
}

func (s *Scheduler[E]) leaver(name string) (*entry[E], bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[name]
	return e, ok && e.leaving && !e.removed
}

// Part calls the farewell of a name that is leaving, and then removes it unless ctx is
// done. It reports whether the name was leaving. A name must have no more than one call
// of Part at a time; it may be made during a run of the name.
func (s *Scheduler[E]) Part(ctx context.Context, name string) bool {
	e, ok := s.leaver(name)
	if !ok {
		return false
	}
	s.cfg.Farewell(ctx, name, e.value)
	if ctx.Err() == nil { // else Run ends, and End calls Farewell again
		s.mu.Lock()
		defer s.mu.Unlock()
		s.remove(e)
	}
	return true
}

// End calls the farewells of all names that are left, those that are leaving included,
// and then Gone for each of them. At most Workers farewells are under way at once. When
// ctx is done no further one begins; End returns the number of names that went without.
// It must be called after Run has returned, and once.
func (s *Scheduler[E]) End(ctx context.Context) (without int) {
	s.mu.Lock()
	left := slices.Collect(maps.Values(s.entries))
	s.mu.Unlock()
	if s.cfg.Farewell != nil {
		var farewells sync.WaitGroup
		free := make(chan struct{}, s.cfg.Workers)
		for _, e := range left {
			select {
			case free <- struct{}{}:
			case <-ctx.Done():
			}
			if ctx.Err() != nil {
				without++
				continue
			}
			farewells.Go(func() {
				s.cfg.Farewell(ctx, e.name, e.value)
				<-free
			})
		}
		farewells.Wait()
	}
	if s.cfg.Gone != nil {
		for _, e := range left {
			s.cfg.Gone(ctx, e.name, e.value)
		}
	}
	return without
}

// Trigger makes a name due now, or MinGap after its last run. Triggers that
// come before the run they ask for has begun are one. It reports whether the
// name exists.
func (s *Scheduler[E]) Trigger(name string) bool { return s.TriggerAfter(name, 0) }

// TriggerAfter makes a name due after wait, or MinGap after its last run if that is
// later, unless it is due sooner anyway. It reports whether the name exists.
func (s *Scheduler[E]) TriggerAfter(name string, wait time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[name]
	if !ok || !e.exists() {
		return false
	}
	s.trigger(e, s.now()+max(wait, 0))
	return true
}

// trigger makes e due at a time, unless it is due sooner. s.mu must be held.
func (s *Scheduler[E]) trigger(e *entry[E], due time.Duration) {
	if e.running {
		if !e.again || due < e.againAt {
			e.again, e.againAt = true, due
		}
		return
	}
	if e.removed {
		return // it runs after Gone
	}
	if e.ended >= 0 {
		due = max(due, e.ended+s.cfg.MinGap)
	}
	if e.queue == &s.ready || e.queue == &s.lost || e.queue == &s.waiting && e.due <= due {
		return // it runs as soon as it can, or sooner
	}
	e.leave()
	e.due, e.atSlot = due, false
	s.wait(e)
}

// Get returns the value of a name.
func (s *Scheduler[E]) Get(name string) (value E, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[name]
	switch {
	case !ok || !e.exists():
		return value, false
	case e.revived != nil:
		return *e.revived, true
	}
	return e.value, true
}

// Len returns the number of names, those that are leaving included.
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
		if e.exists() {
			names = append(names, name)
		}
	}
	return names
}

// Run runs names until ctx is done, and returns after the last run has returned.
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

// end calls Gone for the removed names that had no worker for it yet.
func (s *Scheduler[E]) end(ctx context.Context) {
	s.mu.Lock()
	gone := s.gone
	s.gone, s.begun = nil, false
	s.running += len(gone)
	for _, e := range gone {
		e.holds = true
	}
	s.mu.Unlock()
	for _, e := range gone {
		s.cfg.Gone(ctx, e.name, e.value)
		s.finish(e, Next{})
	}
}

// start starts the names that are due, and returns the time until the next one may
// be.
func (s *Scheduler[E]) start(ctx context.Context, runs *sync.WaitGroup) time.Duration {
	s.mu.Lock()
	now := s.now()
	wait := s.startDue(ctx, runs, now)
	s.wakeAt = forever
	if wait < forever-now {
		s.wakeAt = now + wait
	}
	changed, load, overloaded := s.load.changed, s.loadNow(), s.load.overloaded
	s.load.changed = false
	s.mu.Unlock()
	if changed && s.cfg.Overloaded != nil {
		s.cfg.Overloaded(ctx, load, overloaded)
	}
	return wait
}

// loadNow returns the current load. s.mu must be held.
func (s *Scheduler[E]) loadNow() Load {
	return Load{Names: len(s.entries), Interval: s.cfg.Interval, Workers: s.cfg.Workers, Run: s.load.average, Late: s.load.late}
}

// Overloaded returns the load, and whether runs start more than an Interval after they
// were due because of it.
func (s *Scheduler[E]) Overloaded() (Load, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loadNow(), s.load.overloaded
}

func (s *Scheduler[E]) startDue(ctx context.Context, runs *sync.WaitGroup, now time.Duration) time.Duration {
	for e := s.waiting.first(); e != nil && e.due <= now; e = s.waiting.first() {
		queue := &s.ready
		if e.atSlot {
			queue = &s.calm
		}
		queue.add(s.waiting.take())
	}
	for e := s.calm.first(); e != nil && e.due+s.calmFor() <= now; e = s.calm.first() {
		s.ready.add(s.calm.take())
	}
	for ; s.running < s.cfg.Workers && len(s.gone) > 0; s.running++ {
		e := s.gone[0]
		s.gone = s.gone[1:]
		e.running, e.holds = true, true
		runs.Go(func() {
			s.cfg.Gone(ctx, e.name, e.value)
			s.finish(e, Next{})
		})
	}
	for s.running < s.cfg.Workers {
		e := s.mostUrgent(now)
		if e == nil && s.running < s.few() {
			e = s.calm.first()
		}
		if e == nil {
			s.load.drained(now, s.cfg.Interval)
			break
		}
		if wait := s.bucket.wait(now, s.rate(), s.burst()); wait > 0 {
			return min(wait, s.untilDue(now))
		}
		s.bucket.take()
		e.leave()
		e.running, e.holds, e.again = true, true, false
		s.running++
		s.load.started(now, now-e.due, s.loadNow())
		e.due = now // while it runs: when it started
		runCtx, cancel := context.WithCancel(ctx)
		e.cancel = cancel
		runs.Go(func() {
			defer cancel()
			next := s.do(runCtx, e)
			for !s.finish(e, next) {
				s.cfg.Gone(ctx, e.name, e.value)
			}
		})
	}
	return s.untilDue(now)
}

// exists reports whether a name exists for the caller: it does not if it is leaving or
// removed, unless it was added again. The scheduler's mu must be held.
func (e *entry[E]) exists() bool { return !e.leaving && !e.removed || e.revived != nil }

// mostUrgent returns the entry that runs next, still in its queue, or nil.
func (s *Scheduler[E]) mostUrgent(now time.Duration) *entry[E] {
	for e := s.ready.first(); e != nil && e.deadline <= now; e = s.ready.first() {
		s.lost.add(s.ready.take())
	}
	ready, lost := s.ready.first(), s.lost.first()
	if ready == nil || lost != nil && ready.deadline-now > s.cfg.Interval {
		// A name that can wait for another interval makes room for a lost one.
		// Otherwise names that are in time would run again and again, and a name
		// that was late once would never run.
		return lost
	}
	return ready
}

// untilDue returns the time until a name that waits may run, unless a run ends before.
func (s *Scheduler[E]) untilDue(now time.Duration) time.Duration {
	until := forever
	if e := s.waiting.first(); e != nil {
		until = e.due - now
	}
	if e := s.calm.first(); e != nil {
		until = min(until, e.due+s.calmFor()-now)
	}
	return until
}

// finish schedules the next run of an entry whose run has ended. It reports false,
// and does nothing, if Gone must be called first.
func (s *Scheduler[E]) finish(e *entry[E], next Next) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.removed && !e.parted && s.cfg.Gone != nil {
		e.parted = true
		return false
	}
	now := s.now()
	if next.Unpaced {
		s.bucket.tokens++
	}
	if e.holds {
		s.free(e)
		if !e.removed {
			s.load.ran(now - e.due)
		}
	}
	e.running, e.cancel, e.ended = false, nil, now
	if e.removed {
		s.forget(e)
		return true
	}
	e.deadline = s.startBy(now)
	if !next.Deadline.IsZero() {
		e.deadline = next.Deadline.Sub(s.epoch)
	}
	e.due, e.atSlot = forever, false
	if !next.Idle {
		e.due, e.atSlot = now+s.until(e, now, next), next.Wait <= 0
	}
	if asked := max(now+s.cfg.MinGap, e.againAt); e.again && asked < e.due {
		e.due, e.atSlot = asked, false
	}
	if e.due == forever {
		return true
	}
	s.wait(e)
	return true
}

// do runs an entry, and takes the worker from it if it has held that for Hold.
func (s *Scheduler[E]) do(ctx context.Context, e *entry[E]) Next {
	if s.cfg.Hold == 0 {
		return s.cfg.Do(ctx, e.name, e.value)
	}
	over := false // guarded by s.mu
	timer := time.AfterFunc(s.cfg.Hold, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !over {
			s.load.ran(s.now() - e.due)
			s.free(e)
		}
	})
	next := s.cfg.Do(ctx, e.name, e.value)
	timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	over = true
	return next
}

// free takes the worker from an entry. s.mu must be held.
func (s *Scheduler[E]) free(e *entry[E]) {
	e.holds = false
	s.running--
	if len(s.calm.entries)+len(s.ready.entries)+len(s.lost.entries)+len(s.gone) > 0 {
		s.poke()
	}
}

// wait adds an entry to the queue of those that are not due yet, and wakes Run if the
// entry is due before Run's timer fires.
func (s *Scheduler[E]) wait(e *entry[E]) {
	s.waiting.add(e)
	if e.due < s.wakeAt {
		s.poke()
	}
}

// until returns the time from now to the next run.
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

// startBy returns the deadline of a name whose run gave none.
func (s *Scheduler[E]) startBy(now time.Duration) time.Duration {
	if s.cfg.StartWithin == 0 {
		return forever
	}
	return now + s.cfg.StartWithin
}

func (s *Scheduler[E]) rate() float64 {
	return max(minRate, catchUp*float64(len(s.entries))/s.cfg.Interval.Seconds())
}

// few returns the number of workers that calm names may use: as many as a place has
// names, so that these still run together, and at least minFew.
func (s *Scheduler[E]) few() int { return max(minFew, (len(s.entries)+places-1)/places) }

// calmFor returns how long after its slot a name is calm: 250 ms for a lease.
func (s *Scheduler[E]) calmFor() time.Duration { return s.cfg.Interval / 40 }

func (s *Scheduler[E]) burst() float64 { return float64(s.cfg.Workers) }

func (s *Scheduler[E]) now() time.Duration { return time.Since(s.epoch) }

// poke wakes Run.
func (s *Scheduler[E]) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
