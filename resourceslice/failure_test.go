// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/resourceslice"
)

// faults are the ways in which a single write can fail.
var faults = map[string]apitest.Fault{
	"404":        {Status: statuserr.New(404, "NotFound", "not served")},
	"409":        {Status: statuserr.New(409, "Conflict", "changed meanwhile")},
	"403":        {Status: statuserr.Forbidden("resourceslices", "s", "no relationship found")},
	"422":        {Status: statuserr.New(422, "Invalid", "refused")},
	"429":        {Status: statuserr.TooManyRequests(1)},
	"500":        {Status: statuserr.InternalError("broken")},
	"hang":       {Hang: true},
	"reset":      {Err: apitest.ErrConnReset},
	"lostAnswer": {LoseResponse: true},
	"hungAnswer": {HangResponse: true},
	"late":       {CommitAfter: 15 * time.Second},
}

// TestEveryWriteCanFail makes each write of a switch to a new generation fail
// in each way, and wants the rest of the writes and few more.
func TestEveryWriteCanFail(t *testing.T) {
	const before, after = 7, 8 // slices; after that many there is a spare one
	for i, name := range slices.Sorted(maps.Keys(faults)) {
		fault := faults[name]
		for k := range after + 1 {
			if testing.Short() && k != i%(after+1) {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", name, k), func(t *testing.T) {
				bubble(t, func(r *rig) {
					r.start()
					r.publish(resourceslice.Pool{Devices: tainted(before * 64)})
					r.expect("first publish", before, 0, 0)
					r.settle(time.Minute)
					f := fault
					f.Match = apitest.Match{Verb: "create,update", Resource: "resourceslices"}
					f.Skip, f.Times = k, 1
					r.s.Inject(f)
					want := tainted(after * 64)
					r.set(resourceslice.Pool{Devices: want})
					r.settle(2 * time.Hour) // refused content is tried again after one hour
					if got := len(r.devices()); got != len(want) {
						t.Errorf("%d devices, want %d", got, len(want))
					}
					if s, _ := r.c.Status(pool); s.Published != s.Revision || s.Err != nil || !s.Complete {
						t.Errorf("status: %+v", s)
					}
					counts := r.writes()
					total, extra := counts["create"]+counts["update"], 1
					switch name {
					case "422":
						// One device is left out or stays as it was, and comes
						// back an hour later: two switches more at most.
						extra = 2 * (after + 2)
					case "404":
						extra = 3 // the version is looked for again
					}
					if total > before+3+extra || counts["delete"] > 0 && name != "422" {
						t.Errorf("writes %v, want %d and %d more at most, and no delete", counts, before+3, extra)
					}
				})
			})
		}
	}
}

// TestLostAnswerCompletesThePool: all writes of a switch to a new generation
// were stored, the answer to the last was lost, and the watch is down. The pool
// is complete then although its publisher doesn't know: the devices of the slice
// that it misses must not be put on others of that generation.
func TestLostAnswerCompletesThePool(t *testing.T) {
	for name, fault := range map[string]apitest.Fault{"lost": faults["lostAnswer"], "hung": faults["hungAnswer"], "late": faults["late"]} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) { lostAnswer(r, fault) })
		})
	}
}

func lostAnswer(r *rig, fault apitest.Fault) {
	all := devices(1000)
	r.concurrency = 1
	r.start()
	r.publish(resourceslice.Pool{Devices: all[300:500]})
	defer r.s.StallWatches(apitest.Match{Resource: "resourceslices", User: r.user.Name})()
	n := len(r.slices())
	r.s.ResetJournal()
	fault.Match, fault.Times = apitest.Match{Verb: "create,update", Resource: "resourceslices"}, 1
	fault.Skip = n + 1 // the last write of those that two slices more take
	defer r.s.Inject(fault)()
	r.set(resourceslice.Pool{Devices: all[200:500]})
	r.settle(time.Second)
	r.set(resourceslice.Pool{Devices: all[100:510]}) // meanwhile
	r.settle(time.Minute)
	r.set(resourceslice.Pool{Devices: all})
	r.settle(10 * time.Minute)
	if got := len(r.devices()); got != len(all) {
		r.Errorf("%d devices, want %d", got, len(all))
	}
	if len(r.reported()) > 0 {
		r.Errorf("reported %v", r.reported())
	}
}

