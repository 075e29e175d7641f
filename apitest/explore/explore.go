// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubewright/kubewright/apitest/internal/plan"
)

var (
	planFlag   = flag.String("explore.plan", "", "run only this plan of each exploration, and log its story")
	listFlag   = flag.Bool("explore.list", false, "log the plans with one fault, with -v, and run none of them")
	faultsFlag = flag.String("explore.faults", "", "try only these faults, separated by commas: names, such as 'delete', or with an object, such as 'delete Pod default/a'")
	budgetFlag = flag.Duration("explore.budget", 0, "replaces Config.Budget")
	seedFlag   = flag.Uint64("explore.seed", 0, "replaces Config.Seed")
)

// Finding is a plan with which the scenario breaks.
type Finding struct {
	// Plan is the shortest plan that is known, in one line. The flag -explore.plan of
	// the test replays it, and shows the whole journal.
	Plan string
	// Problem is the first problem of the run.
	Problem string
	// Cause is the same for findings that probably have one cause: it has the program that the
	// first fault hit, and the first field that differs or the function that panicked.
	Cause string
	// Story has all problems, and the journal of the run beside that of the reference.
	Story string
	// Runs and Failed are how often the plan was run, and how many of these runs had a
	// problem. A plan that does not always fail depends on the order of goroutines.
	Runs, Failed int
}

// Report is the result of an exploration.
type Report struct {
	// Plans is the number of plans that were run, and Pairs how many of them have two
	// faults.
	Plans, Pairs int
	// Missed counts the plans whose place was not reached, because the run took another
	// way before, or whose fault had no effect. Events that are late have none if there are
	// no events, for example.
	Missed int
	// Faults counts the plans with one fault by the name of the fault, in the order in
	// which they were tried first.
	Faults []Tried
	// Findings are in the order of their plans.
	Findings []Finding
	// Took is the real time.
	Took time.Duration
}

// Tried is what became of one fault.
type Tried struct {
	// Fault is the name of the fault, without the object.
	Fault string
	// Plans is the number of plans, and Acted how many of them have had an effect.
	Plans, Acted int
}

// Run explores a scenario, and fails t for each finding. See Find.
func Run(t *testing.T, cfg Config, scenario func(w *World) Scenario) {
	t.Helper()
	report := Find(t, cfg, scenario)
	first := map[string]string{}
	for _, f := range report.Findings {
		if plan := first[f.Cause]; plan != "" {
			t.Errorf("finding: %s\nthe same problem as %s", f.Plan, plan)
			continue
		}
		first[f.Cause] = f.Plan
		often := ""
		if f.Failed < f.Runs {
			often = fmt.Sprintf(" (in %d of %d runs)", f.Failed, f.Runs)
		}
		t.Errorf("finding%s\nreplay with: go test -run '%s' -explore.plan='%s'\n%s", often, pattern(t.Name()), f.Plan, f.Story)
	}
	if report.Plans > 0 {
		t.Logf("%d plans (%d pairs) in %v, %d not reached or without an effect, %d findings",
			report.Plans, report.Pairs, report.Took.Round(time.Millisecond), report.Missed, len(report.Findings))
		for _, f := range report.Faults {
			if f.Acted == 0 {
				t.Logf("%q had no effect in any of %d plans", f.Fault, f.Plans)
			}
		}
	}
}

// Find explores a scenario and returns its findings. It fails t only if the run
// without faults has a problem. It starts the test binary again for the runs, unless
// Config.InProcess is set: in those processes, code of the test before Find runs again,
// and code after it never does.
func Find(t *testing.T, cfg Config, scenario func(w *World) Scenario) Report {
	t.Helper()
	begin := time.Now()
	cfg = cfg.withDefaults()
	cfg.Budget, cfg.Seed = cmp.Or(*budgetFlag, cfg.Budget), cmp.Or(*seedFlag, cfg.Seed)
	if cfg.Seed == 0 {
		cfg.Seed = rand.Uint64()
	}
	l := &lab{t: t, cfg: cfg, scenario: scenario}
	call := callOf(t)
	if me := os.Getenv(childEnv); me != "" {
		if me == call {
			l.serve()
		}
		return Report{}
	}
	if *planFlag != "" {
		return l.replay(*planFlag)
	}
	var staff team
	if cfg.InProcess {
		staff = &solo{l}
	} else {
		staff = &children{call: call, test: t.Name()}
	}
	defer staff.close()
	plans, err := staff.prepare()
	if err != nil {
		t.Fatal(err)
	}
	if *faultsFlag != "" {
		if plans, err = cfg.selected(plans, strings.Split(*faultsFlag, ",")); err != nil {
			t.Fatal(err)
		}
	}
	if *listFlag {
		t.Logf("%d plans:\n%s", len(plans), strings.Join(plans, "\n"))
		return Report{}
	}
	s := &survey{cfg: cfg, staff: staff, begin: begin, seen: map[uint64]bool{}}
	s.singles(cfg.sample(plans))
	if cfg.pairs() {
		t.Logf("pairs of faults with Seed %d", cfg.Seed)
		s.pairs()
	}
	s.report.Took = time.Since(begin)
	return s.report
}

