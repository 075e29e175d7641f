// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/statuserr"
	core "github.com/kubewright/kubewright/podsync/internal/pod"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

var podResource = schema.GroupResource{Resource: "pods"}

// A pod costs one allocation of 768 bytes, of which the runtime takes eight.
func TestAnEntryFitsIntoItsSizeClass(t *testing.T) {
	if size := unsafe.Sizeof(entry{}); size > 760 {
		t.Errorf("an entry has %d bytes, and the next size class costs 128 bytes a pod", size)
	}
}

// The table finds a pod by its UID, and the only pod of its name without, after any additions and
// removals. A name is free for a pod if no other pod of it blocks.
func TestWhatTheTableFinds(t *testing.T) {
	c, r := atRest(t), rand.New(rand.NewPCG(1, 2))
	var refs []Ref
	for _, name := range []string{"a", "b"} {
		for _, uid := range []types.UID{"", "1", "2", "3"} {
			if uid != "" {
				uid += types.UID(name)
			}
			refs = append(refs, Ref{Namespace: "ns", Name: name, UID: uid})
		}
	}
	has := map[Ref]*entry{}
	for range 500 {
		ref := refs[r.IntN(len(refs))]
		switch pod := has[ref]; {
		case pod != nil:
			delete(has, ref)
			if c.pods.remove(pod); c.pods.has(pod) {
				t.Fatalf("%v is removed, and there", ref)
			}
		case r.IntN(2) > 0:
			has[ref] = c.pods.add(ref, core.New(&c.pods.rules, 1, 1, core.Saved{})) // it blocks, because nothing is known of it
		default:
			has[ref] = c.pods.add(ref, core.NewOrphan(&c.pods.rules, 1, 1, core.Saved{}, ""))
		}
		c.checkMaps(t.Fatalf)
		for _, ref := range refs {
			pod, free := has[ref], true
			var ofName []*entry
			for other, t := range has {
				if other.Name == ref.Name {
					ofName = append(ofName, t)
					free = free && (t == pod || !t.Blocks())
				}
			}
			if pod != nil && (!c.pods.has(pod) || c.pods.nameFree(pod) != free) {
				t.Fatalf("%v: its name is free: %v, want %v", ref, !free, free)
			}
			if pod == nil && ref.UID == "" && len(ofName) == 1 {
				pod = ofName[0]
			}
			if got := c.pods.find(ref); got != pod {
				t.Fatalf("%v: found %v, want %v", ref, got, pod)
			}
		}
	}
}

// A pod starts if there is a free place, after those that wait. It waits once in each queue.
func TestWhoTakesAPlace(t *testing.T) {
	for _, tc := range []struct{ others, free, waited, want bool }{
		{false, false, false, false}, {false, false, true, false}, {false, true, false, true}, {false, true, true, true},
		{true, false, false, false}, {true, false, true, false}, {true, true, false, false}, {true, true, true, true},
	} {
		c, pod, waiting := atRest(t), &entry{}, []*entry{}
		if tc.others {
			waiting = append(waiting, &entry{})
			c.pods.queues[queueStop].Push(waiting[0])
		}
		for range 2 {
			if got := c.pods.take(pod, queueStop, tc.free, tc.waited); got != tc.want {
				t.Errorf("%+v: %v", tc, got)
			}
		}
		if !tc.want {
			waiting = append(waiting, pod)
		}
		if got := c.pods.queues[queueStop].Items(); !slices.Equal(got, waiting) || pod.queued[queueStop] == tc.want {
			t.Errorf("%+v: %d wait", tc, len(got))
		}
	}
}

// Pods are admitted one at a time. A flood of starts that hang must hold up no pod that is to stop.
func TestWhichPlacesThereAre(t *testing.T) {
	c := atRest(t, func(cfg *Config) { cfg.MaxCalls = 3 })
	for op := range coreOps {
		queue, places := queueStart, 3
		switch op {
		case core.Admit:
			queue, places = queueAdmit, 1
		case core.Stop, core.Release:
			queue = queueStop
		}
		for running := range 5 {
			c.loop.caller.running[queueOf(op)] = running
			if free, _ := c.loop.caller.free(queue, 0); free != (running < places) || c.loop.caller.idle() != (running == 0) {
				t.Errorf("%s beside %d calls: free: %v, idle: %v", op, running, free, c.loop.caller.idle())
			}
		}
		c.loop.caller.running = [callQueues]int{}
	}
	w := c.loop.writer
	for w.running = 0; w.running < 2*statusWriters; w.running++ {
		if free, again := w.free(queueWrite, 0); free != (w.running < statusWriters) || again != core.Never {
			t.Errorf("with %d requests another one may start: %v", w.running, free)
		}
	}
}

