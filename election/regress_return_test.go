// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// A leader or a record that did not return, or that stayed.

// The API server is restored from a backup: versions go back by 500, and the Lease
// to who held it then.
func TestRestoredBackup(t *testing.T) {
	b := newBench(t)
	current, restored := leaseOf("x", 9, atVersion("1000")), false
	for b.now < time.Minute && b.phase == standby {
		if b.now > 10*time.Second && !restored {
			current, restored = leaseOf("y", 5, atVersion("500")), true
		}
		switch s := b.next(b.instant()); {
		case s.op == OpRead:
			b.answer(OpRead, current, nil)
		case s.op == "":
			b.now = s.wake
		case s.object != nil && s.object.ResourceVersion == current.ResourceVersion:
			version, _ := strconv.Atoi(current.ResourceVersion)
			current = store(s.object, strconv.Itoa(version+1))
			b.answer(s.op, current, nil)
		default:
			b.answer(s.op, nil, errConflict)
		}
		b.now += 10 * time.Millisecond
	}
	if b.phase != leading {
		t.Errorf("%v at %v, holder %q", b.phase, b.now, spec.HolderOf(b.machine.lease))
	}
}

func TestRestoredBackupOfALeaseCandidate(t *testing.T) {
	u := &upkeep{setup: newBench(t).setup, follower: follower{reread: true}}
	u.want = candidacy{self: Peer{BinaryVersion: "1.0.0"}, present: true}
	now := func(d time.Duration) instant { return instant{mono: d, wall: time.Unix(1e9, 0).Add(d)} }
	stored := &coordinationv1beta1.LeaseCandidate{ObjectMeta: metav1.ObjectMeta{Name: "me", ResourceVersion: "1000"}}
	answer := func(at time.Duration, s step[*coordinationv1beta1.LeaseCandidate]) {
		switch {
		case s.op == OpRead:
			u.done(now(at), s.op, stored.DeepCopy(), nil)
		case s.object.ResourceVersion == stored.ResourceVersion:
			stored = s.object.DeepCopy()
			stored.ResourceVersion += "1"
			u.done(now(at), s.op, stored.DeepCopy(), nil)
		default:
			u.done(now(at), s.op, nil, errConflict)
		}
	}
	written := func(from, to time.Duration) (n int) {
		for at := from; at < to; at += time.Second {
			if s := u.next(now(at)); s.op != "" {
				answer(at, s)
				if s.op == opUpdate && u.denials == 0 {
					n++
				}
			}
		}
		return n
	}
	if n := written(0, time.Minute); n != 1 {
		t.Fatalf("written %d times", n)
	}
	stored.ResourceVersion = "500"
	if n := written(time.Minute, 20*time.Minute); n == 0 || !u.watchStale {
		t.Errorf("written %d times after versions went back; the watch is to begin anew: %v", n, u.watchStale)
	}
}

// The watch delivers a deletion after the answer to the write that re-created the
// object.
func TestAnOldDeletionDoesNotHideANewerLeaseCandidate(t *testing.T) {
	u := &upkeep{}
	at := func(version string) *coordinationv1beta1.LeaseCandidate {
		return &coordinationv1beta1.LeaseCandidate{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}}
	}
	u.observe(at("12"), false)
	if u.observe(at("11"), true); u.object == nil {
		t.Error("the newer object is forgotten")
	}
	if u.observe(at("13"), true); u.object != nil {
		t.Error("a deleted object is known")
	}
}

// No leaseTransitions is greater than that, and the API takes none below 0.
func TestTransitionsAtTheirLimit(t *testing.T) {
	inRig(t, func(r *rig) {
		r.put("x")
		r.edit(func(l *coordinationv1.Lease) { l.Spec.LeaseTransitions = ptr.To[int32](math.MaxInt32) })
		a := r.start("a")
		r.sleep(20 * time.Second)
		r.expectLeader(a)
	})
}