// replay runs one plan in this process.
func (l *lab) replay(line string) Report {
	l.t.Helper()
	begin := time.Now()
	p, err := plan.Parse(line)
	if err == nil {
		_, err = faultsOf(l.cfg.Faults, p)
	}
	if err == nil {
		err = l.prepare()
	}
	if err != nil {
		l.t.Fatal(err)
	}
	out := l.run(p, mode{})
	story := l.story(p, &out, len(out.journal)+len(l.ref.journal))
	l.t.Log("\n" + story)
	r := Report{Plans: 1, Took: time.Since(begin)}
	if out.missed {
		r.Missed = 1
	}
	if len(out.problems) > 0 {
		r.Findings = []Finding{{Plan: p.String(), Problem: out.problems[0], Cause: causeOf(p.String(), out.problems[0]), Story: story, Runs: 1, Failed: 1}}
	}
	return r
}

// selected returns the plans whose fault is one of wanted: a name, or a name with the beginning
// of an object, such as "delete Pod" or "delete Pod default/a".
func (c Config) selected(plans, wanted []string) (some []string, _ error) {
	found := map[string]bool{}
	var names []string
	for _, line := range plans {
		fault, name := c.faultOf(line)
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		hit := false
		for _, want := range wanted {
			if name == want || len(want) > len(name) && strings.HasPrefix(fault+" ", want+" ") {
				found[want], hit = true, true
			}
		}
		if hit {
			some = append(some, line)
		}
	}
	for _, want := range wanted {
		if !found[want] {
			return nil, fmt.Errorf("explore: -explore.faults=%q: no plan has the fault %q; there are plans with %q, and -explore.list has them all",
				strings.Join(wanted, ","), want, names)
		}
	}
	return some, nil
}

// faultOf returns the fault of a plan that has one, with its object, and the name of the fault.
func (c Config) faultOf(line string) (fault, name string) {
	p, err := plan.Parse(line)
	if err != nil || len(p) != 1 {
		return "", ""
	}
	f, at := faultNamed(c.Faults, p[0].Fault)
	if at < 0 {
		return p[0].Fault, p[0].Fault
	}
	return p[0].Fault, f.Name
}

// sample returns at most Config.Sample of the plans: as many for each fault, spread over its
// plans. A fault with fewer plans leaves the rest to the others.
func (c Config) sample(plans []string) []string {
	if c.Sample <= 0 || c.Sample >= len(plans) {
		return plans
	}
	byFault := map[string][]int{}
	for i, line := range plans {
		_, name := c.faultOf(line)
		byFault[name] = append(byFault[name], i)
	}
	names := slices.SortedFunc(maps.Keys(byFault), func(a, b string) int {
		return cmp.Or(len(byFault[a])-len(byFault[b]), strings.Compare(a, b))
	})
	var picked []int
	for i, name := range names {
		of := byFault[name]
		n := min(len(of), (c.Sample-len(picked))/(len(names)-i))
		for k := range n {
			picked = append(picked, of[k*len(of)/n])
		}
	}
	slices.Sort(picked)
	some := make([]string, len(picked))
	for i, at := range picked {
		some[i] = plans[at]
	}
	return some
}

// survey collects the verdicts of an exploration.
type survey struct {
	cfg    Config
	staff  team
	begin  time.Time
	report Report
	seen   map[uint64]bool // states
	seeds  []seed
	bad    []string // plans with one fault that are findings
}

// seed is a plan with one fault that a second fault can follow.
type seed struct {
	plan   string
	next   []string
	weight int
}

func (s *survey) singles(plans []string) {
	verdicts := make([]verdict, len(plans))
	jobs := make([]job, len(plans))
	for i, p := range plans {
		jobs[i] = job{Plan: p, More: s.cfg.pairs(), Seed: s.cfg.Seed}
	}
	p := newProgress(s.begin, len(plans))
	s.staff.do(jobs, func(i int, v verdict) {
		verdicts[i] = v
		p.done(v)
	})
	for i, v := range verdicts {
		fresh := s.add(v)
		s.count(plans[i], v)
		if v.Problem != "" {
			s.bad = append(s.bad, v.Plan)
		} else if len(v.Next) > 0 {
			s.seeds = append(s.seeds, seed{v.Plan, v.Next, 1 + fresh})
		}
	}
}

