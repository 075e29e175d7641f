// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// In the steady state a leader sends a PUT every RenewInterval, and each candidate
// one every ten minutes. There are no other requests.
func TestBudget(t *testing.T) {
	inRig(t, func(r *rig) {
		for i := range 5 {
			r.start(fmt.Sprint("c", i))
		}
		r.sleep(time.Minute)
		r.server.ResetJournal()
		hours := 4
		if testing.Short() {
			hours = 1
		}
		r.sleep(time.Duration(hours) * time.Hour)
		count := func(verb string) int { return len(r.server.Requests(apitest.Match{Verb: verb})) }
		renewals := len(r.server.Requests(apitest.Match{Verb: "update", User: r.office.current()}))
		if renewals < hours*1180 || renewals > hours*1235 {
			t.Errorf("%d renewals in %d hours, want 1200 an hour", renewals, hours)
		}
		if n := count("update") - renewals; n < hours*20 || n > hours*28 {
			t.Errorf("%d writes of records in %d hours, want 24 an hour", n, hours)
		}
		if n := count("get"); n > hours*4 {
			t.Errorf("%d GETs", n)
		}
		if n := count("create,delete,list,patch"); n != 0 {
			t.Errorf("%d other requests", n)
		}
	})
}

// A crash costs one write, an exit two, and a start a GET, a watch and a PUT.
func TestRequestsPerEvent(t *testing.T) {
	inRig(t, func(r *rig) {
		a := r.start("a")
		r.sleep(time.Second)
		b := r.start("b")
		r.sleep(time.Minute)
		for verb, want := range map[string]int{"get": 1, "watch": 1, "update": 1, "create": 0} {
			if n := len(r.server.Requests(apitest.Match{User: "b", Verb: verb})); n != want {
				t.Errorf("start: %d %s, want %d", n, verb, want)
			}
		}
		r.server.ResetJournal()
		a.stop()
		r.sleep(30 * time.Millisecond)
		r.expectLeader(b)
		if j := r.server.Requests(apitest.Match{}); len(j) != 2 {
			t.Errorf("exit: %v", j)
		}
	})
}

// 200 candidates that start together: one leads, sixteen have records, and
// there is no herd.
func TestTwoHundredStartTogether(t *testing.T) {
	inRig(t, func(r *rig) {
		for i := range 200 {
			r.start(fmt.Sprint("c", i))
		}
		r.sleep(time.Minute)
		if stays := r.office.stays(); len(stays) != 1 {
			t.Errorf("%d terms", len(stays))
		}
		if n := len(records(r.lease().Annotations)); n != maxRecords {
			t.Errorf("%d records, want %d", n, maxRecords)
		}
		r.server.ResetJournal()
		r.sleep(3 * time.Minute)
		if n := len(r.server.Requests(apitest.Match{Verb: "update"})); n > 66+20 {
			t.Errorf("%d PUTs in three minutes, want 60 renewals and a few records", n)
		}
		// 184 observers, each a GET in 30 s.
		if n := len(r.server.Requests(apitest.Match{Verb: "get"})); n > 184*6*12/10 {
			t.Errorf("%d GETs in three minutes", n)
		}
	})
}

// Observers take over if all candidates with records are gone.
func TestObserversAreTheReserve(t *testing.T) {
	if testing.Short() {
		t.Skip("a fleet of observers, which takes minutes under -race: make unit runs it")
	}
	inRig(t, func(r *rig) {
		var all []*replica
		for i := range 40 {
			all = append(all, r.start(fmt.Sprint("c", i)))
		}
		r.sleep(time.Minute)
		recorded := records(r.lease().Annotations)
		observers := 0
		for _, c := range all {
			if _, ok := recorded[c.Identity()]; ok {
				c.crash()
			} else {
				observers++
			}
		}
		if observers != 24 {
			t.Fatalf("%d observers", observers)
		}
		_, took := r.awaitLeader(3*2*DefaultLeaseDuration + (Timing{}).CrashFailover())
		t.Logf("an observer leads after %v", took)
		r.sleep(recordTTL + time.Minute)
		for id := range records(r.lease().Annotations) {
			if _, dead := recorded[id]; dead {
				t.Errorf("the record of %s, which is dead, is still there", id)
			}
		}
	})
}

