// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// fullLease has as many records as a Lease can have.
func fullLease(holder string) *coordinationv1.Lease {
	l := leaseOf(holder, 1)
	l.Annotations = make(map[string]string)
	for i := range maxRecords {
		r := record{Peer: Peer{Identity: fmt.Sprintf("replica-%d_0a1b2c3d", i), BinaryVersion: "1.37.0", Created: time.Unix(int64(i), 0)}, Strategy: "kubewright.dev/NewestVersion"}
		l.Annotations[recordKey(r.Identity)] = r.encode()
	}
	return l
}

func benchMachine(id string) (*machine, *time.Duration) {
	now := new(time.Duration)
	return newMachine(setup{
		id: id, random: func() float64 { return 0.5 },
		Config: Config{
			Lease: types.NamespacedName{Namespace: "ns", Name: "lease"}, Strategy: NewestVersion(), Timing: Timing{}.WithDefaults(),
			CallTimeout: DefaultCallTimeout, ShutdownTimeout: DefaultShutdownTimeout,
		},
	}, Peer{Identity: id, BinaryVersion: "1.37.0"}, instant{wall: time.Unix(1e9, 0)}), now
}

// BenchmarkStandby measures the cost of a renewal of the leader for a candidate that
// stands by, without the decoding of the event.
func BenchmarkStandby(b *testing.B) {
	m, now := benchMachine("replica-3_0a1b2c3d")
	l := fullLease("replica-0_0a1b2c3d")
	m.next(instant{})
	m.readDone(instant{}, instant{}, l, nil)
	b.ReportAllocs()
	for b.Loop() {
		*now += 3 * time.Second
		at := instant{mono: *now, wall: time.Unix(1e9, 0).Add(*now)}
		renewed := *l
		t := metav1.NewMicroTime(at.wall)
		renewed.Spec.RenewTime = &t
		m.observe(at, &renewed, false, inOrder)
		if s := m.next(at); s.op == OpPublish { // now and then
			m.writeDone(at, at, s.op, nil, errServer)
			m.reread = false
		}
		m.told = m.told[:0]
	}
}

// BenchmarkRenewal measures the cost of a renewal for the leader, without the request.
func BenchmarkRenewal(b *testing.B) {
	m, now := benchMachine("replica-3_0a1b2c3d")
	m.next(instant{})
	m.readDone(instant{}, instant{}, fullLease("replica-3_0a1b2c3d"), nil)
	// A Lease that names this candidate before it ever wrote it is left alone first.
	*now = time.Minute
	begin := instant{mono: *now, wall: time.Unix(1e9, 0).Add(*now)}
	s := m.next(begin)
	m.writeDone(begin, begin, s.op, s.object, nil)
	if m.phase != leading {
		b.Fatal(m.phase)
	}
	b.ReportAllocs()
	for b.Loop() {
		*now = m.term.renewAt
		at := instant{mono: *now, wall: time.Unix(1e9, 0).Add(*now)}
		s := m.next(at)
		if s.op != OpRenew {
			b.Fatalf("%q in phase %v", s.op, m.phase)
		}
		m.writeDone(at, at, s.op, s.object, nil)
		m.told = m.told[:0]
	}
}

// BenchmarkRecords measures the cost of a changed record for a candidate that watches.
func BenchmarkRecords(b *testing.B) {
	l := fullLease("x")
	b.ReportAllocs()
	for b.Loop() {
		if n := len(records(l.Annotations)); n != maxRecords {
			b.Fatal(n)
		}
	}
}
