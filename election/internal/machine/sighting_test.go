// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// leaseOf returns a Lease: its holder, when that renewed it, and changes.
func leaseOf(holder string, renewed int64, change ...func(*coordinationv1.Lease)) *coordinationv1.Lease {
	at := metav1.NewMicroTime(time.Unix(renewed, 0))
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lease", UID: "u1", ResourceVersion: "1"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: ptr.To[int32](15), RenewTime: &at, AcquireTime: &at, LeaseTransitions: ptr.To[int32](4),
		},
	}
	for _, f := range change {
		f(l)
	}
	return l
}

func atVersion(rv string) func(*coordinationv1.Lease) {
	return func(l *coordinationv1.Lease) { l.ResourceVersion = rv }
}

func uid(id types.UID) func(*coordinationv1.Lease) {
	return func(l *coordinationv1.Lease) { l.UID = id }
}

func released(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = ptr.To[int32](1) }

func untimed(l *coordinationv1.Lease) { l.Spec.AcquireTime, l.Spec.RenewTime = nil, nil }

func shorter(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = ptr.To[int32](6) }

func handedBy(from string) func(*coordinationv1.Lease) {
	return func(l *coordinationv1.Lease) {
		l.Annotations = map[string]string{handoverAnnotation: from}
		l.Spec.LeaseTransitions = ptr.To[int32](5)
	}
}

// When a lease is free, by all that was seen of it. Sightings are ten seconds
// apart, the first one at 0; we are "me".
func TestFreeAt(t *testing.T) {
	s := time.Second
	for name, tc := range map[string]struct {
		seen []*coordinationv1.Lease
		want time.Duration
	}{
		"absent from the beginning":             {[]*coordinationv1.Lease{nil}, 0},
		"held":                                  {[]*coordinationv1.Lease{leaseOf("x", 1)}, 15 * s},
		"held, and not renewed":                 {[]*coordinationv1.Lease{leaseOf("x", 1), leaseOf("x", 1, atVersion("9"))}, 15 * s},
		"renewed":                               {[]*coordinationv1.Lease{leaseOf("x", 1), leaseOf("x", 2)}, 25 * s},
		"renewed, by a clock that was set back": {[]*coordinationv1.Lease{leaseOf("x", 9), leaseOf("x", 2)}, 25 * s},
		"no duration": {[]*coordinationv1.Lease{leaseOf("x", 1, func(l *coordinationv1.Lease) {
			l.Spec.LeaseDurationSeconds = nil
		})}, 15 * s},
		"a longer duration": {[]*coordinationv1.Lease{leaseOf("x", 1, func(l *coordinationv1.Lease) {
			l.Spec.LeaseDurationSeconds = ptr.To[int32](60)
		})}, 60 * s},
		"renewed, and then shortened by somebody": {[]*coordinationv1.Lease{leaseOf("x", 1), leaseOf("x", 2, released)}, 25 * s},
		"released":                         {[]*coordinationv1.Lease{leaseOf("x", 1), leaseOf("", 2, released)}, 10 * s},
		"emptied by somebody":              {[]*coordinationv1.Lease{leaseOf("x", 1), leaseOf("", 2)}, 15 * s},
		"deleted":                          {[]*coordinationv1.Lease{leaseOf("x", 1), nil}, 15 * s},
		"deleted and made anew":            {[]*coordinationv1.Lease{leaseOf("x", 1), nil, leaseOf("", 0, uid("u2"))}, 20 * s},
		"emptied, and without times":       {[]*coordinationv1.Lease{leaseOf("x", 1), leaseOf("", 1, released, untimed)}, 15 * s},
		"made anew unseen":                 {[]*coordinationv1.Lease{leaseOf("x", 1), leaseOf("", 0, uid("u2"), released)}, 15 * s},
		"taken by another":                 {[]*coordinationv1.Lease{leaseOf("x", 1), leaseOf("y", 2)}, 25 * s},
		"taken by another who released it": {[]*coordinationv1.Lease{leaseOf("x", 1), leaseOf("y", 2), leaseOf("", 3, released)}, 20 * s},
		"given to us":                      {[]*coordinationv1.Lease{leaseOf("x", 1), leaseOf("me", 2, handedBy("x"))}, 0},
		"given to us by somebody else":     {[]*coordinationv1.Lease{leaseOf("x", 1), leaseOf("me", 2, handedBy("z"))}, 15 * s},
		"written over a leader":            {[]*coordinationv1.Lease{leaseOf("x", 1), leaseOf("me", 2)}, 15 * s},
		"ours, released and taken by another": {[]*coordinationv1.Lease{
			leaseOf("me", 1, marked), leaseOf("", 2, released), leaseOf("y", 3),
		}, 35 * s},
		"ours, and deleted": {[]*coordinationv1.Lease{leaseOf("me", 1, marked), nil}, 10 * s},
	} {
		seen := sighting{me: "me", def: 15 * s, exclusive: true}
		for i, l := range tc.seen {
			seen.see(time.Duration(i)*10*s, l, inOrder)
		}
		got := seen.freeAt()
		if spec.HolderOf(seen.lease) == "me" {
			got = seen.base
		}
		if got != tc.want {
			t.Errorf("%s: free at %v, want %v", name, got, tc.want)
		}
	}
}

