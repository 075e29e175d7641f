// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// become applies the plan for a pool, and returns the plan.
func (m *model) become(p Pool) *plan {
	m.t.Helper()
	d := m.desired(p)
	plan := newPlan(d, m.observed())
	m.apply(d, plan, rand.New(rand.NewPCG(1, 1)), 1000)
	return plan
}

// TestASliceThatIsBeingDeletedIsReplaced: it waits for a finalizer, and would take
// its devices away with it.
func TestASliceThatIsBeingDeletedIsReplaced(t *testing.T) {
	m := newModel(t)
	m.become(Pool{Devices: someTainted(0, 192)})
	victim := m.live()[1].Name
	m.slices[victim].DeletionTimestamp = new(metav1.Now())
	plan := newPlan(m.desired(Pool{Devices: someTainted(0, 192)}), m.observed())
	if plan.outcome != newGeneration || len(plan.pages) != 3 {
		t.Errorf("outcome %v with %d pages", plan.outcome, len(plan.pages))
	}
	for _, page := range plan.pages {
		if page.name == victim {
			t.Errorf("%s is to be written, with %d devices", victim, len(page.items))
		}
	}
	if len(plan.deletes) != 1 || plan.deletes[0][0].Name != victim {
		t.Errorf("deletes %v", plan.deletes)
	}
}

func counterSet(name string) resourcev1.CounterSet {
	return resourcev1.CounterSet{Name: name, Counters: map[string]resourcev1.Counter{"c": {Value: resource.MustParse("1")}}}
}

func consumer(name, set string) resourcev1.Device {
	return resourcev1.Device{Name: name, ConsumesCounters: []resourcev1.DeviceCounterConsumption{{CounterSet: set, Counters: counterSet(set).Counters}}}
}

// TestASliceChangesFromCountersToDevices: the slice of a counter set that is no
// longer wanted gets as many devices as it had counter sets.
func TestASliceChangesFromCountersToDevices(t *testing.T) {
	m := newModel(t)
	m.become(Pool{SharedCounters: []resourcev1.CounterSet{counterSet("s")}, Devices: []resourcev1.Device{consumer("d00000", "s")}})
	pool := Pool{Devices: someDevices(0, 2)}
	m.become(pool)
	if names, ok := m.complete(); !ok || !slices.Equal(names, []string{"d00000", "d00001"}) {
		t.Errorf("devices %v, complete %v", names, ok)
	}
	for _, rec := range m.live() {
		if rec.has(true) {
			t.Errorf("%s still has counters", rec.Name)
		}
	}
	if plan := m.become(pool); !plan.empty() {
		t.Errorf("the next plan has %d writes", writesOf(plan))
	}
}

// TestCounterSetsAreSpreadBy8: a slice holds no more of them.
func TestCounterSetsAreSpreadBy8(t *testing.T) {
	m := newModel(t)
	var pool Pool
	for i := range 17 {
		name := fmt.Sprintf("s%02d", i)
		pool.SharedCounters = append(pool.SharedCounters, counterSet(name))
		pool.Devices = append(pool.Devices, consumer("d"+name, name))
	}
	m.become(pool)
	var sizes []int
	for _, rec := range m.live() {
		if rec.has(true) {
			sizes = append(sizes, len(rec.items))
		}
	}
	slices.Sort(sizes)
	if !slices.Equal(sizes, []int{1, 8, 8}) {
		t.Errorf("counter sets by slice: %v", sizes)
	}
	if plan := m.become(pool); !plan.empty() {
		t.Errorf("the next plan has %d writes", writesOf(plan))
	}
}

