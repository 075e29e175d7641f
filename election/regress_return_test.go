// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/statuserr"
)

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
