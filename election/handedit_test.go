// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"math"
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
			r.sleep(10 * time.Minute)
			if n := len(r.office.faults()) - before; before > tc.most || n > 0 {
				t.Errorf("%s: two leaders %d times, and %d times in ten minutes", name, before, n)
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
	term := Term{&term{clock: c, sent: now, deadline: now.Mono + time.Hour}}
	term.t.start(func() error { return nil }, func(error) {}, func(error) {})
	defer term.t.finish()
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

// Another client writes a duration in which the leader does not believe. The leader dies
// before or after it has written its own again.
func TestADurationThatAnotherClientWritesDelaysNoFailover(t *testing.T) {
	for name, after := range map[string]time.Duration{"before its next renewal": 0, "after it": 10 * time.Second} {
		inRig(t, func(r *rig) {
			a := r.start("a")
			r.sleep(time.Second)
			b := r.start("b")
			r.sleep(time.Minute)
			r.expectLeader(a)
			r.edit(func(l *coordinationv1.Lease) { *l.Spec.LeaseDurationSeconds = math.MaxInt32 })
			r.sleep(after)
			a.crash()
			r.sleep(Timing{}.CrashFailover() + time.Second)
			if got := r.office.current(); got != "b" {
				t.Errorf("dead %s: %q leads", name, got)
			}
			b.stop()
		})
	}
}