// Also a term that was lost before its first renewal.
func TestATermWithoutRenewalCounts(t *testing.T) {
	inRig(t, func(r *rig) {
		a := r.start("a")
		r.sleep(time.Second)
		heal := r.server.Inject(apitest.Fault{Match: apitest.Match{User: "a"}, Status: statuserr.Unavailable(0)})
		r.sleep(11 * time.Second)
		heal()
		r.sleep(10 * time.Second)
		r.expectLeader(a)
		if n := *r.lease().Spec.LeaseTransitions; n != 1 {
			t.Errorf("transitions %d in the second term: %v", n, a.told())
		}
	})
}

// Withdrawals that failed long ago are no reason not to try at the end.
func TestWithdrawalAfterOldFailures(t *testing.T) {
	lastResort := func(c *replica, is bool) {
		if err := c.Update(func(p *Peer) { p.LastResort = is }); err != nil {
			t.Error(err)
		}
	}
	inRig(t, func(r *rig) {
		a := r.start("a")
		r.sleep(time.Second)
		b := r.start("b")
		r.sleep(20 * time.Second)
		heal := r.server.Inject(apitest.Fault{Match: apitest.Match{User: "b", Verb: "update"}, Status: statuserr.Unavailable(0)})
		lastResort(b, true)
		r.sleep(time.Minute)
		heal()
		r.sleep(time.Minute)
		lastResort(b, false)
		r.sleep(time.Minute)
		if _, ok := records(r.lease().Annotations)[b.Identity()]; !ok {
			t.Error("no record")
		}
		b.stop()
		if _, ok := records(r.lease().Annotations)[b.Identity()]; ok {
			t.Error("the record is left behind")
		}
		r.expectLeader(a)
	})
}

// A candidate that polls the Lease ends between two of its reads. It repeated the
// withdrawal from its last read, which conflicts with a renewal of the leader, until
// ShutdownTimeout, and left its record behind.
func TestAWithdrawalWithoutAWatchMeetsARenewal(t *testing.T) {
	for after := time.Duration(0); after < 3*time.Second; after += 500 * time.Millisecond {
		inRig(t, func(r *rig) {
			r.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "watch"}, Status: statuserr.Forbidden("leases", "agent", "no")})
			a := r.start("a")
			r.sleep(time.Second)
			b := r.start("b")
			r.sleep(time.Minute + after)
			r.expectLeader(a)
			began := time.Now()
			b.stop()
			_, there := records(r.lease().Annotations)[b.Identity()]
			if took := time.Since(began); there || took > time.Second {
				t.Errorf("after %v: Run ended after %v; the record is there: %v", after, took, there)
			}
		})
	}
}

// Run ends while the lease is claimed, and the answer to the claim is lost. There is no
// watch that shows the claim.
func TestAClaimWhoseAnswerIsLostIsReleasedAtTheEnd(t *testing.T) {
	for _, native := range []bool{false, true} {
		inRig(t, func(r *rig) {
			r.native = native
			r.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "watch"}, Status: statuserr.Forbidden("leases", "agent", "no")})
			r.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "create", Resource: "leases"}, LoseResponse: true})
			a := r.start("a")
			for r.lease() == nil {
				r.sleep(time.Millisecond)
			}
			began := time.Now()
			a.stop()
			if holder, took := spec.HolderOf(r.lease()), time.Since(began); holder != "" || took > time.Second {
				t.Errorf("native %v: held by %q after Run, which took %v", native, holder, took)
			}
		})
	}
}