// TestAConflictIsPlannedAgainAtOnce, a few times, and then after a while.
func TestAConflictIsPlannedAgainAtOnce(t *testing.T) {
	for conflicts, want := range map[int]string{1: "b", 3: "b", 4: "a"} {
		bubble(t, func(r *rig) {
			r.start()
			r.publish(pools(device(1, "a")))
			r.settle(time.Minute)
			f := faults["409"]
			f.Match, f.Times = apitest.Match{Verb: "update", Resource: "resourceslices"}, conflicts
			defer r.s.Inject(f)()
			r.set(pools(device(1, "b")))
			r.settle(time.Millisecond)
			if got := *r.devices()["dev-00001"].Attributes["model"].StringValue; got != "model-"+want {
				t.Errorf("%d conflicts: at once the device is %s, want model-%s", conflicts, got, want)
			}
			r.wait()
		})
	}
}

// TestAnAnswerEndsTheLossOfTheOneBefore: the answer to a write was lost, and that to its
// repetition was not. A refusal of a later write to the same slice is a refusal.
func TestAnAnswerEndsTheLossOfTheOneBefore(t *testing.T) {
	for name, fault := range map[string]apitest.Fault{"lost": faults["lostAnswer"], "reset": faults["reset"], "late": faults["late"]} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				r.publish(pools(device(1, "a"), device(2, "a")))
				fault.Match, fault.Times = apitest.Match{Verb: "update", Resource: "resourceslices"}, 1
				defer r.s.Inject(fault)()
				r.publish(pools(device(1, "b"), device(2, "a")))
				r.settle(5 * time.Minute)
				defer r.refuseDevice("dev-00002", "c")()
				r.s.ResetJournal()
				r.set(pools(device(1, "c"), device(2, "c")))
				r.settle(10 * time.Second)
				if got := r.devices()["dev-00001"].Attributes["model"].StringValue; *got != "model-c" {
					t.Errorf("the device that is not refused is %s", *got)
				}
				if s, _ := r.c.Status(pool); !contains(s.Err, "dev-00002") {
					t.Errorf("the status: %+v", s)
				}
				r.expect("one refusal and one write", 0, 2, 0)
			})
		})
	}
}

// TestALateWriteIsAwaitedAfterAnAnswerWithoutCause: a write of a new generation is
// carried out after its deadline. A webhook answers its repetition with a conflict,
// although the slice has not changed, or refuses it: so the first attempt can still
// complete the pool, and other slices must not have the devices of this one.
func TestALateWriteIsAwaitedAfterAnAnswerWithoutCause(t *testing.T) {
	for _, answer := range []string{"409", "422"} {
		for k := range 3 { // two creates and an update
			t.Run(fmt.Sprint(answer, " after ", k, " writes"), func(t *testing.T) {
				bubble(t, func(r *rig) {
					all := devices(300)
					r.concurrency = 1
					r.start()
					r.publish(resourceslice.Pool{Devices: all[:25]})
					writes := apitest.Match{Verb: "create,update", Resource: "resourceslices"}
					late, because, hung := faults["late"], faults[answer], faults["hungAnswer"]
					late.Match, late.Skip, late.Times = writes, k, 1
					defer r.s.Inject(late)()
					r.set(resourceslice.Pool{Devices: all[:200]})
					r.settle(2 * time.Second)
					because.Match, because.Times = writes, 1
					defer r.s.Inject(because)()
					hung.Match, hung.Skip, hung.Times = writes, 1, 1 // so that the late write comes in between
					defer r.s.Inject(hung)()
					// Meanwhile each slice gets room for the devices of another, and the
					// number of devices stays the same, so the generation goes on.
					next := slices.Clone(all[200:267])
					for i := range 200 {
						if i%3 != 0 {
							next = append(next, all[i])
						}
					}
					r.set(resourceslice.Pool{Devices: next})
					r.settle(10 * time.Minute)
					if got := len(r.devices()); got != len(next) {
						r.Errorf("%d devices, want %d", got, len(next))
					}
				})
			})
		}
	}
}

