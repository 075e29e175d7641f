// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// A leader or a record that did not return, or that stayed.

// The API server is restored from a backup: versions go back by 500, and the Lease
// to who held it then.
func TestRestoredBackup(t *testing.T) {
	b := newBench(t)
	current, restored := leaseOf("x", 9, atVersion("1000")), false
	for b.now < time.Minute && b.phase == Standby {
		if b.now > 10*time.Second && !restored {
			current, restored = leaseOf("y", 5, atVersion("500")), true
		}
		switch s := b.next(); {
		case s.Op == Read:
			b.answer(Read, current, nil)
		case s.Op == "":
			b.now = s.Wake
		case s.Object != nil && s.Object.ResourceVersion == current.ResourceVersion:
			version, _ := strconv.Atoi(current.ResourceVersion)
			current = store(s.Object, strconv.Itoa(version+1))
			b.answer(s.Op, current, nil)
		default:
			b.answer(s.Op, nil, errConflict)
		}
		b.now += 10 * time.Millisecond
	}
	if b.phase != Leading {
		t.Errorf("%v at %v, holder %q", b.phase, b.now, spec.HolderOf(b.lease))
	}
}

func TestRestoredBackupOfALeaseCandidate(t *testing.T) {
	u := NewUpkeep(testRules())
	u.want = Candidacy{self: spec.Peer{BinaryVersion: "1.0.0"}, present: true}
	now := func(d time.Duration) Instant { return Instant{Mono: d, Wall: time.Unix(1e9, 0).Add(d)} }
	stored := &coordinationv1beta1.LeaseCandidate{ObjectMeta: metav1.ObjectMeta{Name: "me", ResourceVersion: "1000"}}
	answer := func(at time.Duration, s Action[*coordinationv1beta1.LeaseCandidate]) {
		e := Answered[*coordinationv1beta1.LeaseCandidate]{Op: s.Op}
		switch {
		case s.Op == Read:
			e.Object = stored.DeepCopy()
		case s.Object.ResourceVersion == stored.ResourceVersion:
			stored = s.Object.DeepCopy()
			stored.ResourceVersion += "1"
			e.Object = stored.DeepCopy()
		default:
			e.Outcome = *errConflict
		}
		u.Apply(now(at), e)
	}
	written := func(from, to time.Duration) (n int) {
		for at := from; at < to; at += time.Second {
			u.Apply(now(at), Tick{})
			if s := u.Next(now(at)); s.Op != "" {
				answer(at, s)
				if s.Op == Update && u.denials == 0 {
					n++
				}
			}
		}
		return n
	}
	if n := written(0, time.Minute); n != 1 {
		t.Fatalf("written %d times", n)
	}
	stored.ResourceVersion = "500"
	if n := written(time.Minute, 20*time.Minute); n == 0 || u.stream == 0 {
		t.Errorf("written %d times after versions went back; the watch is to begin anew: %v", n, u.stream > 0)
	}
}

// The watch delivers a deletion after the answer to the write that re-created the
// object.
func TestAnOldDeletionDoesNotHideANewerLeaseCandidate(t *testing.T) {
	u := NewUpkeep(testRules())
	at := func(version string) *coordinationv1beta1.LeaseCandidate {
		return &coordinationv1beta1.LeaseCandidate{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}}
	}
	u.observe(at("12"), false)
	if u.observe(at("11"), true); u.object == nil {
		t.Error("the newer object is forgotten")
	}
	if u.observe(at("13"), true); u.object != nil {
		t.Error("a deleted object is known")
	}
}

// A leader that leads for months meets candidates that come and go.
func TestSuspicionsAreForgotten(t *testing.T) {
	b := newBench(t)
	b.lead()
	for i := range 1000 {
		b.now += time.Hour
		b.reg.offer = &pendingOffer{to: fmt.Sprint("gone", i), id: "1", stored: true}
		b.reg.records[b.reg.offer.to] = record{Peer: spec.Peer{Identity: b.reg.offer.to}}
		b.reg.awaitAck(b.now, b.reg.offer)
		delete(b.reg.records, fmt.Sprint("gone", i))
	}
	if n := len(b.reg.doubts); n != 1 {
		t.Errorf("%d candidates are suspected", n)
	}
}
