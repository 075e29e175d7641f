// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/lifecycle"
	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// The report of an instance that a List has, too, may have come before the List: the instance is new
// anyway.
func TestAnInstanceThatWasReportedBeforeTheListIsReconciled(t *testing.T) {
	c := atRest(t)
	st := State{Ref: RefOf(podOf("a", "u"))}
	c.Report(st)
	c.lister.apply(c.pods.moment(), c.pods.tick(), &st, c.reports.prints.of(&st))
	if orphan := c.pods.pods["u"]; !orphan.Held() || !orphan.dirty {
		t.Errorf("it is held: %v, and dirty: %v", orphan.Held(), orphan.dirty)
	}
}

// A timed is a provider that notes when List was called, and with which deadline.
type timed struct {
	Provider
	at       []time.Time
	deadline time.Time
}

func (p *timed) List(ctx context.Context) ([]State, error) {
	p.at = append(p.at, time.Now())
	p.deadline, _ = ctx.Deadline()
	return nil, nil
}

// Lists of many nodes must not come at the same time. Those that are asked for are a second apart.
func TestListsAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
		provider := &timed{}
		c := atRest(t, func(cfg *Config) { cfg.Provider, cfg.Relist = provider, time.Minute })
		synced := lifecycle.NewReady("")
		synced.Mark()
		var running sync.WaitGroup
		running.Go(func() { c.lister.run(ctx, synced) })
		gaps := func() (shortest, longest time.Duration) {
			shortest = time.Hour
			for i := 1; i < len(provider.at); i++ {
				gap := provider.at[i].Sub(provider.at[i-1])
				shortest, longest = min(shortest, gap), max(longest, gap)
			}
			provider.at = provider.at[len(provider.at)-1:]
			return shortest, longest
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if a, b := gaps(); a < 54*time.Second || a > 57*time.Second || b < 63*time.Second || b > 66*time.Second {
			t.Errorf("the Lists are %v to %v apart", a, b)
		}
		for range 100 {
			wake(c.pods.relist)
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		if a, b := gaps(); a != time.Second || b < time.Second {
			t.Errorf("the Lists that are asked for are %v to %v apart", a, b)
		}
		cancel()
		running.Wait()
	})
}

// A List of many pods may take as long as the time between two.
func TestTheDeadlineOfAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for relist, want := range map[time.Duration]time.Duration{time.Second: listTimeout, 2 * listTimeout: 2 * listTimeout} {
			provider := &timed{}
			c := atRest(t, func(cfg *Config) { cfg.Provider, cfg.Relist = provider, relist })
			if err := c.lister.list(klog.NewContext(t.Context(), klog.Logger{})); err != nil {
				t.Fatal(err)
			}
			if got := time.Until(provider.deadline); got != want {
				t.Errorf("Relist %v: %v", relist, got)
			}
		}
	})
}

