// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kubewright/kubewright/apitest/internal/plan"
)

// repeats is how often a plan with a problem is run in all.
const repeats = 3

// A lab runs the plans of one scenario in this process.
type lab struct {
	t        *testing.T
	cfg      Config
	scenario func(*World) Scenario
	free     bool // requests are not ordered

	ref      outcome
	rests    map[plan.Place]*expected // after steps
	names    fixedNames
	plans    []plan.Plan // with one fault
	unsteady []string    // steps after which runs without faults differ, with the first difference
}

// A job is a plan to run.
type job struct {
	Plan string
	Free bool // do not order requests
	More bool // answer with States and Next
	Seed uint64
}

// A verdict is the result of a job.
type verdict struct {
	Plan    string // the part of the job's plan that the problems need
	Missed  bool   // a place of the plan was not reached, or its fault had no effect
	Problem string // the first problem; empty if there is none
	Story   string
	Runs    int // of the plan
	Failed  int // of these
	// States identify the sequences of requests in the run, for the choice of pairs.
	States []uint64
	// Next are faults that can follow, as plans.
	Next []string
}

// prepare runs the reference several times, to learn what differs without a fault. The first
// runs have other generated names, UIDs and resourceVersions, because a fault changes these:
// what a program derives from them must not count.
func (l *lab) prepare() error {
	none := func(out *outcome, seed uint64) error {
		if len(out.problems) == 0 {
			return nil
		}
		return fmt.Errorf("explore: the run without faults, with Options.Seed %d, has problems:\n%s\nthe end of its journal:\n%s",
			seed, strings.Join(out.problems, "\n"), told(out.journal, before+after))
	}
	var runs, resting [3]outcome // those that rest after each step need not end as the others do
	for i, more := range []uint64{1, 2, 0} {
		cfg := l.cfg
		cfg.Options.Seed += more
		runs[i] = runPlan(l.t, cfg, l.scenario, nil, mode{free: l.free, list: true}, nil)
		if err := none(&runs[i], cfg.Options.Seed); err != nil {
			return err
		}
		resting[i] = runPlan(l.t, cfg, l.scenario, nil, mode{free: l.free, rest: everyRest}, nil)
		if err := none(&resting[i], cfg.Options.Seed); err != nil {
			return err
		}
	}
	l.learn(runs[:], resting[:])
	l.ref = runs[2]
	again := runPlan(l.t, l.cfg, l.scenario, nil, mode{free: l.free, list: true, names: l.names}, nil)
	if lines := differences(l.ref.end.all, again.end.all); len(lines) > 0 {
		advice := ""
		for _, field := range noise(l.ref.end.all, again.end.all) {
			advice += fmt.Sprintf("\nConfig.Ignore can have %q", field)
		}
		return errors.New("explore: runs without faults end differently:\n" + strings.Join(lines, "\n") + advice)
	}
	for _, out := range append(append(runs[:2:2], resting[:]...), again) {
		for key, n := range out.most {
			l.ref.most[key] = max(l.ref.most[key], n)
		}
	}
	l.rests = map[plan.Place]*expected{}
	var rests []spot
	for i, r := range resting[2].rested {
		l.expect(resting[:], i)
		rests = append(rests, r.spot)
	}
	for _, s := range append(slices.Clone(l.ref.spots), rests...) {
		l.plans = append(l.plans, plansAt(l.cfg.Faults, s)...)
	}
	if len(l.ref.spots) == 0 {
		return errors.New("explore: there is no place for a fault: the programs did not write until the last step was reached")
	}
	return nil
}

// learn sets what may differ, because it differs between runs without faults, and normalizes
// their ends again. The order in which elements of lists and groups are compared depends on all
// of their fields, so those whose values differ must be known first.
func (l *lab) learn(runs, resting []outcome) {
	at := make([][]*state, len(runs)) // by run: the end, and what exists after each step
	for i := range runs {
		at[i] = []*state{&runs[i].end}
		for k := range resting[i].rested {
			at[i] = append(at[i], &resting[i].rested[k].later)
		}
	}
	l.names = fixed(at)
	l.cfg.Ignore = l.varying(at)
}

// varying normalizes states, of several runs at the same times, without the fields that differ
// between the first run and others. It returns these with those of Config.Ignore.
func (l *lab) varying(at [][]*state) (ignore []string) {
	ignore = slices.Clone(l.cfg.Ignore)
	normalize := func() {
		for _, states := range at {
			for _, s := range states {
				s.normalize(ignore, l.names)
			}
		}
	}
	normalize()
	for _, fields := range []func(a, b map[string]any) []string{uneven, noise} {
		for _, other := range at[1:] {
			for k := range min(len(at[0]), len(other)) {
				ignore = append(ignore, fields(at[0][k].all, other[k].all)...)
			}
		}
		normalize()
	}
	return ignore
}

