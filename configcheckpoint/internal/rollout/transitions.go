// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"slices"
)

// The functions of this file are the changes of a record. Each returns a changed copy.

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
