// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2/ktesting"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/resourceslice"
)

// two runs an older and a newer instance of one program, with models a and b.
func two(t *testing.T, test func(older, newer *rig)) {
	bubble(t, func(r *rig) {
		r.consumer.tolerate(true)
		r.start()
		r.publish(resourceslice.Pool{Devices: models(200, "a")})
		r.settle(time.Minute)
		newer := &rig{T: r.T, s: r.s, consumer: r.consumer, user: admin}
		newer.start()
		newer.publish(resourceslice.Pool{Devices: models(200, "b")})
		r.settle(5 * time.Second)
		r.expectModel("the update", "b")
		test(r, newer)
		if newer.stop != nil {
			newer.halt()
		}
	})
}

func models(n int, v string) []resourcev1.Device {
	all := make([]resourcev1.Device, n)
	for i := range all {
		all[i] = device(i, v)
	}
	return all
}

func (r *rig) expectModel(what, v string) {
	r.Helper()
	all := r.devices()
	for _, d := range all {
		if got := *d.Attributes["model"].StringValue; got != "model-"+v {
			r.Errorf("%s: %s is %s, want model-%s", what, d.Name, got, v)
			return
		}
	}
	if len(all) != 200 {
		r.Errorf("%s: %d devices", what, len(all))
	}
}

// TestARollingUpdateIsNoFight: the two instances want different devices. The older one
// leaves the pool to the newer one, for as long as that lives.
func TestARollingUpdateIsNoFight(t *testing.T) {
	two(t, func(older, newer *rig) {
		older.expect("the update", 4, 4, 0) // each instance writes four slices
		changed := models(200, "a")
		changed[7] = device(7, "sick")
		older.set(resourceslice.Pool{Devices: changed})
		for range 200 {
			older.settle(100 * time.Millisecond)
			older.expectModel("20 seconds", "b")
		}
		older.expect("20 seconds", 0, 0, 0)
		s, _ := older.c.Status(pool)
		contended, ok := s.Err.(*resourceslice.ContendedError) //nolint:errorlint // exactly this type
		if !ok || !contended.Newer || contended.Manager != "kubewright-resourceslice" || !contains(contended, "newer instance") {
			t.Errorf("the older one: %+v", s)
		}
		if err := older.c.Wait(older.Context(), pool); !errors.As(err, &contended) {
			t.Errorf("Wait = %v", err)
		}
		for minutes := range 60 {
			older.settle(time.Minute)
			older.expectModel(fmt.Sprint(minutes, " minutes"), "b")
		}
		if now, _ := older.c.Status(pool); now != s {
			t.Errorf("the status changes while nothing happens: %+v, then %+v", s, now)
		}
		if n := older.writes()["update"]; n < 4 || n > 20 || n%2 != 0 {
			t.Errorf("%d updates in an hour, want two for each question", n)
		}
		if s, _ := newer.c.Status(pool); s.Err != nil || s.Published != s.Revision {
			t.Errorf("the newer one: %+v", s)
		}
		if errs := append(older.reported(), newer.reported()...); len(errs) > 0 {
			t.Errorf("reported %v", errs)
		}
	})
}

// TestTheOlderInstanceStaysOlderInItsNextSession: it lists again what the newer one wrote after
// its first list.
func TestTheOlderInstanceStaysOlderInItsNextSession(t *testing.T) {
	two(t, func(older, newer *rig) {
		older.s.Serve(resourcev1.SchemeGroupVersion, false)
		older.s.DropWatches(apitest.Match{})
		older.settle(time.Minute)
		older.s.Serve(resourcev1.SchemeGroupVersion, true)
		older.settle(5 * time.Minute)
		changed := models(200, "a")
		changed[7] = device(7, "sick")
		older.set(resourceslice.Pool{Devices: changed})
		for range 100 {
			older.settle(100 * time.Millisecond)
			older.expectModel("after the next list", "b")
		}
	})
}

