// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// The annotations of a Lease. Records and offers belong to the registry OnLease.
const (
	// recordPrefix and a digest of the identity are the key of a record.
	recordPrefix = "candidate.election." + spec.Domain + "/"
	// offerAnnotation is the offer of the leader to another candidate.
	offerAnnotation = "election." + spec.Domain + "/offer"
	// handoverAnnotation names the leader that handed the lease to its holder, after
	// its work had returned. Without it a holder that was written over another one
	// waits until that one must have stopped.
	handoverAnnotation = "election." + spec.Domain + "/handover"
	// termAnnotation names the holder and its term. The claim and the hand-over write
	// it. An edit that names another holder leaves it behind, so a restarted process
	// with ExclusiveIdentity tells its own lease from one that it was given by hand.
	termAnnotation = "election." + spec.Domain + "/term"
)

// sighting is the state of the Lease as this candidate has observed it. Times are
// those of its own monotonic clock. Times written by other machines are compared
// for equality only.
//
// Invariant: before freeAt, another process may still lead, as far as can be
// known from the observations.
type sighting struct {
	me  string        // the identity of this candidate
	def time.Duration // the duration of a Lease that states none
	// exclusive says that a predecessor, which no longer runs, may have used the same
	// identity.
	exclusive bool
	// assignable says that a coordinator may assign the lease to this candidate.
	assignable bool

	// Invariant: before the first observation there is no Lease, and nobody is waited for.
	known   bool
	lease   *coordinationv1.Lease // nil if it does not exist; never modified
	pulse   spec.Pulse            // of the Lease: its holder, term and last renewal
	pulseAt time.Duration         // when the pulse last changed

	// held is until when the present holder, another process, may lead. base is
	// until when an earlier holder may lead that has not given the lease away.
	//
	// Invariant: nothing lowers base.
	// Invariant: held is that of another process, which holds the Lease.
	held, base time.Duration
	duration   spec.Duration // of the Lease when its pulse last changed
	// written has the last renewTimes that this process sent.
	written []metav1.MicroTime
}

// maxWritten is more than the writes that can be unanswered at one time.
const maxWritten = 64

// A source says how a state of the Lease became known.
type source uint8

const (
	// inOrder: by the watch, or as the answer to a write with a resourceVersion.
	// No state in between was missed.
	inOrder source = iota
	// afterGap: by a read, or by the first event of a watch that began without a
	// version. Other states, and other terms, may have been missed.
	afterGap
	// unrelated: by a read that shows an older resourceVersion, because the API server
	// was restored from a backup, or no Lease after a claim that failed. Terms may
	// have been missed even if the state is the same as before.
	unrelated
)

// releaseSeconds is the leaseDurationSeconds of a released Lease, here and in
// client-go.
const releaseSeconds = 1

// begun reports whether acquireTime and renewTime are equal: the Lease was
// claimed, assigned or released by that write, and not renewed since.
func begun(l *coordinationv1.Lease) bool {
	return l.Spec.AcquireTime != nil && l.Spec.AcquireTime.Equal(l.Spec.RenewTime)
}

// isReleased reports whether the last holder itself emptied the Lease. An edit by
// hand leaves another duration or two different times.
func isReleased(l *coordinationv1.Lease) bool {
	return spec.HolderOf(l) == "" && begun(l) && spec.DurationOf(l, 0) <= releaseSeconds*time.Second
}

// isMarked reports whether the holder of the Lease was named by a claim or a hand-over,
// and not by an edit over another holder: the mark names the holder and its term. The
// coordinator in the API server does not count terms, but empties acquireTime.
func isMarked(l *coordinationv1.Lease) bool {
	return l.Annotations[termAnnotation] == markOf(l) && l.Spec.AcquireTime != nil
}

// markOf returns the value of termAnnotation for the holder and term of a Lease.
func markOf(l *coordinationv1.Lease) string {
	return fmt.Sprintf("%d %s", spec.TransitionsOf(l), spec.HolderOf(l))
}

// versionOf returns the resourceVersion of a Lease, "" for none.
func versionOf(l *coordinationv1.Lease) string {
	if l == nil {
		return ""
	}
	return l.ResourceVersion
}

