// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/internal/lifecycle"
	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// listing runs the lister of a still in the bubble of a test.
func (c *still) listing(t *testing.T) {
	ctx, cancel := context.WithCancel(c.run.callCtx)
	synced := lifecycle.NewReady("")
	synced.Mark()
	var running sync.WaitGroup
	running.Go(func() { c.lister.run(ctx, synced) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// Lists of many nodes must not come at the same time. Those that are asked for are a second apart.
func TestListsAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Time
		provider := &lists{list: func(context.Context) ([]State, error) {
			at = append(at, time.Now())
			return nil, nil
		}}
		c := atRest(t, func(cfg *Config) { cfg.Provider, cfg.Relist = provider, time.Minute })
		c.listing(t)
		gaps := func() (shortest, longest time.Duration) {
			synctest.Wait()
			shortest = time.Hour
			for i := 1; i < len(at); i++ {
				gap := at[i].Sub(at[i-1])
				shortest, longest = min(shortest, gap), max(longest, gap)
			}
			at = at[len(at)-1:]
			return shortest, longest
		}
		time.Sleep(2 * time.Hour)
		if a, b := gaps(); a < 54*time.Second || a > 57*time.Second || b < 63*time.Second || b > 66*time.Second {
			t.Errorf("the Lists are %v to %v apart", a, b)
		}
		for range 100 {
			wake(c.pods.relist)
			time.Sleep(100 * time.Millisecond)
		}
		if a, b := gaps(); a != time.Second || b < time.Second {
			t.Errorf("the Lists that are asked for are %v to %v apart", a, b)
		}
	})
}

// A List of many pods may take as long as the time between two.
func TestTheDeadlineOfAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for relist, want := range map[time.Duration]time.Duration{time.Second: listTimeout, 2 * listTimeout: 2 * listTimeout} {
			provider := &lists{list: func(ctx context.Context) ([]State, error) {
				if deadline, _ := ctx.Deadline(); time.Until(deadline) != want {
					t.Errorf("Relist %v: the deadline is in %v", relist, time.Until(deadline))
				}
				return nil, nil
			}}
			c := atRest(t, func(cfg *Config) { cfg.Provider, cfg.Relist = provider, relist })
			if err := c.lister.list(c.run.callCtx); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A List that fails is repeated soon, and reported once until one succeeds. The first success makes
// the Controller ready, and each one has suspects looked for.
func TestEachFailureOfListIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var works atomic.Bool
		provider := &lists{list: func(context.Context) ([]State, error) {
			if works.Load() {
				return nil, nil
			}
			return nil, errFailed
		}}
		c := atRest(t, func(cfg *Config) { cfg.Provider, cfg.Relist = provider, time.Minute })
		c.listing(t)
		for i, step := range []struct {
			works       bool
			told        int
			least, most int // calls in five minutes
		}{{false, 1, 30, 70}, {true, 1, 4, 7}, {false, 2, 30, 70}} {
			synctest.Wait()
			before := c.calls
			works.Store(step.works)
			wake(c.pods.relist)
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			if calls := c.calls - before; len(c.told) != step.told || calls < step.least || calls > step.most {
				t.Errorf("step %d: %d calls in five minutes, reported %q", i, calls, c.told)
			}
			if verify, ready := woken(c.pods.verify), cache.IsDone(c.lister.ready); verify != step.works || ready != (i > 0) {
				t.Errorf("step %d: suspects are looked for: %v, ready: %v", i, verify, ready)
			}
		}
	})
}

// A watching is a provider whose Watch does what the next of its functions does.
type watching struct {
	Provider
	does []func() error
	at   []time.Duration // how long after the last call has returned each one came
	last time.Time
}

func (p *watching) Watch(ctx context.Context, _ func(State)) error {
	if p.at = append(p.at, time.Since(p.last)); len(p.at) > len(p.does) {
		<-ctx.Done()
		return ctx.Err()
	}
	defer func() { p.last = time.Now() }()
	return p.does[len(p.at)-1]()
}