// TestQuestionsThatFailNowAndThenAreNotReported: each is asked again at once, and answered
// then. Minutes lie between them, so that they are no outage.
func TestQuestionsThatFailNowAndThenAreNotReported(t *testing.T) {
	two(t, func(older, newer *rig) {
		var refused time.Time
		n := 0
		older.s.Inject(apitest.Fault{Match: sending("update", func(s sliceType) bool {
			if !strings.HasSuffix(s.Annotations["resourceslice.kubewright.dev/instance"], "?") || time.Since(refused) < time.Minute {
				return false
			}
			refused = time.Now()
			n++
			return true
		}), Status: statuserr.New(409, metav1.StatusReasonConflict, "changed meanwhile")})
		older.settle(time.Hour)
		if n < 2 {
			t.Fatalf("%d questions were refused, want some", n)
		}
		older.expectModel("an hour later", "b")
		if errs := append(older.reported(), newer.reported()...); len(errs) > 0 {
			t.Errorf("reported %v", errs)
		}
	})
}

// TestWhatTheOlderInstanceLogs: one line when it leaves the pool, and one when it takes it back.
func TestWhatTheOlderInstanceLogs(t *testing.T) {
	bubble(t, func(r *rig) {
		r.consumer.tolerate(true)
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0)))
		lines := func(text string) int {
			return strings.Count(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), text)
		}
		r.logger = &logger
		r.start()
		r.publish(resourceslice.Pool{Devices: models(200, "a")})
		for round := 1; round <= 2; round++ {
			newer := &rig{T: r.T, s: r.s, consumer: r.consumer, user: admin}
			newer.start()
			newer.publish(resourceslice.Pool{Devices: models(200, "b")})
			r.settle(30 * time.Minute) // it asks now and then
			if left, back := lines("Leaving the pool"), lines("Publishing the pool again"); left != round || back != round-1 {
				t.Errorf("round %d: left %d times, published again %d times", round, left, back)
			}
			newer.halt()
			r.settle(30 * time.Minute)
			if left, back := lines("Leaving the pool"), lines("Publishing the pool again"); left != round || back != round {
				t.Errorf("round %d, back: left %d times, published again %d times", round, left, back)
			}
		}
	})
}

// TestAReplyIsNoPublish: the newer instance changes nothing when it shows that it lives.
func TestAReplyIsNoPublish(t *testing.T) {
	two(t, func(older, newer *rig) {
		before := len(newer.published)
		older.s.ResetJournal()
		older.settle(time.Hour)
		if n := older.writes()["update"]; n < 2 {
			t.Fatalf("%d questions and replies", n)
		}
		if again := newer.published[before:]; len(again) > 0 {
			t.Errorf("published again: %+v", again)
		}
		newer.publish(resourceslice.Pool{Devices: append(models(200, "b"), device(200, "b"))})
		if last := newer.published[len(newer.published)-1]; len(newer.published) != before+1 || last.Writes != 1 {
			t.Errorf("published %+v", newer.published[before:])
		}
	})
}

// TestTheOlderInstanceTakesOverFromASilentOne: the update is rolled back.
func TestTheOlderInstanceTakesOverFromASilentOne(t *testing.T) {
	for name, tc := range map[string]struct {
		happens func(older *rig)
		within  time.Duration
	}{
		"nothing happens":    {func(*rig) {}, 80 * time.Second},
		"a slice is deleted": {func(r *rig) { apitest.Remove[sliceType](r.s, "", r.slices()[0].Name) }, 17 * time.Second},
		"all are deleted": {func(r *rig) {
			for _, s := range r.slices() {
				apitest.Remove[sliceType](r.s, "", s.Name)
			}
		}, 17 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			two(t, func(older, newer *rig) {
				newer.halt()
				older.settle(3 * time.Second)
				tc.happens(older)
				older.settle(10 * time.Second)
				if s, _ := older.c.Status(pool); s.Err == nil {
					t.Errorf("it took over too early: %+v", s)
				}
				older.settle(tc.within - 10*time.Second)
				older.expectModel("after that", "a")
				if s, _ := older.c.Status(pool); s.Err != nil || s.Published != s.Revision {
					t.Errorf("status %+v", s)
				}
				older.s.ResetJournal()
				older.settle(time.Hour)
				older.expect("an hour later", 0, 0, 0)
			})
		})
	}
}

