// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// renewedSince makes acquireTime older than renewTime.
func renewedSince(l *coordinationv1.Lease) {
	l.Spec.AcquireTime = ptr.To(metav1.NewMicroTime(l.Spec.RenewTime.Add(-time.Hour)))
}

// The second state is read 10 s after the first, when other states may have been
// missed.
func TestALeaseThatWasVacatedUnseenIsLeftAloneForItsDuration(t *testing.T) {
	const s = time.Second
	emptied := leaseOf("", 2, renewedSince)
	for name, tc := range map[string]struct {
		before, after *coordinationv1.Lease
		from          source
		want          time.Duration
	}{
		"emptied":                        {leaseOf("x", 1), emptied, afterGap, 25 * s},
		"emptied, the watch saw all":     {leaseOf("x", 1), emptied, inOrder, 15 * s},
		"emptied, after our own term":    {leaseOf("me", 1, marked), emptied, afterGap, 25 * s},
		"emptied, with a long duration":  {leaseOf("x", 1), leaseOf("", 2, renewedSince, func(l *coordinationv1.Lease) { *l.Spec.LeaseDurationSeconds = 60 }), afterGap, 70 * s},
		"emptied, with a short duration": {leaseOf("x", 1), leaseOf("", 2, renewedSince, oneSecond), afterGap, 25 * s},
		"deleted":                        {leaseOf("x", 1), nil, afterGap, 25 * s},
		"deleted, of a minute":           {leaseOf("x", 1, minute), nil, afterGap, 70 * s},
		"released":                       {leaseOf("x", 1), leaseOf("", 2, released), afterGap, 10 * s},
		"released, after our own term":   {leaseOf("me", 1, marked), leaseOf("", 2, released), afterGap, 10 * s},
		"created and released":           {nil, leaseOf("", 2, released), afterGap, 10 * s},
		"made ours":                      {leaseOf("x", 1), leaseOf("me", 2), afterGap, 25 * s},
		"made ours, was released":        {leaseOf("", 1, released), leaseOf("me", 2), afterGap, 25 * s},
		"made ours again":                {leaseOf("me", 1, marked), leaseOf("me", 2), afterGap, 25 * s},
		"made ours again, seen":          {leaseOf("me", 1, marked), leaseOf("me", 2), inOrder, 25 * s},
		"renewed by a twin":              {leaseOf("me", 1, marked), leaseOf("me", 2, renewedSince), inOrder, 25 * s},
		"handed to us":                   {leaseOf("x", 1), leaseOf("me", 2, handedBy("x")), afterGap, 0},
		"restored, released":             {leaseOf("x", 5), leaseOf("", 2, released), unrelated, 25 * s},
		"restored, as it was":            {leaseOf("", 2, released), leaseOf("", 2, released), unrelated, 25 * s},
		"absent, absent after a poll":    {nil, nil, afterGap, 0},
		"absent, absent after a claim":   {nil, nil, unrelated, 25 * s},
		"restored, ours":                 {leaseOf("x", 5), leaseOf("me", 2), unrelated, 25 * s},
	} {
		seen := sighting{me: "me", def: 15 * s, exclusive: true}
		seen.see(0, tc.before, inOrder)
		seen.see(10*s, tc.after, tc.from)
		got := seen.freeAt()
		if spec.HolderOf(seen.lease) == "me" {
			got = seen.base
		}
		if got != tc.want {
			t.Errorf("%s: free at %v, want %v", name, got, tc.want)
		}
	}
	again := sighting{me: "me", def: 15 * s, exclusive: true, assignable: true}
	again.see(0, leaseOf("me", 1, marked), inOrder)
	again.see(10*s, leaseOf("me", 2), inOrder)
	if again.base != 0 {
		t.Errorf("assigned again by a coordinator: free at %v, want at once", again.base)
	}
	own := sighting{me: "me", def: 15 * s, written: []metav1.MicroTime{*leaseOf("me", 2).Spec.RenewTime}}
	own.see(0, leaseOf("x", 1), inOrder)
	own.see(20*s, leaseOf("me", 2), afterGap)
	if own.base != 15*s {
		t.Errorf("our own unanswered claim: free at %v, want the end of the lease before it", own.base)
	}
}

