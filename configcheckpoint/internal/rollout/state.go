// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package rollout decides which configuration package configcheckpoint runs, and what
// is written to its store. [State.Apply] records facts, [State.Next] returns the record that
// must be written, and the other methods return decisions. The package does no I/O.
package rollout

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Rules are the settings that decisions depend on.
type Rules struct {
	Build              string        // the version of the program
	Attempts           int           // starts without success before a roll-back
	Soak, Grace, Every time.Duration // as in the public Trial
	Health             bool          // there are health checks
}

// State is what a controller knows. The zero State is not valid; see New. It is not
// safe for concurrent use.
type State struct {
	rules Rules

	// The record as it is on the disk, with rejections that could not be written, which
	// hold at once.
	//
	// Invariant: the record is one that this code writes, or a newer program's.
	// Invariant: a start that is open is one of this process.
	// Invariant: a write under way has the next generation.
	rec     Record
	unsaved bool   // the record has such rejections
	write   *write // that is under way, or nil

	// The configuration that runs.
	//
	// Invariant: before one runs, none must replace it, and none was healthy or ill.
	// Invariant: a configuration is not healthy and ill at once.
	runs     bool // one was put into effect
	running  Ref
	role     Role
	began    time.Time // when it was put into effect
	attempt  Digest    // the last start that this process has recorded
	soak     soak
	diverged bool // another configuration may have to run

	// The inspection of a payload that does not run.
	//
	// Invariant: an inspection under way is of a payload, and not over.
	died    inspection  // the one that processes before this one did not survive
	inspect *inspection // the one that the store's note says is under way, or nil
}

// A write is a record that must be committed, and the event that it completes.
type write struct {
	next  Record
	event Event
}

// New returns the state of a controller that has not opened its store.
func New(rules Rules) State { return State{rules: rules, rec: Empty()} }

// An Event is a fact that Apply takes in. The types below are all there are.
type Event interface{ event() }

type (
	// Opened: the store was opened.
	Opened struct {
		Record []byte // its record, which Parse accepts; nil if there is none
		Note   []byte // its note, or nil
		BootID string // of the machine's present boot
		Old    bool   // there may be a newer record that can't be read
	}
	// NotOpened: the store can't be opened.
	NotOpened struct{}
	// Starting: a configuration on trial is about to be decoded to run.
	Starting struct {
		Digest Digest // of its payload
		BootID string // of the machine's present boot
	}
	// Running: a configuration was put into effect.
	Running struct {
		Ref     Ref  // zero for the built-in default
		Role    Role // that it plays
		Skipped bool // the assigned one was tried before it
	}
	// Replacing: what Wanted returned is about to be put into effect.
	Replacing struct{}
	// Checked: the health of the configuration on trial was checked.
	Checked struct {
		Healthy bool // the check found nothing
	}
	// Confirmed: the configuration that runs has passed its trial.
	Confirmed struct{}
	// Rejected: a configuration is bad.
	Rejected struct {
		Ref     Ref    // the configuration
		Reason  Reason // fit for a label
		Message string // why, for people
		Stops   bool   // it runs, and must be replaced
	}
	// Lived: the process has lived long enough for its end to say nothing.
	Lived struct{}
	// Accepted: a payload was saved that must be assigned.
	Accepted struct {
		Ref Ref // names it
	}
	// Withdrawn: the source wants the built-in default.
	Withdrawn struct{}
	// Repaired: the payload of the assigned configuration was saved again.
	Repaired struct{}
	// Forgotten: an operator wants a configuration tried again.
	Forgotten struct {
		Digest Digest // of its payload
	}
	// Retried: the store failed, and it is time to write the record once more.
	Retried struct{}
	// Unblocked: the store works again, for lack of which the assigned configuration
	// was not started.
	Unblocked struct{}
	// Inspecting: the note of Note was written, and the payload is about to be inspected.
	Inspecting struct {
		Digest Digest // of the payload
	}
	// Inspected: the inspection has ended, and the note was removed.
	Inspected struct{}
	// Stopping: the process is about to end.
	Stopping struct {
		Failed bool   // not because it was asked to
		Note   string // the error that ended it
	}

	// Committed: the record that Next returned is on the disk.
	Committed struct{}
	// Lost: it is not.
	Lost struct{}
)