// The instances of another Controller are those that were started for another node.
func TestWhichInstancesAreForeign(t *testing.T) {
	c := atRest(t)
	for _, tc := range []struct {
		own, of string
		want    bool
	}{{"n", "", false}, {"n", "n", false}, {"n", "m", true}, {"", "m", false}} {
		c.lister.nodeName = tc.own
		if got := c.lister.foreign(&State{NodeName: tc.of}); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}

// A watching is a provider whose Watch does what the next of its functions does.
type watching struct {
	Provider
	does []func(ctx context.Context) error
	at   []time.Duration // how long after the last call has returned each one came
	last time.Time
}

func (p *watching) Watch(ctx context.Context, _ func(State)) error {
	if p.at = append(p.at, time.Since(p.last)); len(p.at) > len(p.does) {
		<-ctx.Done()
		return ctx.Err()
	}
	defer func() { p.last = time.Now() }()
	return p.does[len(p.at)-1](ctx)
}

// A Watch that ends is called again, after a delay that grows until one lasts for more than a minute.
func TestAWatchThatEndsIsCalledAgain(t *testing.T) {
	lasts := func(d time.Duration, err error) func(context.Context) error {
		return func(context.Context) error {
			time.Sleep(d)
			return err
		}
	}
	synctest.Test(t, func(t *testing.T) {
		told, seen := 0, 0
		fails := lasts(0, errFailed)
		provider := &watching{does: []func(context.Context) error{
			fails, fails, fails, fails, lasts(time.Minute, nil), fails, lasts(time.Minute+1, nil), lasts(0, nil),
		}}
		c := atRest(t, func(cfg *Config) {
			cfg.Provider = provider
			cfg.ErrorHandler = func(context.Context, error, string) { told++ }
			cfg.Hooks.ProviderCall = func(call ProviderCall) {
				if call.Op == OpWatch {
					seen++
				}
			}
		})
		ctx, cancel := context.WithCancel(c.run.callCtx)
		var running sync.WaitGroup
		provider.last = time.Now()
		running.Go(func() { c.lister.watch(ctx, c.reports.take) })
		time.Sleep(time.Hour)
		synctest.Wait()
		if !woken(c.pods.relist) {
			t.Error("a List is not wanted, although reports may have been missed")
		}
		for i, failures := range []int{0, 1, 2, 3, 4, 5, 6, 1, 2} {
			if longest := time.Duration(1<<failures) * time.Second / 2; provider.at[i] > longest || provider.at[i] < longest/2 && failures > 0 {
				t.Errorf("call %d came after %v, want half of %v to all", i, provider.at[i], longest)
			}
		}
		cancel()
		running.Wait()
		if told != 2 || seen != len(provider.does)+1 || woken(c.pods.relist) {
			t.Errorf("%d errors are reported, and %d calls", told, seen)
		}
	})
}

// A List that fails is repeated soon, and reported once until one succeeds. The first success makes
// the Controller ready, and each one has suspects looked for.
func TestEachFailureOfListIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told, seen := 0, 0
		provider := &lists{}
		c := atRest(t, func(cfg *Config) {
			cfg.Provider, cfg.Relist = provider, time.Minute
			cfg.ErrorHandler = func(context.Context, error, string) { told++ }
			cfg.Hooks.ProviderCall = func(ProviderCall) { seen++ }
		})
		provider.err.Store(new(errFailed))
		ctx, cancel := context.WithCancel(c.run.callCtx)
		synced := lifecycle.NewReady("")
		synced.Mark()
		var running sync.WaitGroup
		running.Go(func() { c.lister.run(ctx, synced) })
		for i, step := range []struct {
			err  error
			told int
		}{{errFailed, 1}, {nil, 1}, {errFailed, 2}} {
			synctest.Wait()
			before := seen
			provider.err.Store(&step.err)
			wake(c.pods.relist)
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			if told != step.told || woken(c.pods.verify) != (step.err == nil) {
				t.Errorf("step %d: %d errors are reported", i, told)
			}
			if calls := seen - before; step.err != nil && (calls < 30 || calls > 70) || step.err == nil && (calls < 4 || calls > 7) {
				t.Errorf("step %d: %d calls in five minutes", i, calls)
			}
			if ready := cache.IsDone(c.lister.ready); ready != (i > 0) {
				t.Errorf("step %d: ready: %v", i, ready)
			}
		}
		cancel()
		running.Wait()
	})
}

// lists is a provider whose List returns an error, or nothing.
type lists struct {
	Provider
	err atomic.Pointer[error]
}

func (p *lists) List(context.Context) ([]State, error) {
	if err := p.err.Load(); err != nil {
		return nil, *err
	}
	return nil, nil
}