func minute(l *coordinationv1.Lease) { *l.Spec.LeaseDurationSeconds = 60 }

// The holder of a minute may not have noticed that another client shortened it, and
// renewed before the deletion, which a gap hides.
func TestAShortenedDurationIsNotForgotten(t *testing.T) {
	const s = time.Second
	seen := sighting{me: "me", def: 15 * s}
	seen.see(0, leaseOf("x", 1, minute), inOrder)
	seen.see(1*s, leaseOf("x", 1, shorter), inOrder)
	seen.see(2*s, leaseOf("x", 1, shorter, released), inOrder)
	if got := seen.freeAt(); got != 62*s {
		t.Errorf("free at %v after it was shortened twice", got)
	}
	seen.see(10*s, nil, afterGap)
	if got := seen.freeAt(); got != 70*s {
		t.Errorf("free at %v after the deletion", got)
	}
	seen.see(80*s, leaseOf("y", 4), inOrder)
	seen.see(90*s, nil, afterGap)
	if got := seen.freeAt(); got != 105*s {
		t.Errorf("free at %v after the next term, which had the usual duration", got)
	}
}

func oneSecond(l *coordinationv1.Lease) { *l.Spec.LeaseDurationSeconds = 1 }

func TestAnEmptiedLeaseIsNoReleaseForANewcomer(t *testing.T) {
	seen := sighting{me: "me", def: 15 * time.Second}
	seen.see(time.Second, leaseOf("", 1, oneSecond, renewedSince), afterGap)
	if got := seen.freeAt(); got != 16*time.Second {
		t.Errorf("free at %v, want after a lease of ours", got)
	}
}

// b may not watch, so it misses the last renewals before each edit.
func TestPollersWaitOutALeaderThatWasEditedAway(t *testing.T) {
	for name, edit := range map[string]func(b *replica, l *coordinationv1.Lease){
		"emptied":   func(_ *replica, l *coordinationv1.Lease) { *l.Spec.HolderIdentity = "" },
		"made ours": func(b *replica, l *coordinationv1.Lease) { *l.Spec.HolderIdentity = b.Identity() },
	} {
		for after := time.Duration(0); after < 3*time.Second; after += 300 * time.Millisecond {
			inRig(t, func(r *rig) {
				a := r.start("a", func(cfg *Config) { cfg.Lead = r.office.lead("a", 2900*time.Millisecond) })
				r.sleep(time.Second)
				r.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "watch", User: "b"}, Status: statuserr.Forbidden("leases", "agent", "no")})
				b := r.start("b")
				r.sleep(time.Minute + after)
				r.expectLeader(a)
				a.isolate()
				r.edit(func(l *coordinationv1.Lease) { edit(b, l) })
				r.sleep(time.Minute)
				if faults := r.office.faults(); len(faults) > 0 {
					t.Errorf("%s after %v: %q", name, after, faults)
				}
				r.expectLeader(b)
			})
		}
	}
}

// b reads that there is no Lease, and its claim does not arrive. The Lease that a creates
// and leads with is deleted while neither of them can see that.
func TestALeaseThatWasCreatedAndDeletedUnseenIsWaitedFor(t *testing.T) {
	inRig(t, func(r *rig) {
		cut := r.server.Inject(apitest.Fault{Match: apitest.Match{User: "b", Verb: "create,watch"}, Hang: true})
		b := r.start("b")
		r.sleep(100 * time.Millisecond)
		heal := b.isolate()
		a := r.start("a", func(cfg *Config) { cfg.Lead = r.office.lead("a", 2900*time.Millisecond) })
		r.sleep(time.Minute)
		r.expectLeader(a)
		a.isolate()
		apitest.Delete[*coordinationv1.Lease](r.server, theLease.Namespace, theLease.Name)
		cut()
		heal()
		r.sleep(time.Minute) // and the office has seen no two
		r.expectLeader(b)
	})
}

