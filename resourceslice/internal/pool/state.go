// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// RepairDelay is the time before another writer's change is undone. It doubles with
	// each repair of a series from the third on, up to maxRepairDelay.
	RepairDelay    = time.Second
	maxRepairDelay = 5 * time.Minute
	// ContentionAfter is the number of repairs after which another writer is reported and
	// repairs become rarer, unless a pause of contentionWindow and the longest delay was
	// between them.
	ContentionAfter  = 3
	contentionWindow = 5 * time.Minute
	// LateWrites is the time after a lost answer in which the API server may still
	// carry out the request: it gives up a minute after the request came, if its
	// --request-timeout is the default.
	LateWrites = time.Minute
)

// Phase says what happens to a pool, or why it waits.
type Phase string

// The phases of a pool.
const (
	Idle      Phase = "idle"      // it is published, or nothing was ever wanted
	Working   Phase = "working"   // a worker reconciles it, or left that to the next session
	Spacing   Phase = "spacing"   // the minimum interval since the last publish
	Drifted   Phase = "drifted"   // another writer's change waits for its repair
	Holding   Phase = "holding"   // a Set without devices, or a removal after a lost create
	Failing   Phase = "failing"   // backoff after an error
	Forbidden Phase = "forbidden" // after a 403, or another owner's slices
	Faulty    Phase = "faulty"    // published without content that the API server refused or dropped
	Stuck     Phase = "stuck"     // the API server refused a whole slice
	Yielding  Phase = "yielding"  // a newer instance publishes the pool
)

// sources has the phases from which each phase can be reached. Set reaches Spacing, and a
// worker Working, from every phase.
var sources = map[Phase][]Phase{
	Idle: {Working}, Faulty: {Working}, Drifted: {Working, Idle, Faulty, Drifted},
	Holding: {Working}, Failing: {Working}, Forbidden: {Working}, Stuck: {Working}, Yielding: {Working},
}

// delays are the phases in which a pool waits that is not published.
var delays = []Phase{Holding, Failing, Forbidden, Stuck, Yielding}

// Lost is a write without an answer.
type Lost struct {
	// Revision is that of the pool when the write was planned, 0 for the last repetition.
	Revision int64
	// First and Last are the times when answers were lost.
	First, Last time.Time
}

// State is what decides when a pool is reconciled. The zero value is not valid: see [New].
type State struct {
	minInterval time.Duration

	// What is wanted and what the API server has.
	//
	// Invariant: published is not beyond begun, nor that beyond revision.
	revision, published int64
	removed             bool // no slices are wanted

	// When the pool is reconciled: at next, and why not before.
	//
	// Invariant: idle or faulty implies that the latest revision is published.
	// Invariant: drifted implies that a change was noticed.
	phase  Phase
	next   time.Time
	spaced time.Time // the end of minInterval after the last publish began
	begun  int64     // the revision with which a worker began last

	// What other writers did.
	//
	// Invariant: repairs is not negative, and positive only after a repair.
	// Invariant: questioned implies that a change was noticed.
	driftedAt  time.Time // zero for none
	questioned time.Time // since when an older instance awaits a reply, zero for none
	undone     time.Time // driftedAt when the reconciliation began
	repairs    int
	lastRepair time.Time

	// Writes whose answers are lost, by the name of the slice.
	//
	// Invariant: the first loss of a write is not after its last.
	lost       map[string]Lost
	lostCreate time.Time // the last create without an answer

	siblings siblings
}

// New returns the state of a pool that self has not published. All pools of a process have
// the same self. minInterval is the least time between the beginnings of two publishes.
func New(self *Instance, minInterval time.Duration) *State {
	return &State{minInterval: minInterval, phase: Idle, lost: map[string]Lost{}, siblings: siblings{self: self}}
}