func (Opened) event()     {}
func (NotOpened) event()  {}
func (Starting) event()   {}
func (Running) event()    {}
func (Replacing) event()  {}
func (Checked) event()    {}
func (Confirmed) event()  {}
func (Rejected) event()   {}
func (Lived) event()      {}
func (Accepted) event()   {}
func (Withdrawn) event()  {}
func (Repaired) event()   {}
func (Forgotten) event()  {}
func (Retried) event()    {}
func (Unblocked) event()  {}
func (Inspecting) event() {}
func (Inspected) event()  {}
func (Stopping) event()   {}
func (Committed) event()  {}
func (Lost) event()       {}

// News is what follows from an event for the program.
type News struct {
	Changed    bool       // the event changes the record
	Rejected   *Rejection // this rejection is new
	Ref        Ref        // the configuration that it is about
	RolledBack bool       // that was assigned
}

// errWrite is the error of an event about a write that does not fit.
var errWrite = errors.New("a write while another one is under way, or the end of none")

// Apply takes in an event. If Next returns a record afterwards, it must be committed,
// and Committed or Lost applied, before any other event. The event takes effect when
// it is committed, except that a rejection holds at once: running a bad configuration
// is worse than forgetting that it is bad. An error says that the event is impossible;
// the state is as it was.
func (s *State) Apply(now time.Time, event Event) (News, error) {
	var news News
	switch event.(type) {
	case Committed, Lost:
		if s.write == nil {
			return news, errWrite
		}
	default:
		if s.write != nil {
			return news, errWrite
		}
	}
	next, changed := s.rec, false
	switch ev := event.(type) {
	case Opened:
		return s.opened(now, ev), nil
	case NotOpened:
		s.rec = Empty()
		return news, nil
	case Running:
		s.runs, s.running, s.role, s.began, s.soak = true, ev.Ref, ev.Role, now, soak{}
		if ev.Skipped {
			return news, nil
		}
		// The first start after a repair writes; every other start writes nothing here.
		if next, changed = withRepairs(s.rec, 0); !changed {
			return news, nil
		}
	case Replacing:
		s.diverged = false
		return news, nil
	case Unblocked:
		s.diverged = true
		return news, nil
	case Checked:
		s.soak = s.soak.observe(now, ev.Healthy)
		return news, nil
	case Inspecting:
		i := s.died.again(ev.Digest, s.rules.Build)
		s.inspect = &i
		return news, nil
	case Inspected:
		s.died, s.inspect = inspection{}, nil
		return news, nil
	case Rejected:
		return s.rejected(now, ev), nil
	case Starting:
		next, changed = openAttempt(s.rec, s.rules.Build, ev.BootID), true
	case Confirmed:
		next, changed = promote(s.rec, s.running.Digest)
	case Lived:
		next, changed = endAttempt(s.rec, true, "")
	case Accepted:
		next, changed = stage(s.rec, ev.Ref, s.rules.Build), true
	case Withdrawn:
		next, changed = unassign(s.rec), true
	case Repaired:
		next, changed = withRepairs(s.rec, s.rec.Repairs+1)
	case Forgotten:
		if s.died.Digest == ev.Digest {
			s.died = inspection{}
		}
		next, changed = forget(s.rec, ev.Digest)
	case Retried:
		changed = true
	case Stopping:
		if s.rec.Trial == nil || !s.rec.Trial.Open {
			return news, nil
		}
		// A start that was recorded and not made has not failed.
		healthy := s.attempt != s.running.Digest || !s.rules.Health || !s.soak.good.IsZero()
		next, changed = endAttempt(s.rec, healthy && !ev.Failed, ev.Note)
	case Committed:
		w := s.write
		s.rec, s.unsaved, s.write = w.next, false, nil
		s.completed(w.event)
		return news, nil
	case Lost:
		s.write = nil
		return news, nil
	}
	if !changed {
		event = nil
	}
	s.put(next, event)
	news.Changed = changed
	return news, nil
}