// A pod that users see as Pending goes first, and one whose last write has failed goes last. When Run
// is to return, no request of a pod that goes on is made.
func TestInWhichQueueARequestWaits(t *testing.T) {
	for name, tc := range map[string]struct {
		phase          corev1.PodPhase
		fails, returns bool
		want           int
	}{
		"a status":               {corev1.PodRunning, false, false, queueWrite},
		"a first status":         {corev1.PodPending, false, false, queueUrgent},
		"a status that failed":   {corev1.PodPending, true, false, queueRetry},
		"a status that may wait": {corev1.PodPending, false, true, -1},
	} {
		c := atRest(t)
		w, obj := c.loop.writer, podOf("a", "u")
		obj.Status.Phase = tc.phase
		add := func(obj *corev1.Pod) (*entry, core.Moment) { return c.runs(obj), c.in(time.Minute) }
		if tc.phase == corev1.PodPending {
			add = c.due
		}
		pod, at := add(obj)
		if tc.fails {
			c.pods.apply(pod, at, core.Sent{Action: pod.Next(at.Since, core.Writes, true)})
			c.pods.apply(pod, at, core.WriteFailed{})
			at.Since += time.Hour
		}
		if op := pod.Next(at.Since, core.Writes, true).Op; op != core.Patch {
			t.Fatalf("%s: %q is due", name, op)
		}
		w.running, c.pods.draining = w.breaker.Trip, tc.returns
		wake := w.start(pod, at, false)
		for q := range queueCount {
			if pod.queued[q] != (q == tc.want) {
				t.Errorf("%s: it waits in queue %d: %v", name, q, pod.queued[q])
			}
		}
		if wake != core.Never || pod.InFlight(core.Writes) != nil {
			t.Errorf("%s: a request is under way, or due in %v", name, wake-at.Since)
		}
	}
}

// free reports whether nothing is under way of a pod, or of another one, and the loop knows.
func (c *still) free(pod *entry) bool {
	for _, lane := range []core.Lane{core.Calls, core.Writes} {
		if pod.InFlight(lane) != nil || pod.cancel[lane] != nil {
			return false
		}
	}
	return c.loop.caller.idle() && c.loop.writer.running == 0 && pod.dirty && woken(c.pods.kick)
}

// A gate that closes ends the calls and requests that were planned before, also if it opens again while
// it is asked: another process may have acted. While it is closed nothing is planned, or each pod would
// have it asked again.
func TestNothingIsDoneOnceTheGateHasClosed(t *testing.T) {
	for name, tc := range map[string]struct {
		planned, then gateState
		asked         func(*still) error
		requests      int // a PATCH names its pod's UID and harms no other process
	}{
		"it is closed": {gateClosed, gateClosed, nil, 0},
		"it closes":    {gateOpen, gateClosed, func(*still) error { return errFailed }, 0},
		"it closes and opens": {gateOpen, gateOpen, func(c *still) error {
			c.pods.mu.Lock()
			defer c.pods.mu.Unlock()
			c.gates.close(c.run.callCtx, "n", errFailed)
			c.gates.open(c.run.callCtx, "n")
			return nil
		}, 1},
	} {
		var c *still
		provider := &everything{}
		c = atRest(t, func(cfg *Config) {
			cfg.Provider = provider
			cfg.Client = &api{patch: func([]byte) (*corev1.Pod, error) { return nil, errFailed }}
			cfg.Gate = func(context.Context, string) error { return tc.asked(c) }
		})
		c.pods.rules.Admits, c.pods.rules.Annotates = false, false // so that Start is next
		pod, at := c.due(podOf("a", "u"))
		c.gates.get("n").state = tc.planned
		c.pods.mu.Lock()
		wake := min(c.loop.caller.start(pod, at, false), c.loop.writer.start(pod, at, false))
		calls, writes := pod.InFlight(core.Calls) != nil, pod.InFlight(core.Writes) != nil
		c.pods.mu.Unlock()
		if open := tc.planned == gateOpen; calls != open || writes != open || !open && wake != core.Never {
			t.Errorf("%s: a call is planned: %v, a request: %v, and again in %v", name, calls, writes, wake-at.Since)
		}
		c.run.calls.Wait()
		if provider.did != "" || c.requests != tc.requests || !c.free(pod) || c.gates.get("n").state != tc.then {
			t.Errorf("%s: %q was called, %d requests were made, or something is under way, or the gate is %d", name, provider.did, c.requests, c.gates.get("n").state)
		}
	}
}

// Run returns when nothing is under way, and nothing is left to write of pods that have ended.
func TestWhenRunMayReturn(t *testing.T) {
	for name, tc := range map[string]struct {
		there             func(*still)
		may, afterTimeout bool
	}{
		"nothing is known":       {func(*still) {}, true, true},
		"a pod runs":             {func(c *still) { c.runs(podOf("a", "u")) }, true, true},
		"a call is under way":    {func(c *still) { c.loop.caller.running[queueStop]++ }, false, false},
		"a request is under way": {func(c *still) { c.loop.writer.running++ }, false, false},
		"a status is not stored": {func(c *still) { c.says(c.runs(podOf("a", "u")), &core.Report{Stopped: true}) }, false, true},
		"a record is not removed": {func(c *still) {
			ended := podOf("a", "u")
			ended.Status.Phase = corev1.PodSucceeded
			pod := c.seen(ended, core.Saved{Exists: true})
			c.apply(pod, core.ListEnded{Seq: c.pods.tick(), First: true, Open: true})
			c.apply(pod, core.Passed{})
		}, false, true},
	} {
		c := atRest(t, func(cfg *Config) { cfg.Checkpoint = &memory{} })
		tc.there(c)
		may := c.loop.idle()
		var cancel context.CancelFunc
		c.run.apiCtx, cancel = context.WithCancel(c.run.apiCtx)
		if cancel(); may != tc.may || c.loop.idle() != tc.afterTimeout {
			t.Errorf("%s: it may return: %v, after ShutdownTimeout: %v", name, may, c.loop.idle())
		}
	}
}