// Check returns the invariant that does not hold, or nil.
func (s *State) Check() error {
	broken := s.siblings.broken()
	broken["published is not beyond begun, nor that beyond revision"] = s.published > s.begun || s.begun > s.revision
	broken["idle or faulty implies that the latest revision is published"] = (s.phase == Idle || s.phase == Faulty) && s.published != s.revision
	broken["drifted implies that a change was noticed"] = s.phase == Drifted && s.driftedAt.IsZero()
	broken["questioned implies that a change was noticed"] = !s.questioned.IsZero() && s.driftedAt.IsZero()
	broken["repairs is positive only after a repair"] = s.repairs < 0 || s.repairs > 0 && s.lastRepair.IsZero()
	for name, w := range s.lost {
		broken["the first loss of a write is not after its last: "+name] = w.First.After(w.Last)
	}
	for text, is := range broken {
		if is {
			return fmt.Errorf("invariant: %s: %+v", text, *s)
		}
	}
	return nil
}

// An Event is a fact about a pool.
type Event interface {
	apply(s *State, now time.Time) error
}

// The events of a pool.
type (
	// Set means that another content is wanted.
	Set struct {
		Remove bool // no slices are wanted
		Urgent bool // it takes something from Pods
	}
	// Begin means that a worker begins to reconcile the pool.
	Begin struct{}
	// Published means that the API server has the pool as of when the worker began.
	Published struct {
		Fault time.Time // when refused or dropped content is sent again, zero for none
	}
	// Delay means that a worker could not publish that.
	Delay struct {
		Wait  time.Duration // the time before the next try
		Phase Phase         // why
	}
	// Foreign means that another client changed or deleted a slice.
	Foreign struct {
		Deleted bool     // the slice is gone
		Writer  Instance // in its annotation
	}
	// Found means that a slice has this writer: one of the pool or, if Now is set or the
	// pool has no slices, of another pool of the driver.
	Found struct {
		Writer Instance // in its annotation
		Now    bool     // it has just been written
	}
	// Repair means that a worker undoes another writer's change.
	Repair struct{}
	// Asked means that the newer instance was asked whether it lives.
	Asked struct{}
	// Restarted means that the API server may have other features, or that its slices may
	// have changed unseen.
	Restarted struct{}
	// LostAnswer means that a write has no answer.
	LostAnswer struct {
		Name     string // of the slice
		Create   bool   // the slice was to be created
		Revision int64  // of the pool when the write was planned, 0 for the last repetition
	}
	// Answered means that a write has an answer, or can't be carried out any longer.
	Answered struct {
		Name string // of the slice
	}
)

// Apply records an event. The error says that the event is not possible now; then the
// state is as it was.
func (s *State) Apply(now time.Time, e Event) error { return e.apply(s, now) }

// become changes the phase.
func (s *State) become(to Phase, next time.Time) error {
	if from, limited := sources[to]; limited && !slices.Contains(from, s.phase) {
		return fmt.Errorf("resourceslice: a pool that is %s can't become %s", s.phase, to)
	}
	s.phase, s.next = to, next
	return nil
}

func (e Set) apply(s *State, _ time.Time) error {
	if s.removed = e.Remove; e.Urgent {
		s.spaced = time.Time{} // nor do the Sets that follow before the next publish wait
	}
	s.revision++
	return s.become(Spacing, s.spaced)
}

func (Begin) apply(s *State, now time.Time) error {
	if s.begun != s.revision {
		s.begun, s.spaced = s.revision, now.Add(s.minInterval)
	}
	s.undone = s.driftedAt
	return s.become(Working, time.Time{})
}

func (e Published) apply(s *State, now time.Time) error {
	// A Set may have come in the meantime, for which the pool waits again.
	overtaken := s.begun < s.revision && s.phase == Spacing
	if s.phase != Working && !overtaken {
		return fmt.Errorf("resourceslice: revision %d of %d can't be published while the pool is %s", s.begun, s.revision, s.phase)
	}
	s.published = s.begun
	if s.driftedAt.Equal(s.undone) {
		s.driftedAt, s.questioned = time.Time{}, time.Time{}
	}
	if s.begun < s.revision {
		return nil // Set has scheduled it
	}
	to := Faulty
	if e.Fault.IsZero() {
		to = Idle
	}
	if err := s.become(to, e.Fault); err != nil {
		return err
	}
	if !s.driftedAt.IsZero() {
		s.drift(now)
	}
	return nil
}

