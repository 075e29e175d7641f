// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
	"github.com/kubewright/kubewright/internal/durable"
)

// This file has the state on the disk and the decisions about it. The decisions do
// no I/O and read no clock: every function returns a changed copy of the record,
// which takes effect when the store has committed it, or the next action. The
// methods of the Controller at the end commit such a copy.

// The version of the record that this code writes, and the oldest code that may
// read it. A change that older code would misread raises both.
const (
	recordSchema    = 1
	recordMinReader = 1
)

// Limits on the content of a record, in bytes, so that every record fits its
// slot. TestLargestRecordFitsSlot checks them.
const (
	maxName     = 256
	maxVersion  = 128
	maxBuild    = 128
	maxMessage  = 200
	maxRejected = 4
	maxOthers   = 2 // builds besides the last one whose starts are counted
)

// A record is the state on the disk, except for the payloads. It is a value:
// nothing that its pointers and slices reach is ever changed.
//
// Invariant: a trial is about the assigned configuration.
// Invariant: the last-known-good configuration has run and passed its trial.
// Invariant: the assigned configuration is on trial, rejected, or last known good.
type record struct {
	Schema    int    `json:"schema"`
	MinReader int    `json:"minReader"`
	Gen       uint64 `json:"gen"`
	// Build is the program version that wrote the record, for people.
	Build string `json:"build,omitempty"`
	// Assigned is the configuration that the source wants; nil is the built-in
	// default.
	Assigned *Ref `json:"assigned,omitempty"`
	// LKG is the last configuration that passed its trial.
	LKG *Ref `json:"lastKnownGood,omitempty"`
	// Previous was LKG before it.
	Previous *Ref `json:"previous,omitempty"`
	// Trial counts the starts of Assigned while it is not proven.
	Trial *trialRecord `json:"trial,omitempty"`
	// Rejected are the configurations not to run again, oldest first.
	Rejected []rejection `json:"rejected,omitempty"`
	// Repairs counts how often the payload of Assigned was saved again since it last
	// ran. It survives whenever it matters: without the record nothing is assigned,
	// and a payload that is delivered is staged, not repaired.
	Repairs int `json:"repairs,omitempty"`
}

// A trialRecord counts the starts of one configuration by one build.
type trialRecord struct {
	Digest Digest `json:"digest"`
	Build  string `json:"build,omitempty"`
	// Failed counts the starts that did not end with a clean stop, and Rebooted
	// those of them after which the machine had rebooted.
	Failed   int `json:"failed,omitempty"`
	Rebooted int `json:"rebooted,omitempty"`
	// Open is set from before the configuration is decoded until its start has
	// ended; BootID is the machine's boot at that time.
	Open   bool   `json:"open,omitempty"`
	BootID string `json:"bootID,omitempty"`
	// Note is the failure that the process gave for its last failed start.
	Note string `json:"note,omitempty"`
	// Others are the starts that other builds have made, the latest last. Two builds
	// may take turns, as those of a boot loader that tries one image after the other.
	Others []buildStarts `json:"others,omitempty"`
}

// buildStarts are the starts of one configuration by another build than the last.
type buildStarts struct {
	Build    string `json:"build,omitempty"`
	Failed   int    `json:"failed,omitempty"`
	Rebooted int    `json:"rebooted,omitempty"`
}

// A rejection keeps one build from running one configuration.
type rejection struct {
	Digest  Digest    `json:"digest"`
	Build   string    `json:"build,omitempty"`
	Reason  Reason    `json:"reason"`
	Message string    `json:"message,omitempty"`
	Time    time.Time `json:"time,omitzero"`
}

// emptyRecord returns the record of a store in which nothing was ever assigned.
func emptyRecord() record {
	return record{Schema: recordSchema, MinReader: recordMinReader}
}

// encode returns r as the store keeps it.
func (r record) encode() ([]byte, error) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return nil, fmt.Errorf("encode the record: %w", err)
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}

// parseRecord is the inverse of encode. It accepts what newer code wrote: of a
// record that this code must not interpret it returns the versions and, if it
// can, LKG. A record of newer code must never be taken for a damaged one, which
// would be replaced.
func parseRecord(text []byte) (record, error) {
	var r record
	err := json.Unmarshal(text, &r)
	if err != nil || r.MinReader > recordSchema {
		var version struct {
			Schema    int    `json:"schema"`
			MinReader int    `json:"minReader"`
			Gen       uint64 `json:"gen"`
		}
		if verErr := json.Unmarshal(text, &version); verErr != nil || version.MinReader <= recordSchema {
			return record{}, fmt.Errorf("decode the record: %w", err)
		}
		r = record{Schema: version.Schema, MinReader: version.MinReader, Gen: version.Gen}
		var refs struct {
			LKG *Ref `json:"lastKnownGood"`
		}
		if err := json.Unmarshal(text, &refs); err == nil && refs.LKG != nil && !refs.LKG.Digest.IsZero() {
			r.LKG = refs.LKG
		}
		return r, nil
	}
	if err := r.check(); err != nil {
		return record{}, fmt.Errorf("the record is not valid: %w", err)
	}
	return r.trimRejected(), nil
}