// When Run is to return, statuses that are not final need not be written: the next process finds them
// in a List.
func TestWhatIsCanceledWhenRunIsToReturn(t *testing.T) {
	c := atRest(t)
	var canceled []string
	for _, name := range []string{"runs", "has ended", "does nothing"} {
		pod := c.runs(podOf(name, types.UID(name)))
		if name == "has ended" {
			c.says(pod, &core.Report{Stopped: true})
		}
		if name != "does nothing" {
			c.sends(pod, core.Patch)
		}
		pod.cancel[core.Calls] = func() { t.Errorf("%s: a call was canceled", name) }
		pod.cancel[core.Writes] = func() { canceled = append(canceled, name) }
	}
	if c.loop.drain(); !c.pods.draining || !slices.Equal(canceled, []string{"runs"}) {
		t.Errorf("canceled: %q", canceled)
	}
}

// The failure of a request that ended just after its pod was forgotten never
// ended: no later outage was reported.
func TestFailureOfAForgottenPod(t *testing.T) {
	c := atRest(t)
	forgotten := c.runs(podOf("a", "u"))
	c.loop.forget(c.run.callCtx, forgotten)
	for name, of := range map[string]struct {
		group *apierr.Group
		late  *apierr.Member
	}{"provider": {&c.loop.caller.errors, &forgotten.callErrs}, "API": {&c.loop.writer.errors, &forgotten.apiErrs}} {
		of.group.Fail(c.run.callCtx, c.pods.handler, of.late, errFailed, "late")
		c.told = nil
		of.group.Fail(c.run.callCtx, c.pods.handler, &apierr.Member{}, errFailed, "the next outage")
		if len(c.told) != 1 {
			t.Errorf("%s: the next outage is reported %d times", name, len(c.told))
		}
	}
}

// A defect of the core is reported once for each pod: an Update of a pod that was never started is
// a step that it does not take.
func TestAnIllegalStepIsReportedOnce(t *testing.T) {
	c := atRest(t)
	pod, at := c.due(podOf("a", "u"))
	for range 2 {
		wrong := pod.Next(at.Since, core.Calls, true)
		wrong.Op = core.Update
		c.pods.apply(pod, at, core.Called{Seq: c.pods.tick(), Action: wrong})
		c.pods.apply(pod, at, core.Returned{Seq: c.pods.tick(), Report: &core.Report{}})
	}
	if c.flush(); len(c.told) != 1 || !strings.Contains(c.told[0], "follow pod ns/a") {
		t.Errorf("reported %q", c.told)
	}
}

// Those that wait for the name of an orphan are the pods that the informer has, that are to run and that
// the provider does not hold.
func TestWhoWaitsForAnOrphan(t *testing.T) {
	for _, held := range []bool{false, true} {
		c := atRest(t)
		orphan := c.orphan(podOf("a", "orphan"), "")
		var want []types.UID // if it is in nobody's way
		if held {
			c.says(orphan, &core.Report{})
			want = []types.UID{"waits", "waits, too"}
		}
		c.due(podOf("a", "waits"))
		c.due(podOf("a", "waits, too"))
		c.due(podOf("b", "of another name"))
		c.runs(podOf("a", "runs"))
		ends, _ := c.due(podOf("a", "ends"))
		c.apply(ends, core.Evicted{})
		c.orphan(podOf("a", "another orphan"), "")
		var waiting []types.UID
		for pod := range c.pods.waiters(orphan) {
			waiting = append(waiting, pod.ref.UID)
		}
		if slices.Sort(waiting); !slices.Equal(waiting, want) {
			t.Errorf("the orphan is held: %v, and %q wait", held, waiting)
		}
		for range c.pods.waiters(orphan) {
			break
		}
	}
}

// An everything is a provider with every method, which notes its last call.
type everything struct {
	did string
	ref Ref
	pod *corev1.Pod
	err error
}

func (p *everything) note(did string, ref Ref, pod *corev1.Pod) (State, error) {
	p.did, p.ref, p.pod = did, ref, pod
	return State{Generation: 7, Annotations: map[string]string{"k": "v"}}, p.err
}

func (p *everything) Start(_ context.Context, pod *corev1.Pod) (State, error) {
	return p.note("start", RefOf(pod), pod)
}

func (p *everything) Update(_ context.Context, pod *corev1.Pod) (State, error) {
	return p.note("update", RefOf(pod), pod)
}

func (p *everything) Stop(_ context.Context, ref Ref, opts StopOptions) (State, error) {
	return p.note(fmt.Sprintf("stop %v %s", opts.Grace, opts.Reason), ref, opts.Pod)
}

func (p *everything) Inspect(_ context.Context, ref Ref) (State, error) {
	return p.note("inspect", ref, nil)
}

func (p *everything) Release(_ context.Context, ref Ref) error {
	_, err := p.note("release", ref, nil)
	return err
}

func (p *everything) Admit(_ context.Context, pod *corev1.Pod, _ iter.Seq[*corev1.Pod]) error {
	_, err := p.note("admit", RefOf(pod), pod)
	return err
}

