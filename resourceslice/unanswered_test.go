// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
)

// lossy is a model that loses answers: the write was carried out, will be, or
// never is.
type lossy struct {
	*model
	rng     *rand.Rand
	work    *work
	pending []attempt // still under way
	specs   map[*record]*resourcev1.ResourceSlice
}

// send carries out a write, or not, and reports whether the answer came and
// said that it was stored.
func (m *lossy) send(d *desired, p *plan, page *page) (stored bool) {
	m.t.Helper()
	j := &job{c: &Controller{hasher: m.e.hasher}, want: d, live: m.live()}
	s, err := j.build(p, page)
	if err != nil {
		m.t.Fatal(err)
	}
	rec := m.e.record(s)
	m.specs[rec] = s
	a := attempt{rec, page.rec, time.Now()}
	switch m.rng.IntN(12) {
	case 0: // carried out, without an answer
		m.carryOut(a)
	case 1: // will be carried out
		m.pending = append(m.pending, a)
	case 2: // never
	default:
		if !m.carryOut(a) {
			return false // a conflict; what there is now is seen next
		}
		m.work.found(m.e.record(m.slices[s.Name]))
		return true
	}
	m.work.unanswered[s.Name] = append(m.work.unanswered[s.Name], a)
	return false
}

// carryOut is what the API server does with a write.
func (m *lossy) carryOut(a attempt) bool {
	m.t.Helper()
	is := m.slices[a.rec.Name]
	if a.was == nil && is != nil || a.was != nil && (is == nil || is.ResourceVersion != a.was.ResourceVersion) {
		return false
	}
	before, _, _ := newest(m.live())
	page := &page{rec: a.was}
	m.store(m.specs[a.rec], page)
	top, complete, uniform := newest(m.live())
	if !uniform {
		m.t.Error("I3: slices of a generation disagree on their number")
	}
	if len(before) > 0 && top[0].generation < before[0].generation {
		m.t.Error("I6: the generation fell")
	}
	if names, _ := m.complete(); complete && len(slices.Compact(names)) < m.count(top) {
		m.t.Error("I4: a device is there twice")
	}
	return true
}

func (m *lossy) count(recs []*record) (n int) {
	for _, rec := range recs {
		n += len(rec.devices)
	}
	return n
}

// late carries out some of what is under way.
func (m *lossy) late() {
	m.t.Helper()
	for len(m.pending) > 0 && m.rng.IntN(3) == 0 {
		i := m.rng.IntN(len(m.pending))
		m.carryOut(m.pending[i])
		m.pending = slices.Delete(m.pending, i, i+1)
	}
}

// round plans once and writes until something goes wrong. It reports whether
// there was nothing to write.
func (m *lossy) round(d *desired) bool {
	m.t.Helper()
	o := m.observed()
	for _, rec := range o.live {
		m.work.found(rec)
	}
	for name, attempts := range m.work.unanswered {
		if attempts[0].was != nil && m.slices[name] == nil {
			delete(m.work.unanswered, name)
		}
	}
	o.unanswered = m.work.unanswered
	p := newPlan(d, o)
	for _, phase := range p.phases {
		ok := true
		for _, i := range m.rng.Perm(len(phase)) {
			m.late()
			ok = m.send(d, p, phase[i]) && ok
		}
		if !ok {
			return false
		}
	}
	for _, group := range p.deletes {
		for _, rec := range group {
			m.late()
			if is := m.slices[rec.Name]; is != nil && is.ResourceVersion == rec.ResourceVersion {
				delete(m.slices, rec.Name)
			}
		}
	}
	return p.empty()
}

// TestPlanWithUnansweredWrites is the model of what a random script against the
// API server found: a write of a switch to a new generation that lost its
// answer and was stored completed the pool, and the next plan, which didn't
// know, moved its devices to other slices of that generation.
func TestPlanWithUnansweredWrites(t *testing.T) {
	seeds := uint64(120)
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 11))
		m := &lossy{model: newModel(t), rng: rng, work: &newPool(testID).work, specs: map[*record]*resourcev1.ResourceSlice{}}
		p := Pool{Ordered: seed%3 == 0, Atomic: seed%5 == 0, Devices: someTainted(2000, 2000+rng.IntN(500))}
		for range 12 {
			for range rng.IntN(3) {
				p.Devices = randomPool(rng, p.Devices)
			}
			for range 1 + rng.IntN(3) {
				m.round(m.desired(p))
			}
		}
		m.pending = nil
		clear(m.work.unanswered) // it is too late for them
		for range 100 {
			if m.round(m.desired(p)) && len(m.work.unanswered) == 0 {
				break
			}
			clear(m.work.unanswered)
			m.pending = nil
		}
		if _, complete := m.complete(); !complete {
			t.Error("the pool is incomplete in the end")
		}
		m.checkOrder(p)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
