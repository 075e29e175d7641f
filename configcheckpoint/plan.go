// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"fmt"
	"slices"
	"time"
)

// This file decides; it does no I/O and reads no clock. Every function takes
// what is known and returns what shall be: a changed copy of the record, which
// becomes true when the store has committed it, or the next thing to do.

// stage assigns ref. It is put on trial, unless it is the last-known-good one,
// which needs none.
func stage(r record, ref Ref, build string) record {
	r.Healed = 0
	if r.LKG != nil && r.LKG.Digest == ref.Digest {
		r.Assigned, r.Trial = r.LKG, nil
		return r
	}
	r.Assigned = &ref
	r.Trial = &trialRecord{Digest: ref.Digest, Build: build}
	return r
}

// unassign returns to the built-in default. Nothing that was good before stays
// to fall back on: the operator took it away.
func unassign(r record) record {
	r.Assigned, r.LKG, r.Previous, r.Trial, r.Healed = nil, nil, nil, nil, 0
	return r
}

// promote makes running the last-known-good configuration. It takes what runs
// and not what is assigned: those differ from the moment on that a newer
// configuration is staged, and what never ran must never be called good.
func promote(r record, running Digest) (record, bool) {
	if r.Assigned == nil || r.Assigned.Digest != running || r.proven() {
		return r, false
	}
	if r.LKG != nil {
		r.Previous = r.LKG
	}
	r.LKG, r.Trial, r.Healed = r.Assigned, nil, 0
	r.Rejected = slices.DeleteFunc(slices.Clone(r.Rejected), func(x rejection) bool { return x.Digest == running })
	return r, true
}

// reject bars x.Digest from x.Build. The rejection of what is assigned is kept
// as long as it is assigned. Of the others those are forgotten first that were
// made at the door, which would only be made there again, and of them the
// oldest.
func reject(r record, x rejection) record {
	x.Message = tidy(x.Message, maxMessage)
	r.Rejected = slices.DeleteFunc(slices.Clone(r.Rejected), func(old rejection) bool {
		return old.Digest == x.Digest && old.Build == x.Build
	})
	r.Rejected = append(r.Rejected, x)
	assigned := func(old rejection) bool { return r.Assigned != nil && old.Digest == r.Assigned.Digest }
	for len(r.Rejected) > maxRejected {
		oldest := slices.IndexFunc(r.Rejected, func(old rejection) bool { return atTheDoor(old.Reason) && !assigned(old) })
		if oldest < 0 {
			oldest = max(0, slices.IndexFunc(r.Rejected, func(old rejection) bool { return !assigned(old) }))
		}
		r.Rejected = slices.Delete(r.Rejected, oldest, oldest+1)
	}
	if r.Trial != nil && r.Trial.Digest == x.Digest {
		r.Trial = nil
	}
	return r
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

// onTrial returns the trial of the assigned configuration by build: the
// recorded one, or a new one where another build made those starts.
func onTrial(r record, build string) trialRecord {
	if r.Trial != nil && r.Trial.Build == build {
		return *r.Trial
	}
	return trialRecord{Digest: r.Assigned.Digest, Build: build}
}

// openAttempt counts a start before it is made, so that a configuration that
// takes the process down has been counted.
func openAttempt(r record, build, bootID string) record {
	t := onTrial(r, build)
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

// afterBoot closes the start that the process before this one left open: it
// died, whatever of.
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
	t := onTrial(r, build)
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

// A Role is the part a configuration plays.
type Role string

const (
	// RoleAssigned: what the source asked for.
	RoleAssigned Role = "Assigned"
	// RoleLastKnownGood: the last one that passed its trial.
	RoleLastKnownGood Role = "LastKnownGood"
	// RolePrevious: the one that was last known good before it.
	RolePrevious Role = "Previous"
	// RoleDefault: what Codec.Default returns.
	RoleDefault Role = "Default"
)

// A candidate is one configuration to try to run.
type candidate struct {
	role Role
	ref  Ref // zero for RoleDefault
	// unproven means that a start must be recorded before it is made.
	unproven bool
}

// candidates returns what build may run by the record, best first. The last
// one is always the built-in default.
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

// A delivery is what to do about a payload.
type delivery int

const (
	// deliveredRunning: it runs, or it is assigned and known not to.
	deliveredRunning delivery = iota
	// deliveredRejected: this build rejected the same content before.
	deliveredRejected
	// deliveredDamaged: it is assigned and its stored copy is unusable.
	deliveredDamaged
	// deliveredBlocked: it is assigned, and the store could not record its start.
	deliveredBlocked
	// deliveredNew: it is not assigned.
	deliveredNew
	// deliveredNothing: the source asks for the built-in default.
	deliveredNothing
)

// planDelivery decides about a payload with digest d; the zero Digest is that
// nothing is assigned. The running configuration has the digest running, and
// skipped is why that is not the assigned one, or "".
func planDelivery(r record, build string, running Digest, skipped Reason, d Digest) delivery {
	if d.IsZero() {
		if r.Assigned == nil {
			return deliveredRunning
		}
		return deliveredNothing
	}
	if r.LKG == nil || d != r.LKG.Digest { // what was proven is never barred
		if _, rejected := r.rejection(d, build); rejected {
			return deliveredRejected
		}
	}
	switch {
	case r.Assigned == nil || r.Assigned.Digest != d:
		return deliveredNew
	case running == d:
		return deliveredRunning
	case skipped == ReasonCheckpointCorrupt:
		return deliveredDamaged
	case transientStore(skipped):
		return deliveredBlocked
	}
	return deliveredRunning
}

// A verdict is what a trial has come to.
type verdict int

const (
	undecided verdict = iota
	passed
	failed
)

// A soak follows the health of the configuration on trial within one run of
// the process. Its times carry the monotonic clock, so a step of the wall clock
// neither shortens nor lengthens a trial.
type soak struct {
	good time.Time // healthy without a break since; zero while unhealthy
	bad  time.Time // unhealthy without a break since; zero while healthy
	err  error     // the last check's
}

// observe takes the result of a check at now.
func (s soak) observe(now time.Time, err error, t Trial) (soak, verdict) {
	s.err = err
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

// next returns how long after now the next check is due. It is due early where
// it could decide.
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