func (p *everything) Annotate(_ context.Context, pod *corev1.Pod) (map[string]string, error) {
	st, err := p.note("annotate", RefOf(pod), pod)
	return st.Annotations, err
}

func (p *everything) List(context.Context) ([]State, error) { return nil, p.err }

// Each call has its own argument, a private copy, and its own result. If it fails an event says so.
func TestWhatEachCallDoes(t *testing.T) {
	provider, disk := &everything{}, &memory{}
	c := atRest(t, func(cfg *Config) { cfg.Provider, cfg.Checkpoint = provider, disk })
	pod := podOf("a", "u")
	calls := map[core.Op]struct {
		did, event       string
		hasPod, hasState bool
	}{
		core.Admit: {"admit", "FailedAdmit", true, false}, core.Annotate: {"annotate", "FailedStart", true, false},
		core.Start: {"start", "FailedStart", true, true}, core.Update: {"update", "FailedUpdate", true, true},
		core.Stop: {"stop 3s Deleted", "FailedStop", true, true}, core.Release: {"release", "FailedRelease", false, false},
		core.Inspect: {"inspect", "", false, true}, // the next List decides
		core.Save:    {"", "FailedCheckpoint", false, false}, core.Remove: {"", "FailedCheckpoint", false, false},
	}
	if len(calls)+len([]core.Op{core.Patch, core.Delete, core.Get}) != len(coreOps) {
		t.Error("a call is missing")
	}
	for op, tc := range calls {
		for _, fails := range []error{nil, errFailed} {
			*provider, disk.err = everything{err: fails}, fails
			if op == core.Start {
				disk.err = nil
			}
			disk.records = map[types.UID][]byte{"v": nil}
			if op == core.Remove {
				disk.records["u"] = nil
			}
			st, saved, err := c.loop.caller.call(t.Context(), RefOf(pod), &core.Call{Op: op, Pod: pod, Grace: 3 * time.Second, Reason: core.StopDeleted})
			if provider.did != tc.did || tc.did != "" && provider.ref != RefOf(pod) || st.Ref != RefOf(pod) || !errors.Is(err, fails) || (err == nil) != (fails == nil) {
				t.Errorf("%s: %q of %v: %+v, %v", op, provider.did, provider.ref, st, err)
			}
			if private := provider.pod; (private != nil) != tc.hasPod || private == pod || private != nil && private.UID != "u" {
				t.Errorf("%s: its argument is %+v", op, private)
			}
			if (st.Generation == 7) != tc.hasState || (op == core.Annotate) != (st.Annotations["k"] == "v" && !tc.hasState) {
				t.Errorf("%s: its result is %+v", op, st)
			}
			_, recorded := disk.records["u"]
			want := (op == core.Start || op == core.Save) && fails == nil || op == core.Remove && fails != nil
			if recorded != want || saved != (op == core.Start && fails == nil) {
				t.Errorf("%s, error %v: there is a record: %v, and it is said that there is: %v", op, fails, recorded, saved)
			}
			c.loop.caller.warn(&entry{}, op, core.Returned{Err: fails}, core.News{})
			event := ""
			if fails != nil && tc.event != "" {
				event = "Warning " + tc.event + " it failed"
			}
			if said := strings.Join(c.flush(), ""); said != event {
				t.Errorf("%s, error %v: the event is %q, want %q", op, fails, said, event)
			}
		}
	}
	// A record that was not written may exist.
	*provider, disk.err = everything{}, errFailed
	if _, saved, err := c.loop.caller.call(t.Context(), RefOf(pod), &core.Call{Op: core.Start, Pod: pod}); !saved || !errors.Is(err, errFailed) {
		t.Errorf("a disk that fails: %v, %v", saved, err)
	}
	if _, _, err := c.loop.caller.call(t.Context(), RefOf(pod), &core.Call{Op: core.Stop}); err != nil || provider.pod != nil {
		t.Errorf("an instance without a pod: %+v, %v", provider.pod, err)
	}
}

// Records are written for as long as final statuses are. Everything else ends with Run.
func TestWhichCallsOutliveRun(t *testing.T) {
	c := atRest(t)
	stopped, cancel := context.WithCancel(c.run.callCtx)
	cancel()
	c.run.callCtx = stopped
	for op := range coreOps {
		if outlives := c.loop.caller.contextOf(op).Err() == nil; outlives != (op == core.Save || op == core.Remove) {
			t.Errorf("%s outlives Run: %v", op, outlives)
		}
	}
}

