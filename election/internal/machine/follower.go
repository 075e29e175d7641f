// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// pollFor is the time for which an object is polled after a watch was refused.
const pollFor = 10 * time.Minute

// patientGone is the number of watches in a row that may lose their place, each started
// from the result of a read. The next ones begin without a version, because the object may
// be older than the oldest version that can be watched. If as many of those lose their
// place too, the object is polled.
const patientGone = 3

// A certainty says whether the observed state of an object is the stored one.
type certainty uint8

const (
	// certain: as far as is known, nothing was missed.
	certain certainty = iota
	// unconfirmed: there is no object, and a watch began without a version. A read
	// shows whether one was created in between.
	unconfirmed
	// uncertain: a change may have been missed, or the effect of a write is not known.
	uncertain
)

// follower decides when an object is read, and whether it is watched. The Lease has
// one, and so has the LeaseCandidate.
//
// Invariant: nothing is read before retryAt.
// Invariant: an object that is polled was refused a watch, and is polled for a while.
type follower struct {
	poll time.Duration // between two reads of an object that can't be watched

	sure      certainty
	buried    types.UID     // of the last object that the watch showed to be deleted; "" for none
	stream    int           // grows when the watch waits for versions that will not come
	polling   bool          // the object can't be watched,
	pollUntil time.Duration // until then
	gone      int           // watches in a row that lost their place
	readAt    time.Duration // the next read without a watch
	failures  int           // reads in a row that failed
	retryAt   time.Duration
}

// isBuried reports whether an object is the one that was deleted last. The answer to a write
// may come after that.
func (f *follower) isBuried(uid types.UID) bool { return f.buried != "" && uid == f.buried }

// Polling reports whether the object can't be watched.
func (f *follower) Polling() bool { return f.polling }

// tick ends the polling after pollFor.
func (f *follower) tick(now time.Duration) { f.polling = f.polling && now < f.pollUntil }

// nextRead returns when to read an object that is watched or not.
func (f *follower) nextRead(watched bool) time.Duration {
	switch {
	case f.sure != certain:
		return f.retryAt
	case watched:
		return Never
	}
	return max(f.readAt, f.retryAt)
}

// lost updates f after a watch that has lost its place (gone) or was refused.
func (f *follower) lost(now time.Duration, gone bool) {
	if gone {
		f.sure = max(f.sure, uncertain)
		if f.gone++; f.gone < 2*patientGone {
			return
		}
	}
	f.gone, f.polling, f.pollUntil, f.readAt = 0, true, now+pollFor, now+f.poll
}

// from returns the version from which a watch begins, if version is that of the object.
func (f *follower) from(version string) string {
	if f.gone >= patientGone {
		return ""
	}
	return version
}

// watch returns what to do about the watch of an object that should be watched, and
// can be.
func (f *follower) watch(wanted bool) Watch {
	switch {
	case !wanted:
		return Unwatched
	case f.sure != certain:
		return Keep
	}
	return Watched
}
