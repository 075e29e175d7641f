// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

var testID = PoolID{"gpu.example.com", "n1"}

// model is an API server in a map, for plans alone.
type model struct {
	t      testing.TB
	e      hasher
	slices map[string]*resourcev1.ResourceSlice
	rv     int
	floor  int64
	ours   int64
}

func newModel(t testing.TB) *model {
	return &model{t: t, e: newHasher(), slices: map[string]*resourcev1.ResourceSlice{}}
}

func (m *model) live() (all []*record) {
	for _, s := range m.slices {
		all = append(all, m.e.record(s))
	}
	slices.SortFunc(all, func(a, b *record) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func (m *model) desired(p Pool) *desired {
	d, _, _ := m.e.newDesired(testID, &p, "n1", &desired{})
	return d
}

func (m *model) observed() *observed {
	o := &observed{live: m.live(), memory: &memory{floor: m.floor, ours: m.ours, answers: map[hash]*answer{}}}
	for _, rec := range o.live {
		m.floor = max(m.floor, rec.generation)
	}
	o.floor = m.floor
	return o
}

// write carries out one write of a plan.
func (m *model) write(d *desired, p *plan, page *page) {
	m.t.Helper()
	j := &job{c: &Controller{hasher: m.e}, want: d, live: m.live()}
	j.indexTimes()
	s, err := j.build(p, page)
	if err != nil {
		m.t.Fatal(err)
	}
	if page.rec == nil && m.slices[s.Name] != nil {
		m.t.Fatalf("create of %s, which is there", s.Name)
	}
	m.store(s, page)
}

// store stores a slice as the API server does.
func (m *model) store(s *resourcev1.ResourceSlice, page *page) {
	m.t.Helper()
	if page.rec == nil {
		s.UID = types.UID(fmt.Sprint("uid-", m.rv))
	}
	if n := len(s.Spec.Devices); n > plainLimit || n > advancedLimit && slices.ContainsFunc(s.Spec.Devices, func(d resourcev1.Device) bool { return len(d.Taints) > 0 }) {
		m.t.Fatalf("%s gets %d devices", s.Name, n)
	}
	m.rv++
	s.ResourceVersion = fmt.Sprint(m.rv)
	m.slices[s.Name] = s
	m.floor = max(m.floor, s.Spec.Pool.Generation)
	m.ours = m.floor
}

// complete returns the devices of the newest generation, and whether all of
// its slices are there.
func (m *model) complete() (names []string, ok bool) {
	top, ok, _ := newest(m.live())
	for _, rec := range top {
		for _, li := range rec.items {
			names = append(names, li.name)
		}
	}
	slices.Sort(names)
	return names, ok
}

// apply carries out up to stop writes of a plan, and checks the consumer's view
// after each. It reports whether it carried out all of it.
func (m *model) apply(d *desired, p *plan, rng *rand.Rand, stop int) bool {
	m.t.Helper()
	was, wasComplete := m.complete()
	left := 0
	for _, phase := range p.phases {
		left += len(phase)
	}
	for _, phase := range p.phases {
		for _, i := range rng.Perm(len(phase)) {
			if stop--; stop < 0 {
				return false
			}
			m.write(d, p, phase[i])
			m.check(p, was, wasComplete)
			left--
			if _, ok := m.complete(); ok && p.window() && left > 0 {
				m.t.Errorf("the pool is complete %d writes before it is what is wanted", left)
			}
		}
	}
	for _, group := range p.deletes {
		for _, rec := range group {
			if stop--; stop < 0 {
				return false
			}
			if _, ok := m.complete(); !ok {
				m.t.Error("completion by a write: a delete while the pool is incomplete")
			}
			top, _, _ := newest(m.live())
			if p.outcome != newGeneration && rec.generation == top[0].generation {
				m.t.Errorf("the newest generation stays: %s of the newest generation is deleted", rec.Name)
			}
			delete(m.slices, rec.Name)
		}
	}
	return true
}

func (m *model) check(p *plan, was []string, wasComplete bool) {
	m.t.Helper()
	top, complete, uniform := newest(m.live())
	if !uniform {
		m.t.Error("one count per generation: slices of a generation disagree on their number")
	}
	if top[0].generation != p.generation {
		m.t.Errorf("generations never fall: generation %d while %d is written", top[0].generation, p.generation)
	}
	if !complete && !p.window() {
		m.t.Error("the pool is incomplete in a plan without a window")
	}
	names, _ := m.complete()
	if complete && len(slices.Compact(slices.Clone(names))) != len(names) {
		m.t.Error("complete implies valid: a device is there twice")
	}
	if complete && wasComplete && p.outcome != newGeneration {
		// One by one: a device that was there before stays until it is removed.
		for _, name := range was {
			if !slices.Contains(names, name) && slices.ContainsFunc(p.pages, func(p *page) bool {
				return slices.ContainsFunc(p.items, func(it item) bool { return it.name == name })
			}) {
				m.t.Errorf("%s is gone for a while", name)
			}
		}
	}
}

// writesOf returns the number of requests of a plan.
func writesOf(p *plan) (n int) {
	for _, phase := range p.phases {
		n += len(phase)
	}
	for _, group := range p.deletes {
		n += len(group)
	}
	return n
}

func someDevices(from, to int) (all []resourcev1.Device) {
	for i := from; i < to; i++ {
		all = append(all, resourcev1.Device{Name: fmt.Sprintf("d%05d", i)})
	}
	return all
}

func someTainted(from, to int) []resourcev1.Device {
	all := someDevices(from, to)
	for i := range all {
		all[i].Taints = []resourcev1.DeviceTaint{{Key: "k", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
	}
	return all
}

// someMixed makes devices of which every third has a taint.
func someMixed(from, to int) []resourcev1.Device {
	all := someDevices(from, to)
	for i := range all {
		if i%3 == 1 {
			all[i].Taints = someTainted(0, 1)[0].Taints
		}
	}
	return all
}

// TestPlan goes from one pool to the next and wants so many writes each time.
func TestPlan(t *testing.T) {
	type step struct {
		pool                      Pool
		creates, updates, deletes int
		generation                int64
	}
	for name, steps := range map[string][]step{
		"one slice up to 128 plain devices": {
			{Pool{}, 1, 0, 0, 1},
			{Pool{Devices: someDevices(0, 128)}, 0, 1, 0, 1},
			{Pool{Devices: someDevices(0, 129)}, 1, 1, 0, 2},
		},
		"new slices get 64": {
			{Pool{Devices: someDevices(0, 129)}, 3, 0, 0, 1},
		},
		"plain devices go beyond 64 before the number changes": {
			{Pool{Devices: someDevices(0, 192)}, 3, 0, 0, 1},
			{Pool{Devices: someDevices(0, 193)}, 0, 1, 0, 1},
			{Pool{Devices: someDevices(0, 384)}, 0, 3, 0, 1},
			{Pool{Devices: someDevices(0, 385)}, 1, 3, 0, 2},
		},
		"a taint on a slice of more than 64": {
			{Pool{Devices: someDevices(0, 128)}, 1, 0, 0, 1},
			{Pool{Devices: append(someTainted(0, 1), someDevices(1, 128)...)}, 1, 1, 0, 2},
		},
		"more than four slices get spare ones": {
			{Pool{Devices: someTainted(0, 4*64)}, 4, 0, 0, 1},
			{Pool{Devices: someTainted(0, 4*64+1)}, 2, 4, 0, 2},
			{Pool{Devices: someTainted(0, 6*64)}, 0, 2, 0, 2},
			{Pool{Devices: someTainted(0, 6*64+1)}, 2, 6, 0, 3},
		},
		"no compaction of what is half empty": {
			{Pool{Devices: someTainted(0, 10*64)}, 10, 0, 0, 1},
			{Pool{Devices: someTainted(0, 3*64)}, 0, 7, 0, 1},
		},
		"compaction of what is mostly empty": {
			{Pool{Devices: someTainted(0, 20*64)}, 20, 0, 0, 1},
			{Pool{Devices: someTainted(0, 64)}, 0, 2, 18, 2},
		},
		"the number doesn't change when all go": {
			{Pool{Devices: someTainted(0, 3*64)}, 3, 0, 0, 1},
			{Pool{}, 0, 3, 0, 1},
			{Pool{Devices: someTainted(64, 128)}, 0, 1, 0, 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel(t)
			for i, step := range steps {
				d := m.desired(step.pool)
				o := m.observed()
				o.compact = true
				p := newPlan(d, o)
				var creates, updates, deletes int
				for _, phase := range p.phases {
					for _, page := range phase {
						if page.rec == nil {
							creates++
						} else {
							updates++
						}
					}
				}
				for _, group := range p.deletes {
					deletes += len(group)
				}
				if creates != step.creates || updates != step.updates || deletes != step.deletes || p.generation != step.generation {
					t.Errorf("step %d: %d creates, %d updates, %d deletes, generation %d, want %+v", i, creates, updates, deletes, p.generation,
						[]any{step.creates, step.updates, step.deletes, step.generation})
				}
				m.apply(d, p, rand.New(rand.NewPCG(1, 1)), 1e9)
				o = m.observed()
				if again := newPlan(d, o); !again.empty() {
					t.Errorf("step %d: %d writes more", i, writesOf(again))
				}
				m.checkOrder(step.pool)
			}
		})
	}
}

func (m *model) checkOrder(p Pool) {
	m.t.Helper()
	var got, want []string
	for _, rec := range m.live() {
		for _, d := range m.slices[rec.Name].Spec.Devices {
			got = append(got, d.Name)
		}
	}
	for _, d := range p.Devices {
		want = append(want, d.Name)
	}
	if p.Ordered && !slices.Equal(got, want) {
		m.t.Errorf("devices in the order %v\nwant %v", got, want)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		m.t.Errorf("devices %v\nwant %v", got, want)
	}
}

// TestPlanProperty publishes random pools, some of them only in part before the
// next one. From any state one plan leads to the desired pool, the invariants hold
// after each write, and the next plan is empty.
func TestPlanProperty(t *testing.T) {
	seeds := uint64(120)
	if testing.Short() {
		seeds = 12 // one goroutine, in which there is no race
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 7))
		m := newModel(t)
		p := Pool{Ordered: seed%3 == 0}
		for step := range 25 {
			p.Devices = randomPool(rng, p.Devices)
			d := m.desired(p)
			for range 3 { // interrupted that often at most
				o := m.observed()
				o.compact = rng.IntN(2) == 0
				todo := newPlan(d, o)
				stop := 1 << 30
				if rng.IntN(3) == 0 {
					stop = rng.IntN(writesOf(todo) + 1)
				}
				resumes := writesOf(todo) - stop
				if m.apply(d, todo, rng, stop) {
					break
				}
				rest := newPlan(d, m.observed())
				if todo.outcome != newGeneration && resumes < writesOf(todo) && writesOf(rest) > writesOf(todo) {
					t.Errorf("seed %d step %d: %d writes were planned, %d after %d of them", seed, step, writesOf(todo), writesOf(rest), stop)
				}
				if rng.IntN(2) == 0 {
					p.Devices = randomPool(rng, p.Devices)
					d = m.desired(p)
				}
			}
			m.apply(d, newPlan(d, m.observed()), rng, 1<<30)
			if again := newPlan(d, m.observed()); !again.empty() {
				t.Errorf("seed %d step %d: %d writes more", seed, step, writesOf(again))
			}
			m.checkOrder(p)
			if t.Failed() {
				t.Fatalf("seed %d step %d", seed, step)
			}
		}
	}
}

func randomPool(rng *rand.Rand, devices []resourcev1.Device) []resourcev1.Device {
	devices = slices.Clone(devices)
	switch rng.IntN(7) {
	case 0:
		from := rng.IntN(2000)
		for _, d := range someDevices(from, from+rng.IntN(200)) {
			if !slices.ContainsFunc(devices, func(o resourcev1.Device) bool { return o.Name == d.Name }) {
				devices = append(devices, d)
			}
		}
	case 1:
		devices = devices[:rng.IntN(len(devices)+1)]
	case 2:
		rng.Shuffle(len(devices), func(i, j int) { devices[i], devices[j] = devices[j], devices[i] })
	case 3:
		devices = slices.DeleteFunc(devices, func(resourcev1.Device) bool { return rng.IntN(10) == 0 })
	case 4:
		d := resourcev1.Device{Name: fmt.Sprintf("x%d", rng.IntN(1<<30))}
		devices = slices.Insert(devices, rng.IntN(len(devices)+1), d)
	default:
		for range rng.IntN(4) {
			if len(devices) > 0 {
				i := rng.IntN(len(devices))
				devices[i].BindsToNode = new(rng.IntN(2) == 0)
				devices[i].Taints = someTainted(0, 1)[0].Taints[:rng.IntN(2)]
			}
		}
	}
	return devices
}

// TestASuccessorResumesTheSamePlan: whichever writes of a bump a dead process
// made, its successor makes the others, with the same content.
func TestASuccessorResumesTheSamePlan(t *testing.T) {
	for name, pools := range map[string][]Pool{
		"first publish":      {{}, {Devices: someTainted(0, 5*64+7)}},
		"spare slices":       {{Devices: someTainted(0, 7*64)}, {Devices: someTainted(0, 8*64)}, {Devices: someTainted(0, 10*64+3)}},
		"beyond 64":          {{Devices: someDevices(0, 3*64)}, {Devices: someDevices(0, 3*128+100)}},
		"tainted and plain":  {{Devices: someDevices(0, 3*64)}, {Devices: someMixed(0, 3*128+300)}},
		"slices with room":   {{Devices: someTainted(0, 3*64)}, {Devices: slices.Concat(someTainted(0, 50), someTainted(64, 100), someTainted(128, 150), someTainted(400, 600))}},
		"a device moves":     {{Devices: someDevices(0, 128)}, {Devices: append(someTainted(0, 1), someDevices(1, 200)...)}},
		"some removed":       {{Devices: someTainted(0, 10*64)}, {Devices: append(someTainted(0, 5*64), someTainted(5*64+1, 11*64+3)...)}},
		"a device changes":   {{Devices: someDevices(0, 128)}, {Devices: append(someTainted(0, 2), someDevices(2, 200)...)}},
		"with counter sets":  {{Devices: someTainted(0, 65)}, {Devices: append(someTainted(0, 130), consumer("x", "s")), SharedCounters: []resourcev1.CounterSet{counterSet("s")}}},
		"a selection change": {{Devices: someTainted(0, 130)}, {Devices: someTainted(0, 200), SkipNodeOperations: []resourcev1.SkipNodeOperation{"*"}}},
	} {
		for seed := range uint64(12) {
			m, rng := newModel(t), rand.New(rand.NewPCG(seed, 5))
			for _, p := range pools[:len(pools)-1] {
				d := m.desired(p)
				m.apply(d, newPlan(d, m.observed()), rng, 1<<30)
			}
			if name == "first publish" {
				clear(m.slices)
				m.floor = 0
			}
			d := m.desired(pools[len(pools)-1])
			first := newPlan(d, m.observed())
			made := 1 + rng.IntN(writesOf(first)-1)
			m.apply(d, first, rng, made)
			m.e = newHasher() // another process
			d, m.ours, m.floor = m.desired(pools[len(pools)-1]), 0, 0
			rest := newPlan(d, m.observed())
			if rest.outcome != fillUp || rest.digest != first.digest || writesOf(rest) != writesOf(first)-made {
				t.Errorf("%s, seed %d: outcome %v, %d writes after %d of %d", name, seed, rest.outcome, writesOf(rest), made, writesOf(first))
			}
			if last := rest.phases[len(rest.phases)-1]; !slices.IsSortedFunc(last, riskiestFirst) {
				t.Errorf("%s, seed %d: the writes that may be refused don't come first", name, seed)
			}
		}
	}
}

// TestASuccessorThatWantsSomethingElseTakesANewGeneration: even if it only differs
// in slices that the dead process has not written, because these writes may come
// late and complete the pool.
func TestASuccessorThatWantsSomethingElseTakesANewGeneration(t *testing.T) {
	for name, tc := range map[string]struct {
		dead, next Pool
		made       int
	}{
		"a missing slice":    {Pool{Devices: someTainted(0, 5*64)}, Pool{Devices: someTainted(0, 5*64-1)}, 1},
		"the nodes":          {Pool{Devices: someTainted(0, 5*64)}, Pool{Devices: someTainted(0, 5*64), SkipNodeOperations: []resourcev1.SkipNodeOperation{"*"}}, 1},
		"a slice that it is": {Pool{Devices: someTainted(0, 5*64)}, Pool{Devices: someTainted(1, 5*64)}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel(t)
			d := m.desired(tc.dead)
			m.apply(d, newPlan(d, m.observed()), rand.New(rand.NewPCG(1, 1)), tc.made)
			m.ours, m.floor = 0, 0
			if p := newPlan(m.desired(tc.next), m.observed()); p.outcome != newGeneration || p.generation != 2 {
				t.Errorf("outcome %v at generation %d", p.outcome, p.generation)
			}
			// A slice without the digest is of an unknown plan.
			for _, s := range m.slices {
				s.Annotations = nil
			}
			if p := newPlan(m.desired(tc.dead), m.observed()); p.outcome != newGeneration {
				t.Errorf("without the annotation: outcome %v", p.outcome)
			}
		})
	}
}

func TestPageNames(t *testing.T) {
	for _, node := range []string{"", "n1", strings.Repeat("a", 253), "a." + strings.Repeat("b.", 40) + "c"} {
		for _, driver := range []string{"d.example.com", strings.Repeat("a", 40) + "." + strings.Repeat("b", 22), "Upper.Example.Com"} {
			name := pageName(PoolID{driver, "p"}, strings.ToLower(driver+"-"+node), 1)
			if len(name) > maxPageName {
				t.Errorf("%s is too long", name)
			}
			if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
				t.Errorf("%s: %v", name, problems)
			}
		}
	}
}