// What the errors of a provider mean.
func TestResultsOfCalls(t *testing.T) {
	notFound := fmt.Errorf("of my own: %w", ErrNotFound)
	for name, tc := range map[string]struct {
		op    core.Op
		err   error
		want  core.Result
		after time.Duration
	}{
		"success":                {core.Start, nil, core.Succeeded, 0},
		"an error":               {core.Start, errFailed, core.Failed, 0},
		"Stop finds nothing":     {core.Stop, notFound, core.NoSuchPod, 0},
		"Release finds nothing":  {core.Release, notFound, core.NoSuchPod, 0},
		"Inspect finds nothing":  {core.Inspect, notFound, core.NoSuchPod, 0},
		"Start finds nothing":    {core.Start, notFound, core.Failed, 0},
		"a rejection":            {core.Start, fmt.Errorf("of my own: %w", Reject("R", "m")), core.Refused, 0},
		"a delay":                {core.Start, RetryAfter(errFailed, time.Hour), core.Failed, time.Hour},
		"the shortest delay":     {core.Start, RetryAfter(errFailed, 0), core.Failed, time.Second},
		"a delay below nothing":  {core.Start, RetryAfter(errFailed, -time.Hour), core.Failed, time.Second},
		"almost no delay":        {core.Start, RetryAfter(errFailed, 1), core.Failed, 1},
		"a panic is no answer":   {core.Stop, contain("Stop", func() error { panic(notFound) }), core.Failed, 0},
		"a panic is no decision": {core.Start, contain("Start", func() error { panic(Reject("R", "m")) }), core.Failed, 0},
		"a rejection with delay": {core.Start, RetryAfter(Reject("R", "m"), time.Hour), core.Refused, time.Hour},
	} {
		got := resultOf(tc.op, tc.err)
		if got.Result != tc.want || got.After != tc.after || !errors.Is(got.Err, tc.err) || got.Result == core.Refused && got.Rejection != (core.Rejection{Reason: "R", Message: "m"}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A provider that fails is reported once, until a call succeeds. A rejection and a call that was
// canceled say nothing of it, and neither does an error after Run.
func TestWhichFailuresOfCallsAreReported(t *testing.T) {
	c := atRest(t)
	running := c.run.callCtx
	stopped, cancel := context.WithCancel(running)
	cancel()
	pod := c.runs(podOf("a", "u"))
	for i, step := range []struct {
		err            error
		canceled, over bool
		told, seen     int
	}{
		{errFailed, false, false, 1, 1},
		{errFailed, false, false, 1, 2},
		{nil, false, false, 1, 3},
		{errFailed, true, false, 1, 4},
		{Reject("R", "m"), false, false, 1, 5},
		{errFailed, false, true, 1, 5},
		{nil, false, true, 1, 6},
		{errFailed, false, false, 2, 7},
		{Reject("R", "m"), false, false, 2, 8},
		{errFailed, false, false, 2, 9},
		{fmt.Errorf("of my own: %w", ErrNotFound), false, false, 2, 10},
		{errFailed, false, false, 3, 11},
	} {
		call := c.apply(pod, core.Called{Seq: c.pods.tick(), Action: core.Action{Op: core.Update}}).Call
		pod.cancel[core.Calls] = cancel
		c.loop.caller.running[queueStart]++
		if step.canceled {
			c.apply(pod, core.Canceled{})
		}
		if c.run.callCtx = running; step.over {
			c.run.callCtx = stopped
		}
		c.clean()
		c.loop.caller.finish(pod, call, State{}, false, step.err)
		if len(c.told) != step.told || c.calls != step.seen {
			t.Errorf("step %d: reported %q, want %d errors, and %d calls, want %d", i, c.told, step.told, c.calls, step.seen)
		}
		if !c.free(pod) {
			t.Errorf("step %d: the call is under way, or the loop does not know that it has ended", i)
		}
	}
}

// A call that fails is an event, unless it was canceled, or found nothing to stop. The next failure
// after a success is another event, although it says the same.
func TestWhichFailedCallsAreEvents(t *testing.T) {
	failed, success := core.Returned{Err: errFailed}, core.Returned{}
	refused := core.Returned{Err: errFailed, Rejection: core.Rejection{Reason: "NoGPU", Message: "there is none"}}
	c := atRest(t)
	pod := c.runs(podOf("a", "u"))
	for i, step := range []struct {
		ev   core.Returned
		news core.News
		want string
	}{
		{failed, core.News{}, "Warning FailedStop it failed"},
		{failed, core.News{}, ""},
		{success, core.News{}, ""},
		{failed, core.News{}, "Warning FailedStop it failed"},
		{refused, core.News{Rejected: true}, "Warning NoGPU there is none"},
		{failed, core.News{Canceled: true}, ""},
		{core.Returned{Err: ErrNotFound}, core.News{}, ""},
		{failed, core.News{}, "Warning FailedStop it failed"},
	} {
		c.loop.caller.warn(pod, core.Stop, step.ev, step.news)
		if got := strings.Join(c.flush(), ""); got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
}

// What the errors of the API server mean for the pod, and for the breaker: it must not trip because of
// one object, and an answer says that the server is back.
func TestWhatErrorsOfTheAPIMean(t *testing.T) {
	for name, tc := range map[string]struct {
		err         error
		want        core.WriteFailed
		trips, back bool
	}{
		"success":       {nil, core.WriteFailed{}, false, true},
		"no connection": {errFailed, core.WriteFailed{MayBeStored: true}, true, false},
		"a deadline":    {context.DeadlineExceeded, core.WriteFailed{MayBeStored: true, Unanswered: true}, true, false},
		"throttled":     {apierrors.NewTooManyRequests("later", 20), core.WriteFailed{After: 20 * time.Second}, true, false},
		"forbidden":     {apierrors.NewForbidden(podResource, "a", errFailed), core.WriteFailed{}, false, true},
		"invalid":       {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", nil), core.WriteFailed{}, false, true},
		"a conflict":    {apierrors.NewConflict(podResource, "a", errFailed), core.WriteFailed{}, false, true},
		"a webhook":     {apierrors.NewInternalError(errFailed), core.WriteFailed{MayBeStored: true}, false, false},
		"canceled":      {context.Canceled, core.WriteFailed{MayBeStored: true}, false, false},
	} {
		if tc.err != nil {
			if got := failureOf(tc.err); got != tc.want {
				t.Errorf("%s: %+v, want %+v", name, got, tc.want)
			}
		}
		w := &writer{}
		w.breaker.Trip = 1
		if w.serverAnswered(0, tc.err); tc.trips == allows(w) {
			t.Errorf("%s: it trips: %v", name, !tc.trips)
		}
		w.breaker.Failed(0)
		if back := w.serverAnswered(0, tc.err); back != tc.back || back != allows(w) {
			t.Errorf("%s: the server is back: %v", name, back)
		}
	}
}

// allows reports whether the breaker lets a second request start.
func allows(w *writer) bool {
	ok, _ := w.breaker.Allows(0, 1)
	return ok
}

// The API server that fails is reported once, until a write succeeds. Other clients that were faster,
// pods that are gone and requests that were canceled are no failures.
func TestWhichFailuresOfRequestsAreReported(t *testing.T) {
	c := atRest(t)
	running := c.run.apiCtx
	stopped, cancel := context.WithCancel(running)
	cancel()
	obj := podOf("a", "u")
	pod := c.runs(obj)
	conflict, missing := apierrors.NewConflict(podResource, "a", errFailed), apierrors.NewNotFound(podResource, "a")
	ok, failed := core.Stored{Pod: obj}, core.WriteFailed{}
	for i, step := range []struct {
		op           core.Op
		err          error
		result       core.Event
		pinned, over bool
		told         int
	}{
		{core.Patch, errFailed, failed, false, false, 1},
		{core.Patch, errFailed, failed, false, false, 1},
		{core.Get, nil, core.Read{Pod: obj}, false, false, 1},
		{core.Patch, errFailed, failed, false, false, 1},
		{core.Patch, nil, ok, false, false, 1},
		{core.Patch, errFailed, failed, false, true, 1},
		{core.Patch, context.Canceled, failed, false, false, 1},
		{core.Patch, conflict, core.Conflicted{}, true, false, 1},
		{core.Patch, missing, core.NotFound{}, false, false, 1},
		{core.Patch, errFailed, failed, false, false, 2},
		{core.Patch, nil, ok, false, false, 2},
		{core.Patch, conflict, core.Conflicted{}, false, false, 3},
	} {
		call := c.sends(pod, step.op)
		call.Pinned = step.pinned
		pod.cancel[core.Writes] = cancel
		if c.run.apiCtx = running; step.over {
			c.run.apiCtx = stopped
		}
		c.clean()
		c.loop.writer.finish(pod, call, step.err, step.result)
		if len(c.told) != step.told || c.requests != i+1 {
			t.Errorf("step %d: reported %q, want %d errors, and %d requests", i, c.told, step.told, c.requests)
		}
		if !c.free(pod) {
			t.Errorf("step %d: the request is under way, or the loop does not know that it has ended", i)
		}
	}
}

// A write that succeeds after failures ends the backoff of the pods of its namespace, whose webhook may
// work again. One that ends an outage ends that of all pods. A GET says nothing of writes.
func TestWhoseBackoffASuccessEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		op             core.Op
		failed, outage bool
		mine, others   bool
	}{
		"a write":                 {core.Patch, false, false, false, false},
		"a write after a failure": {core.Patch, true, false, true, false},
		"a GET after a failure":   {core.Get, true, false, false, false},
		"a write after an outage": {core.Patch, false, true, true, true},
	} {
		c := atRest(t)
		works, idle, mine := c.runs(podOf("works", "works")), c.runs(podOf("idle", "idle")), c.runs(podOf("mine", "mine"))
		foreign := podOf("other", "other")
		foreign.Namespace = "other"
		other := c.runs(foreign)
		fails := []*entry{mine, other}
		if tc.failed {
			fails = append(fails, works)
		}
		for _, pod := range fails {
			c.sends(pod, core.Patch)
			c.apply(pod, core.WriteFailed{After: time.Hour})
		}
		w := c.loop.writer
		if w.breaker.Trip = 2; tc.outage {
			w.breaker.Failed(0)
			w.breaker.Failed(0)
		}
		call, result := c.sends(works, tc.op), core.Event(core.Stored{Pod: podOf("works", "works")})
		if tc.op == core.Get {
			result = core.Read{Pod: podOf("works", "works")}
		}
		c.clean()
		w.finish(works, call, nil, result)
		for pod, want := range map[*entry]bool{mine: tc.mine, other: tc.others, idle: false} {
			if due := pod.Next(c.in(time.Minute).Since, core.Writes, true).Op != "" && pod.Failures(core.Writes) > 0; due != want && pod != idle || pod.dirty != want {
				t.Errorf("%s: %s is due: %v, and dirty: %v", name, pod.ref.Name, due, pod.dirty)
			}
		}
	}
}

// The backoff of a namespace ends at most once a second, and nothing is kept of one for longer.
func TestWhenABackoffEndsAgain(t *testing.T) {
	c := atRest(t)
	w, at := c.loop.writer, c.pods.moment()
	first := at.Since
	for i, step := range []struct {
		wait      time.Duration
		namespace string
		ended     time.Duration // when its backoff has ended last
		kept      int
	}{
		{0, "x", 0, 1}, {retryMin - 1, "x", 0, 1}, {1, "x", retryMin, 1}, {0, "y", retryMin, 2}, {retryMin, "z", 2 * retryMin, 1},
	} {
		at.Since += step.wait
		w.retry(at, step.namespace)
		if ended := w.retried[step.namespace] - first; ended != step.ended || len(w.retried) != step.kept {
			t.Errorf("step %d: it has ended at %v, and %d are kept", i, ended, len(w.retried))
		}
	}
}

// The addresses of a node are those of a pod, unless the provider reports others.
func TestWhichHostAddressesAreAdded(t *testing.T) {
	for name, tc := range map[string]struct {
		network         bool
		observed        corev1.PodStatus
		hostIPs, podIPs int
	}{
		"none":              {false, corev1.PodStatus{}, 2, 0},
		"the host network":  {true, corev1.PodStatus{}, 2, 2},
		"HostIP":            {true, corev1.PodStatus{HostIP: "192.0.2.1"}, 0, 2},
		"HostIPs":           {true, corev1.PodStatus{HostIPs: []corev1.HostIP{{IP: "192.0.2.1"}}}, 1, 2},
		"PodIP":             {true, corev1.PodStatus{PodIP: "192.0.2.1"}, 2, 0},
		"PodIPs":            {true, corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "192.0.2.1"}}}, 2, 1},
		"all that there is": {true, corev1.PodStatus{HostIP: "192.0.2.1", PodIP: "192.0.2.1"}, 0, 0},
	} {
		c := atRest(t, func(cfg *Config) { cfg.HostIPs = func(string) []string { return []string{"192.0.2.7", "2001:db8::7"} } })
		pod := podOf("a", "u")
		pod.Spec.HostNetwork = tc.network
		c.loop.writer.addHostIPs(t.Context(), pod, &tc.observed)
		if len(tc.observed.HostIPs) != tc.hostIPs || len(tc.observed.PodIPs) != tc.podIPs {
			t.Errorf("%s: %+v", name, tc.observed)
		}
	}
}