func (e Delay) apply(s *State, now time.Time) error {
	if s.begun < s.revision {
		return nil // Set has scheduled it
	}
	if !slices.Contains(delays, e.Phase) {
		return fmt.Errorf("resourceslice: a pool that is not published can't become %s", e.Phase)
	}
	return s.become(e.Phase, now.Add(e.Wait))
}

func (e Foreign) apply(s *State, now time.Time) error {
	if s.Gone() && (e.Deleted || !e.Writer.Precedes(*s.siblings.self)) {
		return nil // the slices of a removed pool are another client's
	}
	if e.Deleted {
		s.siblings.missing(now)
	} else {
		s.siblings.found(now, e.Writer, true)
	}
	if s.driftedAt.IsZero() {
		s.driftedAt = now
	}
	if !e.Deleted && e.Writer.Asks && e.Writer.Precedes(*s.siblings.self) && s.questioned.IsZero() {
		s.questioned = now
	}
	s.drift(now)
	s.await(now)
	return nil
}

// drift schedules the repair of a published pool. A reply to an older instance must not
// become rare, or that one takes this one for silent.
func (s *State) drift(now time.Time) {
	due := s.driftedAt.Add(s.RepairDelay(now))
	if reply := s.questioned.Add(RepairDelay); !s.questioned.IsZero() && reply.Before(due) {
		due = reply
	}
	if s.phase == Idle || (s.phase == Faulty || s.phase == Drifted) && due.Before(s.next) {
		_ = s.become(Drifted, due) // from these three
	}
}

func (Repair) apply(s *State, now time.Time) error {
	if s.driftedAt.IsZero() {
		return errors.New("resourceslice: nothing has drifted")
	}
	s.repairs, s.lastRepair = s.series(now)+1, now
	return nil
}

func (Restarted) apply(s *State, _ time.Time) error {
	if s.phase == Faulty || s.phase == Stuck {
		s.next = time.Time{}
	}
	return nil
}

func (e LostAnswer) apply(s *State, now time.Time) error {
	w, again := s.lost[e.Name]
	if !again {
		w.First = now
	}
	w.Revision, w.Last = e.Revision, now
	s.lost[e.Name] = w
	if e.Create {
		s.lostCreate = now
	}
	return nil
}

func (e Answered) apply(s *State, _ time.Time) error {
	delete(s.lost, e.Name)
	return nil
}

// Next returns the time until the pool must be reconciled. It is 0 for one that is idle: a
// worker that is asked finds out whether something differs.
func (s *State) Next(now time.Time) time.Duration { return max(0, s.next.Sub(now)) }

// LostCreate reports whether a create may still be carried out.
func (s *State) LostCreate(now time.Time) bool { return now.Sub(s.lostCreate) < LateWrites }

// IsNew reports whether no worker has begun with what is wanted.
func (s *State) IsNew() bool { return s.begun != s.revision }

// Gone reports whether the pool was removed, and the API server has none of it. It is there
// again after an older instance, which wants the pool, has written a slice.
func (s *State) Gone() bool { return s.removed && s.phase == Idle && s.published == s.revision }

// Phase returns the phase.
func (s *State) Phase() Phase { return s.phase }

// Self returns this instance.
func (s *State) Self() Instance { return *s.siblings.self }

// Above returns the newer instance, if any.
func (s *State) Above() Instance { return s.siblings.above }

// RepairDelay returns the time before the next change of another writer is undone.
func (s *State) RepairDelay(now time.Time) time.Duration {
	delay := RepairDelay
	for n := ContentionAfter; n <= s.series(now) && delay < maxRepairDelay; n++ {
		delay = min(2*delay, maxRepairDelay)
	}
	return delay
}

// Drifted returns when another writer's change was noticed, zero for none.
func (s *State) Drifted() time.Time { return s.driftedAt }

// Repairs returns the number of recent repairs.
func (s *State) Repairs() int { return s.repairs }

// LastRepair returns the time of the last repair, zero for none.
func (s *State) LastRepair() time.Time { return s.lastRepair }

// series returns the number of recent repairs.
func (s *State) series(now time.Time) int {
	if now.Sub(s.lastRepair) > contentionWindow+maxRepairDelay {
		return 0
	}
	return s.repairs
}
