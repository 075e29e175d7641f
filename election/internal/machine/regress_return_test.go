// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"strconv"
	"testing"
	"time"

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