// There is no Lease before a claim and after it. If the claim may have met another
// candidate's, that one may lead.
func TestAnAbsentLeaseIsWaitedForAfterAFailedClaim(t *testing.T) {
	for name, err := range map[string]error{
		"no answer":                    errServer,
		"another candidate was faster": statuserr.New(http.StatusConflict, metav1.StatusReasonAlreadyExists, "exists"),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.expect(0, OpRead)
			b.answer(OpRead, nil, errNotFound)
			b.expect(0, OpClaim)
			b.answer(OpClaim, nil, err)
			b.nothingUntil(b.retryAt, OpRead)
			b.answer(OpRead, nil, errNotFound)
			b.nothingUntil(b.now+15*time.Second, OpClaim)
		})
	}
}

// The claims can't have met another candidate's. A candidate that polls, and waited after
// each read, would never claim.
func TestAnAbsentLeaseIsClaimedBetweenPolls(t *testing.T) {
	for name, err := range map[string]error{"forbidden": statuserr.Forbidden("leases", "agent", "no"), "no namespace": errNotFound} {
		b := newBench(t)
		b.expect(0, OpRead)
		b.lost(0, false)
		claims := 0
		b.answer(OpRead, nil, errNotFound)
		for b.now < 30*time.Second {
			switch s := b.next(b.instant()); s.op {
			case "":
				b.now = s.wake
			case OpRead:
				b.answer(OpRead, nil, errNotFound)
			default:
				claims++
				b.answer(s.op, nil, err)
			}
		}
		if claims < 6 {
			t.Errorf("%s: %d claims in 30 s", name, claims)
		}
	}
}

// Every other read and the first four claims of a Lease that does not exist fail.
func TestAnAbsentLeaseIsClaimedAfterFailures(t *testing.T) {
	for _, native := range []bool{false, true} {
		inRig(t, func(r *rig) {
			r.native = native
			reads := 0
			r.server.Inject(apitest.Fault{Status: statuserr.Unavailable(0), Match: apitest.Match{Verb: "get", Resource: "leases", Func: func(apitest.Request) bool {
				reads++
				return reads%2 == 0
			}}})
			r.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "create", Resource: "leases"}, Times: 4, Err: apitest.ErrConnReset})
			a := r.start("a")
			r.awaitLeader(3 * time.Minute)
			r.expectLeader(a)
		})
	}
}

// The watch has shown that no other candidate leads.
func TestALeaderWhoseLeaseIsDeletedClaimsItAtOnce(t *testing.T) {
	b := newBench(t)
	b.lead()
	b.see(nil)
	b.finishWork(0)
	b.expect(0, OpRead)
	b.answer(OpRead, nil, errNotFound)
	b.expect(0, OpClaim)
}

func TestALeaderThatSeesTheRenewalOfATwinEndsItsTerm(t *testing.T) {
	b := newBench(t)
	b.lead()
	b.told = nil
	l := b.lease.DeepCopy()
	l.ResourceVersion, l.Annotations = "11", map[string]string{"edited": "by hand"}
	b.see(l)
	if b.phase != leading {
		t.Fatalf("%v after an annotation was edited", b.phase)
	}
	l = l.DeepCopy()
	l.ResourceVersion, l.Spec.RenewTime = "12", ptr.To(metav1.NewMicroTime(l.Spec.RenewTime.Add(time.Millisecond)))
	b.see(l)
	end, ok := effect[workCancelled](b)
	if b.phase != ended || !ok || !errors.Is(end.cause, ErrLost) {
		t.Errorf("%v, %v", b.phase, end.cause)
	}
}