// TestATakeoverLeavesTheGenerationOfTheNewerInstance, because that one may have a write under
// way, which then adds a device that is in another slice now. It filled up the generation, if
// it had written that before the newer instance.
func TestATakeoverLeavesTheGenerationOfTheNewerInstance(t *testing.T) {
	two(t, func(older, newer *rig) {
		// Without device 0, the older one has room for device 300 in the slice that is deleted.
		want := append(models(200, "b"), device(300, "b"))[1:]
		older.set(resourceslice.Pool{Devices: want})
		older.settle(time.Second)
		target := ""
		late := sending("update", func(s sliceType) bool { target = s.Name; return true })
		late.User = newer.user.Name
		defer newer.s.Inject(apitest.Fault{Match: late, CommitAfter: 20 * time.Second, Times: 1})()
		newer.set(resourceslice.Pool{Devices: append(models(200, "b"), device(300, "b"))})
		older.settle(100 * time.Millisecond)
		defer newer.s.Inject(apitest.Fault{Match: apitest.Match{User: newer.user.Name}, Err: apitest.ErrConnReset, For: 5 * time.Minute})()
		newer.s.DropWatches(apitest.Match{User: newer.user.Name})
		for _, s := range older.slices() {
			if s.Name != target {
				apitest.Remove[sliceType](older.s, "", s.Name)
				break
			}
		}
		for seconds := range 30 {
			older.settle(time.Second)
			// The consumer's watch is cut off, too.
			if problem := invalidPool(older.slices()); problem != "" {
				t.Fatalf("%d s after the delete: %s", seconds+1, problem)
			}
		}
		if n := len(older.devices()); n != len(want) {
			t.Errorf("%d devices after the takeover, want %d", n, len(want))
		}
		if s, _ := older.c.Status(pool); s.Err != nil || !s.Complete {
			t.Errorf("the older one: %+v", s)
		}
		older.settle(10 * time.Minute)
		if s, _ := newer.c.Status(pool); s.Err != nil || s.Published != s.Revision || !s.Complete {
			t.Errorf("the newer one, later: %+v", s)
		}
	})
}

// TestASilentInstanceThatComesBackPublishesAgain: it was cut off from the API server.
func TestASilentInstanceThatComesBackPublishesAgain(t *testing.T) {
	two(t, func(older, newer *rig) {
		restore := older.s.Inject(apitest.Fault{Match: apitest.Match{User: newer.user.Name}, Err: apitest.ErrConnReset})
		older.s.DropWatches(apitest.Match{User: newer.user.Name})
		older.settle(2 * time.Minute)
		older.expectModel("the newer one is cut off", "a")
		restore()
		older.settle(2 * time.Minute)
		older.expectModel("it is back", "b")
		older.settle(time.Hour)
		older.expectModel("an hour later", "b")
	})
}

// TestANewerInstanceRepairsDeletesAtOnce: also if an older one is there.
func TestANewerInstanceRepairsDeletesAtOnce(t *testing.T) {
	two(t, func(older, newer *rig) {
		for range 3 {
			apitest.Remove[sliceType](older.s, "", older.slices()[1].Name)
			older.settle(1100 * time.Millisecond)
			older.expectModel("repair", "b")
			older.settle(15 * time.Minute)
		}
		older.expectModel("the end", "b")
	})
}

// TestAnOlderInstanceWithdrawsNothingOfTheNewerOne: it ends after the newer one began.
func TestAnOlderInstanceWithdrawsNothingOfTheNewerOne(t *testing.T) {
	two(t, func(older, _ *rig) {
		older.s.ResetJournal()
		if err := older.c.Withdraw(older.Context()); err != nil {
			t.Errorf("Withdraw = %v", err)
		}
		older.expect("Withdraw", 0, 0, 0)
		older.expectModel("Withdraw", "b")
	})
}