// A Watch that ends is called again, after a delay that grows until one lasts for more than a minute.
// Only an error is reported, once while Watch fails.
func TestAWatchThatEndsIsCalledAgain(t *testing.T) {
	lasts := func(d time.Duration, err error) func() error {
		return func() error {
			time.Sleep(d)
			return err
		}
	}
	synctest.Test(t, func(t *testing.T) {
		fails := lasts(0, errFailed)
		provider := &watching{last: time.Now(), does: []func() error{
			fails, fails, fails, fails, lasts(time.Minute, nil), fails, lasts(time.Minute+1, nil), lasts(0, nil),
		}}
		c := atRest(t, func(cfg *Config) { cfg.Provider = provider })
		ctx, cancel := context.WithCancel(c.run.callCtx)
		var running sync.WaitGroup
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
		const told = "podsync: watch of the provider: it failed"
		if !slices.Equal(c.told, []string{told, told}) || c.calls != len(provider.does)+1 || woken(c.pods.relist) {
			t.Errorf("reported %q, and %d calls", c.told, c.calls)
		}
	})
}

// A List that succeeds ends what waits for one; reports that wait too long are dropped in any case.
func TestWhatAListDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, err := range []error{nil, errFailed} {
			c := atRest(t, gated, func(cfg *Config) {
				cfg.Provider = &lists{list: func(context.Context) ([]State, error) { return nil, err }}
			})
			c.gates.get("unused")
			c.Report(State{Ref: RefOf(podOf("a", "u"))})
			time.Sleep(earlyFor + 1)
			if got := c.lister.list(c.run.callCtx); !errors.Is(got, err) {
				t.Fatal(got)
			}
			c.flush()
			if len(c.reports.early) != 0 || !slices.Equal(c.dropped, []string{DroppedUnknown}) {
				t.Errorf("error %v: %d reports wait, dropped %q", err, len(c.reports.early), c.dropped)
			}
			if works := err == nil; c.pods.synced != works || (c.pods.listed > 0) != works || (len(c.gates.nodes) == 0) != works {
				t.Errorf("error %v: it counts: %v, began at %d, and %d gates are known", err, c.pods.synced, c.pods.listed, len(c.gates.nodes))
			}
		}
	})
}

// The backoff of calls ends when List works again, and not before. The time without a List begins with
// the first one that fails.
func TestAListThatWorksAgainEndsBackoffs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			c   *still
			err error
		)
		c = atRest(t, func(cfg *Config) {
			cfg.Provider = &lists{list: func(context.Context) ([]State, error) {
				if c.lister.health.since == 0 {
					t.Error("a List that hangs does not count")
				}
				return nil, err
			}}
		})
		pod, _ := c.due(podOf("a", "u"))
		c.apply(pod, core.Called{Seq: c.pods.tick(), Action: core.Action{Op: core.Start}})
		c.apply(pod, core.Returned{Seq: c.pods.tick(), Result: core.Failed, Err: errFailed, Report: &core.Report{}, After: time.Hour})
		var since instant
		for i, step := range []struct {
			err error
			due bool
		}{{nil, false}, {errFailed, false}, {errFailed, false}, {nil, true}} {
			time.Sleep(time.Second)
			err = step.err
			if now := c.pods.now(); i == 1 {
				since = now
			}
			if err := c.lister.list(c.run.callCtx); !errors.Is(err, step.err) {
				t.Fatal(err)
			}
			want := listHealth{}
			if step.err != nil {
				want = listHealth{since: since, err: errFailed}
			}
			if due := pod.Next(c.pods.now(), core.Calls, true).Op == core.Start; due != step.due || c.lister.health != want {
				t.Errorf("List %d: Start is due: %v; %+v, want %+v", i, due, c.lister.health, want)
			}
		}
	})
}