// put asks for a write of next, if an event changes the record or an earlier rejection
// is to be written.
func (s *State) put(next Record, event Event) {
	if event == nil && !s.unsaved {
		return
	}
	next.Schema, next.MinReader, next.Build = Schema, MinReader, s.rules.Build
	next.Gen++
	s.write = &write{next, event}
}

// completed applies what follows from an event after it was committed.
func (s *State) completed(event Event) {
	switch ev := event.(type) {
	case Starting:
		s.attempt = ev.Digest
	case Confirmed:
		s.attempt, s.soak = Digest{}, soak{}
	case Accepted, Withdrawn, Repaired:
		s.diverged = true
	case Forgotten:
		// Also if it still runs, and is about to be replaced.
		s.diverged = s.diverged || s.rec.isAssigned(ev.Digest)
	}
}

// opened takes in what the store has, and how the process before this one ended.
func (s *State) opened(now time.Time, ev Opened) (news News) {
	rec := Empty()
	if ev.Record != nil {
		rec, _ = Parse(ev.Record) // the store has parsed it, so there is no error
	}
	s.rec, s.died = afterBoot(rec, ev.BootID), interrupted(ev.Note)
	if ev.Old {
		return news // it is no ground for a rejection, or for another configuration
	}
	if x, found := crashLoop(s.rec, s.rules.Build, s.rules.Attempts); found {
		news = s.rejected(now, Rejected{Ref: *s.rec.Assigned, Reason: x.Reason, Message: x.Message})
	}
	if s.runs {
		// The disk came late, and its record may be newer.
		s.diverged = s.Candidates()[0].Ref.Digest != s.running.Digest
	}
	return news
}

// rejected rejects a configuration.
func (s *State) rejected(now time.Time, ev Rejected) News {
	x := Rejection{Digest: ev.Ref.Digest, Build: s.rules.Build, Reason: ev.Reason, Message: Tidy(ev.Message, MaxMessage), Time: now}
	s.rec, s.unsaved = reject(s.rec, x), true
	s.diverged = s.diverged || ev.Stops
	s.put(s.rec, ev)
	return News{Changed: true, Rejected: &x, Ref: ev.Ref, RolledBack: s.rec.isAssigned(ev.Ref.Digest)}
}

// Next returns the record that must be committed, or nil.
func (s *State) Next() ([]byte, error) {
	if s.write == nil {
		return nil, nil
	}
	return s.write.next.Encode()
}

// Record returns the record. Nothing that it points to may be changed.
func (s *State) Record() Record { return s.rec }

// Unsaved reports whether the record has a rejection that is not on the disk.
func (s *State) Unsaved() bool { return s.unsaved }

// Running returns the configuration that runs, and its role.
func (s *State) Running() (Ref, Role) { return s.running, s.role }

// Candidates returns what may run, best first. The last one is always the built-in
// default.
func (s *State) Candidates() []Candidate { return candidates(s.rec, s.rules.Build) }

// Wanted returns the configuration that must run, if another one runs.
func (s *State) Wanted() (Ref, bool) {
	want := s.Candidates()[0].Ref
	return want, s.diverged && want.Digest != s.running.Digest
}

// Delivery decides about a payload with digest d; the zero Digest unassigns. skipped
// is why the assigned configuration does not run, or "".
func (s *State) Delivery(skipped Reason, d Digest) Action {
	return decideDelivery(s.rec, s.rules.Build, s.running.Digest, skipped, d)
}

// Proven reports whether the assigned configuration has passed its trial.
func (s *State) Proven() bool { return s.rec.proven() }

// IsAssigned reports whether the configuration with digest d is assigned.
func (s *State) IsAssigned(d Digest) bool { return s.rec.isAssigned(d) }

// IsGood reports whether the configuration with digest d is last known good.
func (s *State) IsGood(d Digest) bool { return s.rec.isGood(d) }