// TestRiskyWritesComeFirst: new pages, which may be refused, then changes that take
// something from Pods, then other changes, then pages that only get the generation.
func TestRiskyWritesComeFirst(t *testing.T) {
	m := newModel(t)
	all := someTainted(0, 192)
	m.become(Pool{Devices: all})
	changed := slices.Clone(all)
	changed[70].AllowMultipleAllocations = new(true) // content of the second
	changed[130].Taints = append(slices.Clone(changed[130].Taints), resourcev1.DeviceTaint{Key: "l", Effect: resourcev1.DeviceTaintEffectNoExecute})
	changed = append(changed, someTainted(192, 193)...) // a fourth page
	plan := newPlan(m.desired(Pool{Devices: changed}), m.observed())
	var order []string
	for _, page := range slices.Concat(plan.phases...) {
		switch {
		case page.rec == nil:
			order = append(order, "new")
		case page.change == restrictive:
			order = append(order, "restrictive")
		case page.change == edited:
			order = append(order, "content")
		default:
			order = append(order, "generation")
		}
	}
	// All devices have taints, so each change of one counts as restrictive.
	if fmt.Sprint(order) != "[new restrictive restrictive generation]" || len(plan.phases) != 2 || len(plan.phases[0]) != 1 {
		t.Errorf("order %v in %d phases", order, len(plan.phases))
	}

	plain := newModel(t)
	devices := someDevices(0, 192)
	plain.become(Pool{Devices: devices})
	one := slices.Clone(devices)
	one[0].AllowMultipleAllocations = new(true)
	one = slices.Delete(one, 191, 192)
	inPlace := newPlan(plain.desired(Pool{Devices: one}), plain.observed())
	if len(inPlace.phases) != 1 || len(inPlace.phases[0]) != 2 || inPlace.phases[0][0].change != restrictive || inPlace.phases[0][1].change == restrictive {
		t.Errorf("phases %v", inPlace.phases)
	}
}

// TestARemovedPoolGoesOldestFirst: slices of an older generation must not pass for
// a pool when the newest are gone.
func TestARemovedPoolGoesOldestFirst(t *testing.T) {
	m := newModel(t)
	m.become(Pool{Devices: someTainted(0, 192)})
	newer := m.live()[2]
	m.slices[newer.Name].Spec.Pool.Generation = 7
	p := planRemoval(m.live())
	if len(p.deletes) != 2 || len(p.deletes[0]) != 2 || len(p.deletes[1]) != 1 || p.deletes[1][0].Name != newer.Name {
		t.Errorf("deletes %v", p.deletes)
	}
	if p := planRemoval(nil); !p.empty() {
		t.Errorf("nothing to remove: %v", p.deletes)
	}
}

// TestAnswersDecideWhatIsPublished: content without an answer is published, dropped
// content is left out, and refused content keeps its live version
// unless that was refused too.
func TestAnswersDecideWhatIsPublished(t *testing.T) {
	device := func(h hash) item { return item{name: "d", hash: h} }
	live := device(7)
	for name, tc := range map[string]struct {
		answers map[hash]*answer
		want    hash // 0: left out
	}{
		"no answer":                  {nil, 1},
		"stored as something else":   {map[hash]*answer{1: {stored: 9}}, 1},
		"dropped":                    {map[hash]*answer{1: {}}, 0},
		"refused and not live":       {map[hash]*answer{1: {standing: rejected}}, 0},
		"refused and live":           {map[hash]*answer{1: {standing: rejected, instead: &live}}, 7},
		"live version refused":       {map[hash]*answer{1: {standing: rejected, instead: &live}, 7: {standing: rejected}}, 0},
		"live version stored anyway": {map[hash]*answer{1: {standing: rejected, instead: &live}, 7: {stored: 8}}, 7},
	} {
		o := &observed{memory: &memory{answers: tc.answers}}
		if got, ok := o.instead(device(1)); ok != (tc.want != 0) || ok && got.hash != tc.want {
			t.Errorf("%s: hash %d, %v, want %d", name, got.hash, ok, tc.want)
		}
	}
	o := &observed{memory: &memory{answers: map[hash]*answer{1: {stored: 9}, 2: {standing: rejected, stored: 9}}}}
	for _, tc := range []struct {
		wanted, live hash
		want         bool
	}{{1, 1, true}, {1, 9, true}, {1, 8, false}, {2, 9, false}, {3, 9, false}, {3, 3, true}} {
		if got := o.stored(tc.wanted, tc.live); got != tc.want {
			t.Errorf("stored(%d, %d) = %v, want %v", tc.wanted, tc.live, got, tc.want)
		}
	}
}

// TestARefusedDeviceKeepsItsPlace: its live version is published there, since the order is
// the driver's preference.
func TestARefusedDeviceKeepsItsPlace(t *testing.T) {
	m := newModel(t)
	devices := someDevices(0, 3)
	m.become(Pool{Devices: devices})
	was, _ := m.e.device(&devices[2], nil)
	now := someDevices(0, 3)
	now[2].Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"new": {BoolValue: new(true)}}
	d := m.desired(Pool{Devices: now})
	o := m.observed()
	o.answers[d.devices[2].hash] = &answer{standing: rejected, instead: &was, at: time.Now()}
	page := newPlan(d, o).pages[0]
	if last := page.written()[2]; last.name != was.name || last.hash != was.hash {
		t.Errorf("the last device is %s", last.name)
	}
}