// A List in which nothing has changed costs the loop nothing, and one that has news is applied.
func TestOnlyAListWithNewsWakesAPod(t *testing.T) {
	st := State{Ref: RefOf(podOf("a", "u"))}
	c := atRest(t, func(cfg *Config) {
		cfg.Provider = &lists{list: func(context.Context) ([]State, error) { return []State{st}, nil }}
	})
	for i, message := range []string{"m", "m", "m", "other"} {
		st.Status.Message = message
		if err := c.lister.list(c.run.callCtx); err != nil {
			t.Fatal(err)
		}
		if n := len(c.pods.dirty); n > 0 != (i == 0 || i == 3) {
			t.Errorf("List %d: %d pods are dirty", i, n)
		}
		c.clean()
	}
}

// shows applies an entry of a List that began at begin.
func (c *still) shows(st State, begin uint64) {
	c.lister.apply(c.pods.moment(), begin, &st, c.reports.prints.of(&st))
}

// A report that came during a List is older than those that come after it, whenever its pod is seen.
func TestAReportThatCameDuringAListIsNotTheLastOne(t *testing.T) {
	c := atRest(t)
	pod := podOf("a", "u")
	says := func(message string) State {
		return State{Ref: RefOf(pod), Status: corev1.PodStatus{Message: message}}
	}
	begin := c.pods.tick()
	c.Report(says("during the List"))
	c.shows(says("in the List"), begin)
	orphan := c.pods.pods["u"]
	if got := orphan.LastReport().Message; got != "during the List" || !orphan.Held() || !orphan.dirty {
		t.Errorf("the last report is the one %s, it is held: %v, and dirty: %v", got, orphan.Held(), orphan.dirty)
	}
	c.Report(says("after the List"))
	c.intake.onUpdate(pod)
	if got := orphan.LastReport().Message; got != "after the List" {
		t.Errorf("the last report is the one %s", got)
	}
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

// A backend without UIDs has an instance of a pod's name. It is that of an earlier pod, or the pod's, if
// its Start was called.
func TestWhoseInstanceHasNoUID(t *testing.T) {
	nameless := State{Ref: Ref{Namespace: "ns", Name: "a"}}
	lists := func(c *still) {
		c.pods.listed = c.pods.tick()
		c.shows(nameless, c.pods.listed)
	}
	reports := func(c *still) { c.Report(nameless) }
	second := func(c *still, _ *entry) { c.due(podOf("a", "v")) }
	for name, tc := range map[string]struct {
		before  func(c *still, pod *entry)
		says    func(c *still)
		pods    int
		shown   bool // the pods
		dropped []string
	}{
		"of an earlier pod": {nil, lists, 2, false, nil},
		"behind a gate":     {func(c *still, _ *entry) { c.gates.get("n").state = gateClosed }, lists, 1, false, []string{DroppedAmbiguous}},
		"during Start": {func(c *still, pod *entry) {
			c.apply(pod, core.Called{Seq: c.pods.tick() + 10, Action: core.Action{Op: core.Start}})
		}, lists, 1, false, nil},
		"none: it has the UID":  {nil, func(c *still) { c.shows(State{Ref: RefOf(podOf("a", "u"))}, c.pods.listed) }, 1, true, nil},
		"of two pods":           {second, lists, 2, true, []string{DroppedAmbiguous}},
		"reported, of two pods": {second, reports, 2, false, []string{DroppedAmbiguous}},
		"reported before Start": {nil, reports, 1, false, []string{DroppedAmbiguous}},
	} {
		c := atRest(t, gated)
		c.gates.get("n").state = gateOpen
		pod, _ := c.due(podOf("a", "u"))
		if tc.before != nil {
			tc.before(c, pod)
		}
		c.pods.listed = c.pods.tick()
		c.clean()
		tc.says(c)
		c.flush()
		if len(c.pods.pods) != tc.pods || len(c.reports.early) > 0 || c.pods.shows(pod) != tc.shown || !slices.Equal(c.dropped, tc.dropped) {
			t.Errorf("%s: %d pods, the pod is shown: %v, dropped %q", name, len(c.pods.pods), c.pods.shows(pod), c.dropped)
		}
		if other := c.pods.pods["v"]; other != nil && c.pods.shows(other) != tc.shown {
			t.Errorf("%s: the second pod is shown: %v", name, !tc.shown)
		}
		if tc.pods == 1 || tc.before != nil {
			continue
		}
		earlier := c.pods.pods["ns/a"]
		if reason, _ := earlier.Ending(); reason != core.StopOrphaned || !c.pods.shows(earlier) || !earlier.dirty || c.gates.nodeOf(earlier) != "n" {
			t.Errorf("%s: it ends: %q, on node %q", name, reason, c.gates.nodeOf(earlier))
		}
		lists(c)
		if c.flush(); len(c.pods.pods) != 2 || len(c.dropped) > 0 {
			t.Errorf("%s: the next List makes %d pods of it, dropped %q", name, len(c.pods.pods), c.dropped)
		}
	}
}

// A few pods that Lists leave out are lost. Many are held, or the Inspector is asked about each.
func TestWhichLossesAreBelieved(t *testing.T) {
	for name, tc := range map[string]struct {
		inspects   bool
		lost, held int
		event      string
		next       core.Op
	}{
		"one":                     {false, 1, 0, "Warning Lost the provider no longer holds the pod", core.Start},
		"many":                    {false, 8, 8, "", ""},
		"many, with an Inspector": {true, 8, 0, "", core.Inspect},
	} {
		c := atRest(t)
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
		c.clean()
		c.lister.decideLosses(at)
		if events := strings.Join(c.flush(), ""); events != tc.event || len(c.pods.dirty) != tc.lost || len(c.told) != min(tc.held, 1) {
			t.Errorf("%s: %d are dirty, events %q, reported %q", name, len(c.pods.dirty), events, c.told)
		}
		for _, pod := range lost {
			if s := pod.Next(at.Since, core.Calls, true); s.Op != tc.next {
				t.Errorf("%s: %q is next", name, s.Op)
			}
			c.pods.apply(pod, at, &core.Repeated{Seq: c.pods.tick(), FromList: true})
		}
		for range 2 { // the first one ends the hold
			c.lister.decideLosses(at)
			c.flush()
		}
		if n := 2 * min(tc.held, 1); len(c.masses) != n || c.lister.hold.on {
			t.Fatalf("%s: held back: %+v, want %d calls", name, c.masses, n)
		}
		if tc.held > 0 && (len(c.masses[0].Refs) != tc.held || c.masses[0].Held != 10 || !c.masses[0].Lost || len(c.masses[1].Refs) != 0) {
			t.Errorf("%s: %+v", name, c.masses)
		}
	}
}

// An orphan whose name a pod waits for is asked about at once.
func TestAnOrphanWhoseNameIsWantedIsAskedAbout(t *testing.T) {
	for name, wanted := range map[string]bool{"a": true, "b": false} {
		c := atRest(t)
		orphan := c.orphan(podOf("a", "u"), "n")
		c.says(orphan, &core.Report{})
		c.due(podOf(name, "v"))
		at := c.pods.moment()
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
		obj := podOf("a", "u")
		obj.Status.Phase = corev1.PodRunning // else the last List is enough
		c.intake.onUpdate(obj)
		pod := c.pods.pods["u"]
		for list, seq := range []uint64{begin, c.pods.tick()} {
			c.clean()
			c.lister.conclude(pod, c.pods.moment(), seq)
			if _, decided := pod.MayBeLost(); decided != (list == 1 || !synced) || decided != pod.dirty {
				t.Errorf("synced: %v, List %d decides: %v, and the pod is dirty: %v", synced, list, decided, pod.dirty)
			}
			c.pods.synced = true
		}
	}
}