// check returns an error for a record that no version of this code writes. A
// slot that holds such a record is as bad as one with a wrong checksum. Limits
// are not checked: a newer version may have raised them.
func (r record) check() error {
	if r.Schema < 1 || r.MinReader < 1 || r.MinReader > r.Schema {
		return fmt.Errorf("schema %d with minReader %d", r.Schema, r.MinReader)
	}
	for _, ref := range r.refs() {
		if ref.Digest.IsZero() {
			return errors.New("a reference without a digest")
		}
	}
	if t := r.Trial; t != nil {
		if r.Assigned == nil || t.Digest != r.Assigned.Digest {
			return errors.New("a trial of a configuration that is not assigned")
		}
		for _, b := range append([]buildStarts{{t.Build, t.Failed, t.Rebooted}}, t.Others...) {
			if b.Failed < 0 || b.Rebooted < 0 {
				return errors.New("a negative count of starts")
			}
		}
	}
	return nil
}

// errTooNew is wrapped by the reason for which this code must not write a store.
var errTooNew = errors.New("the store was written by a newer program")

// newStore returns the store of records in a directory.
func newStore(fs durable.FS) (*slotstore.Store, error) {
	empty, err := emptyRecord().encode()
	if err != nil {
		return nil, err
	}
	return slotstore.New(slotstore.Config{FS: fs, Parse: describe, Empty: empty, MaxPayload: MaxPayloadSize}), nil
}

// describe returns the facts about a record that the store needs.
func describe(text []byte) (slotstore.Info, error) {
	r, err := parseRecord(text)
	if err != nil {
		return slotstore.Info{}, err
	}
	info := slotstore.Info{Generation: r.Gen}
	for _, ref := range r.refs() {
		info.Payloads = append(info.Payloads, ref.Digest)
	}
	if r.MinReader > recordSchema {
		info.ReadOnly = fmt.Errorf("%w: schema %d needs a reader of %d; this is %d", errTooNew, r.Schema, r.MinReader, recordSchema)
	}
	return info, nil
}

// refs returns the configurations whose payloads r needs.
func (r record) refs() []Ref {
	var refs []Ref
	for _, ref := range []*Ref{r.Assigned, r.LKG, r.Previous} {
		if ref != nil {
			refs = append(refs, *ref)
		}
	}
	return refs
}

// proven reports whether the assigned configuration has passed its trial.
func (r record) proven() bool {
	return r.Assigned != nil && r.LKG != nil && r.Assigned.Digest == r.LKG.Digest
}

// isAssigned reports whether the configuration with digest d is assigned.
func (r record) isAssigned(d Digest) bool { return r.Assigned != nil && r.Assigned.Digest == d }

// isGood reports whether the configuration with digest d is last known good.
func (r record) isGood(d Digest) bool { return r.LKG != nil && r.LKG.Digest == d }

// rejection returns why build must not run d, and whether there is such a
// rejection.
func (r record) rejection(d Digest, build string) (rejection, bool) {
	for _, x := range r.Rejected {
		if x.Digest == d && x.Build == build {
			return x, true
		}
	}
	return rejection{}, false
}

// stage assigns ref. It is put on trial, unless it is the last-known-good one,
// which needs none.
func stage(r record, ref Ref, build string) record {
	r.Repairs = 0
	if r.isGood(ref.Digest) {
		r.Assigned, r.Trial = r.LKG, nil
		return r
	}
	r.Assigned = &ref
	r.Trial = &trialRecord{Digest: ref.Digest, Build: build}
	return r
}

// unassign returns to the built-in default. No earlier configuration stays to
// fall back on, because the operator withdrew them.
func unassign(r record) record {
	r.Repairs = 0
	r.Assigned, r.LKG, r.Previous, r.Trial = nil, nil, nil, nil
	return r
}