// A List of a backend without UIDs.
func TestWhoseInstanceHasNoUID(t *testing.T) {
	var says notebook
	nameless := &State{Ref: Ref{Namespace: "ns", Name: "a"}}
	start := func(t *testing.T) (*Controller, *entry) {
		says = notebook{}
		c := atRest(t, says.uses, func(cfg *Config) { cfg.Gate = func(context.Context, string) error { return nil } })
		pod, _ := c.due(podOf("a", "u"))
		c.pods.clean()
		c.gates.get("n").state = gateOpen
		return c, pod
	}
	list := func(c *Controller) {
		begin := c.pods.tick()
		c.pods.listed = begin
		c.lister.apply(c.pods.moment(), begin, nameless, 1)
		c.flush()
	}

	c, pod := start(t)
	list(c)
	earlier := c.pods.pods["ns/a"]
	if earlier == nil || !c.pods.shows(earlier) || !earlier.dirty || c.pods.shows(pod) {
		t.Fatal("the instance of an earlier pod is not known")
	}
	if reason, _ := earlier.Ending(); reason != core.StopOrphaned || c.gates.nodeOf(earlier) != "n" {
		t.Errorf("it ends: %q, on node %q", reason, c.gates.nodeOf(earlier))
	}
	list(c)
	if len(c.pods.pods) != 2 || len(says.dropped) != 0 {
		t.Errorf("%d pods, dropped %q", len(c.pods.pods), says.dropped)
	}

	c, _ = start(t)
	c.gates.get("n").state = gateClosed
	if list(c); len(c.pods.pods) != 1 || !slices.Equal(says.dropped, []string{DroppedAmbiguous}) {
		t.Errorf("behind a gate: %d pods, dropped %q", len(c.pods.pods), says.dropped)
	}

	c, pod = start(t)
	c.pods.apply(pod, c.pods.moment(), core.Called{Seq: c.pods.tick() + 10, Action: core.Action{Op: core.Start}})
	if list(c); len(c.pods.pods) != 1 || len(says.dropped) != 0 {
		t.Errorf("while it starts: %d pods, dropped %q", len(c.pods.pods), says.dropped)
	}

	c, pod = start(t)
	second, _ := c.due(podOf("a", "v"))
	if list(c); !c.pods.shows(pod) || !c.pods.shows(second) || len(c.pods.pods) != 2 || !slices.Equal(says.dropped, []string{DroppedAmbiguous}) {
		t.Errorf("two pods of the name: %d pods, dropped %q", len(c.pods.pods), says.dropped)
	}
	says.dropped = nil
	c.Report(*nameless)
	if c.flush(); !slices.Equal(says.dropped, []string{DroppedAmbiguous}) || len(c.reports.early) != 0 {
		t.Errorf("a report about two pods of the name: dropped %q, and %d wait", says.dropped, len(c.reports.early))
	}

	c, _ = start(t)
	c.Report(*nameless)
	if c.flush(); !slices.Equal(says.dropped, []string{DroppedAmbiguous}) {
		t.Errorf("a report about a pod that was not started: dropped %q", says.dropped)
	}
}

// A few pods that Lists leave out are lost. Many are held, or the Inspector is asked about each.
func TestWhichLossesAreBelieved(t *testing.T) {
	var says notebook
	for name, tc := range map[string]struct {
		inspects     bool
		lost         int
		events, held int
		next         core.Op
	}{
		"one":                     {false, 1, 1, 0, core.Start},
		"many":                    {false, 8, 0, 8, ""},
		"many, with an Inspector": {true, 8, 0, 0, core.Inspect},
	} {
		says = notebook{}
		recorder := events.NewFakeRecorder(100)
		c := atRest(t, says.uses, func(cfg *Config) { cfg.EventRecorder = recorder })
		c.pods.rules.Inspects = tc.inspects
		var lost []*entry
		for i := range 10 {
			pod := c.runs(podOf(fmt.Sprint(i), types.UID(fmt.Sprint(i))))
			if pod.shown = c.pods.listed; i < tc.lost {
				lost = append(lost, pod)
			}
		}
		at := c.pods.moment()
		for range 2 {
			for _, pod := range lost {
				c.pods.apply(pod, at, core.ListEnded{Seq: c.pods.tick(), Open: true})
			}
			at.Since += c.pods.rules.Relist
		}
		c.pods.clean()
		c.lister.decideLosses(at)
		c.flush()
		if len(c.pods.dirty) != tc.lost || len(recorder.Events) != tc.events || c.lister.hold.on != (tc.held > 0) || len(says.told) != min(tc.held, 1) || len(says.masses) != min(tc.held, 1) {
			t.Errorf("%s: %d are dirty, %d events, reported %q, masses %+v", name, len(c.pods.dirty), len(recorder.Events), says.told, says.masses)
		}
		for _, pod := range lost {
			if s := pod.Next(at.Since, core.Calls, true); s.Op != tc.next {
				t.Errorf("%s: %q is next", name, s.Op)
			}
			c.pods.apply(pod, at, &core.Repeated{Seq: c.pods.tick(), FromList: true})
		}
		if tc.held == 0 {
			continue
		}
		if mass := says.masses[0]; len(mass.Refs) != tc.held || mass.Held != 10 || !mass.Lost {
			t.Errorf("%s: %+v", name, mass)
		}
		for range 2 {
			c.lister.decideLosses(at)
			c.flush()
		}
		if len(says.masses) != 2 || len(says.masses[1].Refs) != 0 || c.lister.hold.on {
			t.Errorf("%s: the end of the hold is reported %d times", name, len(says.masses)-1)
		}
	}
}