// The cost of the observers among 5,000 agents is measured on 200.
func TestFiveThousandObservers(t *testing.T) {
	if testing.Short() {
		t.Skip("a fleet of observers, which takes minutes under -race: make unit runs it")
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, apitest.Options{})
		const agents = 200
		for i := range agents {
			r.start(fmt.Sprint("c", i))
			time.Sleep(20 * time.Millisecond)
		}
		r.sleep(2 * time.Minute)
		r.server.ResetJournal()
		const span = 2 * time.Minute
		r.sleep(span)
		perSecond := float64(len(r.server.Requests(apitest.Match{Verb: "get"}))) / span.Seconds() * 5000 / (agents - maxRecords)
		if perSecond > 190 {
			t.Errorf("%.0f requests a second for 5,000 agents, want about 165", perSecond)
		}
		if len(r.office.stays()) != 1 {
			t.Errorf("terms: %v", r.office.stays())
		}
	})
}

// Work that survives an outage of exactly MaxOutage, whatever it looks like and
// whenever it begins.
func TestMaxOutageCostsNoTerm(t *testing.T) {
	for name, fault := range map[string]apitest.Fault{
		"hang":    {Hang: true},
		"refused": {Err: apitest.ErrConnRefused},
		"503":     {Status: statuserr.Unavailable(0)},
		"429":     {Status: statuserr.TooManyRequests(1)},
		"500":     {Status: statuserr.InternalError("x")},
	} {
		t.Run(name, func(t *testing.T) {
			for i := 0; i < 12; i++ {
				if testing.Short() {
					i += 2
				}
				inRig(t, func(r *rig) {
					a := r.start("a")
					r.sleep(time.Second)
					r.start("b")
					r.sleep(time.Minute + time.Duration(i)*250*time.Millisecond)
					fault.For = (Timing{}).MaxOutage()
					r.server.BreakWatches(apitest.Match{})
					r.server.Inject(fault)
					r.sleep(time.Minute)
					r.expectLeader(a)
					if n := len(r.office.stays()); n != 1 {
						t.Errorf("%d terms", n)
					}
				})
			}
		})
	}
}

// Watches that stall don't cost a term, and are noticed.
func TestStalledWatch(t *testing.T) {
	inRig(t, func(r *rig) {
		a := r.start("a")
		r.sleep(time.Second)
		b := r.start("b")
		r.sleep(time.Minute)
		r.server.StallWatches(apitest.Match{User: "b"}) // and every new one
		r.sleep(time.Hour)
		if n := len(r.office.stays()); n != 1 {
			t.Errorf("%d terms", n)
		}
		a.crash()
		// b believes that a is alive from one look at the Lease to the next.
		r.sleep(2*DefaultLeaseDuration + time.Second)
		r.expectLeader(b)
	})
}

// A candidate without permission to watch polls the Lease.
func TestDegradedPermissions(t *testing.T) {
	inRig(t, func(r *rig) {
		r.config = func(cfg *Config) { cfg.Strategy = HighestPriority(nil) }
		r.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "watch"}, Status: statuserr.Forbidden("leases", "agent", "no")})
		a := r.start("a")
		r.sleep(time.Second)
		r.expectLeader(a)
		b := r.start("b", func(cfg *Config) { cfg.Self.Priority = 7 })
		r.sleep(50 * time.Second)
		r.expectLeader(b)
		b.crash()
		if _, took := r.awaitLeader(time.Minute); took > (Timing{}).CrashFailover()+DefaultRenewInterval {
			t.Errorf("it took %v", took)
		}
	})
}

// A record that can't be read is no candidate, and makes room.
func TestGarbageOnTheLease(t *testing.T) {
	inRig(t, func(r *rig) {
		a := r.start("a")
		r.sleep(time.Second)
		r.edit(func(l *coordinationv1.Lease) {
			for i := range 40 {
				l.Annotations[fmt.Sprintf("%s%016x", recordPrefix, i)] = `{"id":`
			}
			l.Annotations[recordPrefix+"2d711642b726b044"] = `{"id":"y"}`
			l.Annotations["election.kubewright.dev/offer"] = "what"
			l.Annotations["example.com/mine"] = "stays"
		})
		b := r.start("b")
		r.sleep(time.Minute)
		r.expectLeader(a)
		l := r.lease()
		if n := len(l.Annotations); n != 4 || l.Annotations["example.com/mine"] != "stays" {
			t.Errorf("annotations %v", l.Annotations)
		}
		if _, ok := records(l.Annotations)[b.Identity()]; !ok {
			t.Error("b has no record")
		}
	})
}