// TestAnInstanceIsNewerThanWhatItFinds: also if the clock of the machine of the other one
// is ahead, and it needs no write for that.
func TestAnInstanceIsNewerThanWhatItFinds(t *testing.T) {
	bubble(t, func(r *rig) {
		s := live("s1", 1, 1, device(1, "a"))
		ahead := time.Now().Add(24 * time.Hour).UnixMilli()
		s.Annotations = map[string]string{"resourceslice.kubewright.dev/instance": fmt.Sprintf("kubewright-resourceslice/%d/ffffffff", ahead)}
		r.there(s)
		r.start()
		r.publish(pools(device(1, "a")))
		r.expect("equal content", 0, 0, 0)
		r.publish(pools(device(1, "b")))
		r.expect("other content", 0, 1, 0)
		want := fmt.Sprintf("kubewright-resourceslice/%d/", ahead+1)
		if got := r.slices()[0].Annotations["resourceslice.kubewright.dev/instance"]; len(got) != len(want)+8 || got[:len(want)] != want {
			t.Errorf("written by %s, want %s and an ID", got, want)
		}
		// The other one writes once more, and is older now.
		r.foreign(func() { r.there(s) })
		r.settle(2 * time.Second)
		if got := *r.slices()[0].Spec.Devices[0].Attributes["model"].StringValue; got != "model-b" {
			t.Errorf("the slice has %s", got)
		}
	})
}

// TestAnInstanceIsNewerThanWhatItFindsLater: the slices without a node are listed after the
// pool of the node was published. An earlier process wrote them, on a machine whose clock
// is ahead.
func TestAnInstanceIsNewerThanWhatItFindsLater(t *testing.T) {
	bubble(t, func(r *rig) {
		r.user = admin
		r.consumer.remove()
		s := live("s1", 1, 1, device(1, "a"))
		s.Spec.NodeName, s.Spec.AllNodes = nil, new(true)
		ahead := time.Now().Add(24 * time.Hour).UnixMilli()
		s.Annotations = map[string]string{"resourceslice.kubewright.dev/instance": fmt.Sprintf("kubewright-resourceslice/%d/ffffffff", ahead)}
		r.there(s)
		r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "list", Resource: "resourceslices", Func: func(q apitest.Request) bool {
			return strings.Contains(q.FieldSelector+",", "spec.nodeName=,")
		}}, Latency: 5 * time.Second})
		r.start()
		if err := r.c.SetAll(driver, map[string]resourceslice.Pool{node: pools(device(1, "a"))}); err != nil {
			t.Fatal(err)
		}
		r.settle(3 * time.Second)
		if n := len(r.slices()); n != 2 {
			t.Fatalf("%d slices before those without a node are known, want 2", n)
		}
		r.settle(7 * time.Second)
		if all := r.slices(); len(all) != 1 || all[0].Spec.NodeName == nil {
			t.Errorf("slices %v", all)
		}
	})
}

// named makes a pool of one device for each name.
func named(v string, names ...string) map[string]resourceslice.Pool {
	all := map[string]resourceslice.Pool{}
	for _, name := range names {
		all[name] = pools(device(1, v))
	}
	return all
}

// TestASliceOfAnotherOwnerOrdersNoSiblings: the clock of another node is ahead. Only the
// older instance has seen the slice that the program on that node published for the cluster.
func TestASliceOfAnotherOwnerOrdersNoSiblings(t *testing.T) {
	bubble(t, func(older *rig) {
		older.user = admin
		older.consumer.tolerate(true)
		theirs := live("s1", 1, 1, device(1, "theirs"))
		theirs.Spec.Pool.Name, theirs.Spec.NodeName, theirs.Spec.AllNodes = "theirs", nil, new(true)
		theirs.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n2", UID: "n2"}}
		theirs.Annotations = map[string]string{"resourceslice.kubewright.dev/instance": fmt.Sprintf("kubewright-resourceslice/%d/ffffffff", time.Now().Add(24*time.Hour).UnixMilli())}
		older.s.Put(theirs)
		older.start()
		older.setAll("a")
		older.settle(time.Minute)
		apitest.Remove[sliceType](older.s, "", theirs.Name)
		newer := &rig{T: older.T, s: older.s, consumer: older.consumer, user: admin}
		newer.start()
		newer.settle(time.Second)
		older.setAll("a", "x")
		newer.setAll("b", "x")
		older.settle(10 * time.Second)
		if got, want := older.offers(), "x-b"; got != want {
			t.Errorf("there is %q, want %q", got, want)
		}
		newer.halt()
	})
}