// Both processes have the same identity, as clones of a virtual machine do. The second
// one takes the first one's lease, except if a renewal comes between its read and its
// claim. It then knows of its twin, and waits.
func TestOneOfTwoTwinsLeads(t *testing.T) {
	for name, tc := range map[string]struct {
		claim time.Duration // that the claim of the second takes to arrive
		want  string
		most  int // times that two led
	}{"at once": {0, "b", 1}, "after a renewal": {4 * time.Second, "a", 0}} {
		inRig(t, func(r *rig) {
			exclusive := func(cfg *Config) { cfg.Self.Identity, cfg.ExclusiveIdentity = "twin", true }
			r.office.doomed = tc.most > 0 // while a learns that b has claimed its lease
			r.start("a", exclusive)
			r.sleep(time.Minute)
			// The next renewal is at least two seconds away.
			renewals := len(r.server.Requests(apitest.Match{User: "a", Verb: "update"}))
			for len(r.server.Requests(apitest.Match{User: "a", Verb: "update"})) == renewals {
				r.sleep(10 * time.Millisecond)
			}
			r.server.Inject(apitest.Fault{Match: apitest.Match{User: "b", Verb: "update"}, Times: 1, Latency: tc.claim})
			r.start("b", exclusive)
			r.sleep(time.Minute)
			before := len(r.office.faults())
			r.sleep(time.Hour)
			if n := len(r.office.faults()) - before; before > tc.most || n > 0 {
				t.Errorf("%s: two leaders %d times, and %d times in an hour", name, before, n)
			}
			if got := r.office.current(); got != tc.want {
				t.Errorf("%s: %q leads, want %q", name, got, tc.want)
			}
		})
	}
}

func TestNoRecordBeforeTheLeaseWasRead(t *testing.T) {
	inNativeRig(t, func(r *rig) {
		b := r.new("b")
		answer := r.server.Inject(apitest.Fault{Match: apitest.Match{User: "b", Resource: "leases"}, Hang: true})
		b.start()
		r.sleep(2 * time.Second)
		if b.record() != nil {
			t.Error("a LeaseCandidate exists although the Lease was not read")
		}
		answer()
		r.sleep(30 * time.Second)
		if b.record() == nil {
			t.Error("no LeaseCandidate although the Lease was read")
		}
	})
}

func TestWorkThatCallsGoexitReleasesTheLease(t *testing.T) {
	inRig(t, func(r *rig) {
		a := r.start("a", func(cfg *Config) {
			cfg.Lead = func(context.Context, Term) error { runtime.Goexit(); return nil }
		})
		r.sleep(time.Second)
		<-a.done
		if a.err == nil || spec.HolderOf(r.lease()) != "" {
			t.Errorf("Run = %v, holder %q", a.err, spec.HolderOf(r.lease()))
		}
	})
}

func TestDeadlineIsZeroWhileTheTermIsNotValid(t *testing.T) {
	step := time.Duration(0)
	c := newClock()
	c.step = func() time.Duration { return step }
	now := c.now()
	term := Term{&term{sent: now, deadline: now.mono + time.Hour}}
	term.t.start(c, func() error { return nil }, func(error) {})
	defer term.t.end(nil)
	if !term.Valid() || term.Deadline().IsZero() {
		t.Fatal("a term that has just begun is not valid")
	}
	step = time.Minute // a suspension
	if term.Valid() || !term.Deadline().IsZero() {
		t.Errorf("valid %v, deadline %v", term.Valid(), term.Deadline())
	}
}

func TestAServerThatRefusesRecordsIsReportedOnceAtMost(t *testing.T) {
	for name, verbs := range map[string]string{"updates": "update", "all writes": "create,update"} {
		inRig(t, func(r *rig) {
			r.put("x")
			r.server.Inject(apitest.Fault{Match: apitest.Match{User: "b", Verb: verbs}, Status: statuserr.New(400, metav1.StatusReasonBadRequest, "no")})
			r.server.Inject(apitest.Fault{Match: apitest.Match{User: "b", Verb: "watch"}, Status: statuserr.Forbidden("leases", "agent", "no")})
			b := r.new("b")
			logger := ktesting.NewLogger(r.T, ktesting.NewConfig(ktesting.BufferLogs(true)))
			ctx, cancel := context.WithCancel(klog.NewContext(r.Context(), logger))
			done := make(chan error, 1)
			go func() { done <- b.Run(ctx) }()
			for range 60 {
				r.sleep(10 * time.Second)
				r.edit(func(l *coordinationv1.Lease) { l.Spec.RenewTime = ptr.To(metav1.NowMicro()) })
			}
			if n := len(b.errors()); n > 2 { // the watch and the record
				t.Errorf("%s: %d errors in ten minutes", name, n)
			}
			if n := len(r.server.Requests(apitest.Match{User: "b", Verb: verbs})); n > 40 {
				t.Errorf("%s: %d writes in ten minutes", name, n)
			}
			cancel()
			<-done
		})
	}
}
