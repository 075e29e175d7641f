// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// The claim was sent before the machine was suspended, and answered after.
func TestSuspendedWhileClaiming(t *testing.T) {
	b := newBench(t)
	b.expect(0, Read)
	b.answer(Read, nil, errNotFound)
	s := b.expect(0, Claim)
	sent := b.instant()
	b.now = time.Second
	now := b.instant()
	now.Wall = now.Wall.Add(time.Hour)
	b.Apply(now, Answered[*coordinationv1.Lease]{Op: Claim, At: sent, Object: store(s.Object, "10")})
	if b.phase == Leading {
		t.Error("leads by a claim of an hour ago")
	}
}