// setAll makes pools of one device, and no others, the desired ones.
func (r *rig) setAll(v string, names ...string) {
	r.Helper()
	if err := r.c.SetAll(driver, named(v, names...)); err != nil {
		r.Fatal(err)
	}
}

// setEach makes pools of one device the desired ones.
func (r *rig) setEach(v string, names ...string) {
	r.Helper()
	for name, p := range named(v, names...) {
		if err := r.c.Set(resourceslice.PoolID{Driver: driver, Name: name}, p); err != nil {
			r.Fatal(err)
		}
	}
}

func (r *rig) remove(name string) {
	r.Helper()
	id := resourceslice.PoolID{Driver: driver, Name: name}
	if err := r.c.Remove(id); err != nil {
		r.Fatal(err)
	}
	if err := r.c.Wait(r.Context(), id); err != nil {
		r.Errorf("Wait for the removal of %s: %v", name, err)
	}
}

// offers returns the pools and the models of their devices.
func (r *rig) offers() string {
	all := map[string]bool{}
	for _, s := range r.slices() {
		for _, d := range s.Spec.Devices {
			all[s.Spec.Pool.Name+*d.Attributes["model"].StringValue] = true
		}
	}
	return strings.ReplaceAll(strings.Join(slices.Sorted(maps.Keys(all)), " "), "model", "")
}

// TestVersionsOfAProgramHaveOtherPools: the newer instance has other pools than the older
// one. The older one leaves them all to it for as long as it lives, and then makes them its
// own.
func TestVersionsOfAProgramHaveOtherPools(t *testing.T) {
	both := func(v string, names ...string) func(*rig) {
		return func(r *rig) { r.setAll(v, names...) }
	}
	for name, tc := range map[string]struct {
		older, newer func(*rig)
		late         func(older *rig) // five seconds later
		want, after  string           // after the older one has ended; after the newer one has
	}{
		"it adds a pool":      {both("a", "x"), both("b", "x", "y"), nil, "x-b y-b", "x-a"},
		"it renames the pool": {both("a", "x"), both("b", "y"), nil, "y-b", "x-a"},
		"it has one less":     {both("a", "x", "y"), both("b", "x"), nil, "x-b", "x-a y-a"},
		"it removes the pool": {
			func(r *rig) { r.setEach("a", "x") },
			func(r *rig) { r.setEach("b", "y"); r.remove("x") },
			nil, "y-b", "x-a y-b",
		},
		"both find a device": {
			func(r *rig) { r.setEach("a", "x") },
			func(r *rig) { r.setEach("b", "x", "y") },
			func(r *rig) { r.setEach("a", "y") },
			"x-b y-b", "x-a y-a",
		},
		"it publishes a pool and removes it": {
			func(r *rig) { r.setEach("a", "x") },
			func(r *rig) { r.setEach("b", "x", "y"); r.settle(2 * time.Second); r.remove("x") },
			nil, "y-b", "x-a y-b",
		},
		"the older one removes a pool": {
			func(r *rig) { r.setEach("a", "x") },
			func(r *rig) { r.setEach("b", "x") },
			func(r *rig) { r.remove("x") },
			"x-b", "",
		},
	} {
		for _, ended := range []string{"older", "newer"} {
			t.Run(name+", then the "+ended+" one ends", func(t *testing.T) {
				bubble(t, func(older *rig) {
					older.consumer.remove()
					// The clock of the machine is behind.
					s := live("s1", 1, 1, device(1, "before"))
					s.Spec.Pool.Name = "x"
					s.Annotations = map[string]string{"resourceslice.kubewright.dev/instance": fmt.Sprintf("kubewright-resourceslice/%d/ffffffff", time.Now().Add(24*time.Hour).UnixMilli())}
					older.there(s)
					older.start()
					tc.older(older)
					older.settle(time.Minute)
					newer := &rig{T: older.T, s: older.s, consumer: older.consumer, user: admin}
					newer.start()
					newer.settle(time.Second)
					tc.newer(newer)
					newer.settle(5 * time.Second)
					if tc.late != nil {
						tc.late(older)
					}
					for i := range 1800 {
						older.settle(100 * time.Millisecond)
						if got := older.offers(); got != tc.want {
							t.Fatalf("there is %q after %v, want %q", got, time.Duration(i)*100*time.Millisecond, tc.want)
						}
					}
					last, want, within := newer, tc.want, time.Duration(0)
					if ended == "newer" {
						newer.halt()
						last, want, within = older, tc.after, 5*time.Minute
					} else {
						older.halt()
					}
					last.settle(within)
					for range 600 {
						last.settle(time.Second)
						if got := last.offers(); got != want {
							t.Fatalf("there is %q after the other instance has ended, want %q", got, want)
						}
					}
					last.s.ResetJournal()
					last.settle(time.Hour)
					last.expect("an hour later", 0, 0, 0)
					if errs := append(older.reported(), newer.reported()...); len(errs) > 0 {
						t.Errorf("reported %v", errs)
					}
					if last != older {
						last.halt()
					}
				})
			})
		}
	}
}