// Rejection returns why this build must not run d, and whether there is such a
// rejection.
func (s *State) Rejection(d Digest) (Rejection, bool) { return s.rec.rejection(d, s.rules.Build) }

// OnTrial returns the number of the current start, from 1, if the configuration that
// runs is assigned, and neither proven nor rejected; else 0.
func (s *State) OnTrial() int {
	if !s.rec.isAssigned(s.running.Digest) || s.rec.proven() {
		return 0
	}
	if _, rejected := s.Rejection(s.running.Digest); rejected {
		return 0
	}
	return trialOf(s.rec, s.rules.Build).Failed + 1
}

// Verdict decides about the configuration on trial after a check at now.
func (s *State) Verdict(now time.Time) Verdict {
	v := s.soak.verdict(now, &s.rules)
	if v == Undecided && s.rec.Trial != nil && s.rec.Trial.Open && now.Sub(s.began) >= s.rules.Soak {
		return Lasted
	}
	return v
}

// NextCheck returns the delay after now until the next check of the health.
func (s *State) NextCheck(now time.Time) time.Duration { return s.soak.next(now, &s.rules) }

// Deaths returns the number of processes that ended while they inspected d.
func (s *State) Deaths(d Digest) int { return s.died.again(d, s.rules.Build).Deaths }

// Died reports whether a process before this one has ended while it inspected d.
func (s *State) Died(d Digest) bool { return s.died.Digest == d && s.died.Deaths > 0 }

// Note returns the note that must be written before d is inspected.
func (s *State) Note(d Digest) []byte { return s.died.again(d, s.rules.Build).note() }

// LastNote returns the note of a process that is about to end, and whether it must be
// written. The process did not die of the inspection under way. A power cut may bring
// the note before back.
func (s *State) LastNote() (note []byte, changed bool) {
	if s.inspect == nil {
		return nil, false
	}
	if i := *s.inspect; i.Deaths > 0 {
		i.Over = true
		note = i.note()
	}
	return note, true
}

// Check returns an error that names the invariant that is broken, if one is.
func (s *State) Check() error {
	if s.rec.MinReader <= Schema {
		if err := s.rec.Check(); err != nil {
			return fmt.Errorf("invariant broken: the record is one that this code writes, or a newer program's: %w", err)
		}
	}
	for _, i := range []struct {
		name string
		ok   bool
	}{
		{"a start that is open is one of this process", s.rec.Trial == nil || !s.rec.Trial.Open || s.rec.Trial.Digest == s.attempt},
		{"a write under way has the next generation", s.write == nil || s.write.next.Gen == s.rec.Gen+1},
		{"before one runs, none must replace it, and none was healthy or ill", s.runs || !s.diverged && s.soak == soak{}},
		{"a configuration is not healthy and ill at once", s.soak.good.IsZero() || s.soak.bad.IsZero()},
		{"an inspection under way is of a payload, and not over", s.inspect == nil || !s.inspect.Digest.IsZero() && !s.inspect.Over},
	} {
		if !i.ok {
			return fmt.Errorf("invariant broken: %s", i.name)
		}
	}
	return nil
}

// A Candidate is one configuration to try to run.
type Candidate struct {
	// Role is the part it would play, and Ref names it; zero for Default.
	Role Role
	Ref  Ref
	// Unproven means that a start must be recorded before it is made.
	Unproven bool
}

// candidates returns what build may run according to the record, best first. The
// last one is always the built-in default.
func candidates(r Record, build string) []Candidate {
	var chain []Candidate
	add := func(role Role, ref *Ref, unproven bool) {
		if ref == nil || slices.ContainsFunc(chain, func(c Candidate) bool { return c.Ref.Digest == ref.Digest }) {
			return
		}
		chain = append(chain, Candidate{role, *ref, unproven})
	}
	if r.Assigned != nil {
		if _, rejected := r.rejection(r.Assigned.Digest, build); !rejected || r.proven() {
			add(Assigned, r.Assigned, !r.proven())
		}
	}
	add(LastKnownGood, r.LKG, false)
	if r.Previous != nil {
		// It was good once, and may have been tried again and found bad.
		if _, rejected := r.rejection(r.Previous.Digest, build); !rejected {
			add(Previous, r.Previous, false)
		}
	}
	return append(chain, Candidate{Role: Default})
}