// What is added to a patch of the status.
func TestHowAPatchIsExtended(t *testing.T) {
	const body = `{"metadata":{"uid":"u"},"status":{}}`
	for _, tc := range []struct{ body, version, want string }{
		{body, "5", `{"metadata":{"resourceVersion":"5","uid":"u"},"status":{}}`},
		{body, "", body},
		{`{}`, "5", `{}`},
	} {
		if got := string(pin([]byte(tc.body), tc.version)); got != tc.want {
			t.Errorf("version %q: %s", tc.version, got)
		}
	}
	annotations := map[string]string{"k": "v"}
	for _, tc := range []struct {
		body        []byte
		annotations map[string]string
		want        string
	}{
		{[]byte(body), nil, body},
		{[]byte(body), annotations, `{"metadata":{"annotations":{"k":"v"},"uid":"u"},"status":{}}`},
		{nil, annotations, `{"metadata":{"annotations":{"k":"v"},"uid":"u"}}`},
		{nil, nil, ""},
	} {
		if got := string(annotate(tc.body, podOf("a", "u"), tc.annotations)); got != tc.want {
			t.Errorf("annotations %v: %s", tc.annotations, got)
		}
	}
}

// A reported status that the API has already costs no request. What is invalid in it is reported.
func TestAStatusThatIsStoredIsNotSent(t *testing.T) {
	c := atRest(t)
	pod, _ := c.due(podOf("a", "u"))
	call := c.sends(pod, core.Patch)
	stored := podOf("a", "u")
	stored.Status, _ = podstatus.Next(call.Base, call.Update)
	call.Base, call.Pod = stored, stored
	call.Update.Observed.HostIP = "no address"
	c.clean()
	c.loop.writer.patch(c.run.apiCtx, pod, call) // the client would panic
	events := strings.Join(c.flush(), "")
	if pod.InFlight(core.Writes) != nil || c.loop.writer.running != 0 || !pod.dirty || !slices.Equal(c.dropped, []string{DroppedInvalid}) || !strings.HasPrefix(events, "Warning InvalidStatus status.hostIP: Invalid value") {
		t.Errorf("a request is under way: %v, dropped %q, events %q", pod.InFlight(core.Writes) != nil, c.dropped, events)
	}
}

