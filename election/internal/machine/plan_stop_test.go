// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// Stop in every phase: the requests before Run returns.
func TestStop(t *testing.T) {
	t.Run("before anything is known", func(t *testing.T) {
		b := newBench(t)
		b.apply(0, Stopped{})
		if b.at(0); b.phase != Finished {
			t.Error(b.phase)
		}
	})
	t.Run("Standby without record", func(t *testing.T) {
		b := newBench(t)
		b.expect(0, Read)
		b.answer(Read, leaseOf("x", 1), nil)
		b.apply(0, Stopped{})
		if b.at(0); b.phase != Finished {
			t.Error(b.phase)
		}
	})
	t.Run("Standby with record", func(t *testing.T) {
		b := newBench(t)
		b.expect(0, Read)
		b.answer(Read, leaseOf("x", 1, func(l *coordinationv1.Lease) {
			l.Annotations = map[string]string{recordKey("me"): record{Peer: spec.Peer{Identity: "me"}}.encode()}
		}), nil)
		b.apply(0, Stopped{})
		b.expect(0, Withdraw)
		b.answer(Withdraw, leaseOf("x", 1, atVersion("2")), nil)
		if b.at(0); b.phase != Finished {
			t.Error(b.phase)
		}
	})
	t.Run("Standby with record, and another client was faster", func(t *testing.T) {
		b := newBench(t)
		b.expect(0, Read)
		recorded := func(l *coordinationv1.Lease) {
			l.Annotations = map[string]string{recordKey("me"): record{Peer: spec.Peer{Identity: "me"}}.encode()}
		}
		b.answer(Read, leaseOf("x", 1, recorded), nil)
		b.apply(0, Stopped{})
		b.expect(0, Withdraw)
		b.answer(Withdraw, nil, errConflict)
		b.expect(0, Read)
		b.answer(Read, leaseOf("x", 2, recorded, atVersion("2")), nil)
		if s := b.expect(0, Withdraw); s.Object.ResourceVersion != "2" {
			t.Errorf("withdraws from version %s", s.Object.ResourceVersion)
		}
	})
	t.Run("the answer to a claim was lost", func(t *testing.T) {
		b := newBench(t)
		b.expect(0, Read)
		b.answer(Read, nil, errNotFound)
		claim := b.expect(0, Claim)
		b.apply(0, Stopped{})
		b.answer(Claim, nil, errServer)
		b.nothingUntil(b.retryAt, Read)
		b.answer(Read, store(claim.Object, "5"), nil)
		if s := b.expect(b.now, HandOver); spec.HolderOf(s.Object) != "" {
			t.Errorf("released to %q", spec.HolderOf(s.Object))
		}
	})
	t.Run("while a claim is under way", func(t *testing.T) {
		b := newBench(t)
		b.expect(0, Read)
		b.answer(Read, nil, errNotFound)
		claim := b.expect(0, Claim)
		b.apply(0, Stopped{})
		b.now = time.Second
		b.answer(Claim, store(claim.Object, "5"), nil)
		s := b.expect(time.Second, HandOver)
		if spec.HolderOf(s.Object) != "" || b.phase != Standby {
			t.Errorf("%v: holder %q", b.phase, spec.HolderOf(s.Object))
		}
	})
	t.Run("given the lease meanwhile", func(t *testing.T) {
		b := newBench(t)
		b.expect(0, Read)
		b.answer(Read, leaseOf("x", 1), nil)
		b.apply(0, Stopped{})
		b.see(leaseOf("me", 2, handedBy("x"), atVersion("2")))
		s := b.expect(0, HandOver)
		if spec.HolderOf(s.Object) != "" || *s.Object.Spec.LeaseDurationSeconds != 1 {
			t.Errorf("released with %+v", s.Object.Spec)
		}
		b.answer(HandOver, store(s.Object, "3"), nil)
		if b.at(0); b.phase != Finished {
			t.Error(b.phase)
		}
	})
	t.Run("leading", func(t *testing.T) {
		b := newBench(t)
		b.lead()
		b.apply(time.Second, Stopped{})
		if e, ok := effect[WorkCancelled](b); !ok || e.Cause != Stopping || b.phase != Draining {
			t.Fatalf("%v: %+v", b.phase, e)
		}
		b.nothingUntil(3*time.Second, Renew) // the work takes its time
		b.answer(Renew, nil, errServer)
		b.apply(b.now, WorkReturned{})
		b.now = b.retryAt
		s := b.expect(b.now, HandOver)
		if spec.HolderOf(s.Object) != "" || *s.Object.Spec.LeaseDurationSeconds != 1 || len(records(s.Object.Annotations)) != 0 {
			t.Errorf("released with %+v %v", s.Object.Spec, s.Object.Annotations)
		}
		b.answer(HandOver, nil, errServer)
		for b.phase != Finished {
			if s := b.next(); s.Op == "" && b.phase != Finished {
				b.now = s.Wake
			} else if s.Op == Read {
				b.answer(s.Op, b.lease, nil)
			} else if s.Op != "" {
				b.answer(s.Op, nil, errServer)
			}
		}
		if b.now > 3*time.Second+shutdownTimeout {
			t.Errorf("gave up at %v", b.now)
		}
	})
}