// An Action is the decision about a payload.
type Action int

const (
	// Nothing: the payload runs, or it is assigned and known not to run.
	Nothing Action = iota
	// ReportRejection: this build rejected the same content before.
	ReportRejection
	// Repair: it is assigned and its stored copy is unusable.
	Repair
	// AwaitStore: it is assigned, and the store failed. The store is retried
	// without another delivery.
	AwaitStore
	// Stage: it is not assigned.
	Stage
	// Unassign: the source wants the built-in default.
	Unassign
)

// String returns the name of the action.
func (a Action) String() string {
	return [...]string{"Nothing", "ReportRejection", "Repair", "AwaitStore", "Stage", "Unassign"}[a]
}

// decideDelivery decides about a payload with digest d; the zero Digest
// unassigns. The running configuration has the digest running, and skipped is
// why that is not the assigned one, or "".
func decideDelivery(r Record, build string, running Digest, skipped Reason, d Digest) Action {
	if d.IsZero() {
		if r.Assigned == nil {
			return Nothing
		}
		return Unassign
	}
	if !r.isGood(d) { // a proven configuration is never rejected
		if _, rejected := r.rejection(d, build); rejected {
			return ReportRejection
		}
	}
	switch {
	case !r.isAssigned(d):
		return Stage
	case running == d:
		return Nothing
	case skipped == CheckpointCorrupt:
		return Repair
	case skipped.Transient():
		return AwaitStore
	}
	return Nothing
}

// A Verdict is the decision about the configuration on trial.
type Verdict int

const (
	// Undecided: the trial goes on.
	Undecided Verdict = iota
	// Passed: it was healthy for Soak without a break.
	Passed
	// Failed: it was unhealthy for Grace without a break.
	Failed
	// Lasted: its process has lived for Soak, and may be unwell now and then. That it
	// ends later, perhaps in a power cut, says nothing about the configuration.
	Lasted
)

// String returns the name of the verdict.
func (v Verdict) String() string {
	return [...]string{"Undecided", "Passed", "Failed", "Lasted"}[v]
}

// A soak follows the health of the configuration on trial within one process.
// Its times carry the monotonic clock, so a step of the wall clock neither
// shortens nor lengthens a trial.
//
// Invariant: a configuration is not healthy and unhealthy at once.
type soak struct {
	good time.Time // start of the unbroken health; zero while unhealthy
	bad  time.Time // start of the unbroken illness; zero while healthy
}

// observe applies the result of a check at now.
func (s soak) observe(now time.Time, healthy bool) soak {
	if healthy {
		s.bad = time.Time{}
		if s.good.IsZero() {
			s.good = now
		}
		return s
	}
	s.good = time.Time{}
	if s.bad.IsZero() {
		s.bad = now
	}
	return s
}

// verdict decides after a check at now.
func (s soak) verdict(now time.Time, r *Rules) Verdict {
	switch {
	case !s.good.IsZero() && now.Sub(s.good) >= r.Soak:
		return Passed
	case !s.bad.IsZero() && now.Sub(s.bad) >= r.Grace:
		return Failed
	}
	return Undecided
}

// next returns the delay after now until the next check. The check that could
// decide is made on time.
func (s soak) next(now time.Time, r *Rules) time.Duration {
	decides := s.good.Add(r.Soak)
	if !s.bad.IsZero() {
		decides = s.bad.Add(r.Grace)
	}
	left := max(decides.Sub(now), 0)
	if !r.Health {
		return left
	}
	if left == 0 || left > r.Every {
		return r.Every
	}
	return left
}

