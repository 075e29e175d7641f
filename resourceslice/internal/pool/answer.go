// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import "time"

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