// TestANewDeviceGoesToASliceThatIsWrittenAnyway, not to one with less room.
func TestANewDeviceGoesToASliceThatIsWrittenAnyway(t *testing.T) {
	m := newModel(t)
	all := someTainted(0, 129)
	m.become(Pool{Devices: all[:128]})
	m.become(Pool{Devices: slices.Concat(all[4:64], all[78:128])})
	plan := m.become(Pool{Devices: slices.Concat(all[4:64], all[79:129])})
	if writesOf(plan) != 1 || m.pageOf(all[128].Name) != m.pageOf(all[100].Name) {
		t.Errorf("%d writes", writesOf(plan))
	}
	if name := m.pageOf(all[128].Name); !strings.HasPrefix(name, "00000002-gpu.example.com-n1-") {
		t.Errorf("the second slice is called %s", name)
	}
}

// TestSlicesThatDisagreeOnTheirNumberAreNoPool: consumers ignore them even if
// there are as many as one of them says.
func TestSlicesThatDisagreeOnTheirNumberAreNoPool(t *testing.T) {
	m := newModel(t)
	pool := Pool{Devices: someTainted(0, 192)}
	m.become(pool)
	m.slices[m.live()[2].Name].Spec.Pool.ResourceSliceCount = 4
	if plan := newPlan(m.desired(pool), m.observed()); plan.outcome != newGeneration || writesOf(plan) != 3 {
		t.Errorf("outcome %v with %d writes", plan.outcome, writesOf(plan))
	}
	pool.Devices = pool.Devices[:128]
	if plan := newPlan(m.desired(pool), m.observed()); len(plan.pages) != 2 || len(plan.deletes) != 1 {
		t.Errorf("%d pages, %d groups of deletes, want the empty slice deleted", len(plan.pages), len(plan.deletes))
	}
}

// TestANewGenerationIsCompact: it writes all slices anyway, so it has no more of them
// than the devices need, and a spare one.
func TestANewGenerationIsCompact(t *testing.T) {
	m := newModel(t)
	m.become(Pool{Devices: someTainted(0, 20*64)})
	few := Pool{Devices: someTainted(0, 64)}
	if plan := m.become(few); plan.outcome != inPlace || len(plan.pages) != 20 {
		t.Errorf("outcome %v with %d pages", plan.outcome, len(plan.pages))
	}
	few.SkipNodeOperations, few.Devices = []resourcev1.SkipNodeOperation{"*"}, slices.Concat(someTainted(0, 63), someTainted(100, 165))
	if plan := m.become(few); plan.outcome != newGeneration || len(plan.pages) > 4 {
		t.Errorf("outcome %v with %d pages", plan.outcome, len(plan.pages))
	}
}

// TestDependentChangesTakeANewGeneration: pages that are written one by one must
// agree on the nodes, and must not pass devices on to each other.
func TestDependentChangesTakeANewGeneration(t *testing.T) {
	for _, pages := range []int{2, 3} {
		m := newModel(t)
		m.become(Pool{Devices: someTainted(0, 64*pages)})
		skipping := Pool{Devices: someTainted(0, 64*pages), SkipNodeOperations: []resourcev1.SkipNodeOperation{"*"}}
		if plan := m.become(skipping); plan.outcome != newGeneration || writesOf(plan) != pages {
			t.Errorf("another head of %d slices: outcome %v with %d writes", pages, plan.outcome, writesOf(plan))
		}
	}

	m := newModel(t)
	all := someDevices(0, 193)
	m.become(Pool{Devices: all[:192]})
	m.become(Pool{Devices: all}) // the first slice gets a device more than 64
	all = slices.Concat(all[:64], all[100:])
	m.become(Pool{Devices: all}) // the second has room
	all = slices.Clone(all)
	all[0].Taints = someTainted(0, 1)[0].Taints // now 64 are the limit of the first
	if plan := m.become(Pool{Devices: all}); plan.outcome != newGeneration || writesOf(plan) != 3 {
		t.Errorf("a device moves: outcome %v with %d writes", plan.outcome, writesOf(plan))
	}
	m.checkOrder(Pool{Devices: all})
}