// An inspection is the decoding and validation of a payload that does not run.
// While it is under way it is the store's note, so that the next process knows
// that this one ended during it. The note is not flushed: it has to survive
// os.Exit, a stack overflow or the end of memory, not a power cut.
type inspection struct {
	Digest Digest `json:"digest"`
	Build  string `json:"build,omitempty"`
	// Deaths counts the processes that ended during an inspection of the payload.
	Deaths int `json:"deaths,omitempty"`
	// Over says that the process lived on, and was asked to stop: the note only keeps
	// the deaths before it.
	Over bool `json:"over,omitempty"`
}

// interrupted returns the inspection during which the process before this one
// ended; zero if note is none.
func interrupted(note []byte) inspection {
	var i inspection
	if note == nil || json.Unmarshal(note, &i) != nil {
		return inspection{}
	}
	if !i.Over {
		i.Deaths++
	}
	i.Over = false
	return i
}

// note returns i as the store keeps it.
func (i inspection) note() []byte {
	text, _ := json.Marshal(i) // nothing in it can fail
	return text
}

// again returns the inspection of d by build that follows i.
func (i inspection) again(d Digest, build string) inspection {
	if i.Digest == d && i.Build == build {
		return i
	}
	return inspection{Digest: d, Build: build}
}

// The functions below are the questions about a record, and its changes. Each of these
// returns a changed copy.

// proven reports whether the assigned configuration has passed its trial.
func (r Record) proven() bool {
	return r.Assigned != nil && r.LKG != nil && r.Assigned.Digest == r.LKG.Digest
}

// isAssigned reports whether the configuration with digest d is assigned.
func (r Record) isAssigned(d Digest) bool { return r.Assigned != nil && r.Assigned.Digest == d }

// isGood reports whether the configuration with digest d is last known good.
func (r Record) isGood(d Digest) bool { return r.LKG != nil && r.LKG.Digest == d }

// rejection returns why build must not run d, and whether there is such a
// rejection.
func (r Record) rejection(d Digest, build string) (Rejection, bool) {
	for _, x := range r.Rejected {
		if x.Digest == d && x.Build == build {
			return x, true
		}
	}
	return Rejection{}, false
}

// stage assigns ref. It is put on trial, unless it is the last-known-good one,
// which needs none.
func stage(r Record, ref Ref, build string) Record {
	r.Repairs = 0
	if r.isGood(ref.Digest) {
		r.Assigned, r.Trial = r.LKG, nil
		return r
	}
	r.Assigned = &ref
	r.Trial = &Trial{Digest: ref.Digest, Build: build}
	return r
}

// unassign returns to the built-in default. No earlier configuration stays to
// fall back on, because the operator withdrew them.
func unassign(r Record) Record {
	r.Repairs = 0
	r.Assigned, r.LKG, r.Previous, r.Trial = nil, nil, nil, nil
	return r
}

// promote makes running the last-known-good configuration. It takes the running
// configuration and not the assigned one: the two differ as soon as a newer one
// is staged, and a configuration that never ran must never be called good.
func promote(r Record, running Digest) (Record, bool) {
	if !r.isAssigned(running) || r.proven() {
		return r, false
	}
	if r.LKG != nil {
		r.Previous = r.LKG
	}
	r.LKG, r.Trial = r.Assigned, nil
	r.Rejected = slices.DeleteFunc(slices.Clone(r.Rejected), func(x Rejection) bool { return x.Digest == running })
	return r, true
}

// reject records that x.Build must not run x.Digest.
func reject(r Record, x Rejection) Record {
	x.Message = Tidy(x.Message, MaxMessage)
	r.Rejected = slices.DeleteFunc(slices.Clone(r.Rejected), func(old Rejection) bool {
		return old.Digest == x.Digest && old.Build == x.Build
	})
	r.Rejected = append(r.Rejected, x)
	if r.Trial != nil && r.Trial.Digest == x.Digest {
		r.Trial = withoutBuild(r, x.Build)
	}
	return r.trimRejected()
}

// withoutBuild returns the trial without the starts of a build, which has rejected the
// configuration: that of the other builds, or nil if they made none.
func withoutBuild(r Record, build string) *Trial {
	others := trialOf(r, build).Others
	if len(others) == 0 {
		return nil
	}
	last := others[len(others)-1]
	return &Trial{Digest: r.Trial.Digest, Build: last.Build, Failed: last.Failed, Rebooted: last.Rebooted, Others: others[:len(others)-1]}
}

