// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// sighting is what a candidate knows of the Lease, and since when, by its own
// clock. Times of other machines are compared for equality only.
type sighting struct {
	known bool
	lease *coordinationv1.Lease // nil where it does not exist; never changed
	// pulse is when something changed that shows who holds the lease, and that
	// they are alive.
	pulse time.Duration
	// held is until when the holder may lead, which is somebody else; base is
	// until when one before may, who has not given the lease away.
	held, base time.Duration
}

// pulseOf is the part of a Lease whose changes show that the holder is alive. Not the
// resourceVersion: annotations change as well.
type pulseOf struct {
	uid         types.UID
	holder      string
	transitions int32
	renewed     metav1.MicroTime
	duration    int32
}

func pulseIn(l *coordinationv1.Lease) pulseOf {
	if l == nil {
		return pulseOf{}
	}
	p := pulseOf{uid: l.UID, holder: holderOf(l), transitions: transitionsOf(l)}
	if l.Spec.RenewTime != nil {
		p.renewed = *l.Spec.RenewTime
	}
	if l.Spec.LeaseDurationSeconds != nil {
		p.duration = *l.Spec.LeaseDurationSeconds
	}
	return p
}

func transitionsOf(l *coordinationv1.Lease) int32 {
	if l == nil || l.Spec.LeaseTransitions == nil {
		return 0
	}
	return *l.Spec.LeaseTransitions
}

// durationOf returns for how long the lease is held after a pulse. A lease that
// does not say it is held for as long as one of ours would be.
func durationOf(l *coordinationv1.Lease, def time.Duration) time.Duration {
	if l == nil || l.Spec.LeaseDurationSeconds == nil {
		return def
	}
	return max(time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second, time.Second)
}

// releaseSeconds is the leaseDurationSeconds of a lease that its holder has
// released, as client-go does as well.
const releaseSeconds = 1

// given reports whether the holder of before has given the lease away, so that
// it does not lead any more, and after is what came of it.
func given(before, after *coordinationv1.Lease) bool {
	if after == nil || before == nil || after.UID != before.UID {
		return false
	}
	switch holder := holderOf(after); {
	case holder == "":
		return after.Spec.LeaseDurationSeconds != nil && *after.Spec.LeaseDurationSeconds <= releaseSeconds
	case holder == holderOf(before):
		return false
	default:
		return after.Annotations[handoverAnnotation] == holderOf(before)
	}
}

// older reports whether the resourceVersion b is certainly older than a.
func older(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(b, a)
	return err == nil && c < 0
}

// see takes in what the Lease is like now, nil for absent, for a candidate of
// the given identity. It reports whether that is a pulse. What is older than
// what was seen before must not come here.
func (s *sighting) see(now time.Duration, l *coordinationv1.Lease, self string, def time.Duration) bool {
	before := s.lease
	first := !s.known
	s.known, s.lease = true, l
	if !first && pulseIn(before) == pulseIn(l) {
		return false
	}
	s.pulse = now
	holder := holderOf(l)
	if !first && holder != holderOf(before) || before != nil && l != nil && before.UID != l.UID {
		// Whoever it was may still lead, until its time is over or it says
		// that it does not. What this candidate does itself it knows.
		if !given(before, l) && s.held > s.base {
			s.base = s.held
		}
		s.held = 0
	}
	switch {
	case holder != "" && holder != self:
		// Within a term nobody shortens what is promised but somebody else, of
		// whom the holder may not have heard.
		promised := durationOf(l, def)
		if before != nil && sameTerm(pulseIn(before), pulseIn(l)) {
			promised = max(promised, durationOf(before, def))
		}
		s.held = max(s.held, now+promised)
	case holder == "" && first && l != nil && l.Spec.RenewTime != nil && durationOf(l, 0) > releaseSeconds*time.Second:
		s.base = now + durationOf(l, 0) // somebody has emptied it, maybe just now
	}
	return true
}

// freeAt returns from when on nobody else leads, by all that was seen.
func (s *sighting) freeAt() time.Duration {
	if holderOf(s.lease) == "" {
		return max(s.base, s.held, s.pulse)
	}
	return max(s.base, s.held)
}
