// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election/internal/spec"
)

// The bugs of client-go's elector.

// A leader that no longer reaches the API server, and must end at some
// moment of that, has stopped before any of nine others begins.
func TestALeaderWithoutAPIServerStopsBeforeAnotherBegins(t *testing.T) {
	for after := time.Duration(0); after < 16*time.Second; after += 1500 * time.Millisecond {
		inRig(t, func(r *rig) {
			a := r.start("a", func(cfg *Config) { cfg.Lead = r.office.lead("a", cfg.Timing.WithDefaults().Drain-100*time.Millisecond) })
			r.sleep(time.Second)
			for i := range 9 {
				r.start(fmt.Sprint("s", i))
			}
			r.sleep(time.Minute)
			r.expectLeader(a)
			a.isolate()
			time.Sleep(after)
			a.cancel()
			r.sleep(30 * time.Second)
			if who := r.office.current(); who == "" || who == "a" {
				t.Errorf("%q leads half a minute after the loss of a", who)
			}
		})
	}
}

// With ReleaseOnCancel client-go releases first and stops then.
func TestNothingIsReleasedUnderRunningWork(t *testing.T) {
	inRig(t, func(r *rig) {
		a := r.start("a", func(cfg *Config) { cfg.Lead = r.office.lead("a", 2*time.Second) })
		r.sleep(time.Second)
		b := r.start("b")
		r.sleep(time.Minute)
		go a.stop()
		r.sleep(1900 * time.Millisecond)
		if got := spec.HolderOf(r.lease()); got != a.Identity() {
			t.Errorf("holder is %q while the work of a goes on", got)
		}
		r.sleep(200 * time.Millisecond)
		r.expectLeader(b)
	})
}

// A holder that is overwritten, or a Lease that is deleted, ends the term
// within one delivery of the watch.
func TestLossIsNoticedAtOnce(t *testing.T) {
	for name, lose := range map[string]func(*rig){
		"overwritten": func(r *rig) { r.edit(func(l *coordinationv1.Lease) { *l.Spec.HolderIdentity = "x" }) },
		"emptied":     func(r *rig) { r.edit(func(l *coordinationv1.Lease) { *l.Spec.HolderIdentity = "" }) },
		"same holder, another term": func(r *rig) {
			r.edit(func(l *coordinationv1.Lease) { *l.Spec.LeaseTransitions = 7 })
		},
		"deleted": func(r *rig) { apitest.Remove[*coordinationv1.Lease](r.server, theLease.Namespace, theLease.Name) },
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(r *rig) {
				a := r.start("a")
				r.sleep(time.Minute)
				r.expectLeader(a)
				lose(r)
				r.sleep(6 * time.Millisecond)
				stays := r.office.stays()
				if cause := stays[0].cause; !errors.Is(cause, ErrLost) {
					t.Errorf("cause %v, want ErrLost", cause)
				}
				r.sleep(20 * time.Second)
				r.expectLeader(a) // without a new process
			})
		})
	}
}

// Others wait until the old leader must have stopped, however the lease
// was taken from it.
func TestTheOthersWaitForALeaderThatMayNotKnow(t *testing.T) {
	for name, lose := range map[string]func(r *rig, to string){
		"overwritten": func(r *rig, to string) { r.edit(func(l *coordinationv1.Lease) { *l.Spec.HolderIdentity = to }) },
		"emptied":     func(r *rig, _ string) { r.edit(func(l *coordinationv1.Lease) { *l.Spec.HolderIdentity = "" }) },
		"deleted": func(r *rig, _ string) {
			apitest.Remove[*coordinationv1.Lease](r.server, theLease.Namespace, theLease.Name)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(r *rig) {
				a := r.start("a", func(cfg *Config) { cfg.Lead = r.office.lead("a", 2900*time.Millisecond) })
				r.sleep(time.Second)
				b := r.start("b")
				r.sleep(time.Minute)
				r.expectLeader(a)
				r.server.StallWatches(apitest.Match{User: "a"})
				r.server.Inject(apitest.Fault{Match: apitest.Match{User: "a"}, Hang: true})
				lose(r, b.Identity())
				r.sleep(30 * time.Second)
				r.expectLeader(b) // and the office has seen no two
			})
		})
	}
}

// The API has whole seconds; fractions are rejected and not rounded.
func TestFractionsOfSecondsAreRefused(t *testing.T) {
	err := Timing{LeaseDuration: 1500 * time.Millisecond, RenewDeadline: 1200 * time.Millisecond}.Validate()
	if err == nil || !strings.Contains(err.Error(), "whole seconds") {
		t.Errorf("error %v", err)
	}
}

