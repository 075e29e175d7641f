// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/internal/plan"
)

// World has all parts of one run: an API server in memory, the programs, and the objects
// of the scenario. Each run has its own, in a bubble of its own.
type World struct {
	// Server is the API server. Steps act on it directly, or with a client of
	// Server.Client, which no fault disturbs.
	Server *apitest.Server

	cfg      Config
	plan     plan.Plan
	faults   []Fault
	how      mode
	judge    *judge // nil in the reference
	scenario Scenario
	order    *turnstile
	over     context.Context // done when programs must have ended
	programs context.Context // of all programs
	begun    time.Time
	wake     chan struct{} // has a token after a change
	disturb  atomic.Bool   // a fault has acted, or the run is ending
	worldly  atomic.Bool   // a fault has changed the world
	listing  atomic.Bool   // spots are recorded

	files sync.Mutex // guards lane.dir and temp
	temp  string
	dirs  int

	asking sync.Mutex // held while invariants are asked

	collected time.Duration // when garbage was collected last

	mu        sync.Mutex
	lanes     sync.WaitGroup
	processes []*Process
	extra     map[string]int // second instances of a program
	seen      map[plan.Place]int
	hit       []bool
	acted     []bool    // the faults that had an effect
	busy      time.Time // the last fault is over by then
	requests  int
	window    time.Duration // the ten seconds of the last request
	earlier   int           // requests before them
	spots     []spot
	journal   []*entry
	problems  []string
	broken    map[string]bool // invariants that have been reported
	history   history
	deleted   []metav1.Object // by faults, and not made by programs for other objects
	rested    []rested
	refused   map[string]bool // requests answered with 403
	hot       bool
}

// entry is a line of the journal.
type entry struct {
	at      time.Duration
	program string // empty for a note
	text    string
	result  string
	times   int // in a story: how often it is repeated
}

func (e entry) line() string {
	if e.program == "" {
		return "-- " + e.text
	}
	return e.program + ": " + e.text + " " + e.result
}

// spot is a place where faults can act, with the objects that exist then.
type spot struct {
	place   plan.Place
	objects []string
	things  []string // outside, at rest
	watched []string // the resources that the program has watched
	again   bool     // the step of another program: shared faults are tried at the first
}

// outcome is the result of one run.
type outcome struct {
	problems []string
	missed   bool // a place of the plan was not reached, or its fault had no effect
	worldly  bool
	end      state
	most     map[string]int // see history
	spots    []spot
	rested   []rested
	journal  []*entry
	requests int
	restarts int
	virtual  time.Duration
	refused  map[string]bool
}

// state is what exists at one time of a run.
type state struct {
	objects []kruntime.Object
	outside map[string]any // the things outside
	all     map[string]any // both, normalized
}

// rested is a place at rest, with what exists there a while after the step and still later.
type rested struct {
	spot
	first, later state
}

// now returns the time since the beginning of the run.
func (w *World) now() time.Duration { return time.Since(w.begun) }

func (w *World) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.journal = append(w.journal, &entry{at: w.now(), text: fmt.Sprintf(format, args...)})
}

func (w *World) problem(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	first, _, _ := strings.Cut(text, "\n")
	w.problems = append(w.problems, text)
	w.journal = append(w.journal, &entry{at: w.now(), text: "PROBLEM: " + first})
}

// guard calls a function of the scenario. A panic in it is a problem, and its error.
func (w *World) guard(what string, f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic of %s: %v", what, r)
			if w.worldly.Load() && strings.HasPrefix(what, "step ") {
				return // it does not expect that its object is gone
			}
			w.problem("%v\n%s", err, debug.Stack())
		}
	}()
	return f()
}

// isHot reports whether the run is given up, because of too many requests.
func (w *World) isHot() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hot
}

func (w *World) undisturbed() bool { return !w.disturb.Load() }

