// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"

	core "github.com/kubewright/kubewright/podsync/internal/pod"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// The table finds a pod by its UID, and the only pod of its name without, after any additions and
// removals.
func TestWhatTheTableFinds(t *testing.T) {
	c := atRest(t)
	var refs []Ref
	for _, name := range []string{"a", "b"} {
		for _, uid := range []types.UID{"", "1", "2", "3"} {
			if uid != "" {
				uid += types.UID(name)
			}
			refs = append(refs, Ref{Namespace: "ns", Name: name, UID: uid})
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	has := map[Ref]*entry{}
	of := func(ref Ref) (all []*entry) {
		for other, t := range has {
			if other.Name == ref.Name {
				all = append(all, t)
			}
		}
		return all
	}
	for range 500 {
		ref := refs[r.IntN(len(refs))]
		if pod := has[ref]; pod != nil {
			delete(has, ref)
			c.pods.remove(pod)
			if c.pods.has(pod) {
				t.Fatalf("%v is removed, and there", ref)
			}
		} else if state := core.New(&c.pods.rules, 1, 1, core.Saved{}); r.IntN(2) > 0 {
			has[ref] = c.pods.add(ref, state) // one that blocks, because nothing is known of it
		} else {
			has[ref] = c.pods.add(ref, core.NewOrphan(&c.pods.rules, 1, 1, core.Saved{}, ""))
		}
		c.checkMaps(t.Fatalf)
		for _, ref := range refs {
			want := has[ref]
			if all := of(ref); ref.UID == "" && want == nil && len(all) == 1 {
				want = all[0]
			}
			if got := c.pods.find(ref); got != want {
				t.Fatalf("%v: found %v, want %v", ref, got, want)
			}
			if pod := has[ref]; pod != nil {
				free := !slices.ContainsFunc(of(ref), func(other *entry) bool { return other != pod && other.Blocks() })
				if !c.pods.has(pod) || c.pods.nameFree(pod) != free {
					t.Fatalf("%v: its name is free: %v, want %v", ref, !free, free)
				}
			}
		}
	}
}

// A pod starts if there is a free place, after those that wait. It waits once in each queue.
func TestWhoTakesAPlace(t *testing.T) {
	for _, waits := range []bool{false, true} {
		for _, tc := range []struct{ free, waited, want bool }{
			{false, false, false}, {false, true, false}, {true, false, !waits}, {true, true, true},
		} {
			c := atRest(t)
			want := 0
			if waits {
				c.pods.take(&entry{}, queueStop, false, false)
				want++
			}
			pod := &entry{}
			for range 2 {
				if got := c.pods.take(pod, queueStop, tc.free, tc.waited); got != tc.want {
					t.Errorf("others wait: %v, %+v: %v", waits, tc, got)
				}
			}
			if !tc.want {
				want++
			}
			if n := c.pods.queues[queueStop].Len(); n != want || pod.queued[queueStop] == tc.want {
				t.Errorf("others wait: %v, %+v: %d wait", waits, tc, n)
			}
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
		"PodIP of a pod":    {false, corev1.PodStatus{PodIP: "192.0.2.1"}, 2, 0},
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

// The backoff of a namespace ends at most once a second, and nothing is kept of one for longer.
func TestWhenABackoffEndsAgain(t *testing.T) {
	c := atRest(t)
	w, at := c.loop.writer, c.pods.moment()
	c.runs(podOf("a", "u"))
	c.pods.clean()
	if w.retry(at, ""); len(c.pods.dirty) > 0 {
		t.Error("a pod without a failure is reconciled")
	}
	delete(w.retried, "")
	w.retry(at, "x")
	first := at.Since
	at.Since += retryMin - 1
	if w.retry(at, "x"); w.retried["x"] != first {
		t.Error("it ends twice in a second")
	}
	at.Since++
	if w.retry(at, "x"); w.retried["x"] != at.Since {
		t.Error("it does not end after a second")
	}
	w.retry(at, "y")
	if len(w.retried) != 2 {
		t.Error("a namespace of this second is forgotten")
	}
	at.Since += retryMin
	if w.retry(at, "z"); len(w.retried) != 1 {
		t.Errorf("%d namespaces are kept", len(w.retried))
	}
}

// The places of the calls and requests.
func TestHowManyPlacesThereAre(t *testing.T) {
	c := atRest(t, func(cfg *Config) { cfg.MaxCalls = 3 })
	for q, want := range map[int]int{queueAdmit: 1, queueStart: 3, queueStop: 3} {
		places := 0
		for ok, _ := c.loop.caller.free(q, 0); ok; ok, _ = c.loop.caller.free(q, 0) {
			places++
			c.loop.caller.running[q]++
		}
		if places != want || c.loop.caller.idle() {
			t.Errorf("queue %d has %d places, want %d", q, places, want)
		}
		c.loop.caller.running[q] = 0
	}
	w := c.loop.writer
	for w.running = 0; w.running < 2*statusWriters; w.running++ {
		if ok, again := w.free(queueWrite, 0); ok != (w.running < statusWriters) || again != core.Never {
			t.Errorf("with %d requests another one may start: %v", w.running, ok)
		}
	}
}

// A provider that fails is reported once, until a call succeeds. A rejection and a call that was
// canceled say nothing of it, and neither does an error after Run.
func TestWhichFailuresOfCallsAreReported(t *testing.T) {
	told, seen := 0, 0
	c := atRest(t, func(cfg *Config) {
		cfg.ErrorHandler = func(context.Context, error, string) { told++ }
		cfg.Hooks.ProviderCall = func(ProviderCall) { seen++ }
	})
	stopped, cancel := context.WithCancel(c.run.callCtx)
	cancel()
	running := c.run.callCtx
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
		call := c.pods.apply(pod, c.pods.moment(), core.Called{Seq: c.pods.tick(), Action: core.Action{Op: core.Update}}).Call
		pod.cancel[core.Calls] = cancel
		c.loop.caller.running[queueStart]++
		if step.canceled {
			c.pods.apply(pod, c.pods.moment(), core.Canceled{})
		}
		if c.run.callCtx = running; step.over {
			c.run.callCtx = stopped
		}
		c.pods.clean()
		c.loop.caller.finish(pod, call, State{}, false, step.err)
		if told != step.told || seen != step.seen {
			t.Errorf("step %d: %d errors are reported, want %d, and %d calls, want %d", i, told, step.told, seen, step.seen)
		}
		if pod.InFlight(core.Calls) != nil || pod.cancel[core.Calls] != nil || !c.loop.caller.idle() || !pod.dirty || !woken(c.pods.kick) {
			t.Errorf("step %d: the call is under way, or the loop does not know that it has ended", i)
		}
	}
}

// The API server that fails is reported once, until a write succeeds. Other clients that were faster,
// pods that are gone and requests that were canceled are no failures.
func TestWhichFailuresOfRequestsAreReported(t *testing.T) {
	told, seen := 0, 0
	c := atRest(t, func(cfg *Config) {
		cfg.ErrorHandler = func(context.Context, error, string) { told++ }
		cfg.Hooks.APICall = func(APICall) { seen++ }
	})
	stopped, cancel := context.WithCancel(c.run.apiCtx)
	cancel()
	running := c.run.apiCtx
	obj := podOf("a", "u")
	pod := c.runs(obj)
	pods := schema.GroupResource{Resource: "pods"}
	conflict, missing := apierrors.NewConflict(pods, "a", errFailed), apierrors.NewNotFound(pods, "a")
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
		call := c.pods.apply(pod, c.pods.moment(), core.Sent{Action: core.Action{Op: step.op}}).Call
		call.Pinned = step.pinned
		pod.cancel[core.Writes] = cancel
		c.loop.writer.running++
		if c.run.apiCtx = running; step.over {
			c.run.apiCtx = stopped
		}
		c.pods.clean()
		c.loop.writer.finish(pod, call, step.err, step.result)
		if told != step.told || seen != i+1 {
			t.Errorf("step %d: %d errors are reported, want %d, and %d requests", i, told, step.told, seen)
		}
		if pod.InFlight(core.Writes) != nil || pod.cancel[core.Writes] != nil || c.loop.writer.running != 0 || !pod.dirty || !woken(c.pods.kick) {
			t.Errorf("step %d: the request is under way, or the loop does not know that it has ended", i)
		}
	}
}

// Run returns when nothing is under way, and nothing is left to write of pods that have ended.
func TestWhenRunMayReturn(t *testing.T) {
	c := atRest(t, func(cfg *Config) { cfg.Checkpoint = &failing{} })
	live := c.run.apiCtx
	stopped, cancel := context.WithCancel(live)
	cancel()
	expect := func(what string, want, afterTimeout bool) {
		t.Helper()
		for ctx, want := range map[context.Context]bool{live: want, stopped: afterTimeout} {
			c.run.apiCtx = ctx
			if got := c.loop.idle(); got != want {
				t.Errorf("%s: it may return: %v, after ShutdownTimeout: %v", what, got, ctx == stopped)
			}
		}
	}
	expect("nothing is known", true, true)
	c.runs(podOf("a", "u"))
	expect("a pod runs", true, true)
	c.loop.caller.running[queueStop]++
	expect("a call is under way", false, false)
	c.loop.caller.running[queueStop]--
	c.loop.writer.running++
	expect("a request is under way", false, false)
	c.loop.writer.running--

	ended := c.runs(podOf("b", "v"))
	c.pods.apply(ended, c.pods.moment(), core.Reported{Seq: c.pods.tick(), Report: &core.Report{Stopped: true}, FP: 2})
	if !ended.Unfinished(core.Writes) {
		t.Fatal("it is finished")
	}
	expect("a final status is not stored", false, true)
	c.pods.remove(ended)

	at := c.pods.moment()
	saved := c.pods.add(RefOf(podOf("c", "w")), core.New(&c.pods.rules, at.Since, c.pods.tick(), core.Saved{Exists: true}))
	final := podOf("c", "w")
	final.Status.Phase = corev1.PodSucceeded
	for _, event := range []core.Event{core.Seen{Version: core.Cached(final)}, core.ListEnded{Seq: c.pods.tick(), First: true, Open: true}, core.Passed{}} {
		c.pods.apply(saved, at, event)
	}
	if saved.Unfinished(core.Writes) || !saved.Unfinished(core.Calls) {
		t.Fatal("its record needs no removal, or its status is not stored")
	}
	expect("a record is not removed", false, true)
}

// When Run is to return, statuses that are not final need not be written: the next process finds them
// in a List.
func TestWhatIsCanceledWhenRunIsToReturn(t *testing.T) {
	c := atRest(t)
	var canceled []string
	for _, name := range []string{"runs", "has ended", "does nothing"} {
		pod := c.runs(podOf(name, types.UID(name)))
		if name == "has ended" {
			c.pods.apply(pod, c.pods.moment(), core.Reported{Seq: c.pods.tick(), Report: &core.Report{Stopped: true}, FP: 2})
		}
		if name != "does nothing" {
			c.pods.apply(pod, c.pods.moment(), core.Sent{Action: core.Action{Op: core.Patch}})
		}
		pod.cancel[core.Calls] = func() { t.Errorf("%s: a call was canceled", name) }
		pod.cancel[core.Writes] = func() { canceled = append(canceled, name) }
	}
	if c.loop.drain(); !c.pods.draining || !slices.Equal(canceled, []string{"runs"}) {
		t.Errorf("canceled: %q", canceled)
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

// Each call has its own argument, a private copy, and its own result.
func TestWhatEachCallDoes(t *testing.T) {
	provider, disk := &everything{}, &memory{records: map[types.UID][]byte{}}
	c := atRest(t, func(cfg *Config) { cfg.Provider, cfg.Checkpoint = provider, disk })
	pod := podOf("a", "u")
	for op, tc := range map[core.Op]struct {
		did              string
		hasPod, hasState bool
	}{
		core.Admit: {"admit", true, false}, core.Start: {"start", true, true}, core.Update: {"update", true, true}, core.Annotate: {"annotate", true, false},
		core.Stop: {"stop 3s Deleted", true, true}, core.Inspect: {"inspect", false, true}, core.Release: {"release", false, false},
		core.Save: {"", false, false}, core.Remove: {"", false, false},
	} {
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

// A DELETE is about the pod of one UID and, unless it is repeated, about the version that has its end.
func TestWhatADeleteNames(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	conflict := apierrors.NewConflict(pods, "a", errFailed)
	for name, tc := range map[string]struct {
		pinned, versionless bool
		err                 error
		released            bool
	}{
		"stored":                      {true, false, nil, true},
		"another version is stored":   {true, false, conflict, false},
		"another pod of its name":     {false, false, conflict, true},
		"it is gone":                  {true, false, apierrors.NewNotFound(pods, "a"), true},
		"no version is known":         {true, true, nil, true},
		"repeated":                    {false, false, nil, true},
		"no answer":                   {true, false, errFailed, false},
		"a 404 that is not about it":  {true, false, apierrors.NewNotFound(pods, "b"), false},
		"the API server is not there": {false, false, apierrors.NewServiceUnavailable("m"), false},
	} {
		var sent metav1.DeleteOptions
		c := atRest(t, func(cfg *Config) {
			cfg.Client = &api{delete: func(opts metav1.DeleteOptions) error {
				sent = opts
				return tc.err
			}}
		})
		obj := podOf("a", "u")
		obj.Status.Phase, obj.DeletionTimestamp = corev1.PodSucceeded, new(metav1.Now())
		if tc.versionless {
			obj.ResourceVersion = ""
		}
		pod := c.runs(obj)
		c.pods.apply(pod, c.pods.moment(), core.Reported{Seq: c.pods.tick(), Report: &core.Report{Stopped: true}, FP: 2})
		call := c.pods.apply(pod, c.pods.moment(), core.Sent{Action: core.Action{Op: core.Delete}}).Call
		call.Pinned = tc.pinned
		c.loop.writer.running++
		c.loop.writer.delete(c.run.apiCtx, pod, call)
		only := sent.Preconditions
		if *sent.GracePeriodSeconds != 0 || *only.UID != "u" || (only.ResourceVersion != nil) != (tc.pinned && !tc.versionless) || only.ResourceVersion != nil && *only.ResourceVersion != "1" {
			t.Errorf("%s: %+v", name, sent)
		}
		if released := pod.Stage() == core.Released; released != tc.released {
			t.Errorf("%s: it is %v", name, Stage(pod.Stage()))
		}
	}
}

// A reported status that the API has already costs no request. What is invalid in it is reported.
func TestAStatusThatIsStoredIsNotSent(t *testing.T) {
	var says notebook
	c := atRest(t, says.uses)
	obj := podOf("a", "u")
	pod, at := c.due(obj)
	send := func(base *corev1.Pod) {
		call := c.pods.apply(pod, at, core.Sent{Action: core.Action{Op: core.Patch}}).Call
		call.Base, call.Pod = base, base
		call.Update.Observed.HostIP = "no address"
		c.loop.writer.running++
		c.loop.writer.patch(c.run.apiCtx, pod, call)
		c.flush()
	}
	stored := obj.DeepCopy()
	call := c.pods.apply(pod, at, core.Sent{Action: core.Action{Op: core.Patch}}).Call
	stored.Status, _ = podstatus.Next(call.Base, call.Update)
	c.pods.apply(pod, at, core.NotMade{Lane: core.Writes})
	c.pods.clean()
	send(stored) // the client would panic
	if pod.InFlight(core.Writes) != nil || c.loop.writer.running != 0 || !pod.dirty || !slices.Equal(says.dropped, []string{DroppedInvalid}) {
		t.Errorf("a request is under way: %v, dropped %q", pod.InFlight(core.Writes) != nil, says.dropped)
	}
}

// A call that fails is an event, unless it was canceled, or found nothing to stop. The next failure
// after a success is another event, although it says the same.
func TestWhichFailedCallsAreEvents(t *testing.T) {
	refused := core.Returned{Err: errFailed, Result: core.Refused, Rejection: core.Rejection{Reason: "NoGPU", Message: "there is none"}}
	missing := core.Returned{Err: ErrNotFound, Result: core.NoSuchPod}
	failed := core.Returned{Err: errFailed, Result: core.Failed}
	recorder := events.NewFakeRecorder(10)
	c := atRest(t, func(cfg *Config) { cfg.EventRecorder = recorder })
	pod := &entry{ref: RefOf(podOf("a", "u"))}
	for i, step := range []struct {
		op   core.Op
		ev   core.Returned
		news core.News
		want string
	}{
		{core.Start, failed, core.News{}, "Warning FailedStart it failed"},
		{core.Start, failed, core.News{}, ""},
		{core.Start, core.Returned{}, core.News{}, ""},
		{core.Start, failed, core.News{}, "Warning FailedStart it failed"},
		{core.Start, refused, core.News{Rejected: true}, "Warning NoGPU there is none"},
		{core.Stop, failed, core.News{Canceled: true}, ""},
		{core.Stop, missing, core.News{}, ""},
		{core.Inspect, failed, core.News{}, ""},
		{core.Stop, failed, core.News{}, "Warning FailedStop it failed"},
	} {
		c.loop.caller.warn(pod, step.op, step.ev, step.news)
		c.flush()
		got := ""
		if len(recorder.Events) > 0 {
			got = <-recorder.Events
		}
		if got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
}

// A pod that users see as Pending goes first, and one whose last write has failed goes last. When Run
// is to return, no request of a pod that goes on is made.
func TestInWhichQueueARequestWaits(t *testing.T) {
	for name, tc := range map[string]struct {
		phase    corev1.PodPhase
		failures int
		draining bool
		want     int
	}{
		"a status":               {corev1.PodRunning, 0, false, queueWrite},
		"a first status":         {corev1.PodPending, 0, false, queueUrgent},
		"a status that failed":   {corev1.PodPending, 1, false, queueRetry},
		"a status that may wait": {corev1.PodPending, 0, true, -1},
	} {
		c := atRest(t)
		w := c.loop.writer
		obj := podOf("a", "u")
		obj.Status.Phase = tc.phase
		pod, at := c.due(obj)
		if tc.phase == corev1.PodRunning {
			c.pods.remove(pod)
			pod = c.runs(obj)
		}
		for range tc.failures {
			c.pods.apply(pod, at, core.Sent{Action: pod.Next(at.Since, core.Writes, true)})
			c.pods.apply(pod, at, core.WriteFailed{})
			at.Since += time.Hour
		}
		if op := pod.Next(at.Since, core.Writes, true).Op; op != core.Patch {
			t.Fatalf("%s: %q is due", name, op)
		}
		w.running, c.pods.draining = w.breaker.Trip, tc.draining
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
		call := c.pods.apply(pod, at, core.Sent{Action: pod.Next(at.Since, core.Writes, true)}).Call
		if same {
			answer.Status, _ = podstatus.Next(call.Base, call.Update)
		}
		c.loop.writer.running++
		c.loop.writer.patch(c.run.apiCtx, pod, call)
		if got := pod.Pod(); got.ResourceVersion != "2" || got.ManagedFields != nil {
			t.Errorf("%+v", got.ObjectMeta)
		}
		if next := pod.Next(at.Since+time.Hour, core.Writes, true).Op; (next == "") != same {
			t.Errorf("the answer has what was sent: %v, and %q is next", same, next)
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
	pod := podOf("a", "u")
	for _, tc := range []struct {
		body        string
		annotations map[string]string
		want        string
	}{
		{body, nil, body},
		{body, map[string]string{"k": "v"}, `{"metadata":{"annotations":{"k":"v"},"uid":"u"},"status":{}}`},
		{"", map[string]string{"k": "v"}, `{"metadata":{"annotations":{"k":"v"},"uid":"u"}}`},
		{"", nil, ""},
	} {
		var body []byte
		if tc.body != "" {
			body = []byte(tc.body)
		}
		if got := string(annotate(body, pod, tc.annotations)); got != tc.want {
			t.Errorf("annotations %v: %s", tc.annotations, got)
		}
	}
}

// A gate that closes and opens again while it is asked may have let another process act: the call that
// was planned before is not made.
func TestAGateThatWasClosedInBetweenEndsACall(t *testing.T) {
	provider := &everything{}
	var c *Controller
	c = atRest(t, func(cfg *Config) {
		cfg.Provider = provider
		cfg.Gate = func(ctx context.Context, node string) error {
			c.pods.mu.Lock()
			defer c.pods.mu.Unlock()
			c.gates.close(ctx, node, errFailed)
			c.gates.open(ctx, node)
			return nil
		}
	})
	pod, at := c.due(podOf("a", "u"))
	c.gates.get("n").state = gateOpen
	c.pods.rules.Admits, c.pods.rules.Annotates = false, false
	c.pods.mu.Lock()
	c.loop.caller.start(pod, at, false)
	if pod.InFlight(core.Calls) == nil {
		t.Error("nothing is under way")
	}
	c.pods.mu.Unlock()
	c.run.calls.Wait()
	if provider.did != "" || pod.InFlight(core.Calls) != nil || !c.loop.caller.idle() || c.gates.get("n").state != gateOpen {
		t.Errorf("%q was called, or a call is under way", provider.did)
	}
}

// A write that succeeds after failures ends the backoff of its namespace. A GET says nothing of
// writes, and the first write of a pod nothing of failures.
func TestWhichSuccessesEndABackoff(t *testing.T) {
	for name, tc := range map[string]struct {
		op    core.Op
		fails bool // the pod has failed before
		want  bool
	}{
		"a write after a failure": {core.Patch, true, true},
		"a write":                 {core.Patch, false, false},
		"a GET after a failure":   {core.Get, true, false},
	} {
		c := atRest(t)
		waiting, at := c.due(podOf("a", "u"))
		works := c.runs(podOf("b", "v"))
		fail := func(pod *entry) {
			c.pods.apply(pod, at, core.Sent{Action: core.Action{Op: core.Patch}})
			c.pods.apply(pod, at, core.WriteFailed{After: time.Hour})
		}
		if fail(waiting); tc.fails {
			fail(works)
		}
		call := c.pods.apply(works, at, core.Sent{Action: core.Action{Op: tc.op}}).Call
		c.loop.writer.running++
		if tc.op == core.Get {
			c.loop.writer.finish(works, call, nil, core.Read{Pod: podOf("b", "v")})
		} else {
			c.loop.writer.finish(works, call, nil, core.Stored{Pod: podOf("b", "v")})
		}
		if due := waiting.Next(at.Since, core.Writes, true).Op != ""; due != tc.want {
			t.Errorf("%s: another pod is due: %v", name, due)
		}
	}
}

// What the answers to a PATCH mean.
func TestWhatTheAnswersToAPatchMean(t *testing.T) {
	pods, kind := schema.GroupResource{Resource: "pods"}, schema.GroupKind{Kind: "Pod"}
	invalid := func(path ...string) error {
		return apierrors.NewInvalid(kind, "a", field.ErrorList{field.Invalid(field.NewPath(path[0], path[1:]...), "x", "m")})
	}
	var says notebook
	for name, tc := range map[string]struct {
		annotated bool
		err       error
		failures  int
		dropped   []string
		next      core.Op // a day later
	}{
		"a conflict":                         {false, apierrors.NewConflict(pods, "a", errFailed), 1, nil, core.Get},
		"the pod is gone":                    {false, apierrors.NewNotFound(pods, "a"), 0, nil, core.Get},
		"another pod of its name":            {false, invalid("metadata", "uid"), 0, nil, core.Get},
		"no answer":                          {false, errFailed, 1, nil, core.Get},
		"forbidden":                          {false, apierrors.NewForbidden(pods, "a", errFailed), 1, nil, core.Patch},
		"an invalid status":                  {false, invalid("status", "phase"), 0, []string{DroppedInvalid}, ""},
		"an invalid annotation":              {true, invalid("metadata", "annotations"), 0, []string{DroppedInvalid}, core.Patch},
		"an annotation that it did not send": {false, invalid("metadata", "annotations"), 1, nil, core.Patch},
		"another invalid field":              {false, invalid("spec", "x"), 1, nil, core.Patch},
	} {
		says = notebook{}
		c := atRest(t, says.uses, func(cfg *Config) {
			cfg.Client = &api{patch: func([]byte) (*corev1.Pod, error) { return nil, tc.err }}
		})
		pod := c.runs(podOf("a", "u"))
		if tc.annotated {
			c.pods.apply(pod, c.pods.moment(), core.Reported{Seq: c.pods.tick(), Report: &core.Report{Annotations: map[string]string{"k": "v"}}, FP: 2})
		}
		at := c.pods.moment()
		call := c.pods.apply(pod, at, core.Sent{Action: core.Action{Op: core.Patch}}).Call
		c.loop.writer.running++
		c.loop.writer.patch(c.run.apiCtx, pod, call)
		c.flush()
		at.Since += 24 * time.Hour
		if next := pod.Next(at.Since, core.Writes, true).Op; pod.Failures(core.Writes) != tc.failures || !slices.Equal(says.dropped, tc.dropped) || next != tc.next {
			t.Errorf("%s: %d failures, dropped %q, and %q is next", name, pod.Failures(core.Writes), says.dropped, next)
		}
	}
}

// Those that wait for the name of an orphan are the pods that the informer has, that are to run and that
// the provider does not hold.
func TestWhoWaitsForAnOrphan(t *testing.T) {
	for _, held := range []bool{false, true} {
		c := atRest(t)
		orphan := c.pods.add(RefOf(podOf("a", "orphan")), core.NewOrphan(&c.pods.rules, 1, 1, core.Saved{}, ""))
		if held {
			c.pods.apply(orphan, c.pods.moment(), core.Reported{Seq: c.pods.tick(), Report: &core.Report{}, FP: 1})
		}
		c.due(podOf("a", "waits"))
		c.due(podOf("a", "waits, too"))
		c.due(podOf("b", "of another name"))
		c.runs(podOf("a", "runs"))
		ends, _ := c.due(podOf("a", "ends"))
		c.pods.apply(ends, c.pods.moment(), core.Evicted{})
		c.pods.add(RefOf(podOf("a", "another orphan")), core.NewOrphan(&c.pods.rules, 1, 1, core.Saved{}, ""))
		var waiting []types.UID
		for pod := range c.pods.waiters(orphan) {
			waiting = append(waiting, pod.ref.UID)
		}
		slices.Sort(waiting)
		want := []types.UID{"waits", "waits, too"}
		if !held {
			want = nil // it is in nobody's way
		}
		if !slices.Equal(waiting, want) {
			t.Errorf("the orphan is held: %v, and %q wait", held, waiting)
		}
		for range c.pods.waiters(orphan) {
			break
		}
	}
}

// A flood of starts that hang must hold up no pod that is to stop.
func TestInWhichQueueACallWaits(t *testing.T) {
	for op := range coreOps {
		want := queueStart
		switch op {
		case core.Admit:
			want = queueAdmit
		case core.Stop, core.Release:
			want = queueStop
		}
		if got := queueOf(op); got != want {
			t.Errorf("%s waits in queue %d, want %d", op, got, want)
		}
	}
}