// The lease was accepted by one that ends before the work of the leader has.
func TestHandedToOneThatEnds(t *testing.T) {
	inRig(t, func(r *rig) {
		a := r.start("a", func(cfg *Config) {
			cfg.Strategy = HighestPriority(nil)
			cfg.Lead = r.office.lead("a", 2*time.Second)
		})
		r.sleep(time.Second)
		r.start("c", func(cfg *Config) { cfg.Strategy = HighestPriority(nil) })
		b := r.start("b", func(cfg *Config) { cfg.Strategy, cfg.Self.Priority = HighestPriority(nil), 1 })
		for a.leads() && len(a.told()) < 4 {
			r.sleep(10 * time.Millisecond)
		}
		b.stop()
		r.sleep(20 * time.Second)
		if gap := r.office.lastGap(); r.office.current() == "" || gap > 600*time.Millisecond {
			t.Errorf("%q leads, after %v of nobody", r.office.current(), gap)
		}
	})
}

// A proxy answers one request with 200 and an empty object. The candidate took that for
// the state of the Lease, and nothing that it sent after that could succeed.
func TestAnEmptyAnswerIsNoAnswer(t *testing.T) {
	empty := func(apitest.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader("{}"))}, nil
	}
	leases, candidates := "leases", "leasecandidates"
	for name, tc := range map[string]struct {
		resource, verb string
		skip           int
		absent         bool // there is no Lease
		lost           bool // the first claim is lost
	}{
		"first read":                 {resource: leases, verb: "get"},
		"record":                     {resource: leases, verb: "update"},
		"claim":                      {resource: leases, verb: "update", skip: 1},
		"claim by create":            {resource: leases, verb: "create", absent: true},
		"read after a lost claim":    {resource: leases, verb: "get", skip: 1, lost: true},
		"renewal":                    {resource: leases, verb: "update", skip: 3},
		"read of the LeaseCandidate": {resource: candidates, verb: "get"},
		"new LeaseCandidate":         {resource: candidates, verb: "create"},
		"renewed LeaseCandidate":     {resource: candidates, verb: "update"},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(r *rig) {
				r.native = tc.resource == candidates
				if !tc.absent {
					r.put("x")
				}
				if tc.lost {
					r.server.Inject(apitest.Fault{Match: apitest.Match{Resource: leases, Verb: "update"}, Skip: 1, Times: 1, Err: apitest.ErrConnReset})
				}
				r.server.Inject(apitest.Fault{Name: "empty", Match: apitest.Match{Resource: tc.resource, Verb: tc.verb}, Skip: tc.skip, Times: 1, Answer: empty})
				a := r.start("a")
				r.awaitLeader(time.Minute)
				r.sleep(15 * time.Minute) // a LeaseCandidate is renewed after ten
				r.expectLeader(a)
				if terms := r.lease().Spec.LeaseTransitions; *terms > 1 {
					t.Errorf("the term was lost: %d transitions", *terms)
				}
				if n := len(r.server.Requests(apitest.Match{Func: func(q apitest.Request) bool { return q.Fault == "empty" }})); n != 1 {
					t.Errorf("%d empty answers, want 1", n)
				}
				if lc := a.record(); r.native && (lc == nil || time.Since(lc.Spec.RenewTime.Time) > recordInterval+2*time.Minute) {
					t.Errorf("the LeaseCandidate is %+v", lc)
				}
				r.server.Inject(apitest.Fault{Match: apitest.Match{Resource: leases, Verb: "update"}, Times: 1, Answer: empty})
				a.stop()
				if holder := spec.HolderOf(r.lease()); holder != "" {
					t.Errorf("%q holds the lease after Run", holder)
				}
			})
		})
	}
}

// A leader that leads for months meets candidates that come and go.
func TestSuspicionsAreForgotten(t *testing.T) {
	b := newBench(t)
	b.lead()
	for i := range 1000 {
		b.now += time.Hour
		b.term.offer = &pendingOffer{to: fmt.Sprint("gone", i), id: "1", stored: true}
		b.records[b.term.offer.to] = record{Peer: Peer{Identity: b.term.offer.to}}
		b.awaitAck(b.now, b.term.offer)
		delete(b.records, fmt.Sprint("gone", i))
	}
	if n := len(b.doubts); n != 1 {
		t.Errorf("%d candidates are suspected", n)
	}
}