// newDir returns a new empty directory. w.files must be held.
func (w *World) newDir() (string, error) {
	if w.temp == "" {
		temp, err := os.MkdirTemp("", "explore")
		if err != nil {
			return "", err
		}
		w.temp = temp
	}
	w.dirs++
	dir := filepath.Join(w.temp, strconv.Itoa(w.dirs))
	return dir, os.Mkdir(dir, 0o700)
}

// begin numbers a request, takes the faults that act on it, and enters it in the journal. A
// request that would be answered with a conflict has no number, and uncount takes back
// the number of one that is. So number n is that of the n-th request that is accepted, and no
// writes of other clients change it.
func (w *World) begin(ctx context.Context, p *Process, place plan.Place, conflicts func(context.Context) bool) (plan.Place, *entry, []Fault) {
	place.Program = p.lane.name
	place.Target = uids.ReplaceAllString(place.Target, "UID")
	var objects []string
	if w.listing.Load() && place.IsWrite() {
		objects = w.targets()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	steps.Add(1)
	w.seen[place]++
	place.Number = w.seen[place]
	at := place
	if conflicts != nil && !p.program.Undisturbed && slices.ContainsFunc(w.plan, func(h plan.Hit) bool { return h.Place.Number > 0 && h.Place.Covers(place) }) {
		w.mu.Unlock()
		if conflicts(ctx) {
			at.Number = 0
		}
		w.mu.Lock()
	}
	var faults []Fault
	if !p.program.Undisturbed {
		if ten := w.now().Truncate(10 * time.Second); ten != w.window {
			w.window, w.earlier = ten, w.requests
		}
		w.requests++
		if resource, _, _ := strings.Cut(place.Target, " "); place.Verb == "watch" && !slices.Contains(p.lane.watched, resource) {
			p.lane.watched = append(slices.Clone(p.lane.watched), resource)
		}
		if w.listing.Load() && !strings.HasPrefix(place.Target, "events ") && !strings.HasPrefix(place.Target, "/") {
			w.spots = append(w.spots, spot{place: place, objects: objects, watched: p.lane.watched})
		}
		faults = w.faultsAt(at)
	}
	e := &entry{at: w.now(), program: p.lane.name, text: strings.TrimSpace(place.Verb + " " + place.Target)}
	w.journal = append(w.journal, e)
	if limit := w.how.limit; limit > 0 && (w.requests-w.earlier > limit+1_000 || w.requests > limit+10_000) && !w.hot {
		w.hot = true
		w.problems = append(w.problems, fmt.Sprintf("%d requests within %v: a loop without a pause", w.requests, w.now()))
		for _, p := range w.processes {
			p.dead.Store(true)
			p.cut()
			p.run()
		}
	}
	return place, e, faults
}

// uncount takes back the number of a request that was answered with a conflict and that no fault
// hit: the program repeats it, and the repetition is the same place.
func (w *World) uncount(place plan.Place) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spots = slices.DeleteFunc(w.spots, func(s spot) bool { return s.place == place })
	place.Number = 0
	w.seen[place]--
}

// faultsAt returns the faults of the plan that act on the request at place now. w.mu must
// be held.
func (w *World) faultsAt(place plan.Place) (at []Fault) {
	for i, h := range w.plan {
		if w.hit[i] || !h.Place.Covers(place) {
			continue
		}
		w.hit[i] = h.Place.Number > 0
		at = append(at, w.faults[i])
		w.disturb.Store(true)
		if w.faults[i].World {
			w.worldly.Store(true)
		}
		w.busy = later(w.busy, time.Now().Add(w.faults[i].lasts))
		w.journal = append(w.journal, &entry{at: w.now(), text: "FAULT: " + h.String()})
	}
	return at
}

func (w *World) finish(e *entry, resp *http.Response, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil:
		e.result = "-> " + short(err.Error())
	case resp != nil:
		e.result = "-> " + strconv.Itoa(resp.StatusCode)
		if resp.StatusCode == http.StatusForbidden {
			w.refused[e.text] = true
		}
	}
}