// An orphan whose name a pod waits for is asked about at once.
func TestAnOrphanWhoseNameIsWantedIsAskedAbout(t *testing.T) {
	for _, wanted := range []bool{false, true} {
		c := atRest(t)
		at := c.pods.moment()
		orphan := c.pods.add(RefOf(podOf("a", "u")), core.NewOrphan(&c.pods.rules, at.Since, 1, core.Saved{}, "n"))
		c.pods.apply(orphan, at, core.Reported{Seq: c.pods.tick(), Report: &core.Report{}, FP: 1})
		name := "b"
		if wanted {
			name = "a"
		}
		c.due(podOf(name, "v"))
		c.lister.conclude(orphan, at, c.pods.tick())
		if suspicion, _ := orphan.Suspect(); (suspicion.Due <= at.Since) != wanted {
			t.Errorf("its name is wanted: %v, and it is asked about in %v", wanted, suspicion.Due-at.Since)
		}
	}
}

// A pod that was seen after a List had begun waits for the next one, unless it is the first List: no
// earlier call can be under way then.
func TestWhichListDecidesAboutANewPod(t *testing.T) {
	for _, synced := range []bool{false, true} {
		c := atRest(t)
		c.pods.synced = synced
		begin := c.pods.tick()
		pod := podOf("a", "u")
		pod.Status.Phase = corev1.PodRunning // else the last List is enough
		c.intake.onUpdate(pod)
		c.pods.clean()
		for list, seq := range []uint64{begin, c.pods.tick()} {
			c.lister.conclude(c.pods.pods["u"], c.pods.moment(), seq)
			if _, decided := c.pods.pods["u"].MayBeLost(); decided != (list == 1 || !synced) || decided != c.pods.pods["u"].dirty {
				t.Errorf("synced: %v, List %d decides: %v, and the pod is dirty: %v", synced, list, decided, c.pods.pods["u"].dirty)
			}
			c.pods.clean()
			c.pods.synced = true
		}
	}
}

// The backoff of calls ends when List works again, and not before. The time without a List begins with
// the first one that fails.
func TestAListThatWorksAgainEndsBackoffs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		provider := &lists{}
		c := atRest(t, func(cfg *Config) { cfg.Provider = provider })
		pod, _ := c.due(podOf("a", "u"))
		c.pods.apply(pod, c.pods.moment(), core.Called{Seq: c.pods.tick(), Action: core.Action{Op: core.Start}})
		c.pods.apply(pod, c.pods.moment(), core.Returned{Seq: c.pods.tick(), Result: core.Failed, Err: errFailed, Report: &core.Report{}, After: time.Hour})
		var since instant
		for i, step := range []struct {
			err error
			due bool
		}{{nil, false}, {errFailed, false}, {errFailed, false}, {nil, true}} {
			time.Sleep(time.Second)
			provider.err.Store(&step.err)
			now := c.pods.now()
			if err := c.lister.list(c.run.callCtx); !errors.Is(err, step.err) {
				t.Fatal(err)
			}
			if due := pod.Next(c.pods.now(), core.Calls, true).Op == core.Start; due != step.due {
				t.Errorf("List %d: Start is due: %v", i, due)
			}
			if i == 1 {
				since = now
			}
			want := listHealth{}
			if step.err != nil {
				want = listHealth{since: since, err: errFailed}
			}
			if c.lister.health != want {
				t.Errorf("List %d: %+v, want %+v", i, c.lister.health, want)
			}
		}
	})
}

// A List that succeeds ends what waits for one; reports that wait too long are dropped in any case.
func TestWhatAListDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, err := range []error{nil, errFailed} {
			var says notebook
			provider := &lists{}
			provider.err.Store(&err)
			c := atRest(t, says.uses, func(cfg *Config) {
				cfg.Provider = provider
				cfg.Gate = func(context.Context, string) error { return nil }
			})
			c.gates.get("unused")
			c.Report(State{Ref: RefOf(podOf("a", "u"))})
			time.Sleep(earlyFor + 1)
			if got := c.lister.list(c.run.callCtx); !errors.Is(got, err) {
				t.Fatal(got)
			}
			c.flush()
			if len(c.reports.early) != 0 || !slices.Equal(says.dropped, []string{DroppedUnknown}) {
				t.Errorf("error %v: %d reports wait, dropped %q", err, len(c.reports.early), says.dropped)
			}
			if works := err == nil; c.pods.synced != works || (c.pods.listed > 0) != works || (len(c.gates.nodes) == 0) != works {
				t.Errorf("error %v: it counts: %v, began at %d, and %d gates are known", err, c.pods.synced, c.pods.listed, len(c.gates.nodes))
			}
		}
	})
}