// trimRejected limits the number of rejections. That of the assigned
// configuration stays as long as it is assigned. Of the others, those of
// configurations that never ran go first, because they would be rejected again
// in the same way; then the oldest.
func (r Record) trimRejected() Record {
	r.Rejected = slices.Clone(r.Rejected)
	for len(r.Rejected) > MaxRejected {
		oldest := slices.IndexFunc(r.Rejected, func(x Rejection) bool { return x.Reason.beforeRunning() && !r.isAssigned(x.Digest) })
		if oldest < 0 {
			oldest = max(0, slices.IndexFunc(r.Rejected, func(x Rejection) bool { return !r.isAssigned(x.Digest) }))
		}
		r.Rejected = slices.Delete(r.Rejected, oldest, oldest+1)
	}
	return r
}

// withRepairs sets the count of repairs.
func withRepairs(r Record, n int) (Record, bool) {
	changed := r.Repairs != n
	r.Repairs = n
	return r, changed
}

// forget removes every rejection of d.
func forget(r Record, d Digest) (Record, bool) {
	kept := slices.DeleteFunc(slices.Clone(r.Rejected), func(x Rejection) bool { return x.Digest == d })
	if len(kept) == len(r.Rejected) {
		return r, false
	}
	r.Rejected = kept
	return r, true
}

// trialOf returns the trial of the assigned configuration by build. If another build
// made the last starts, these are kept among the others, so that the starts of two
// builds that take turns add up.
func trialOf(r Record, build string) Trial {
	t := Trial{Digest: r.Assigned.Digest, Build: build}
	last := r.Trial
	switch {
	case last == nil:
		return t
	case last.Build == build:
		return *last
	}
	for _, b := range append(slices.Clone(last.Others), Starts{last.Build, last.Failed, last.Rebooted}) {
		switch {
		case b.Build == build:
			t.Failed, t.Rebooted = b.Failed, b.Rebooted
		case b.Failed > 0:
			t.Others = append(t.Others, b)
		}
	}
	t.Others = t.Others[max(0, len(t.Others)-MaxOthers):]
	return t
}

// openAttempt counts a start before it is made, so that a configuration that
// ends the process has been counted.
func openAttempt(r Record, build, bootID string) Record {
	t := trialOf(r, build)
	t.Open, t.BootID = true, bootID
	r.Trial = &t
	return r
}

// endAttempt closes an open start. A clean one does not count.
func endAttempt(r Record, clean bool, note string) (Record, bool) {
	if r.Trial == nil || !r.Trial.Open {
		return r, false
	}
	t := *r.Trial
	t.Open, t.BootID = false, ""
	if !clean {
		t.Failed++
		t.Note = Tidy(note, MaxMessage)
	}
	r.Trial = &t
	return r, true
}

// afterBoot closes the start that the process before this one left open: it died
// for an unknown reason.
func afterBoot(r Record, bootID string) Record {
	if r.Trial == nil || !r.Trial.Open {
		return r
	}
	t := *r.Trial
	t.Open = false
	t.Failed++
	if t.BootID != bootID {
		t.Rebooted++
	}
	t.BootID, t.Note = "", ""
	r.Trial = &t
	return r
}

// crashLoop returns the rejection of an assigned configuration that build has
// started limit times without success.
func crashLoop(r Record, build string, limit int) (Rejection, bool) {
	if r.Assigned == nil || r.proven() {
		return Rejection{}, false
	}
	t := trialOf(r, build)
	if t.Failed < limit {
		return Rejection{}, false
	}
	message := fmt.Sprintf("%d starts without success", t.Failed)
	if t.Rebooted > 0 {
		message += fmt.Sprintf(", %d of them ended with a reboot of the machine", t.Rebooted)
	}
	if t.Note != "" {
		message += "; the last one said: " + t.Note
	}
	return Rejection{Digest: t.Digest, Build: build, Reason: CrashLoop, Message: message}, true
}
