// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// fullLease has as many records as a Lease can have.
func fullLease(holder string) *coordinationv1.Lease {
	l := leaseOf(holder, 1)
	l.Annotations = make(map[string]string)
	for i := range maxRecords {
		r := record{Peer: spec.Peer{Identity: fmt.Sprintf("replica-%d_0a1b2c3d", i), BinaryVersion: "1.37.0", Created: time.Unix(int64(i), 0)}, Strategy: "kubewright.dev/NewestVersion"}
		l.Annotations[recordKey(r.Identity)] = r.encode()
	}
	return l
}

// newest is a strategy.
type newest struct{ byPriority }

func (newest) Name() string { return "kubewright.dev/NewestVersion" }
func (newest) Compare(a, b spec.Peer) int {
	return spec.CompareVersions(b.BinaryVersion, a.BinaryVersion)
}

// benched is a machine of a benchmark.
type benched struct{ *Machine }

func newBenched(id string) benched {
	rules := testRules()
	rules.ID, rules.Exclusive, rules.Strategy = id, false, newest{}
	return benched{New(rules, spec.Peer{Identity: id, BinaryVersion: "1.37.0"}, instantAt(0))}
}

func instantAt(at time.Duration) Instant { return Instant{Mono: at, Wall: time.Unix(1e9, 0).Add(at)} }

func (m benched) step(at Instant) Step {
	m.Apply(at, Tick{})
	s := m.Next(at)
	if s.Op != "" {
		m.Apply(at, Sent{s})
	}
	return s
}

func (m benched) answer(at Instant, op Op, l *coordinationv1.Lease, failed ...Outcome) {
	e := Answered[*coordinationv1.Lease]{Op: op, At: at, Object: l}
	for _, o := range failed {
		e.Outcome = o
	}
	m.Apply(at, e)
}

// BenchmarkStandby measures the cost of a renewal of the leader for a candidate that
// stands by, without the decoding of the event.
func BenchmarkStandby(b *testing.B) {
	m, now := newBenched("replica-3_0a1b2c3d"), time.Duration(0)
	l := fullLease("replica-0_0a1b2c3d")
	m.step(instantAt(0))
	m.answer(instantAt(0), Read, l)
	b.ReportAllocs()
	for b.Loop() {
		now += 3 * time.Second
		at := instantAt(now)
		renewed := *l
		t := metav1.NewMicroTime(at.Wall)
		renewed.Spec.RenewTime = &t
		m.Apply(at, Seen[*coordinationv1.Lease]{Object: &renewed})
		if s := m.step(at); s.Op == Publish { // now and then
			m.answer(at, s.Op, nil, Outcome{Answer: Failed})
		}
	}
}

// BenchmarkRenewal measures the cost of a renewal for the leader, without the request.
func BenchmarkRenewal(b *testing.B) {
	m := newBenched("replica-3_0a1b2c3d")
	m.step(instantAt(0))
	m.answer(instantAt(0), Read, fullLease("replica-3_0a1b2c3d"))
	// A Lease that names this candidate before it ever wrote it is left alone first.
	begin := instantAt(time.Minute)
	s := m.step(begin)
	m.answer(begin, s.Op, s.Object)
	if m.phase != Leading {
		b.Fatal(m.phase)
	}
	b.ReportAllocs()
	for b.Loop() {
		at := instantAt(m.term.renewAt)
		s := m.step(at)
		if s.Op != Renew {
			b.Fatalf("%q in phase %v", s.Op, m.phase)
		}
		m.answer(at, s.Op, s.Object)
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
