// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
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

// Answer is an answer of the API server that refuses a write.
type Answer string

// The answers that refuse a write.
const (
	Refused   Answer = "refused"   // 400, 413 or 422: never in this form
	Denied    Answer = "denied"    // 403
	Conflicts Answer = "conflicts" // 409: a slice is in the way
)

// Finding is what a look-up of the slice that is in the way of a write has found.
type Finding string

// The findings of a look-up.
const (
	Nothing  Finding = "nothing"  // 404
	Hidden   Finding = "hidden"   // 403: a node can't see slices of others, nor one that is new
	Stranger Finding = "stranger" // a slice of another pool, or with other nodes
	Same     Finding = "same"     // the version that the write would replace
	Older    Finding = "older"    // an earlier version than that
	Newer    Finding = "newer"    // any other version
)

// Step is what becomes of a write whose answer is lost, refuses it, or was looked into.
type Step string

// The steps.
const (
	Send     Step = "send"           // the write, again
	SendLast Step = "send once more" // the same: another revision is wanted
	Await    Step = "wait"           // the API server may still carry it out
	Relist   Step = "relist"         // the write is over: only a list says what came of it
	LeaveOut Step = "leave out"      // what the API server refused is left out
	LookUp   Step = "look up"        // the slice that is in the way
	Replan   Step = "replan"         // with the facts that are known now
	Avoid    Step = "avoid"          // the name of the slice
	Restart  Step = "restart"        // the session: the API server was restored from a backup
)

// Judge returns what follows from an answer to a write. delete says that it has no content
// that could be left out.
//
// If an answer to an earlier attempt was lost, a refusal is none for LateWrites: a webhook
// may have let the first attempt pass.
func (s *State) Judge(now time.Time, name string, a Answer, delete bool) Step {
	switch {
	case a == Conflicts:
		return LookUp
	case s.over(now, name):
		return Relist
	case a == Denied || delete || s.isLost(name):
		return Send
	}
	return LeaveOut
}

// Found returns what follows from a finding. A slice that is not there, or as it was, does
// not conflict with a write: a webhook may have said so, and an attempt whose answer was
// lost may still be carried out.
func (s *State) Found(name string, create bool, f Finding) Step {
	lost := s.isLost(name)
	switch {
	case lost && create && (f == Nothing || f == Hidden), lost && f == Same, f == Hidden && !create:
		return Send
	case f == Hidden, f == Stranger:
		return Avoid
	case f == Older:
		return Restart
	}
	return Replan
}

// Repeat returns what to do about a lost write. A success or a conflict excludes that the
// first attempt is carried out later, so the write is sent until it is answered. The API
// server may fail because of its content, so a write of an earlier revision is sent once
// more after LateWrites, and given up LateWrites after that.
func (s *State) Repeat(now time.Time, name string) (Step, time.Duration) {
	switch w := s.lost[name]; {
	case w.Revision == s.revision, w.Revision != 0 && now.Sub(w.First) < LateWrites:
		return Send, 0
	case w.Revision != 0:
		return SendLast, 0
	case !s.over(now, name):
		return Await, w.Last.Add(LateWrites).Sub(now)
	}
	return Relist, 0
}

// over reports whether a write was lost, and so long ago that the API server can't carry it
// out any longer. A refusal of its repetition counts only then: a webhook may have let the
// first attempt pass.
func (s *State) over(now time.Time, name string) bool {
	w, ok := s.lost[name]
	return ok && now.Sub(w.Last) >= LateWrites
}

// isLost reports whether the last answer to a write of name was lost.
func (s *State) isLost(name string) bool { _, ok := s.lost[name]; return ok }

const (
	// firstAsk is the time without a write of the newer instance after which an older
	// one asks whether the newer one lives. It doubles with each reply, up to maxAsk.
	firstAsk = time.Minute
	maxAsk   = 10 * time.Minute
	// ReplyTime is the time in which a living instance replies, or repairs a delete.
	ReplyTime = 15 * time.Second
)

// Instance is one process that publishes a pool. Instances of one field manager are
// siblings: during a rolling update two of them run at the same time.
type Instance struct {
	// Manager is the field manager of its writes.
	Manager string
	// At is the time when it began, in milliseconds, or more than that of any sibling that
	// had written before: see Follow. So the clock of its machine may be wrong.
	At int64
	// ID is random.
	ID string
	// Asks is set if the slice was written only to ask whether its other writer lives.
	Asks bool
}

// String returns the instance as in the annotation of a slice.
func (i Instance) String() string {
	text := fmt.Sprintf("%s/%d/%s", i.Manager, i.At, i.ID)
	if i.Asks {
		text += "?"
	}
	return text
}

// ParseInstance returns the instance whose String is text, or the zero value if text is
// none.
func ParseInstance(text string) Instance {
	text, asks := strings.CutSuffix(text, "?")
	parts := strings.Split(text, "/")
	if len(parts) != 3 || parts[2] == "" {
		return Instance{}
	}
	at, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return Instance{}
	}
	return Instance{parts[0], at, parts[2], asks}
}

