// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/kubewright/kubewright/apitest"
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

// TestTheOlderInstanceTakesOverFromASilentOne: the update is rolled back.
func TestTheOlderInstanceTakesOverFromASilentOne(t *testing.T) {
	for name, tc := range map[string]struct {
		happens func(older *rig)
		within  time.Duration
	}{
		"nothing happens":    {func(*rig) {}, 80 * time.Second},
		"a slice is deleted": {func(r *rig) { apitest.Delete[sliceType](r.s, "", r.slices()[0].Name) }, 17 * time.Second},
		"all are deleted": {func(r *rig) {
			for _, s := range r.slices() {
				apitest.Delete[sliceType](r.s, "", s.Name)
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
			apitest.Delete[sliceType](older.s, "", older.slices()[1].Name)
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