// The end of the holder's process ends the wait for the holder, and not that for the ones
// before it.
func TestFreeAtAfterTheEndOfTheHolder(t *testing.T) {
	s := time.Second
	for name, tc := range map[string]struct {
		seen []*coordinationv1.Lease
		want time.Duration
	}{
		"renewed":                       {[]*coordinationv1.Lease{leaseOf("x", 1), leaseOf("x", 2)}, 10 * s},
		"made anew with the same name":  {[]*coordinationv1.Lease{leaseOf("x", 1), leaseOf("x", 1, uid("u2"))}, 15 * s},
		"taken by another":              {[]*coordinationv1.Lease{leaseOf("x", 1), leaseOf("y", 2)}, 15 * s},
		"taken again by the same":       {[]*coordinationv1.Lease{leaseOf("x", 1), leaseOf("x", 2, handedBy("x"))}, 10 * s},
		"released and taken by another": {[]*coordinationv1.Lease{leaseOf("x", 1), leaseOf("", 2, released), leaseOf("y", 3)}, 20 * s},
	} {
		seen := sighting{me: "me", def: 15 * s, exclusive: true}
		for i, l := range tc.seen {
			seen.see(time.Duration(i)*10*s, l, inOrder)
		}
		if seen.gone(time.Duration(len(tc.seen)-1) * 10 * s); seen.freeAt() != tc.want {
			t.Errorf("%s: free at %v, want %v", name, seen.freeAt(), tc.want)
		}
	}
}

// marked is what a claim leaves on the Lease.
func marked(l *coordinationv1.Lease) {
	if l.Annotations == nil {
		l.Annotations = make(map[string]string)
	}
	l.Annotations[termAnnotation] = markOf(l)
}

// A process with an exclusive identity continues the term of its predecessor. An edit
// that names it over a live leader leaves no mark of a claim, or that of the leader.
func TestOnlyATermOfItsOwnIsContinuedAtOnce(t *testing.T) {
	const s = time.Second
	name := func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = ptr.To("me") }
	again := func(l *coordinationv1.Lease) { l.Spec.LeaseTransitions = ptr.To[int32](9) }
	for story, tc := range map[string]struct {
		exclusive bool
		seen      *coordinationv1.Lease
		want      time.Duration
	}{
		"claimed by the predecessor":                       {true, leaseOf("me", 1, marked), 0},
		"claimed by another process of a random identity":  {false, leaseOf("me", 1, marked), 15 * s},
		"named over a leader":                              {true, leaseOf("x", 1, marked, name), 15 * s},
		"named over a leader that left no mark":            {true, leaseOf("x", 1, name), 15 * s},
		"claimed, taken by a client-go replica, and named": {true, leaseOf("me", 1, marked, again), 15 * s},
		"claimed, given away and back by the API server":   {true, leaseOf("me", 1, marked, func(l *coordinationv1.Lease) { l.Spec.AcquireTime = nil }), 15 * s},
		"named for a longer time":                          {true, leaseOf("me", 1, func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = ptr.To[int32](60) }), 60 * s},
	} {
		seen := sighting{me: "me", def: 15 * s, exclusive: tc.exclusive}
		seen.see(0, tc.seen, afterGap)
		if seen.base != tc.want {
			t.Errorf("%s: free at %v, want %v", story, seen.base, tc.want)
		}
	}
}