// TestASliceThatGetsOnlyLabelsTakesNoDevice: after a late write of a dead process a
// device is on two slices, and its successor has other labels. The slice that keeps
// the device gets only these, so the other slice can lose it in place.
func TestASliceThatGetsOnlyLabelsTakesNoDevice(t *testing.T) {
	m := newModel(t)
	all := someTainted(0, 190)
	m.become(Pool{Devices: all})
	keeps, loses := m.live()[0], m.live()[2]
	spec := &m.slices[loses.Name].Spec
	spec.Devices = append(spec.Devices, all[0])
	for _, change := range []struct {
		labels labels.Set
		writes int
	}{{nil, 1}, {labels.Set{"owner": "successor"}, 3}} {
		o := m.observed()
		o.labels = labels.ValidatedSetSelector(change.labels)
		plan := newPlan(m.desired(Pool{Devices: all}), o)
		if plan.outcome != inPlace || writesOf(plan) != change.writes {
			t.Errorf("labels %v: outcome %v with %d writes, want %d in place", change.labels, plan.outcome, writesOf(plan), change.writes)
		}
		for _, page := range plan.pages {
			if has := find(page.items, all[0].Name) != nil; has != (page.name == keeps.Name) {
				t.Errorf("labels %v: %s has the device: %v", change.labels, page.name, has)
			}
		}
	}
}

// TestATaintKeepsItsTimeUnlessAnotherIsSet: the API server gives a taint the time of
// the first write, and Set may name another one.
func TestATaintKeepsItsTimeUnlessAnotherIsSet(t *testing.T) {
	m := newModel(t)
	withTime := func(at *metav1.Time) Pool {
		devices := someTainted(0, 1)
		devices[0].Taints[0].TimeAdded = at
		return Pool{Devices: devices}
	}
	first, later := metav1.Unix(1_000_000_000, 0), metav1.Unix(1_000_000_060, 0)
	m.become(withTime(&first))
	for name, tc := range map[string]struct {
		at     *metav1.Time
		writes int
	}{"no time": {nil, 0}, "the same": {&first, 0}, "another": {&later, 1}} {
		if n := writesOf(newPlan(m.desired(withTime(tc.at)), m.observed())); n != tc.writes {
			t.Errorf("%s: %d writes, want %d", name, n, tc.writes)
		}
	}
}

// TestAGenerationIsNotUsedTwice: after a restore from a backup the slices have a
// lower generation than this process has written.
func TestAGenerationIsNotUsedTwice(t *testing.T) {
	m := newModel(t)
	pool := Pool{Devices: someTainted(0, 192)}
	m.become(pool)
	m.floor = 7
	if plan := newPlan(m.desired(pool), m.observed()); plan.outcome != newGeneration || plan.generation != 8 {
		t.Errorf("outcome %v at generation %d", plan.outcome, plan.generation)
	}
}

// TestAProcessFillsUpItsOwnGeneration with other content, because no other process
// can have a write under way that completes it. Another process can't.
func TestAProcessFillsUpItsOwnGeneration(t *testing.T) {
	all := someTainted(0, 192)
	for own, want := range map[bool]outcome{true: fillUp, false: newGeneration} {
		m := newModel(t)
		m.become(Pool{Devices: all[:128]})
		d := m.desired(Pool{Devices: all})
		if m.apply(d, newPlan(d, m.observed()), rand.New(rand.NewPCG(1, 1)), 2) {
			t.Fatal("the plan has only two writes")
		}
		if !own {
			m.ours = 0
		}
		changed := slices.Clone(all)
		changed[191].AllowMultipleAllocations = new(true)
		if p := newPlan(m.desired(Pool{Devices: changed}), m.observed()); p.outcome != want {
			t.Errorf("own %v: outcome %v, want %v", own, p.outcome, want)
		}
	}
}