// IsSiblingOf reports whether other is another instance of the same program.
func (i Instance) IsSiblingOf(other Instance) bool {
	return i.Manager == other.Manager && i.ID != other.ID
}

// newer reports whether i is the newer one of two siblings.
func (i Instance) newer(than Instance) bool {
	return i.IsSiblingOf(than) && cmp.Or(cmp.Compare(i.At, than.At), strings.Compare(i.ID, than.ID)) > 0
}

// Follow makes i newer than an instance that had written before i began to read.
func (i *Instance) Follow(earlier Instance) {
	if earlier.IsSiblingOf(*i) {
		i.At = max(i.At, earlier.At+1)
	}
}

// Precedes reports whether i is an older sibling of other.
func (i Instance) Precedes(other Instance) bool { return other.newer(i) }

// siblings decides whether this process publishes a pool or leaves that to a newer
// instance of the same program.
//
// Invariants:
//   - above is the zero value or a sibling of self. It was newer when it was found.
//   - awaited is not zero: above is not the zero value.
//   - asked: awaited is not zero.
type siblings struct {
	self    *Instance // of all pools of this process
	above   Instance  // the newest sibling, if it is newer than self
	heard   time.Time
	pause   time.Duration // after heard, before self asks
	awaited time.Time     // since when a reply or a repair is awaited; zero: none
	asked   bool          // a reply is awaited, not just a repair
}

// broken tells for each invariant whether it is broken.
func (s *siblings) broken() map[string]bool {
	none := s.above == Instance{}
	return map[string]bool{
		"above is a sibling of self": !none && !s.above.IsSiblingOf(*s.self),
		"awaited implies above":      !s.awaited.IsZero() && none,
		"asked implies awaited":      s.asked && s.awaited.IsZero(),
	}
}

func (e Found) apply(s *State, now time.Time) error {
	s.siblings.found(now, e.Writer, e.Now)
	s.await(now)
	return nil
}

// await sets when a pool that is left to a newer instance is reconciled.
func (s *State) await(now time.Time) {
	if s.phase == Yielding {
		_, wait := s.Turn(now, false)
		s.next = now.Add(wait)
	}
}

// found records the writer of a slice. event is set if the slice has just been written.
func (s *siblings) found(now time.Time, writer Instance, event bool) {
	writer.Asks = false
	switch {
	case !writer.newer(*s.self):
	case writer.ID == s.above.ID:
		s.above = writer
		if !event {
			return
		}
		if !s.awaited.IsZero() && !s.silent(now) {
			s.pause = min(2*s.pause, maxAsk)
		}
		s.heard, s.awaited, s.asked = now, time.Time{}, false
	case s.above == Instance{} || writer.newer(s.above):
		s.above, s.heard, s.pause, s.awaited, s.asked = writer, now, firstAsk, time.Time{}, false
	}
}

// missing records that another client deleted a slice: the newer instance must repair it.
func (s *siblings) missing(now time.Time) {
	if s.above != (Instance{}) && s.awaited.IsZero() {
		s.awaited = now
	}
}

func (Asked) apply(s *State, now time.Time) error {
	if !s.siblings.isBelow() || s.siblings.asked && s.siblings.silent(now) {
		return errors.New("resourceslice: there is no newer instance to ask")
	}
	s.siblings.awaited, s.siblings.asked = now, true
	return nil
}

// silent reports whether the newer instance has not replied.
func (s *siblings) silent(now time.Time) bool {
	return !s.awaited.IsZero() && now.Sub(s.awaited) >= ReplyTime
}

// isBelow reports whether there is a newer instance.
func (s *siblings) isBelow() bool { return s.above.newer(*s.self) }

// Turn is what an instance does about a pool.
type Turn int

// The turns of an instance.
const (
	Publish Turn = iota // there is no newer instance, or it is silent
	Wait                // the newer instance publishes the pool
	Ask                 // the same, and it must be asked whether it lives
)

// Turn returns what this process does about a pool that may have a newer publisher, and how
// long to wait if there is nothing to do now. elsewhere is set if the pool has no slices,
// and the newer instance has some in other pools: it may have removed this one, so that the
// missing repair does not show that it is silent.
func (s *State) Turn(now time.Time, elsewhere bool) (Turn, time.Duration) {
	sib := &s.siblings
	ask := sib.heard.Add(sib.pause)
	switch {
	case !sib.isBelow():
		return Publish, 0
	case elsewhere && !sib.awaited.IsZero() && !sib.asked:
		return Ask, 0
	case sib.silent(now):
		return Publish, 0
	case !sib.awaited.IsZero():
		return Wait, sib.awaited.Add(ReplyTime).Sub(now)
	case now.Before(ask):
		return Wait, ask.Sub(now)
	}
	return Ask, 0
}
