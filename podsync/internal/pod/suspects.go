// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import "time"

const (
	// suspectRest is the longest time between two questions about a suspect.
	suspectRest = time.Hour
	// heldRest is the time between two questions about a suspect that is held
	// back because there are too many.
	heldRest = time.Minute
	// MissingDelay is the time that a pod must be missing before the API is asked.
	// It lets all pods that one LIST left out be counted together.
	MissingDelay = time.Second
	// fewSuspects is the number of suspects that is never too large, unless
	// they are all that the provider holds.
	fewSuspects = 5
	// suspectShare is the fraction, 1/suspectShare, of the provider's pods
	// above which there are too many suspects.
	suspectShare = 4
)

// A Suspicion is what is known of a pod that may be gone from the API.
type Suspicion struct {
	Due       Instant // when the API must be asked
	GoneSince Instant // when it first said that the pod is gone; 0: it did not
	Unsure    bool    // it did not answer the last question
	Missing   bool    // the API had the pod; else it is an orphan
}

// Suspect reports whether the API must be asked whether the pod exists.
func (t *State) Suspect() (s Suspicion, yes bool) {
	s = Suspicion{Due: t.suspect.at, GoneSince: t.suspect.goneSince, Unsure: t.suspect.unsure, Missing: t.missing()}
	return s, s.Missing || t.Orphan() && t.Held()
}

// doubt makes the pod a suspect: the API is asked whether it is gone.
func (t *State) doubt(now Instant) {
	t.api.presence = missing
	t.suspect.at, t.suspect.goneSince, t.suspect.unsure = now+MissingDelay, 0, false
}

// suspectAnswered applies the API's answer. It reports whether a missing pod is there.
func (t *State) suspectAnswered(now Instant, answer Answer) (back bool) {
	t.suspect.unsure = answer == AnswerNone
	switch answer {
	case AnswerForbidden:
		t.restSuspect(now)
	case AnswerGone:
		if t.suspect.goneSince == 0 {
			t.suspect.goneSince = now - 1 // so that a MassHold of 1 ns is over
		}
	case AnswerThere:
		t.suspect.goneSince = 0
		if t.missing() {
			t.api.presence = present // the informer will show it
			return true
		}
		t.restSuspect(now)
	}
	return false
}

// restSuspect doubles the time until the API is asked again about the orphan.
func (t *State) restSuspect(now Instant) {
	t.suspect.wait = min(max(2*t.suspect.wait, time.Second), suspectRest)
	t.suspect.at = now + t.suspect.wait
}

// holdSuspect lets the suspect run on.
func (t *State) holdSuspect(now Instant) {
	if t.suspect.at > now {
		return
	}
	t.suspect.at = now + heldRest
	if hold := t.rules.MassHold; hold > 0 {
		t.suspect.at = min(t.suspect.at, max(t.suspect.goneSince+hold, now+MissingDelay))
	}
}

// stopSuspect begins the termination of a suspect whose pod is gone. It reports whether the
// suspect is an orphan.
func (t *State) stopSuspect(now Instant) bool {
	t.suspect.goneSince = 0
	if t.missing() {
		t.markDeleted(now)
		return false
	}
	t.api.presence = gone
	t.beginTermination(now, StopOrphaned, nil, MinGrace)
	t.end.reason, t.end.grace = StopOrphaned, MinGrace
	return true
}

// Believed reports whether a pod that has been gone or lost since an instant is believed to be: not
// so many are, or this one for MassHold. So many are more likely a mistake, such as an API server
// that was restored from a backup, than the truth: gone are those that are gone or lost, held all
// that the provider holds. unsure are those that the API did not answer for. They count, because it
// may answer for a few at a time, and a mistake must not be carried out in small parts.
func (r *Rules) Believed(now, since Instant, gone, unsure, held int) bool {
	switch {
	case !TooMany(gone+unsure, held):
		return true
	case unsure > 0 && !TooMany(gone, held):
		return false // the answers decide
	}
	return r.MassHold > 0 && now-since >= r.MassHold
}

// TooMany reports whether n of the pods that the provider holds are too many to be gone at once.
func TooMany(n, held int) bool {
	return n > max(fewSuspects, held/suspectShare) || n > 1 && n >= held
}