func short(s string) string {
	s = strings.ReplaceAll(s, "\n", " ")
	return s[:min(len(s), 60)]
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// changed asks the invariants, and wakes what waits for a step.
func (w *World) changed() {
	w.ask()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *World) ask() {
	w.asking.Lock()
	defer w.asking.Unlock()
	for _, inv := range w.scenario.Always {
		if w.broken[inv.Name] {
			continue
		}
		if err := w.guard("invariant "+inv.Name, inv.Holds); err != nil {
			w.broken[inv.Name] = true
			w.problem("invariant %q is broken: %v", inv.Name, err)
		}
	}
}

// await waits until ok returns nil. It returns what ok returned last if that does not
// happen within the deadline.
func (w *World) await(ok func() error) error {
	from := time.Now()
	for {
		synctest.Wait()
		err := ok()
		if err == nil {
			return nil
		}
		w.mu.Lock()
		from = later(from, w.busy)
		w.mu.Unlock()
		if time.Since(from) > w.cfg.Deadline || w.isHot() {
			return err
		}
		select {
		case <-w.wake:
		case <-time.After(time.Second): // a change outside of the API server does not wake this goroutine
		}
		time.Sleep(time.Nanosecond) // everything else that happens now comes first
		steps.Add(1)
		w.ask()
	}
}

// settle waits until time has passed since now and the last fault.
func (w *World) settle() {
	until := time.Now()
	for {
		w.mu.Lock()
		end := later(until, w.busy).Add(w.cfg.Settle)
		w.mu.Unlock()
		d := time.Until(end)
		if d <= 0 || w.isHot() {
			break
		}
		time.Sleep(d)
	}
	synctest.Wait()
	w.ask()
}

// mode says how a plan is run.
type mode struct {
	free  bool       // requests are not ordered
	list  bool       // the outcome has the spots
	rest  plan.Place // the outcome has what exists at rest there, or at each rest for everyRest
	names fixedNames
	limit int // the run is given up if it has many more requests, in ten seconds or in all; 0 means none
}

// judge compares a run with the reference.
type judge struct {
	end   *expected
	rests map[plan.Place]*expected // after steps
	most  map[string]int           // see history
}

// expected is what exists in the reference at one time.
type expected struct {
	all    map[string]any
	ignore []string // as Config.Ignore has it
}

// differences returns how what exists now differs, as lines.
func (w *World) differences(from *expected) []string {
	now := state{objects: w.Server.Objects(), outside: w.outside()}
	now.normalize(from.ignore, w.how.names)
	want := from.all
	for _, h := range w.plan {
		thing, pruned := strings.CutPrefix(h.Fault, "prune ")
		if _, exists := now.all[outsideKind+" "+thing]; pruned && !exists {
			want = maps.Clone(want)
			delete(want, outsideKind+" "+thing)
		}
	}
	return differences(want, now.all)
}

// current has the World of the run of this process, for the process that is stuck.
var current atomic.Pointer[World]

// runPlan runs the scenario with the faults of a plan. j is nil for the reference.
func runPlan(t *testing.T, cfg Config, scenario func(*World) Scenario, p plan.Plan, how mode, j *judge) (out outcome) {
	faults, err := faultsOf(cfg.Faults, p)
	if err != nil {
		out.problems = []string{err.Error()}
		return out
	}
	defer func() {
		if r := recover(); r != nil {
			out.problems = append(out.problems, fmt.Sprintf("goroutines are left: %v\n%s", r, leftInBubble()))
		}
	}()
	apitest.Bubble(t, cfg.Options, func(_ *testing.T, s *apitest.Server) {
		w := &World{
			Server: s, cfg: cfg, plan: p, faults: faults, how: how, judge: j, order: newTurnstile(how.free), begun: time.Now(),
			wake: make(chan struct{}, 1), extra: map[string]int{}, seen: map[plan.Place]int{}, hit: make([]bool, len(p)), acted: make([]bool, len(p)),
			broken: map[string]bool{}, refused: map[string]bool{},
			history: history{made: map[types.UID]bool{}, touched: map[types.UID]bool{}, finalizers: map[string]bool{}, changes: map[string]int{}, now: map[string]int{}, most: map[string]int{}},
		}
		w.listing.Store(how.list)
		current.Store(w)
		defer current.Store(nil)
		w.run(scenario, &out)
	})
	return out
}

func (w *World) run(scenario func(*World) Scenario, out *outcome) {
	background := context.Background()
	over, end := context.WithCancel(background)
	w.over = over
	var stopPrograms context.CancelFunc
	w.programs, stopPrograms = context.WithCancel(background)
	go w.order.run(over)
	w.scenario = scenario(w)
	if err := w.scenario.validate(); err != nil {
		w.problem("%v", err)
		w.scenario = Scenario{}
	}
	defer w.Server.Observe(func(c apitest.Change) { w.learn(c); w.changed() })()
	for _, prog := range w.scenario.Programs {
		w.launch(prog, &lane{name: prog.Name, host: "host-1"})
	}
	finished, j := w.steps(), w.judge
	if len(w.scenario.Steps) > 0 { // what programs do later is not new
		w.listing.Store(false)
	}
	w.settle()
	w.listing.Store(false)
	if finished && !w.worldly.Load() {
		w.compare()
	}
	if err := w.await(w.ahead); err != nil {
		w.problem("%v", err)
	}
	if j != nil && w.worldly.Load() {
		if err := w.await(func() error { return w.surplus(j.most) }); err != nil {
			w.problem("%v", err)
		}
		if finished && !slices.ContainsFunc(w.faults, func(f Fault) bool { return f.World && !f.keeps }) {
			if err := w.await(func() error { return unreached(j.end.all, w.state().all) }); err != nil {
				w.problem("%v", err)
			}
		}
	}
	w.leftovers()
	out.end = w.state()
	out.virtual = w.now()
	w.mu.Lock()
	out.requests = w.requests
	out.restarts = len(w.processes)
	w.mu.Unlock()

	w.disturb.Store(true) // from now on, programs return
	w.note("the end: all contexts are done")
	stopPrograms()
	w.lanes.Wait()
	deadline := time.After(w.cfg.Deadline)
	for _, p := range slices.Clone(w.processes) {
		if p.hasEnded() {
			continue
		}
		select {
		case <-p.ended:
		case <-deadline:
			deadline = time.After(0)
			w.problem("program %s, start %d, did not return within %v after its context was done", p.lane.name, p.Start, w.cfg.Deadline)
		}
	}
	for _, p := range w.processes {
		p.cut()
	}
	end()
	time.Sleep(10 * time.Minute) // goroutines that only sleep end on their own
	synctest.Wait()
	if w.temp != "" {
		_ = os.RemoveAll(w.temp)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	out.problems, out.spots, out.journal, out.refused = w.problems, w.spots, w.journal, w.refused
	out.worldly, out.rested, out.most = w.worldly.Load(), w.rested, w.history.most
	for i, h := range w.plan {
		out.missed = out.missed || !w.acted[i] || !w.hit[i] && h.Place.Number > 0
	}
}

// launch starts a program and keeps it running.
func (w *World) launch(prog Program, l *lane) {
	w.lanes.Go(func() { w.supervise(w.programs, prog, l) })
}

// steps does the steps, and reports whether all of them were reached.
func (w *World) steps() bool {
	for i, st := range w.scenario.Steps {
		last := i == len(w.scenario.Steps)-1
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		w.note("step: %s", st.Name)
		if st.Do != nil {
			if err := w.act(st); err != nil {
				if !w.worldly.Load() {
					w.problem("step %q: %v", st.Name, err)
				}
				return false
			}
			w.changed()
		}
		if st.Until == nil {
			w.rests(st, last)
			continue
		}
		panicked := false
		err := w.await(func() error {
			reached := false
			err := w.guard("step "+st.Name, func() error { reached = st.Until(); return nil })
			if reached {
				return nil
			}
			if err != nil {
				panicked = true
				return nil
			}
			return fmt.Errorf("step %q was not reached within %v", st.Name, w.cfg.Deadline)
		})
		if panicked {
			return false
		}
		if err != nil {
			if !w.worldly.Load() {
				w.problem("%v%s", err, w.lacks(st))
			}
			return false
		}
		if !w.rests(st, last) {
			return false
		}
	}
	return true
}

// lacks says how what exists differs from the reference after a step that was not reached.
func (w *World) lacks(st Step) string {
	place, ok := w.restPlace(st)
	if !ok || w.judge == nil || w.judge.rests[place] == nil {
		return ""
	}
	lines := w.differences(w.judge.rests[place])
	if len(lines) == 0 {
		return ""
	}
	return "\nwhat exists differs from the reference after the step:\n" + strings.Join(lines, "\n")
}

// act does a step. It is a place of each program that runs.
func (w *World) act(st Step) (err error) {
	send := func() (*http.Response, error) {
		err = w.guard("step "+st.Name, st.Do)
		return nil, nil
	}
	var objects []string
	if w.listing.Load() {
		objects = w.targets()
	}
	for i, p := range w.running() {
		x := &exchange{w: w, p: p, ctx: context.Background(), send: send}
		x.place = plan.Place{Program: p.lane.name, Verb: stepVerb, Target: clean(st.Name)}
		w.mu.Lock()
		w.seen[x.place]++
		x.place.Number = w.seen[x.place]
		if w.listing.Load() {
			w.spots = append(w.spots, spot{place: x.place, objects: objects, watched: p.lane.watched, again: i > 0})
		}
		faults := w.faultsAt(x.place)
		w.mu.Unlock()
		for _, f := range faults {
			x.apply(f)
		}
		send = x.send
	}
	_, _ = send()
	return err
}

// running returns the process of each program that faults may hit.
func (w *World) running() (all []*Process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, prog := range w.scenario.Programs {
		for _, p := range slices.Backward(w.processes) {
			if p.lane.name != prog.Name || prog.Undisturbed {
				continue
			}
			if !p.dead.Load() && !p.hasEnded() {
				all = append(all, p)
			}
			break
		}
	}
	return all
}

// state returns what exists now.
func (w *World) state() state {
	s := state{objects: w.Server.Objects(), outside: w.outside()}
	s.normalize(w.cfg.Ignore, w.how.names)
	return s
}

func (s *state) normalize(ignore []string, names fixedNames) {
	s.all = normalized(s.objects, ignore, names)
	maps.Copy(s.all, s.outside)
}

// outside returns the things outside of the API, as "Outside SYSTEM/NAME", with their number.
func (w *World) outside() map[string]any {
	out := map[string]any{}
	for _, o := range w.scenario.Outside {
		var things []string
		_ = w.guard("Outside "+o.Name, func() error { things = o.List(); return nil })
		for _, thing := range things {
			key := outsideKind + " " + o.Name + "/" + clean(thing)
			n, _ := out[key].(int)
			out[key] = n + 1
		}
	}
	return out
}

// outsideKind is the kind of things that are no objects.
const outsideKind = "Outside"

// compare compares the end with the reference, and asks Finally.
func (w *World) compare() {
	same := func() error { return nil }
	if w.judge != nil {
		same = w.sameAs("the end", w.judge.end)
	}
	err := w.await(func() error {
		if err := same(); err != nil || w.scenario.Finally == nil {
			return err
		}
		if err := w.guard("Finally", w.scenario.Finally); err != nil {
			return fmt.Errorf("finally: %w", err)
		}
		return nil
	})
	if err != nil {
		w.problem("%v", err)
	}
}

// sameAs returns a function that compares what exists with the reference.
func (w *World) sameAs(when string, want *expected) func() error {
	var lines []string
	version := ""
	return func() error {
		if now := w.Server.ResourceVersion(); now != version || len(w.scenario.Outside) > 0 {
			version, lines = now, w.differences(want)
		}
		if len(lines) > 0 {
			return fmt.Errorf("%s differs from the reference:\n%s", when, strings.Join(lines, "\n"))
		}
		return nil
	}
}