// tokenOf returns the fencing token of a term that began with this Lease.
func tokenOf(l *coordinationv1.Lease) uint64 {
	n, err := strconv.ParseUint(l.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// handedOver reports whether the holder before has given the lease away, so that it no longer
// leads, and the Lease is the result.
func (s *sighting) handedOver(before *coordinationv1.Lease, was spec.Pulse) bool {
	if s.lease == nil || before != nil && s.pulse.UID != was.UID {
		return false
	}
	if s.pulse.Holder == "" {
		return isReleased(s.lease)
	}
	return was.Holder != "" && was.Holder != s.pulse.Holder && s.lease.Annotations[handoverAnnotation] == was.Holder
}

// mine reports whether this candidate is the holder.
func (s *sighting) mine() bool { return s.pulse.Holder == s.me }

// heldByAnother reports whether another process is the holder.
func (s *sighting) heldByAnother() bool { return s.pulse.Holder != "" && !s.mine() }

// wrote reports whether the last renewal of the Lease was sent by this process.
func (s *sighting) wrote(l *coordinationv1.Lease) bool {
	return l != nil && slices.ContainsFunc(s.written, func(t metav1.MicroTime) bool { return t.Equal(l.Spec.RenewTime) })
}

// remember records the renewTime of a write that was sent.
func (s *sighting) remember(t metav1.MicroTime) {
	s.written = append(s.written[max(0, len(s.written)-maxWritten+1):], t)
}

// protect makes sure that no claim is sent before until.
func (s *sighting) protect(until time.Duration) { s.base = max(s.base, until) }

// see updates s from the stored Lease, nil if it does not exist. It reports
// whether the pulse has changed. States older than the last one must not be
// passed.
func (s *sighting) see(now time.Duration, l *coordinationv1.Lease, from source) bool {
	before, was, first := s.lease, s.pulse, !s.known
	s.known, s.lease, s.pulse = true, l, spec.PulseOf(l)
	if !first && from != unrelated && s.pulse == was {
		return false
	}
	s.pulseAt = now
	if first {
		s.protectUnseen(now)
	} else {
		s.protectHolder(now, before, was, from)
	}
	s.duration.See(before, l, s.def)
	if s.heldByAnother() {
		s.held = now + s.duration.Longest()
	}
	return true
}

// protectUnseen raises base for a leader that the first observation does not show.
func (s *sighting) protectUnseen(now time.Duration) {
	l, holder := s.lease, s.pulse.Holder
	emptied := holder == "" && l != nil && l.Spec.RenewTime != nil && !isReleased(l)
	// A coordinator assigns with a duration of its own. Until the holder renews, it
	// may wait for an earlier leader, which had the duration of the candidates. The
	// one in the API server leaves acquireTime empty, so its holder may have renewed.
	assigned := s.assignable && s.heldByAnother() && (begun(l) || l.Spec.AcquireTime == nil) && spec.DurationOf(l, s.def) < s.def
	if emptied || assigned || holder == s.me && !(s.exclusive && isMarked(l)) {
		s.protect(now + max(spec.DurationOf(l, s.def), s.def)) // maybe edited just now
	}
}

// protectHolder raises base for the holder before, which may still lead although the Lease no
// longer names it.
func (s *sighting) protectHolder(now time.Duration, before *coordinationv1.Lease, was spec.Pulse, from source) {
	l, holder, previous := s.lease, s.pulse.Holder, was.Holder
	vacated := holder == "" || holder == s.me
	// A write under our identity that is not ours is that of a twin, unless a
	// coordinator may have assigned the lease to us again.
	twin := holder == s.me && previous == s.me && !s.wrote(l) && !(s.assignable && begun(l))
	switch {
	case from != unrelated && s.handedOver(before, was):
	case from == unrelated, from == afterGap && vacated && !s.wrote(l), twin:
		// A holder that was missed renewed before this state was stored, or its
		// renewal fails: the resourceVersion has changed since.
		s.protect(max(s.held, now+max(s.duration.Longest(), spec.DurationOf(l, 0), s.def)))
	case holder != previous || before != nil && l != nil && before.UID != l.UID:
		s.protect(s.held)
	default:
		return
	}
	s.held = 0
}

// gone ends the wait for the present holder, whose process has ended for certain.
func (s *sighting) gone(now time.Duration) { s.held = min(s.held, now) }

// freeAt returns from when on no other process leads, as far as was observed.
func (s *sighting) freeAt() time.Duration {
	if s.pulse.Holder == "" {
		return max(s.base, s.held, s.pulseAt)
	}
	return max(s.base, s.held)
}

// check returns an error that names a broken invariant, or nil.
func (s *sighting) check() error {
	switch {
	case !s.known && (s.lease != nil || s.held != 0 || s.base != 0):
		return errors.New("before the first observation there is no Lease, and nobody is waited for")
	case s.held != 0 && !s.heldByAnother():
		return errors.New("held is that of another process, which holds the Lease")
	case len(s.written) > maxWritten:
		return errors.New("only the last writes are remembered")
	}
	return nil
}