// TestAPoolThatTheNewerInstanceRemovesStaysRemoved: it publishes nothing else that would
// tell the older one that it is there. The older one creates the pool again and again.
func TestAPoolThatTheNewerInstanceRemovesStaysRemoved(t *testing.T) {
	ofCluster := pools(device(1, "a"))
	ofCluster.Nodes.AllNodes = true
	for name, tc := range map[string]struct {
		p      resourceslice.Pool
		config func(*resourceslice.Config)
	}{
		"of a node":                    {pools(device(1, "a")), func(*resourceslice.Config) {}},
		"of the cluster":               {ofCluster, func(cfg *resourceslice.Config) { cfg.NodeName, cfg.Owner = "", nil }},
		"of the cluster, from a node":  {ofCluster, func(*resourceslice.Config) {}},
		"of the cluster, by one watch": {ofCluster, func(cfg *resourceslice.Config) { cfg.NodeName, cfg.Owner, cfg.Driver = "", nil, driver }},
	} {
		for _, together := range []time.Duration{0, 1500 * time.Millisecond, 10 * time.Minute, time.Hour} {
			t.Run(name+" "+together.String(), func(t *testing.T) {
				bubble(t, func(older *rig) {
					older.consumer.remove()
					older.user = admin
					older.start(tc.config)
					x := resourceslice.PoolID{Driver: driver, Name: "x"}
					if err := older.c.Set(x, tc.p); err != nil {
						t.Fatal(err)
					}
					older.settle(time.Minute)
					newer := &rig{T: older.T, s: older.s, consumer: older.consumer, user: admin}
					newer.start(tc.config)
					newer.settle(time.Second)
					if err := newer.c.Set(x, tc.p); err != nil { // a node removes no other pool of the cluster
						t.Fatal(err)
					}
					newer.settle(2 * time.Second)
					newer.remove("x")
					newer.settle(together)
					older.halt()
					newer.settle(6 * time.Minute)
					if got := newer.offers(); got != "" {
						t.Errorf("there is %q after the older instance has ended", got)
					}
					if s, ok := newer.c.Status(x); ok {
						t.Errorf("status %+v", s)
					}
					for _, err := range append(older.reported(), newer.reported()...) {
						if _, ok := errors.AsType[*resourceslice.ContendedError](err); !ok {
							t.Errorf("reported %v", err)
						}
					}
					newer.settle(11 * time.Minute)
					if err := newer.c.Wait(newer.Context(), x); !errors.Is(err, resourceslice.ErrUnknownPool) {
						t.Errorf("Wait for a pool that was removed long ago: %v", err)
					}
					newer.halt()
				})
			})
		}
	}
}