// TestRandomEdits changes a pool at random, again and again, while writes fail
// and others meddle; the consumer sees nothing that it must not see, and in the
// end the pool is as Set.
func TestRandomEdits(t *testing.T) {
	seeds := *editSeeds
	if testing.Short() {
		seeds = min(seeds, 3)
	}
	for i := range seeds {
		seed := *editFrom + uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(r *rig) { randomEdits(r, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

var (
	editSeeds = flag.Int("edits.seeds", 24, "how many random scripts TestRandomEdits goes through")
	editFrom  = flag.Uint64("edits.from", 0, "the first seed of TestRandomEdits")
)

func randomEdits(r *rig, rng *rand.Rand) {
	// In order, so that a seed is a script.
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(faults)), func(name string) bool {
		return name == "404" // ends the watch too, after which the pool is reconciled
	})
	concurrency := 1 + rng.IntN(8)
	lives, life := 0, ""
	start := func() {
		lives++
		life = fmt.Sprint("life-", lives)
		r.concurrency = concurrency
		r.start(func(cfg *resourceslice.Config) {
			cfg.Name = life
			cfg.MinInterval = 50 * time.Millisecond
		})
	}
	start()
	var p resourceslice.Pool
	var undo []func()
	next := 0
	r.Notef("concurrency %d", concurrency)
	for range 60 {
		r.Notef("%s: %d devices", edit(rng, &p, &next), len(p.Devices))
		if err := r.c.Set(pool, p); err != nil {
			r.Fatalf("Set: %v", err)
		}
		if rng.IntN(3) == 0 {
			name := names[rng.IntN(len(names))]
			f := faults[name]
			f.Match = apitest.Match{Verb: "create,update,delete", Resource: "resourceslices"}
			f.Skip, f.Times = rng.IntN(6), 1+rng.IntN(2)
			r.Notef("fault %s after %d writes, times %d", name, f.Skip, f.Times)
			undo = append(undo, r.s.Inject(f))
		}
		time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
		switch rng.IntN(12) {
		case 0:
			r.Notef("crash")
			r.halt()
			r.consumer.died("kubewright-" + life)
			start()
			if err := r.c.Set(pool, p); err != nil {
				r.Fatalf("Set: %v", err)
			}
		case 1:
			r.Notef("watches drop")
			r.s.DropWatches(apitest.Match{})
		case 2:
			r.Notef("the watch expires")
			r.s.ExpireWatches(apitest.Match{Resource: "resourceslices", User: r.user.Name})
		case 3:
			r.Notef("the watch stalls")
			resume := r.s.StallWatches(apitest.Match{Resource: "resourceslices", User: r.user.Name})
			time.AfterFunc(5*time.Second, resume)
		}
	}
	for _, f := range undo {
		f()
	}
	r.Notef("the end")
	r.settle(3 * time.Hour)
	got := r.devices()
	if len(got) != len(p.Devices) {
		r.Errorf("%d devices, want %d", len(got), len(p.Devices))
	}
	for _, d := range p.Devices {
		live, ok := got[d.Name]
		if !ok || *live.Attributes["model"].StringValue != *d.Attributes["model"].StringValue || len(live.Taints) != len(d.Taints) {
			r.Errorf("device %s is %v, want %v", d.Name, live, d)
			break
		}
	}
	if r.Failed() {
		status, _ := r.c.Status(pool)
		r.Errorf("status %+v, reported %v, generations %v", status, r.reported(), r.generations())
	}
	if _, n := has[*resourceslice.ContendedError](r); n > 0 {
		r.Errorf("own writes were taken for somebody else's")
	}
	r.s.ResetJournal()
	r.settle(time.Hour)
	r.expect("an hour later", 0, 0, 0)
}

// edit changes the pool, and says how.
func edit(rng *rand.Rand, p *resourceslice.Pool, next *int) string {
	add := func(n int) {
		for range n {
			d := device(*next, "a")
			*next++
			at := rng.IntN(len(p.Devices) + 1)
			p.Devices = append(p.Devices[:at:at], append([]resourcev1.Device{d}, p.Devices[at:]...)...)
		}
	}
	remove := func(n int) {
		for range min(n, len(p.Devices)) {
			at := rng.IntN(len(p.Devices))
			p.Devices = append(p.Devices[:at:at], p.Devices[at+1:]...)
		}
	}
	change := func(n int) {
		for range min(n, len(p.Devices)) {
			i := rng.IntN(len(p.Devices))
			d := p.Devices[i].DeepCopy()
			d.Attributes["model"] = resourcev1.DeviceAttribute{StringValue: new(fmt.Sprint("m", rng.IntN(1000)))}
			if rng.IntN(4) == 0 {
				d.Taints = []resourcev1.DeviceTaint{{Key: "t", Value: fmt.Sprint(rng.IntN(9)), Effect: resourcev1.DeviceTaintEffectNoSchedule}}
			} else {
				d.Taints = nil
			}
			p.Devices[i] = *d
		}
	}
	switch rng.IntN(8) {
	case 0:
		add(1 + rng.IntN(300))
		return "add many"
	case 1:
		remove(1 + rng.IntN(250))
		return "remove many"
	case 2, 3:
		change(1 + rng.IntN(5))
		return "change some"
	case 4:
		add(1)
		return "add one"
	case 5:
		remove(1)
		return "remove one"
	case 6:
		rng.Shuffle(len(p.Devices), func(i, j int) { p.Devices[i], p.Devices[j] = p.Devices[j], p.Devices[i] })
		return "shuffle"
	default:
		remove(1 + rng.IntN(20))
		add(1 + rng.IntN(20))
		change(1)
		return "replace some"
	}
}