// A hand edit has removed a leader, and a coordinator has assigned the lease for its
// own, shorter duration. The assigned candidate waits for the leader, and so must one
// that has seen neither.
func TestFirstSightOfAnAssignmentIsNoFirstSightOfALeader(t *testing.T) {
	const s = time.Second
	renewed := func(l *coordinationv1.Lease) { l.Spec.AcquireTime = ptr.To(metav1.NewMicroTime(time.Unix(0, 0))) }
	for name, tc := range map[string]struct {
		assignable bool
		seen       *coordinationv1.Lease
		want       time.Duration
	}{
		"assigned":                          {true, leaseOf("x", 1, shorter), 15 * s},
		"assigned for longer":               {true, leaseOf("x", 1, func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = ptr.To[int32](60) }), 60 * s},
		"assigned by the API server":        {true, leaseOf("x", 1, shorter, func(l *coordinationv1.Lease) { l.Spec.AcquireTime = nil }), 15 * s},
		"renewed since":                     {true, leaseOf("x", 1, shorter, renewed), 6 * s},
		"claimed where nothing is assigned": {false, leaseOf("x", 1, shorter), 6 * s},
	} {
		seen := sighting{me: "me", def: 15 * s, exclusive: true, assignable: tc.assignable}
		seen.see(0, tc.seen, inOrder)
		if got := seen.freeAt(); got != tc.want {
			t.Errorf("%s: free at %v, want %v", name, got, tc.want)
		}
	}
}

func TestPulse(t *testing.T) {
	before := leaseOf("x", 1)
	for name, tc := range map[string]struct {
		after *coordinationv1.Lease
		want  bool
	}{
		"the same":                  {leaseOf("x", 1), false},
		"another resourceVersion":   {leaseOf("x", 1, atVersion("7")), false},
		"another annotation":        {leaseOf("x", 1, handedBy("y"), func(l *coordinationv1.Lease) { l.Spec.LeaseTransitions = ptr.To[int32](4) }), false},
		"another renewTime":         {leaseOf("x", 2), true},
		"no renewTime":              {leaseOf("x", 2, func(l *coordinationv1.Lease) { l.Spec.RenewTime = nil }), true},
		"another holder":            {leaseOf("y", 1), true},
		"no holder":                 {leaseOf("x", 1, func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil }), true},
		"another uid":               {leaseOf("x", 1, uid("u2")), true},
		"another number of changes": {leaseOf("x", 1, func(l *coordinationv1.Lease) { l.Spec.LeaseTransitions = nil }), true},
		"another duration":          {leaseOf("x", 1, released), false},
		"gone":                      {nil, true},
	} {
		seen := sighting{me: "me", def: time.Second}
		seen.see(0, before, inOrder)
		if got := seen.see(time.Second, tc.after, inOrder); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestOlder(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want bool
	}{{"10", "9", true}, {"9", "10", false}, {"9", "9", false}, {"", "9", false}, {"9", "", false}, {"x", "9", false}, {"99999999999999999999", "9", true}} {
		if got := spec.Older(tc.b, tc.a); got != tc.want {
			t.Errorf("spec.Older(%q, %q) = %v", tc.a, tc.b, got)
		}
	}
	for rv, want := range map[string]uint64{"12": 12, "": 0, "x": 0, "99999999999999999999": 0} {
		if got := tokenOf(leaseOf("x", 1, atVersion(rv))); got != want {
			t.Errorf("token of %q is %d", rv, got)
		}
	}
}
