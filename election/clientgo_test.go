// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"errors"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// The scenarios of client-go's tests have their names.

func TestTryAcquireOrRenew(t *testing.T) {
	const soon, expiry = 50 * time.Millisecond, 15 * time.Second
	for name, tc := range map[string]struct {
		spec *coordinationv1.LeaseSpec // nil for no object
		want time.Duration             // until we lead
	}{
		"acquire from no object":                                     {nil, 0},
		"acquire from object without annotations":                    {&coordinationv1.LeaseSpec{}, 0},
		"acquire from unled object":                                  {&coordinationv1.LeaseSpec{LeaseTransitions: ptr.To[int32](3)}, 0},
		"acquire from led, unacked object":                           {&coordinationv1.LeaseSpec{HolderIdentity: ptr.To("bing")}, expiry},
		"acquire from led object with the lease duration seconds":    {&coordinationv1.LeaseSpec{HolderIdentity: ptr.To("bing"), LeaseDurationSeconds: ptr.To[int32](7)}, 7 * time.Second},
		"acquire from empty led, acked object":                       {&coordinationv1.LeaseSpec{HolderIdentity: ptr.To(""), LeaseDurationSeconds: ptr.To[int32](15)}, 0},
		"don't acquire from led, acked object before it has expired": {&coordinationv1.LeaseSpec{HolderIdentity: ptr.To("bing"), LeaseDurationSeconds: ptr.To[int32](600)}, 600 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(r *rig) {
				if tc.spec != nil {
					r.put("")
					r.edit(func(l *coordinationv1.Lease) { l.Spec = *tc.spec })
				}
				r.start("baz")
				_, took := r.awaitLeader(time.Hour)
				if took < tc.want || took > tc.want+soon {
					t.Errorf("leads after %v, want %v", took, tc.want)
				}
				if got := *r.lease().Spec.LeaseTransitions; (got > 0) != (tc.spec != nil) {
					t.Errorf("transitions %d", got)
				}
			})
		})
	}
}

// "renew already acquired object": by a process that has its identity for
// itself.
func TestRenewAlreadyAcquiredObject(t *testing.T) {
	inRig(t, func(r *rig) {
		r.put("baz")
		r.edit(marked)
		r.start("baz", func(cfg *Config) { cfg.ExclusiveIdentity = true })
		if _, took := r.awaitLeader(time.Minute); took > 50*time.Millisecond {
			t.Errorf("leads after %v", took)
		}
	})
}

func TestReleaseRetriesOnConflict(t *testing.T) {
	inRig(t, func(r *rig) {
		a := r.start("a")
		r.sleep(time.Minute)
		r.server.Inject(apitest.Fault{
			Match: apitest.Match{Verb: "update"}, Times: 2,
			Status: statuserr.New(409, "Conflict", "changed meanwhile"),
		})
		a.stop()
		if spec.HolderOf(r.lease()) != "" {
			t.Error("not released")
		}
	})
}

func TestReleaseOnCancellation(t *testing.T) {
	for name, fault := range map[string]apitest.Fault{
		"during update": {Match: apitest.Match{Verb: "update"}, Latency: time.Second},
		"during get":    {Match: apitest.Match{Verb: "get"}, Latency: time.Second},
		"lost answer":   {Match: apitest.Match{Verb: "update"}, LoseResponse: true, Times: 1},
		"slow API":      {Latency: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(r *rig) {
				a := r.start("a")
				r.sleep(time.Minute)
				r.server.Inject(fault)
				r.sleep(3500 * time.Millisecond) // somewhere in a renewal
				if err := a.stop(); err != nil {
					t.Error(err)
				}
				if spec.HolderOf(r.lease()) != "" {
					t.Error("not released")
				}
			})
		})
	}
}

// KEP-5366: repeated transitions leak nothing and never run two loops. That
// nothing leaks is checked by every bubble.
func TestRepeatedTransitions(t *testing.T) {
	inRig(t, func(r *rig) {
		a, b := r.start("a"), r.start("b")
		for range 50 {
			r.sleep(time.Minute)
			a.Resign()
			b.Resign()
		}
		r.sleep(time.Minute)
		if n := len(r.office.stays()); n < 51 {
			t.Errorf("%d terms", n)
		}
	})
}

func TestCheckReportsProgressNotTheAPI(t *testing.T) {
	inRig(t, func(r *rig) {
		a := r.start("a")
		r.sleep(time.Minute)
		heal := a.isolate()
		for range 60 {
			r.sleep(time.Minute)
			if err := a.Check(nil); err != nil {
				t.Fatal(err)
			}
		}
		heal()
		r.sleep(10 * time.Second)
		r.expectLeader(a)
		a.hangHook(time.Minute)
		r.sleep(50 * time.Second)
		if a.Check(nil) == nil {
			t.Error("a loop that hangs in a hook is not reported")
		}
	})
}

// Leader returns the argument of the last call of OnNewLeader.
func TestLeader(t *testing.T) {
	inRig(t, func(r *rig) {
		a := r.start("a")
		r.sleep(time.Second)
		b := r.start("b")
		r.sleep(time.Second)
		for _, c := range []*replica{a, b} {
			if who, ok := c.Leader(); who != a.Identity() || !ok {
				t.Errorf("%s: leader %q %v", c.user, who, ok)
			}
		}
		heal := b.isolate()
		r.sleep(20 * time.Second)
		if who, ok := b.Leader(); ok || who != a.Identity() {
			t.Errorf("leader %q %v, by one who has heard nothing for 20 s", who, ok)
		}
		heal()
		a.stop()
		r.sleep(2 * DefaultCallTimeout) // a request may hang from before
		if who, ok := b.Leader(); who != b.Identity() || !ok {
			t.Errorf("leader %q %v", who, ok)
		}
	})
}

// Errors of the work after its context was cancelled are reported, and not fatal.
func TestErrorsOfTheWork(t *testing.T) {
	failure := errors.New("could not clean up")
	inRig(t, func(r *rig) {
		lead := r.office.lead("a", 0)
		a := r.start("a", func(cfg *Config) {
			cfg.Lead = func(ctx context.Context, term Term) error {
				lead(ctx, term)
				return failure
			}
		})
		r.sleep(time.Minute)
		r.edit(func(l *coordinationv1.Lease) { *l.Spec.LeaseTransitions = 9 })
		r.sleep(20 * time.Second)
		r.expectLeader(a)
		if errs := a.errors(); len(errs) != 1 || !errors.Is(errs[0], failure) {
			t.Errorf("told %v", errs)
		}
	})
}