// Two renewals within a second are two.
func TestEveryRenewalIsSeen(t *testing.T) {
	inRig(t, func(r *rig) {
		frozen := time.Now()
		a := r.new("a")
		a.clock.step = func() time.Duration { return time.Until(frozen) } // a wall clock that stands
		a.start()
		r.sleep(time.Second)
		b := r.start("b")
		r.sleep(time.Hour)
		r.expectLeader(a)
		if told := b.told(); len(told) != 1 {
			t.Errorf("b has told %q", told)
		}
	})
}

// Candidates do not poll, so a crash is answered when the lease ends and not up to
// 2.2 retry periods later.
// TestWritesKeepTheManagersOfFields: a candidate neither keeps managedFields nor sends them,
// and the API server keeps those of another client.
func TestWritesKeepTheManagersOfFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, apitest.Options{ManagedFields: true})
		_, err := r.server.Client(apitest.User{}).CoordinationV1().Leases(theLease.Namespace).Create(t.Context(), &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: theLease.Namespace, Name: theLease.Name, Labels: map[string]string{"team": "a"}},
		}, metav1.CreateOptions{FieldManager: "installer"})
		if err != nil {
			t.Fatal(err)
		}
		r.start("a")
		r.start("b")
		r.sleep(time.Minute) // one has read the Lease, the other has seen it in the watch
		writes := r.server.Requests(apitest.Match{Verb: "update"})
		if len(writes) < 10 {
			t.Fatalf("%d writes", len(writes))
		}
		for _, q := range writes {
			obj, err := q.Object()
			if err != nil {
				t.Fatal(err)
			}
			if fields := obj.(*coordinationv1.Lease).ManagedFields; len(fields) != 0 {
				t.Errorf("PUT with managedFields: %v", fields)
			}
		}
		var managers []string
		for _, entry := range r.lease().ManagedFields {
			managers = append(managers, entry.Manager)
		}
		if slices.Sort(managers); !slices.Equal(managers, []string{"installer", spec.FieldManager}) {
			t.Errorf("the fields are managed by %q", managers)
		}
	})
}

func TestCrashFailoverIsTheLeaseAndNoMore(t *testing.T) {
	inRig(t, func(r *rig) {
		a := r.start("a")
		r.sleep(time.Second)
		r.start("b")
		r.sleep(time.Minute)
		renewed := r.lease().Spec.RenewTime.Time
		a.crash()
		r.awaitLeader(time.Minute)
		if took := time.Since(renewed) - DefaultLeaseDuration; took < 0 || took > 50*time.Millisecond {
			t.Errorf("%v after the end of the lease", took)
		}
	})
}

// Who never led does not stop leading.
func TestNoTermEndsThatDidNotBegin(t *testing.T) {
	inRig(t, func(r *rig) {
		r.start("a")
		r.sleep(time.Second)
		b := r.start("b")
		r.sleep(time.Minute)
		b.stop()
		for _, note := range b.told() {
			if strings.HasPrefix(note, "ended") || strings.HasPrefix(note, "lead ") {
				t.Errorf("b has told %q", b.told())
			}
		}
	})
}

// Every request has a deadline.
func TestNoRequestHangs(t *testing.T) {
	inRig(t, func(r *rig) {
		a, b := r.start("a"), r.start("b")
		r.sleep(time.Minute)
		r.server.Inject(apitest.Fault{Match: apitest.Match{}, Hang: true, For: 10 * time.Minute})
		r.sleep(9 * time.Minute)
		for _, q := range r.server.Requests(apitest.Match{}) {
			if q.Verb != "watch" && q.Duration > DefaultCallTimeout+10*time.Millisecond {
				t.Errorf("%v took %v", q, q.Duration)
			}
		}
		r.sleep(2 * time.Minute)
		if r.office.current() == "" {
			t.Error("nobody leads after the outage", a.told(), b.told())
		}
	})
}

// A machine that was suspended asks before it acts.
func TestASuspendedMachineAsksBeforeItActs(t *testing.T) {
	inRig(t, func(r *rig) {
		terms := make(chan Term, 1)
		a := r.start("a", func(cfg *Config) {
			cfg.Lead = func(ctx context.Context, term Term) error {
				terms <- term
				<-ctx.Done()
				return nil
			}
		})
		term := <-terms
		r.sleep(time.Minute)
		if !term.Valid() {
			t.Fatal("not valid")
		}
		a.setStep(time.Hour) // the wall clock has gone on, the other one has not
		if term.Valid() {
			t.Error("valid right after an hour of suspension")
		}
		r.sleep(1100 * time.Millisecond)
		if !term.Valid() {
			t.Error("not valid although the lease was renewed since")
		}
		heal := a.isolate()
		a.setStep(2 * time.Hour)
		r.sleep(5 * time.Second)
		if term.Valid() {
			t.Error("valid although nobody could say so")
		}
		heal()
		a.stop()
		if term.Valid() || !term.Deadline().IsZero() {
			t.Error("valid after Run")
		}
	})
}