// TestClusterSlicesOfASilentInstanceAreRemoved: the older instance, which publishes devices
// of its node, does not watch them.
func TestClusterSlicesOfASilentInstanceAreRemoved(t *testing.T) {
	bubble(t, func(older *rig) {
		older.user = admin
		older.consumer.remove()
		older.consumer.tolerate(true)
		older.start()
		older.setAll("a", "x", "y")
		older.settle(time.Minute)
		newer := &rig{T: older.T, s: older.s, consumer: older.consumer, user: admin}
		newer.start()
		newer.settle(time.Second)
		newer.setAll("b", "x", "y")
		newer.settle(time.Second)
		all := named("c", "x", "y")
		x := all["x"]
		x.Nodes.AllNodes = true
		all["x"] = x
		if err := newer.c.SetAll(driver, all); err != nil {
			t.Fatal(err)
		}
		newer.settle(5 * time.Minute)
		if got, want := older.offers(), "x-c y-c"; got != want {
			t.Errorf("there is %q, want %q", got, want)
		}
		newer.halt()
		older.settle(20 * time.Minute)
		if got, want := older.offers(), "x-a y-a"; got != want {
			t.Errorf("there is %q after the newer instance has ended, want %q", got, want)
		}
		older.s.ResetJournal()
		older.settle(time.Hour)
		if n := len(older.s.Requests(apitest.Match{Verb: "list", Resource: "resourceslices"})); n > 0 {
			t.Errorf("%d lists in an hour", n)
		}
		older.halt()
	})
}

// TestPoolsThatTheNewerInstanceRemovesTogetherStayRemoved: it has another pool, by which the
// older one asks whether it lives, for each of them.
func TestPoolsThatTheNewerInstanceRemovesTogetherStayRemoved(t *testing.T) {
	for _, between := range []time.Duration{0, 10 * time.Millisecond, 2 * time.Second} {
		t.Run(between.String(), func(t *testing.T) {
			bubble(t, func(older *rig) {
				older.consumer.remove()
				older.start()
				older.setEach("a", "stays", "x", "y", "z")
				older.settle(time.Minute)
				newer := &rig{T: older.T, s: older.s, consumer: older.consumer, user: admin}
				newer.start()
				newer.settle(time.Second)
				newer.setEach("b", "stays", "x", "y", "z")
				newer.settle(2 * time.Second)
				for _, name := range []string{"x", "y", "z"} {
					newer.remove(name)
					newer.settle(between)
				}
				for i := range 6000 {
					newer.settle(100 * time.Millisecond)
					if got, want := newer.offers(), "stays-b"; got != want {
						t.Fatalf("there is %q after %v, want %q", got, time.Duration(i)*100*time.Millisecond, want)
					}
				}
				newer.halt()
				older.settle(12 * time.Minute)
				if got, want := older.offers(), "stays-a x-a y-a z-a"; got != want {
					t.Errorf("there is %q after the newer instance has ended, want %q", got, want)
				}
			})
		})
	}
}

// TestAQuestionOfADeadInstanceIsAnsweredOnce: the process that asked is gone.
func TestAQuestionOfADeadInstanceIsAnsweredOnce(t *testing.T) {
	bubble(t, func(r *rig) {
		s := live("s1", 1, 1, device(1, "a"))
		s.Annotations = map[string]string{"resourceslice.kubewright.dev/instance": "kubewright-resourceslice/5/ffffffff?"}
		other := live("s2", 1, 1, device(1, "a"))
		other.Spec.Pool.Name, other.Annotations = "theirs", map[string]string{"resourceslice.kubewright.dev/instance": "what?"}
		r.there(s, other)
		r.start()
		r.publish(pools(device(1, "a")))
		r.expect("an answer", 0, 1, 0)
		if err := r.c.Set(resourceslice.PoolID{Driver: driver, Name: "theirs"}, pools(device(1, "a"))); err != nil {
			t.Fatal(err)
		}
		r.settle(time.Hour)
		r.expect("an annotation without meaning", 0, 0, 0)
	})
}