// TestTheDigestCoversThePages: their names and their content, in any order. A plan
// without a window has none, so a pool of one slice gets no annotation.
func TestTheDigestCoversThePages(t *testing.T) {
	m := newModel(t)
	d := m.desired(Pool{Devices: someTainted(0, 192)})
	sum := func(change func(p *plan)) string {
		p := newPlan(d, m.observed())
		change(p)
		return p.sum(d)
	}
	want := newPlan(d, m.observed()).digest
	if got := sum(func(p *plan) { slices.Reverse(p.pages) }); got != want || want == "" {
		t.Errorf("in another order %q, want %q", got, want)
	}
	for name, change := range map[string]func(p *plan){
		"another name":    func(p *plan) { p.pages[2].name += "x" },
		"a device less":   func(p *plan) { p.pages[2].items = p.pages[2].items[1:] },
		"another device":  func(p *plan) { p.pages[2].items[0] = p.pages[1].items[0] },
		"devices swapped": func(p *plan) { p.pages[1].items, p.pages[2].items = p.pages[2].items, p.pages[1].items },
		"a page less":     func(p *plan) { p.pages = p.pages[1:] },
		"a device further": func(p *plan) {
			p.pages[1].items = append(p.pages[1].items, p.pages[2].items[0])
			p.pages[2].items = p.pages[2].items[1:]
		},
	} {
		if got := sum(change); got == want {
			t.Errorf("%s: the digest is the same", name)
		}
	}
	swapped := someTainted(0, 192)
	swapped[0], swapped[1] = swapped[1], swapped[0]
	for _, ordered := range []bool{false, true} {
		first, second := newPlan(m.desired(Pool{Devices: someTainted(0, 192), Ordered: ordered}), m.observed()), newPlan(m.desired(Pool{Devices: swapped, Ordered: ordered}), m.observed())
		if (first.digest == second.digest) == ordered {
			t.Errorf("another order within a slice, ordered %v: digests %q and %q", ordered, first.digest, second.digest)
		}
	}
	if p := m.become(Pool{Devices: someTainted(0, 1)}); p.window() || p.digest != "" {
		t.Errorf("one slice: window %v, digest %q", p.window(), p.digest)
	}
}

// TestCounterSetsWithoutDevices: a pool that has lost its devices is the slice of
// its counter sets, without an empty one.
func TestCounterSetsWithoutDevices(t *testing.T) {
	m := newModel(t)
	if p := m.become(Pool{SharedCounters: []resourcev1.CounterSet{counterSet("s")}}); len(p.pages) != 1 {
		t.Errorf("%d pages, want 1", len(p.pages))
	}
}

// TestConsumersStayWithTheirCounterSet: a device goes with its counter set if the
// API server refused that, but not if it only stored something else.
func TestConsumersStayWithTheirCounterSet(t *testing.T) {
	m := newModel(t)
	d := m.desired(Pool{SharedCounters: []resourcev1.CounterSet{counterSet("s")}, Devices: []resourcev1.Device{consumer("a", "s"), someDevices(0, 1)[0]}})
	for standing, want := range map[standing]int{rejected: 1, suspect: 1, withheld: 1, partial: 2, altered: 2} {
		o := m.observed()
		o.answers[d.sets[0].hash] = &answer{standing: standing, stored: 1}
		if _, devices := d.publishable(o); len(devices) != want {
			t.Errorf("standing %v: %d devices, want %d", standing, len(devices), want)
		}
	}
}

// TestAConsumerWaitsForItsCounterSet: the API server refuses a changed counter set, and the
// live one is published instead. A consumer that is live as wanted stays. Another one is
// not published with counters that are not those it was made for.
func TestAConsumerWaitsForItsCounterSet(t *testing.T) {
	m := newModel(t)
	old := consumer("old", "s")
	m.publish(m.desired(Pool{SharedCounters: []resourcev1.CounterSet{counterSet("s")}, Devices: []resourcev1.Device{old}}))
	live := m.e.counterSet(new(counterSet("s")))
	changed := counterSet("s")
	changed.Counters = maps.Clone(changed.Counters)
	changed.Counters["more"] = resourcev1.Counter{}
	d := m.desired(Pool{SharedCounters: []resourcev1.CounterSet{changed}, Devices: []resourcev1.Device{old, consumer("new", "s")}})
	o := m.observed()
	o.answers[d.sets[0].hash] = &answer{standing: rejected, instead: &live}
	sets, devices := d.publishable(o)
	if len(sets) != 1 || sets[0].hash != live.hash || len(devices) != 1 || devices[0].name != "old" {
		t.Errorf("published %v with %v", devices, sets)
	}
}

// TestTheEarliestFaultDecidesTheRetry: content that was dropped an hour ago is not kept back
// because other content was refused later.
func TestTheEarliestFaultDecidesTheRetry(t *testing.T) {
	first := time.Unix(1000, 0)
	for range 20 { // maps have no order
		w := work{memory: memory{answers: map[hash]*answer{
			1: {err: errRaces, at: first.Add(time.Minute)}, 2: {err: errRaces, at: first}, 3: {err: errRaces, at: first.Add(time.Hour)},
			4: {at: first.Add(-time.Hour)}, // not a fault
		}}}
		if due := w.faultsDue(); !due.Equal(first.Add(retryFaults)) {
			t.Fatalf("due %v, want %v", due, first.Add(retryFaults))
		}
	}
	w := work{memory: memory{answers: map[hash]*answer{4: {at: first}}}}
	if due := w.faultsDue(); !due.IsZero() {
		t.Errorf("due %v without a fault", due)
	}
}

