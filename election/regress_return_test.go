// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"io"
	"math"
	"net/http"
	"slices"
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

// pageOfAProxy is the answer of a gateway that does not reach the API server.
func pageOfAProxy(apitest.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{"Content-Type": {"text/html"}}, Body: io.NopCloser(strings.NewReader("<html>default backend - 404</html>"))}, nil
}

// A gateway in front of the API server answers for a while with a page of its own. The
// leader took that for the end of the Lease, and waited for LeaseDuration to claim it again.
func TestThe404OfAProxyCostsNoTerm(t *testing.T) {
	for name, tc := range map[string]struct {
		match  apitest.Match
		native bool
	}{
		"renewals and reads": {match: apitest.Match{Resource: "leases", Verb: "get,update"}},
		"everything":         {},
		"LeaseCandidates":    {native: true},
	} {
		inRig(t, func(r *rig) {
			r.native = tc.native
			a := r.start("a")
			r.sleep(time.Minute)
			heal := r.server.Inject(apitest.Fault{Match: tc.match, Answer: pageOfAProxy})
			if tc.match.Verb == "" {
				r.server.DropWatches(apitest.Match{})
			}
			r.sleep(4 * time.Second) // MaxOutage is 5.7 s
			heal()
			r.sleep(time.Second)
			r.expectLeader(a)
			if told := a.told(); slices.ContainsFunc(told, func(s string) bool { return strings.HasPrefix(s, "ended") }) || len(a.errors()) == 0 {
				t.Errorf("%s: told %q, reported %v", name, told, a.errors())
			}
			if !tc.native {
				return
			}
			r.sleep(time.Minute)
			ping := metav1.NewMicroTime(time.Now())
			a.editRecord(func(lc *coordinationv1beta1.LeaseCandidate) { lc.Spec.PingTime = &ping })
			r.sleep(time.Second)
			if a.record().Spec.RenewTime.Before(&ping) {
				t.Errorf("%s: no answer to a ping", name)
			}
		})
	}
}

// The same page is the answer to the withdrawal of a LeaseCandidate. A coordinator would
// ping a candidate that no longer runs.
func TestThe404OfAProxyIsNoWithdrawal(t *testing.T) {
	inNativeRig(t, func(r *rig) {
		a := r.start("a")
		r.sleep(time.Minute)
		r.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "delete"}, Answer: pageOfAProxy, Times: 2})
		if err := a.stop(); err != nil || a.record() != nil {
			t.Errorf("Run = %v, the LeaseCandidate is %v", err, a.record())
		}
	})
}

// The same page is the first answer that a candidate gets.
func TestThe404OfAProxyIsNoFreeLease(t *testing.T) {
	inRig(t, func(r *rig) {
		r.put("x")
		heal := r.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "get,create"}, Status: statuserr.New(404, metav1.StatusReasonNotFound, "404 page not found")})
		a := r.start("a")
		r.sleep(10 * time.Second)
		if n := len(r.server.Requests(apitest.Match{Verb: "create"})); n > 0 || len(a.errors()) != 1 {
			t.Errorf("%d requests to create a Lease, reported %v", n, a.errors())
		}
		heal()
		r.sleep(time.Minute)
		r.expectLeader(a)
	})
}