// The answer to a write is kept without its managedFields, which are larger than the rest. If it has
// the status that was sent, nothing is left to write.
func TestWhatIsKeptOfAnAnswer(t *testing.T) {
	for _, same := range []bool{false, true} {
		answer := podOf("a", "u")
		answer.ResourceVersion, answer.ManagedFields = "2", []metav1.ManagedFieldsEntry{{Manager: "m"}}
		c := atRest(t, func(cfg *Config) {
			cfg.Client = &api{patch: func([]byte) (*corev1.Pod, error) { return answer, nil }}
		})
		pod, at := c.due(podOf("a", "u"))
		call := c.sends(pod, core.Patch)
		if same {
			answer.Status, _ = podstatus.Next(call.Base, call.Update)
		}
		c.loop.writer.patch(c.run.apiCtx, pod, call)
		if got := pod.Pod(); got.ResourceVersion != "2" || got.ManagedFields != nil {
			t.Errorf("%+v", got.ObjectMeta)
		}
		if next := pod.Next(at.Since+time.Hour, core.Writes, true).Op; (next == "") != same {
			t.Errorf("the answer has what was sent: %v, and %q is next", same, next)
		}
	}
}

// What the answers to a PATCH mean. An admission policy, a webhook or a proxy may accept later what it
// refuses now, and what the API server itself refuses is left out.
func TestWhatTheAnswersToAPatchMean(t *testing.T) {
	invalid := func(path string) error {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", field.ErrorList{field.Invalid(field.NewPath(path), "x", "m")})
	}
	dropped := []string{DroppedInvalid}
	for name, tc := range map[string]struct {
		annotated bool
		err       error
		failures  int
		dropped   []string
		next      core.Op // a day later
	}{
		"a conflict":                         {false, apierrors.NewConflict(podResource, "a", errFailed), 1, nil, core.Get},
		"the pod is gone":                    {false, apierrors.NewNotFound(podResource, "a"), 0, nil, core.Get},
		"another pod of its name":            {false, invalid("metadata.uid"), 0, nil, core.Get},
		"no answer":                          {false, errFailed, 1, nil, core.Get},
		"a webhook":                          {false, apierrors.NewForbidden(podResource, "a", errFailed), 1, nil, core.Patch},
		"an admission policy":                {false, statuserr.New(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "denied"), 1, nil, core.Patch},
		"a proxy":                            {false, statuserr.New(http.StatusBadRequest, metav1.StatusReasonBadRequest, "<html>"), 1, nil, core.Patch},
		"an invalid status":                  {false, invalid("status.phase"), 0, dropped, ""},
		"it is too large":                    {false, apierrors.NewRequestEntityTooLargeError("limit is 3145728"), 0, dropped, ""},
		"an invalid annotation":              {true, invalid("metadata.annotations"), 0, dropped, core.Patch},
		"an annotation that it did not send": {false, invalid("metadata.annotations"), 1, nil, core.Patch},
		"another invalid field":              {false, invalid("spec.x"), 1, nil, core.Patch},
	} {
		c := atRest(t, func(cfg *Config) {
			cfg.Client = &api{patch: func([]byte) (*corev1.Pod, error) { return nil, tc.err }}
		})
		pod := c.runs(podOf("a", "u"))
		if tc.annotated {
			c.says(pod, &core.Report{Annotations: map[string]string{"k": "v"}})
		}
		c.loop.writer.patch(c.run.apiCtx, pod, c.sends(pod, core.Patch))
		c.flush()
		if next := pod.Next(c.in(24*time.Hour).Since, core.Writes, true).Op; pod.Failures(core.Writes) != tc.failures || !slices.Equal(c.dropped, tc.dropped) || next != tc.next {
			t.Errorf("%s: %d failures, dropped %q, and %q is next", name, pod.Failures(core.Writes), c.dropped, next)
		}
	}
}