// count enters the result of a plan with one fault in the counts of its fault.
func (s *survey) count(line string, v verdict) {
	_, name := s.cfg.faultOf(line)
	at := slices.IndexFunc(s.report.Faults, func(x Tried) bool { return x.Fault == name })
	if at < 0 {
		at = len(s.report.Faults)
		s.report.Faults = append(s.report.Faults, Tried{Fault: name})
	}
	s.report.Faults[at].Plans++
	if !v.Missed {
		s.report.Faults[at].Acted++
	}
}

// add enters a verdict, and returns how many of its states are new.
func (s *survey) add(v verdict) (fresh int) {
	s.report.Plans++
	if v.Missed {
		s.report.Missed++
	}
	for _, state := range v.States {
		if !s.seen[state] {
			s.seen[state] = true
			fresh++
		}
	}
	known := func(f Finding) bool { return f.Plan == v.Plan }
	if v.Problem != "" && !slices.ContainsFunc(s.report.Findings, known) {
		s.report.Findings = append(s.report.Findings, Finding{v.Plan, v.Problem, causeOf(v.Plan, v.Problem), v.Story, v.Runs, v.Failed})
	}
	return fresh
}

// pairs runs plans with two faults until one of the limits is reached. Plans whose runs
// had new states are continued more often.
func (s *survey) pairs() {
	begin := time.Now()
	left := cmp.Or(s.cfg.Pairs, math.MaxInt)
	random := rand.New(rand.NewPCG(s.cfg.Seed, 2))
	p := newProgress(begin, s.cfg.Pairs)
	p.what, p.budget = "pair", s.cfg.Budget
	tried := map[string]bool{}
	for len(s.seeds) > 0 && left > 0 && (s.cfg.Budget == 0 || time.Since(begin) < s.cfg.Budget) {
		total := 0
		for _, x := range s.seeds {
			total += x.weight
		}
		var jobs []job
		var from []int
		for range 500 {
			if len(jobs) == min(64, left) {
				break
			}
			at, r := 0, random.IntN(total)
			for r >= s.seeds[at].weight {
				r -= s.seeds[at].weight
				at++
			}
			second := s.seeds[at].next[random.IntN(len(s.seeds[at].next))]
			pair := s.seeds[at].plan + " + " + second
			if tried[pair] || slices.Contains(s.bad, second) {
				continue
			}
			tried[pair] = true
			jobs, from = append(jobs, job{Plan: pair, More: true, Seed: s.cfg.Seed}), append(from, at)
		}
		if len(jobs) == 0 {
			return
		}
		left -= len(jobs)
		verdicts := make([]verdict, len(jobs))
		s.staff.do(jobs, func(i int, v verdict) {
			verdicts[i] = v
			p.done(v)
		})
		for i, v := range verdicts {
			s.report.Pairs++
			s.seeds[from[i]].weight += s.add(v)
			if v.Problem != "" && !strings.Contains(v.Plan, " + ") {
				s.bad = append(s.bad, v.Plan)
			}
		}
	}
}

// progress prints how far a long exploration is, and what it has found, at once: Run tells it
// at the end, which a test with a timeout may not reach.
type progress struct {
	what                 string
	begin, printed       time.Time
	budget               time.Duration // 0 means no limit
	total, ran, findings int           // total is 0 if it is not known
}

func newProgress(begin time.Time, total int) *progress {
	return &progress{what: "plan", begin: begin, printed: begin, total: total}
}

// done counts a plan. Calls are not concurrent.
func (p *progress) done(v verdict) {
	p.ran++
	if v.Problem != "" {
		p.findings++
		problem, rest, _ := strings.Cut(v.Problem, "\n")
		if strings.HasSuffix(problem, ":") { // what follows are differences
			first, _, _ := strings.Cut(rest, "\n")
			problem += " " + first
		}
		often := ""
		if v.Failed < v.Runs {
			often = fmt.Sprintf(" (in %d of %d runs)", v.Failed, v.Runs)
		}
		fmt.Fprintf(os.Stderr, "explore: finding%s: %s: %s\n", often, v.Plan, problem)
	}
	now := time.Now()
	if now.Sub(p.printed) < 10*time.Second {
		return
	}
	p.printed = now
	fmt.Fprintln(os.Stderr, p.line(now.Sub(p.begin)))
}

// line returns the state after the time took.
func (p *progress) line(took time.Duration) string {
	of, left := "", p.budget-took
	if p.total > 0 {
		of = fmt.Sprintf(" of %d", p.total)
		rest := time.Duration(float64(took) / float64(p.ran) * float64(p.total-p.ran))
		if p.budget == 0 || rest < left {
			left = rest
		}
	}
	return fmt.Sprintf("explore: %s %d%s, %d findings, %v left", p.what, p.ran, of, p.findings, max(left, 0).Round(time.Second))
}
