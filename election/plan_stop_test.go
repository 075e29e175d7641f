// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"errors"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// Stop in every phase: the requests before Run returns.
func TestStop(t *testing.T) {
	cause := errors.New("the end")
	t.Run("before anything is known", func(t *testing.T) {
		b := newBench(t)
		b.stop(0, cause)
		if b.at(0); b.phase != finished {
			t.Error(b.phase)
		}
	})
	t.Run("standby without record", func(t *testing.T) {
		b := newBench(t)
		b.expect(0, OpRead)
		b.answer(OpRead, leaseOf("x", 1), nil)
		b.stop(0, cause)
		if b.at(0); b.phase != finished {
			t.Error(b.phase)
		}
	})
	t.Run("standby with record", func(t *testing.T) {
		b := newBench(t)
		b.expect(0, OpRead)
		b.answer(OpRead, leaseOf("x", 1, func(l *coordinationv1.Lease) {
			l.Annotations = map[string]string{recordKey("me"): record{Peer: Peer{Identity: "me"}}.encode()}
		}), nil)
		b.stop(0, cause)
		b.expect(0, OpWithdraw)
		b.answer(OpWithdraw, leaseOf("x", 1, atVersion("2")), nil)
		if b.at(0); b.phase != finished {
			t.Error(b.phase)
		}
	})
	t.Run("standby with record, and another client was faster", func(t *testing.T) {
		b := newBench(t)
		b.expect(0, OpRead)
		recorded := func(l *coordinationv1.Lease) {
			l.Annotations = map[string]string{recordKey("me"): record{Peer: Peer{Identity: "me"}}.encode()}
		}
		b.answer(OpRead, leaseOf("x", 1, recorded), nil)
		b.stop(0, cause)
		b.expect(0, OpWithdraw)
		b.answer(OpWithdraw, nil, errConflict)
		b.expect(0, OpRead)
		b.answer(OpRead, leaseOf("x", 2, recorded, atVersion("2")), nil)
		if s := b.expect(0, OpWithdraw); s.object.ResourceVersion != "2" {
			t.Errorf("withdraws from version %s", s.object.ResourceVersion)
		}
	})
	t.Run("the answer to a claim was lost", func(t *testing.T) {
		b := newBench(t)
		b.expect(0, OpRead)
		b.answer(OpRead, nil, errNotFound)
		claim := b.expect(0, OpClaim)
		b.stop(0, cause)
		b.answer(OpClaim, nil, errServer)
		b.nothingUntil(b.retryAt, OpRead)
		b.answer(OpRead, store(claim.object, "5"), nil)
		if s := b.expect(b.now, OpHandOver); spec.HolderOf(s.object) != "" {
			t.Errorf("released to %q", spec.HolderOf(s.object))
		}
	})
	t.Run("while a claim is under way", func(t *testing.T) {
		b := newBench(t)
		b.expect(0, OpRead)
		b.answer(OpRead, nil, errNotFound)
		claim := b.expect(0, OpClaim)
		b.stop(0, cause)
		b.now = time.Second
		b.answer(OpClaim, store(claim.object, "5"), nil)
		s := b.expect(time.Second, OpHandOver)
		if spec.HolderOf(s.object) != "" || b.phase != standby {
			t.Errorf("%v: holder %q", b.phase, spec.HolderOf(s.object))
		}
	})
	t.Run("given the lease meanwhile", func(t *testing.T) {
		b := newBench(t)
		b.expect(0, OpRead)
		b.answer(OpRead, leaseOf("x", 1), nil)
		b.stop(0, cause)
		b.see(leaseOf("me", 2, handedBy("x"), atVersion("2")))
		s := b.expect(0, OpHandOver)
		if spec.HolderOf(s.object) != "" || *s.object.Spec.LeaseDurationSeconds != 1 {
			t.Errorf("released with %+v", s.object.Spec)
		}
		b.answer(OpHandOver, store(s.object, "3"), nil)
		if b.at(0); b.phase != finished {
			t.Error(b.phase)
		}
	})
	t.Run("leading", func(t *testing.T) {
		b := newBench(t)
		b.lead()
		b.stop(time.Second, cause)
		if e, ok := effect[workCancelled](b); !ok || !errors.Is(e.cause, cause) || b.phase != draining {
			t.Fatalf("%v: %+v", b.phase, e)
		}
		b.nothingUntil(3*time.Second, OpRenew) // the work takes its time
		b.answer(OpRenew, nil, errServer)
		b.finishWork(b.now)
		b.now = b.retryAt
		s := b.expect(b.now, OpHandOver)
		if spec.HolderOf(s.object) != "" || *s.object.Spec.LeaseDurationSeconds != 1 || len(records(s.object.Annotations)) != 0 {
			t.Errorf("released with %+v %v", s.object.Spec, s.object.Annotations)
		}
		b.answer(OpHandOver, nil, errServer)
		for b.phase != finished {
			if s := b.next(b.instant()); s.op == "" && b.phase != finished {
				b.now = s.wake
			} else if s.op == OpRead {
				b.answer(s.op, b.lease, nil)
			} else if s.op != "" {
				b.answer(s.op, nil, errServer)
			}
		}
		if b.now > 3*time.Second+DefaultShutdownTimeout {
			t.Errorf("gave up at %v", b.now)
		}
	})
}