// A write that was sent in time may land in the term of another. Its token
// gives it away.
func TestTokensGrow(t *testing.T) {
	inRig(t, func(r *rig) {
		for i := range 10 {
			c := r.start(fmt.Sprint("c", i))
			r.sleep(20 * time.Second)
			if i == 5 {
				apitest.Remove[*coordinationv1.Lease](r.server, theLease.Namespace, theLease.Name)
				r.sleep(20 * time.Second)
			}
			c.stop()
		}
		stays := r.office.stays() // the office compares the tokens
		if len(stays) != 11 || stays[0].token == 0 {
			t.Errorf("%d terms, want 11: %v", len(stays), stays)
		}
	})
}

// Transitions and acquireTime are kept, one a term.
func TestEveryTermCounts(t *testing.T) {
	inRig(t, func(r *rig) {
		r.config = func(cfg *Config) { cfg.Strategy = HighestPriority(nil) }
		for i := range int32(5) {
			r.start(fmt.Sprint("c", i), func(cfg *Config) { cfg.Self.Priority = i })
			r.sleep(40 * time.Second)
			l := r.lease()
			if *l.Spec.LeaseTransitions != i || time.Since(l.Spec.AcquireTime.Time) > 41*time.Second {
				t.Errorf("in term %d: transitions %d, acquired %v ago", i, *l.Spec.LeaseTransitions, time.Since(l.Spec.AcquireTime.Time))
			}
		}
	})
}

// The work that ignores its context keeps the lease, and Check says so.
func TestWorkThatDoesNotReturnKeepsTheLease(t *testing.T) {
	inRig(t, func(r *rig) {
		a := r.start("a", func(cfg *Config) { cfg.Lead = r.office.lead("a", time.Minute) })
		r.sleep(time.Second)
		b := r.start("b")
		r.sleep(10 * time.Second)
		a.cancel()
		r.sleep(2 * time.Second)
		if err := a.Check(nil); err != nil {
			t.Errorf("Check within Drain: %v", err)
		}
		r.sleep(56 * time.Second)
		if err := a.Check(nil); err == nil || !strings.Contains(err.Error(), "should have returned") {
			t.Errorf("Check = %v", err)
		}
		if spec.HolderOf(r.lease()) != a.Identity() {
			t.Errorf("holder %q", spec.HolderOf(r.lease()))
		}
		r.sleep(3 * time.Second)
		r.expectLeader(b)
	})
}

// A hook that hangs longer than the lease still ends the term in time.
func TestAHookThatHangsCostsTheTermAndNoMore(t *testing.T) {
	inRig(t, func(r *rig) {
		a := r.start("a")
		r.sleep(time.Second)
		b := r.start("b")
		r.sleep(time.Minute)
		a.hangHook(time.Minute)
		r.sleep(25 * time.Second) // the loop may have made its last step just before
		r.expectLeader(b)
		if cause := r.office.stays()[0].cause; !errors.Is(cause, ErrExpired) {
			t.Errorf("cause %v", cause)
		}
		if a.Check(nil) != nil {
			t.Error("Check fails before the loop has hung for long")
		}
		r.sleep(time.Minute)
		r.expectLeader(b)
	})
}

// Work that returns on its own ends Run.
func TestWorkThatReturnsEndsRun(t *testing.T) {
	failure := errors.New("done for")
	for _, want := range []error{nil, failure} {
		inRig(t, func(r *rig) {
			var term Term
			a := r.new("a", func(cfg *Config) {
				cfg.Lead = func(_ context.Context, now Term) error {
					term = now
					time.Sleep(time.Minute)
					return want
				}
			})
			if err := a.Run(r.Context()); !errors.Is(err, want) {
				t.Errorf("Run = %v, want %v", err, want)
			}
			if term.Valid() || a.IsLeader() {
				t.Error("the term goes on without its work")
			}
			if spec.HolderOf(r.lease()) != "" {
				t.Error("not released")
			}
		})
	}
}

// Every request and every wait of an exact deadline: nothing stalls or spins.
func TestExactDeadlinesNeitherStallNorSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // without any latency
		r := newRig(t, apitest.Options{})
		r.put("x")
		a := r.start("a")
		began := time.Now()
		r.awaitLeader(time.Minute)
		if took := time.Since(began); took > 15*time.Second+50*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		r.sleep(time.Minute)
		r.expectLeader(a)
		if n := len(r.server.Requests(apitest.Match{})); n > 40 {
			t.Errorf("%d requests", n)
		}
	})
}