// promote makes running the last-known-good configuration. It takes the running
// configuration and not the assigned one: the two differ as soon as a newer one
// is staged, and a configuration that never ran must never be called good.
func promote(r record, running Digest) (record, bool) {
	if !r.isAssigned(running) || r.proven() {
		return r, false
	}
	if r.LKG != nil {
		r.Previous = r.LKG
	}
	r.LKG, r.Trial = r.Assigned, nil
	r.Rejected = slices.DeleteFunc(slices.Clone(r.Rejected), func(x rejection) bool { return x.Digest == running })
	return r, true
}

// reject records that x.Build must not run x.Digest.
func reject(r record, x rejection) record {
	x.Message = tidy(x.Message, maxMessage)
	r.Rejected = slices.DeleteFunc(slices.Clone(r.Rejected), func(old rejection) bool {
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
func withoutBuild(r record, build string) *trialRecord {
	others := trialOf(r, build).Others
	if len(others) == 0 {
		return nil
	}
	last := others[len(others)-1]
	return &trialRecord{Digest: r.Trial.Digest, Build: last.Build, Failed: last.Failed, Rebooted: last.Rebooted, Others: others[:len(others)-1]}
}

// trimRejected limits the number of rejections. That of the assigned
// configuration stays as long as it is assigned. Of the others, those of
// configurations that never ran go first, because they would be rejected again
// in the same way; then the oldest.
func (r record) trimRejected() record {
	r.Rejected = slices.Clone(r.Rejected)
	for len(r.Rejected) > maxRejected {
		oldest := slices.IndexFunc(r.Rejected, func(x rejection) bool { return beforeRunning(x.Reason) && !r.isAssigned(x.Digest) })
		if oldest < 0 {
			oldest = max(0, slices.IndexFunc(r.Rejected, func(x rejection) bool { return !r.isAssigned(x.Digest) }))
		}
		r.Rejected = slices.Delete(r.Rejected, oldest, oldest+1)
	}
	return r
}

// withRepairs sets the count of repairs.
func withRepairs(r record, n int) (record, bool) {
	changed := r.Repairs != n
	r.Repairs = n
	return r, changed
}

// forget removes every rejection of d.
func forget(r record, d Digest) (record, bool) {
	kept := slices.DeleteFunc(slices.Clone(r.Rejected), func(x rejection) bool { return x.Digest == d })
	if len(kept) == len(r.Rejected) {
		return r, false
	}
	r.Rejected = kept
	return r, true
}

// trialOf returns the trial of the assigned configuration by build. If another build
// made the last starts, these are kept among the others, so that the starts of two
// builds that take turns add up.
func trialOf(r record, build string) trialRecord {
	t := trialRecord{Digest: r.Assigned.Digest, Build: build}
	last := r.Trial
	switch {
	case last == nil:
		return t
	case last.Build == build:
		return *last
	}
	for _, b := range append(slices.Clone(last.Others), buildStarts{last.Build, last.Failed, last.Rebooted}) {
		switch {
		case b.Build == build:
			t.Failed, t.Rebooted = b.Failed, b.Rebooted
		case b.Failed > 0:
			t.Others = append(t.Others, b)
		}
	}
	t.Others = t.Others[max(0, len(t.Others)-maxOthers):]
	return t
}

// openAttempt counts a start before it is made, so that a configuration that
// ends the process has been counted.
func openAttempt(r record, build, bootID string) record {
	t := trialOf(r, build)
	t.Open, t.BootID = true, bootID
	r.Trial = &t
	return r
}

// endAttempt closes an open start. A clean one does not count.
func endAttempt(r record, clean bool, note string) (record, bool) {
	if r.Trial == nil || !r.Trial.Open {
		return r, false
	}
	t := *r.Trial
	t.Open, t.BootID = false, ""
	if !clean {
		t.Failed++
		t.Note = tidy(note, maxMessage)
	}
	r.Trial = &t
	return r, true
}

// lasted closes the open start of a process that has lived for Soak, and may be unwell
// now and then: that it ends later, perhaps in a power cut, says nothing about the
// configuration.
func lasted(r record) (record, bool) { return endAttempt(r, true, "") }

// afterBoot closes the start that the process before this one left open: it died
// for an unknown reason.
func afterBoot(r record, bootID string) record {
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
func crashLoop(r record, build string, limit int) (rejection, bool) {
	if r.Assigned == nil || r.proven() {
		return rejection{}, false
	}
	t := trialOf(r, build)
	if t.Failed < limit {
		return rejection{}, false
	}
	message := fmt.Sprintf("%d starts without success", t.Failed)
	if t.Rebooted > 0 {
		message += fmt.Sprintf(", %d of them ended with a reboot of the machine", t.Rebooted)
	}
	if t.Note != "" {
		message += "; the last one said: " + t.Note
	}
	return rejection{Digest: t.Digest, Build: build, Reason: ReasonCrashLoop, Message: message}, true
}

// An inspection is the decoding and validation of a payload that does not run.
// While it is under way it is the store's note, so that the next process knows
// that this one ended during it. The note is not flushed: it has to survive
// os.Exit, a stack overflow or the end of memory, not a power cut.
//
// Invariant: the note is set only while Codec's functions inspect a payload.
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

// note returns the note that says that i is under way, or over.
func (i inspection) note(over bool) ([]byte, error) {
	if over && i.Deaths == 0 {
		return nil, nil
	}
	i.Over = over
	return json.Marshal(i)
}

// again returns the inspection of d by build that follows i.
func (i inspection) again(d Digest, build string) inspection {
	if i.Digest == d && i.Build == build {
		return i
	}
	return inspection{Digest: d, Build: build}
}

// A Role is the part a configuration plays.
type Role string

const (
	// RoleAssigned is the configuration that the source wants.
	RoleAssigned Role = "Assigned"
	// RoleLastKnownGood is the last configuration that passed its trial.
	RoleLastKnownGood Role = "LastKnownGood"
	// RolePrevious is the configuration that was last known good before it.
	RolePrevious Role = "Previous"
	// RoleDefault is the configuration that Codec.Default returns.
	RoleDefault Role = "Default"
)

// A candidate is one configuration to try to run.
type candidate struct {
	role Role
	ref  Ref // zero for RoleDefault
	// unproven means that a start must be recorded before it is made.
	unproven bool
}

// candidates returns what build may run according to the record, best first. The
// last one is always the built-in default.
func candidates(r record, build string) []candidate {
	var chain []candidate
	add := func(role Role, ref *Ref, unproven bool) {
		if ref == nil || slices.ContainsFunc(chain, func(c candidate) bool { return c.ref.Digest == ref.Digest }) {
			return
		}
		chain = append(chain, candidate{role, *ref, unproven})
	}
	if r.Assigned != nil {
		if _, rejected := r.rejection(r.Assigned.Digest, build); !rejected || r.proven() {
			add(RoleAssigned, r.Assigned, !r.proven())
		}
	}
	add(RoleLastKnownGood, r.LKG, false)
	if r.Previous != nil {
		// It was good once, and may have been tried again and found bad.
		if _, rejected := r.rejection(r.Previous.Digest, build); !rejected {
			add(RolePrevious, r.Previous, false)
		}
	}
	return append(chain, candidate{role: RoleDefault})
}

// An action is the decision about a payload.
type action int

const (
	// doNothing: the payload runs, or it is assigned and known not to run.
	doNothing action = iota
	// doReportRejection: this build rejected the same content before.
	doReportRejection
	// doRepair: it is assigned and its stored copy is unusable.
	doRepair
	// doAwaitStore: it is assigned, and the store failed. The store is retried
	// without another delivery.
	doAwaitStore
	// doStage: it is not assigned.
	doStage
	// doUnassign: the source wants the built-in default.
	doUnassign
)

// decideDelivery decides about a payload with digest d; the zero Digest
// unassigns. The running configuration has the digest running, and skipped is
// why that is not the assigned one, or "".
func decideDelivery(r record, build string, running Digest, skipped Reason, d Digest) action {
	if d.IsZero() {
		if r.Assigned == nil {
			return doNothing
		}
		return doUnassign
	}
	if !r.isGood(d) { // a proven configuration is never rejected
		if _, rejected := r.rejection(d, build); rejected {
			return doReportRejection
		}
	}
	switch {
	case !r.isAssigned(d):
		return doStage
	case running == d:
		return doNothing
	case skipped == ReasonCheckpointCorrupt:
		return doRepair
	case transientStore(skipped):
		return doAwaitStore
	}
	return doNothing
}

// A result is the result of a health check for a trial.
type result int

const (
	undecided result = iota
	passed
	failed
)

// A soak follows the health of the configuration on trial within one process.
// Its times carry the monotonic clock, so a step of the wall clock neither
// shortens nor lengthens a trial.
//
// Invariant: at most one of good and bad is set.
type soak struct {
	good time.Time // start of the unbroken health; zero while unhealthy
	bad  time.Time // start of the unbroken illness; zero while healthy
}

// observe applies the result of a check at now.
func (s soak) observe(now time.Time, err error, t Trial) (soak, result) {
	if err == nil {
		s.bad = time.Time{}
		if s.good.IsZero() {
			s.good = now
		}
		if now.Sub(s.good) >= t.Soak {
			return s, passed
		}
		return s, undecided
	}
	s.good = time.Time{}
	if s.bad.IsZero() {
		s.bad = now
	}
	if now.Sub(s.bad) >= t.Grace {
		return s, failed
	}
	return s, undecided
}

// next returns the delay after now until the next check. The check that could
// decide is made on time.
func (s soak) next(now time.Time, t Trial) time.Duration {
	decides := s.good.Add(t.Soak)
	if !s.bad.IsZero() {
		decides = s.bad.Add(t.Grace)
	}
	left := max(decides.Sub(now), 0)
	if t.Health == nil {
		return left
	}
	if left == 0 || left > t.Every {
		return t.Every
	}
	return left
}

// tidy returns s fit for a record, a condition or a log line: valid UTF-8 on
// one line without control characters, and at most limit bytes long.
func tidy(s string, limit int) string {
	s = strings.Map(func(c rune) rune {
		if c == utf8.RuneError || unicode.IsControl(c) || c == '\u2028' || c == '\u2029' {
			return ' '
		}
		return c
	}, s)
	s = strings.TrimSpace(s)
	if len(s) <= limit {
		return s
	}
	const ellipsis = "..."
	cut := limit - len(ellipsis)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + ellipsis
}

// The methods below change the state. Callers hold mu. They keep c.state, the
// reports and the status in step with the disk.

// update commits what change makes of the record. If change returns false and
// nothing waits to be written, it writes nothing. On an error nothing has
// changed.
func (c *Controller[T]) update(change func(record) (record, bool)) error {
	next, changed := change(c.state.rec)
	if !changed && !c.unsaved {
		return nil
	}
	next.Schema, next.MinReader, next.Build = recordSchema, recordMinReader, c.cfg.Build
	next.Gen++
	text, err := next.encode()
	if err == nil {
		err = c.store.Commit(text)
	}
	if err != nil {
		c.storeFailed(err)
		c.refresh()
		return err
	}
	c.state.rec, c.unsaved, c.state.store, c.storeFailures = next, false, nil, 0
	c.refresh()
	return nil
}

// storeFailed keeps why the store could not be written, for the status.
func (c *Controller[T]) storeFailed(err error) {
	c.state.store = &ReasonError{Reason: storeReason(err), Err: err}
}

// rejectConfig rejects ref. The rejection holds in this process even if it can't
// be written: running a bad configuration is worse than forgetting that it is
// bad.
func (c *Controller[T]) rejectConfig(ref Ref, reason Reason, message string) error {
	x := rejection{Digest: ref.Digest, Build: c.cfg.Build, Reason: reason, Message: tidy(message, maxMessage), Time: time.Now()}
	c.state.rec, c.unsaved = reject(c.state.rec, x), true
	if c.attempt == ref.Digest {
		c.attempt = Digest{}
	}
	info := Rejected{Ref: ref, Reason: x.Reason, Message: x.Message, RolledBack: c.state.rec.isAssigned(ref.Digest)}
	c.report(func(o observer) { o.rejected(info) })
	return c.update(func(r record) (record, bool) { return r, true })
}

// promote ends the trial of the running configuration with success.
func (c *Controller[T]) promote(byVerdict bool) error {
	ref := c.state.running
	promoted := false
	err := c.update(func(r record) (record, bool) {
		r, promoted = promote(r, ref.Digest)
		return r, promoted
	})
	if err != nil || !promoted {
		return err
	}
	c.attempt, c.soak, c.state.health = Digest{}, soak{}, nil
	c.active.Trial = false
	info := Promoted{Ref: ref, ByVerdict: byVerdict}
	c.report(func(o observer) { o.promoted(info) })
	c.refresh()
	c.prune()
	return nil
}

// rollBack ends the trial of the running configuration with a failure.
func (c *Controller[T]) rollBack(reason Reason, message string) error {
	c.diverged = true
	return c.rejectConfig(c.state.running, reason, message)
}

// prune removes the payloads that are no longer needed. A file that can't be
// removed costs space only. Run reports the error, and the next prune tries
// again.
func (c *Controller[T]) prune() { c.pruneErr = c.store.Prune() }

// report queues a call of the hooks for Run.
func (c *Controller[T]) report(call func(observer)) { c.reports = append(c.reports, call) }

// refresh computes the status.
func (c *Controller[T]) refresh() {
	c.state.before = c.Status().OK
	st := c.state.status()
	if st.OK != c.state.before {
		c.since = time.Now()
	}
	st.Since = c.since
	c.statusMu.Lock()
	defer c.statusMu.Unlock()
	c.status = st
}