// expect sets what must exist after step i, if that depends neither on the time nor on chance: runs
// without faults that rest after each step have the same there, a while later, and with other names,
// and so does one that rests only there. Fields that differ between them are left out.
func (l *lab) expect(resting []outcome, i int) {
	r := &resting[2].rested[i]
	once := runPlan(l.t, l.cfg, l.scenario, nil, mode{free: l.free, rest: r.place, names: l.names}, nil)
	states := [][]*state{{&r.later}, {&r.first}}
	for _, out := range append(resting[:2:2], once) {
		for k := range out.rested {
			if out.rested[k].place == r.place {
				states = append(states, []*state{&out.rested[k].later})
			}
		}
	}
	if len(states) < 5 {
		return // the programs have returned there
	}
	ignore := l.varying(states)
	for _, s := range states[1:] {
		if lines := differences(r.later.all, s[0].all); len(lines) > 0 {
			l.unsteady = append(l.unsteady, fmt.Sprintf("%q: %s", r.place.Target, lines[0]))
			return
		}
	}
	l.rests[r.place] = &expected{all: r.later.all, ignore: ignore}
}

// run runs a plan once and judges it.
func (l *lab) run(p plan.Plan, how mode) outcome {
	ref := &l.ref
	how.limit, how.names = 20*ref.requests, l.names
	out := runPlan(l.t, l.cfg, l.scenario, p, how, &judge{end: &expected{ref.end.all, l.cfg.Ignore}, rests: l.rests, most: ref.most})
	allowed := l.cfg.Rate*float64(ref.requests)*max(1, out.virtual.Seconds()/ref.virtual.Seconds()) + float64(max(0, out.restarts-ref.restarts)*ref.requests) + 100
	if float64(out.requests) > allowed {
		out.problems = append(out.problems, fmt.Sprintf("%d requests in %v; the reference has %d in %v", out.requests, out.virtual, ref.requests, ref.virtual))
	}
	if l.cfg.Refused {
		for request := range out.refused {
			if !ref.refused[request] {
				out.problems = append(out.problems, "answered with 403: "+request)
			}
		}
	}
	return out
}

// try runs a plan, again if it has a problem, and reduces a pair to the half that is
// enough.
func (l *lab) try(j job) verdict {
	p, err := plan.Parse(j.Plan)
	if err != nil {
		return verdict{Plan: j.Plan, Problem: err.Error(), Runs: 1, Failed: 1}
	}
	how := mode{free: j.Free || l.free, list: j.More}
	out := l.run(p, how)
	how.list = false
	v := verdict{Plan: p.String(), Missed: out.missed, Runs: 1}
	if j.More {
		v.States, v.Next = states(out.journal), l.next(p, out, j.Seed)
	}
	if len(out.problems) == 0 {
		return v
	}
	if len(p) > 1 {
		for _, h := range p {
			if half := l.run(plan.Plan{h}, how); len(half.problems) > 0 {
				p, out = plan.Plan{h}, half
				v.Plan = p.String()
				break
			}
		}
	}
	v.Failed = 1
	v.Problem, v.Story = out.problems[0], l.story(p, &out, before+after)
	for v.Runs < repeats {
		v.Runs++
		if again := l.run(p, how); len(again.problems) > 0 {
			v.Failed++
		}
	}
	return v
}

// states returns the hashes of all sequences of three requests in a journal.
func states(journal []*entry) (states []uint64) {
	last := map[string][2]string{}
	for _, e := range journal {
		if e.program == "" {
			continue
		}
		h := fnv.New64a()
		before := last[e.program]
		fmt.Fprintln(h, before[0], before[1], e.line())
		last[e.program] = [2]string{before[1], e.line()}
		states = append(states, h.Sum64())
	}
	slices.Sort(states)
	return slices.Compact(states)
}

// next returns at most forty faults that can follow the fault of p, chosen by seed.
func (l *lab) next(p plan.Plan, out outcome, seed uint64) (next []string) {
	if len(p) != 1 {
		return nil
	}
	at := slices.IndexFunc(out.spots, func(s spot) bool { return p[0].Place.Covers(s.place) })
	if at < 0 {
		return nil
	}
	h := fnv.New64a()
	fmt.Fprint(h, p)
	random := rand.New(rand.NewPCG(seed, h.Sum64()))
	var all []plan.Plan
	for _, s := range out.spots[at+1:] {
		all = append(all, plansAt(l.cfg.Faults, s)...)
	}
	for range min(40, len(all)) {
		next = append(next, all[random.IntN(len(all))].String())
	}
	return next
}