// pageOf returns the name of the slice that has a device.
func (m *model) pageOf(device string) string {
	for _, rec := range m.live() {
		if find(rec.items, device) != nil {
			return rec.Name
		}
	}
	return ""
}

// TestANewDeviceGoesToTheFullestSliceWithRoom, so that the emptiest become empty.
func TestANewDeviceGoesToTheFullestSliceWithRoom(t *testing.T) {
	m := newModel(t)
	all := someTainted(0, 192)
	m.become(Pool{Devices: all})
	all = slices.Concat(all[:30], all[64:124], all[128:178]) // 30, 60 and 50 devices
	m.become(Pool{Devices: all})
	m.become(Pool{Devices: append(all, someTainted(500, 501)...)})
	if got, want := m.pageOf("d00500"), m.pageOf("d00064"); got != want {
		t.Errorf("the device is on %s, want %s", got, want)
	}
}

// TestPlainDevicesBeyond64GoToTheEmptiestSlice: a slice of more than 64 devices
// must shed some as soon as one of them gets a taint.
func TestPlainDevicesBeyond64GoToTheEmptiestSlice(t *testing.T) {
	m := newModel(t)
	all := someDevices(0, 192)
	m.become(Pool{Devices: all})
	m.become(Pool{Devices: append(all, someDevices(500, 530)...)}) // all on the first
	m.become(Pool{Devices: append(all, someDevices(500, 531)...)})
	if got := m.pageOf("d00530"); got == m.pageOf("d00529") || got == "" {
		t.Errorf("the device is on %s, with 94 others", got)
	}
}

// TestAPoolIsCompactedOnlyIfItIsHalfEmpty, and keeps its fullest slices.
func TestAPoolIsCompactedOnlyIfItIsHalfEmpty(t *testing.T) {
	m := newModel(t)
	all := someTainted(0, 20*64)
	m.become(Pool{Devices: all}) // 20 slices
	compact := func(devices []resourcev1.Device) *plan {
		d, o := m.desired(Pool{Devices: devices}), m.observed()
		o.compact = true
		p := newPlan(d, o)
		m.apply(d, p, rand.New(rand.NewPCG(1, 1)), 1000)
		return p
	}
	sparse := func(each int) (some []resourcev1.Device) {
		for i := range 20 {
			some = append(some, all[i*64:i*64+each]...)
		}
		return some
	}
	if p := compact(sparse(35)); p.outcome != inPlace || len(p.pages) != 20 { // 11 would do
		t.Errorf("outcome %v with %d slices, want 20", p.outcome, len(p.pages))
	}
	fullest := m.pageOf("d00640")
	if p := compact(slices.Concat(sparse(2), all[10*64+2:10*64+35])); p.outcome != newGeneration || len(p.pages) != 3 {
		t.Errorf("outcome %v with %d slices, want 3", p.outcome, len(p.pages))
	}
	if got := m.pageOf("d00674"); got != fullest {
		t.Errorf("the devices of %s have moved to %s", fullest, got)
	}
}

// TestAnotherPublishersNumberOfSlicesIsNotAdopted if it is far more than the
// devices need.
func TestAnotherPublishersNumberOfSlicesIsNotAdopted(t *testing.T) {
	m := newModel(t)
	m.become(Pool{Devices: someDevices(0, 3)})
	m.slices[m.live()[0].Name].Spec.Pool.ResourceSliceCount = 100
	if p := m.become(Pool{Devices: someDevices(0, 3)}); len(p.pages) != 1 {
		t.Errorf("%d slices, want 1", len(p.pages))
	}
}

// TestNamesOfOtherPoolsAreAvoided: a node can't see the slices of others, so it
// learns of their names only by its own requests.
func TestNamesOfOtherPoolsAreAvoided(t *testing.T) {
	m := newModel(t)
	d, o := m.desired(Pool{Devices: someDevices(0, 3)}), m.observed()
	first := newPlan(d, o).pages[0].name
	o.taken = map[string]bool{first: true}
	if second := newPlan(d, o).pages[0].name; second == first || second == "" {
		t.Errorf("the name is %q, although %q is taken", second, first)
	}
}