// A DELETE is about the pod of one UID and, unless it is repeated, about the version that has its end.
func TestWhatADeleteNames(t *testing.T) {
	conflict := apierrors.NewConflict(podResource, "a", errFailed)
	for name, tc := range map[string]struct {
		pinned   bool
		version  string
		err      error
		released bool
	}{
		"stored":                      {true, "1", nil, true},
		"another version is stored":   {true, "1", conflict, false},
		"another pod of its name":     {false, "1", conflict, true},
		"it is gone":                  {true, "1", apierrors.NewNotFound(podResource, "a"), true},
		"no version is known":         {true, "", nil, true},
		"repeated":                    {false, "1", nil, true},
		"no answer":                   {true, "1", errFailed, false},
		"a 404 that is not about it":  {true, "1", apierrors.NewNotFound(podResource, "b"), false},
		"the API server is not there": {false, "1", apierrors.NewServiceUnavailable("m"), false},
	} {
		var sent metav1.DeleteOptions
		c := atRest(t, func(cfg *Config) {
			cfg.Client = &api{delete: func(opts metav1.DeleteOptions) error {
				sent = opts
				return tc.err
			}}
		})
		obj := podOf("a", "u")
		obj.Status.Phase, obj.DeletionTimestamp, obj.ResourceVersion = corev1.PodSucceeded, new(metav1.Now()), tc.version
		pod := c.runs(obj)
		c.says(pod, &core.Report{Stopped: true})
		call := c.sends(pod, core.Delete)
		call.Pinned = tc.pinned
		c.loop.writer.delete(c.run.apiCtx, pod, call)
		only := sent.Preconditions
		if *sent.GracePeriodSeconds != 0 || *only.UID != "u" || (only.ResourceVersion != nil) != (tc.pinned && tc.version != "") || only.ResourceVersion != nil && *only.ResourceVersion != "1" {
			t.Errorf("%s: %+v", name, sent)
		}
		if released := pod.Stage() == core.Released; released != tc.released {
			t.Errorf("%s: it is %v", name, Stage(pod.Stage()))
		}
	}
}
