// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// TestControllerGateOff: preferredHolder is dropped. The holder leads until it
// stops, and no other holder is written before.
func TestControllerGateOff(t *testing.T) {
	if testing.Short() {
		t.Skip("seven hours of renewals, which take a minute under -race: make unit runs it")
	}
	synctest.Test(t, func(t *testing.T) {
		r := newCtlRig(t, apitest.Options{Gates: map[apitest.Gate]bool{apitest.CoordinatedLeaderElection: false}})
		r.start()
		a := r.stub("a", "1.20.0", "1.20.0").start()
		b := r.stub("b", "1.20.0", "1.20.0").start()
		r.advance(time.Minute)
		r.stub("c", "1.19.0", "1.19.0").start()
		r.advance(50 * time.Minute)
		r.want("holder", r.holder(), "a")
		r.want("transitions", *r.lease().Spec.LeaseTransitions, 0)
		r.want("requests", r.requests(), []string{"create leases", "patch leases"})
		if errs := r.errors(); len(errs) != 1 || !errors.Is(errs[0], ErrOffersDropped) {
			r.Errorf("reported %v, want ErrOffersDropped once", errs)
		}
		a.stop()
		r.advance(16 * time.Second)
		r.want("holder", r.holder(), "c")
		// It is tried again from time to time.
		r.stub("d", "1.18.0", "1.18.0").start()
		r.advance(4 * time.Hour)
		// Two before, three for c, one that deletes the LeaseCandidate of a, and one or two for
		// each try: a candidate that has renewed within the last seconds is not pinged before.
		if n := len(r.requests()); n < 2+3+1+2*1 || n > 2+3+1+4*2 {
			r.Errorf("%d requests in four hours: %v", n, r.requests())
		}
		r.want("holder", r.holder(), "c")
		r.server.SetGate(apitest.CoordinatedLeaderElection, true)
		r.advance(2 * time.Hour)
		r.want("holder", r.holder(), "d")
		r.want("reported", len(r.errors()), 1)
		b.stop()
	})
}

// TestControllerOffersDroppedOnce: the result of one Lease holds for all.
func TestControllerOffersDroppedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newCtlRig(t, apitest.Options{Gates: map[apitest.Gate]bool{apitest.CoordinatedLeaderElection: false}})
		for i := range 20 {
			lease := r.leads(fmt.Sprintf("old-%d", i), 0)
			lease.Name = fmt.Sprintf("lease-%d", i)
			lease.Spec.LeaseDurationSeconds = ptr.To[int32](24 * 3600)
			r.server.Put(lease)
			for _, v := range []string{"new", "old"} {
				record := r.stub(fmt.Sprintf("%s-%d", v, i), map[string]string{"old": "1.20.0", "new": "1.19.0"}[v], "1.20.0").record()
				record.Spec.LeaseName = lease.Name
				r.server.Put(record)
			}
		}
		r.start()
		r.advance(29 * time.Second)
		for i := range 20 {
			apitest.Edit(r.server, ctlNamespace, fmt.Sprintf("new-%d", i), func(c *coordinationv1beta1.LeaseCandidate) {
				c.Spec.RenewTime = ptr.To(metav1.NowMicro())
			})
		}
		r.advance(3 * time.Second)
		if n := len(r.requests()); n == 0 || n > workers {
			r.Errorf("%d offers, want one of each worker at most", n)
		}
	})
}

// TestControllerRefused: a permission is missing. It is reported once, and
// tried more and more rarely; when it is there all is done that was left.
func TestControllerRefused(t *testing.T) {
	for _, tc := range []struct {
		match    apitest.Match
		verb     string
		resource string
	}{
		{apitest.Match{Verb: "get", Resource: "leases"}, "get", "leases"},
		{apitest.Match{Verb: "patch", Resource: "leases"}, "patch", "leases"},
		{apitest.Match{Verb: "patch", Resource: "leasecandidates"}, "patch", "leasecandidates"},
		{apitest.Match{Verb: "list,watch", Resource: "leasecandidates"}, "list", "leasecandidates"},
		{apitest.Match{Verb: "list,watch", Resource: "leases"}, "list", "leases"},
	} {
		t.Run(tc.verb+" "+tc.resource, ctlBubble(func(r *ctlRig) {
			tc.match.User = ctlUser
			restore := r.server.Inject(apitest.Fault{Match: tc.match, Status: statuserr.Forbidden(tc.resource, "x", "not yours")})
			var watches, others atomic.Int32
			r.cfg.Hooks.RequestFailed = func(e RequestFailed) {
				switch {
				case e.Class != "Forbidden":
				case e.Action == ActionWatch && e.Lease == types.NamespacedName{}:
					watches.Add(1)
				default:
					others.Add(1)
				}
			}
			a := r.stub("a", "1.19.0", "1.19.0").start()
			r.server.Put(r.leads("a", 0))
			r.stub("b", "1.19.0", "1.19.0").start()
			r.start()
			r.advance(time.Minute)
			a.stop()
			r.advance(time.Hour)
			errs := r.errors()
			if len(errs) != 1 || !apierrors.IsForbidden(errs[0]) || !strings.Contains(errs[0].Error(), tc.resource) {
				r.Errorf("reported %v, want the refusal to %s %s once", errs, tc.verb, tc.resource)
			}
			if n := len(r.server.Requests(apitest.Match{User: ctlUser})); n > 200 {
				r.Errorf("%d requests in an hour", n)
			}
			r.want("some watches failed", watches.Load() > 0, tc.verb == "list")
			r.want("some other requests failed", others.Load() > 0, tc.verb != "list")
			restore()
			r.advance(6 * time.Minute)
			r.want("holder", r.holder(), "b")
			r.want("reported", len(r.errors()), 1)
		}))
	}
	t.Run("delete leasecandidates", ctlBubble(func(r *ctlRig) {
		r.server.Inject(apitest.Fault{Match: apitest.Match{User: ctlUser, Verb: "delete"}, Status: statuserr.Forbidden("leasecandidates", "x", "not yours")})
		r.server.Put(r.stub("dead", "1.19.0", "1.19.0").record())
		r.start()
		r.advance(40 * time.Minute)
		a := r.stub("a", "1.19.0", "1.19.0").start()
		r.want("holder", r.holder(), "a") // the election does not wait for it
		r.advance(2 * time.Hour)
		if n := len(r.server.Requests(apitest.Match{User: ctlUser, Verb: "delete"})); n > 60 {
			r.Errorf("%d deletes in two hours", n)
		}
		r.want("reported", len(r.errors()), 1)
		a.stop()
	}))
}

// TestControllerConflictStorm: a CAS that never succeeds backs off.
func TestControllerConflictStorm(t *testing.T) {
	for _, resource := range []string{"leases", "leasecandidates"} {
		t.Run(resource, ctlBubble(func(r *ctlRig) {
			a, _ := r.pair()
			restore := r.server.Inject(apitest.Fault{Match: apitest.Match{User: ctlUser, Verb: "patch", Resource: resource},
				Status: statuserr.New(http.StatusConflict, metav1.StatusReasonConflict, "changed meanwhile")})
			a.stop()
			r.advance(time.Hour)
			if n := len(r.requests()); n > 800 {
				r.Errorf("%d requests in an hour", n)
			}
			r.want("reported", len(r.errors()), 1)
			restore()
			r.advance(40 * time.Second)
			r.want("holder", r.holder(), "b")
		}))
	}
}

// TestControllerNoAPI: LeaseCandidate is not served.
func TestControllerNoAPI(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		r.server.Serve(coordinationv1beta1.SchemeGroupVersion, false)
		c := r.start()
		r.advance(time.Hour)
		if errs := r.errors(); len(errs) != 1 || !errors.Is(errs[0], election.ErrNoCandidateAPI) {
			r.Errorf("reported %v, want ErrNoCandidateAPI once", errs)
		}
		if n := len(r.server.Requests(apitest.Match{User: ctlUser})); n > 120 {
			r.Errorf("%d requests in an hour", n)
		}
		r.want("requests about leases", len(r.server.Requests(apitest.Match{User: ctlUser, Resource: "leases"})), 0)
		if err := c.Check(nil); err != nil {
			r.Error(err)
		}
		r.server.Serve(coordinationv1beta1.SchemeGroupVersion, true)
		r.stub("a", "1.19.0", "1.19.0").start()
		r.advance(2 * time.Minute)
		r.want("holder", r.holder(), "a")
		// Taken away again: who leads is not touched.
		r.server.Serve(coordinationv1beta1.SchemeGroupVersion, false)
		r.server.BreakWatches(apitest.Match{})
		r.server.ResetJournal()
		r.advance(time.Hour)
		if n := len(r.server.Requests(apitest.Match{User: ctlUser})); n > 250 {
			r.Errorf("%d requests in an hour", n)
		}
		r.want("holder", r.holder(), "a")
		r.want("reported", len(r.errors()), 2)
	})(t)
}

// TestControllerInvalidCandidates: invalid objects are reported once each and
// do no harm. None of them would pass the validation of today's API server.
func TestControllerInvalidCandidates(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		for i, spoil := range []func(*coordinationv1beta1.LeaseCandidate){
			func(c *coordinationv1beta1.LeaseCandidate) { c.Spec.BinaryVersion = "v1" },
			func(c *coordinationv1beta1.LeaseCandidate) { c.Spec.BinaryVersion = "" },
			func(c *coordinationv1beta1.LeaseCandidate) { c.Spec.EmulationVersion = "one" },
			func(c *coordinationv1beta1.LeaseCandidate) { c.Spec.Strategy = "" },
			func(c *coordinationv1beta1.LeaseCandidate) { c.Spec.Strategy = "Unknown" },
			func(c *coordinationv1beta1.LeaseCandidate) { c.Spec.Strategy = "a/b/c" },
			func(c *coordinationv1beta1.LeaseCandidate) { c.Spec.LeaseName = "" },
			func(c *coordinationv1beta1.LeaseCandidate) { c.Spec.LeaseName = "Not A Name" },
			func(c *coordinationv1beta1.LeaseCandidate) {
				c.Annotations = map[string]string{spec.PeerAnnotation: "{"}
			},
		} {
			record := r.stub(fmt.Sprintf("bad-%d", i), "1.18.0", "1.18.0").record()
			spoil(record)
			r.server.Put(record)
		}
		r.start()
		r.stub("good", "1.19.0", "1.19.0").start()
		r.want("holder", r.holder(), "good")
		apitest.Edit(r.server, ctlNamespace, "bad-0", func(c *coordinationv1beta1.LeaseCandidate) { c.Spec.RenewTime = ptr.To(metav1.NowMicro()) })
		r.advance(10 * time.Minute)
		errs := r.errors()
		r.want("reported", len(errs), 9)
		for _, err := range errs {
			var invalid *CandidateInvalidError
			if !errors.As(err, &invalid) || invalid.Candidate.Namespace != ctlNamespace || invalid.Err == nil {
				r.Errorf("reported %v", err)
			}
		}
		r.want("requests", r.requests(), []string{"create leases"})
		// Mended, it takes part.
		apitest.Edit(r.server, ctlNamespace, "bad-0", func(c *coordinationv1beta1.LeaseCandidate) {
			c.Spec.BinaryVersion, c.Spec.RenewTime = "1.18.0", ptr.To(metav1.NowMicro())
		})
		synctest.Wait()
		r.want("preferredHolder", r.preferred(), "bad-0")
	})(t)
}

// TestControllerAltered: a webhook removes the written fields. There is no hot
// loop.
func TestControllerAltered(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		r.start()
		r.stub("a", "1.19.0", "1.19.0").start()
		for range 600 * 2 { // whatever is written is gone half a second later
			if r.holder() != "" {
				apitest.Edit(r.server, ctlNamespace, ctlLease, func(l *coordinationv1.Lease) { l.Spec = coordinationv1.LeaseSpec{} })
			}
			r.advance(500 * time.Millisecond)
		}
		if n := len(r.requests()); n > 600+2*12 {
			r.Errorf("%d requests in ten minutes of quarrel", n)
		}
	})(t)
	ctlBubble(func(r *ctlRig) {
		r.start()
		a := r.stub("a", "1.19.0", "1.19.0").set(func(s *ctlStub) { s.idle = true }).start()
		r.server.Inject(apitest.Fault{
			Match:  apitest.Match{User: ctlUser, Verb: "patch", Resource: "leases"},
			Answer: func(apitest.Request) (*http.Response, error) { return nil, apitest.ErrEOF },
		})
		r.advance(time.Hour)
		if n := len(r.requests()); n > 800 {
			r.Errorf("%d requests in an hour", n)
		}
		a.stop()
	})(t)
}

// TestControllerStalledWatch: the watch of the Leases is late, and all holders
// seem to be silent. A read of each shows otherwise, and no candidate is pinged.
func TestControllerStalledWatch(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		r.pair()
		resume := r.server.StallWatches(apitest.Match{User: ctlUser, Resource: "leases"})
		r.advance(5 * time.Minute)
		requests := r.requests()
		if n := len(requests); n < 25 || n > 5*60/10+1 || slices.ContainsFunc(requests, func(q string) bool { return q != "get leases" }) {
			r.Errorf("requests: %v, want a look every ten seconds", requests)
		}
		resume()
		r.server.ResetJournal()
		r.advance(5 * time.Minute)
		r.want("requests", r.requests(), []string{})
		r.want("told", r.told(), []string{})
	})(t)
}

// TestControllerLostAnswers: a write may have been stored although there was no
// answer, now or later.
func TestControllerLostAnswers(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault apitest.Fault
	}{
		{"LoseResponse", apitest.Fault{LoseResponse: true}},
		{"HangResponse", apitest.Fault{HangResponse: true}},
		{"CommitAfter", apitest.Fault{CommitAfter: 8 * time.Second}},
	} {
		t.Run(tc.name, ctlBubble(func(r *ctlRig) {
			tc.fault.Match, tc.fault.Times = apitest.Match{User: ctlUser, Verb: "create,patch"}, 3
			r.server.Inject(tc.fault)
			r.start()
			a := r.stub("a", "1.19.0", "1.19.0").start()
			r.stub("b", "1.19.0", "1.19.0").start()
			r.advance(30 * time.Second)
			r.want("holder", r.holder(), "a")
			a.stop()
			r.advance(40 * time.Second)
			r.want("holder", r.holder(), "b")
			r.want("transitions", *r.lease().Spec.LeaseTransitions, 1)
		}))
	}
}

// TestControllerEmptyAnswers: a proxy answers one request with 200 and an empty object.
// The controller took that for the state of the Lease, or for a candidate without a name,
// and patched an object without a name from then on.
func TestControllerEmptyAnswers(t *testing.T) {
	empty := func(apitest.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader("{}"))}, nil
	}
	conflict := statuserr.New(http.StatusConflict, metav1.StatusReasonConflict, "changed")
	for name, faults := range map[string][]apitest.Fault{
		"creation":               {{Match: apitest.Match{Verb: "create", Resource: "leases"}, Answer: empty}},
		"look":                   {{Match: apitest.Match{Verb: "get", Resource: "leases"}, Answer: empty}},
		"assignment":             {{Match: apitest.Match{Verb: "patch", Resource: "leases"}, Answer: empty}},
		"read after a conflict":  {{Match: apitest.Match{Verb: "patch", Resource: "leases"}, Status: conflict}, {Match: apitest.Match{Verb: "get", Resource: "leases"}, Skip: 1, Answer: empty}},
		"ping":                   {{Match: apitest.Match{Verb: "patch", Resource: "leasecandidates"}, Answer: empty}},
		"read of the pinged one": {{Match: apitest.Match{Verb: "patch", Resource: "leasecandidates"}, Status: conflict}, {Match: apitest.Match{Verb: "get", Resource: "leasecandidates"}, Answer: empty}},
	} {
		t.Run(name, ctlBubble(func(r *ctlRig) {
			for _, f := range faults {
				f.Name, f.Match.User, f.Times = "once", ctlUser, 1
				r.server.Inject(f)
			}
			c := r.start()
			a := r.stub("a", "1.19.0", "1.19.0").start()
			r.stub("b", "1.20.0", "1.20.0").start()
			r.advance(20 * time.Second)
			r.want("holder", r.holder(), "a")
			a.stop()
			r.advance(20 * time.Second)
			r.want("holder", r.holder(), "b")
			r.want("transitions", *r.lease().Spec.LeaseTransitions, 1)
			r.want("faults", len(r.server.Requests(apitest.Match{Func: func(q apitest.Request) bool { return q.Fault == "once" }})), len(faults))
			c.mu.Lock()
			defer c.mu.Unlock()
			for key, e := range c.index {
				if e.Has("") {
					r.Errorf("a candidate of %v has no name", key)
				}
			}
		}))
	}
}

// TestControllerRestart ends the Controller before, in the middle of, and after
// every request of a history, and starts another: the stored state is enough to go
// on from.
func TestControllerRestart(t *testing.T) {
	for _, when := range []string{"before", "during", "after"} {
		for k := range 9 {
			t.Run(fmt.Sprintf("%s request %d", when, k), ctlBubble(func(r *ctlRig) {
				n := 0
				arrived := make(chan struct{}, 1)
				r.server.Inject(apitest.Fault{
					Match: apitest.Match{User: ctlUser, Verb: "get,create,patch,delete", Func: func(apitest.Request) bool {
						n++
						if n == k+1 {
							arrived <- struct{}{}
						}
						return n == k+1
					}},
					Latency: map[string]time.Duration{"before": time.Hour, "during": 100 * time.Millisecond, "after": 0}[when],
				})
				r.start()
				go func() {
					<-arrived
					if when == "after" {
						time.Sleep(time.Millisecond)
					}
					r.stop()
					time.Sleep(time.Second)
					r.start()
				}()
				a := r.stub("a", "1.20.0", "1.20.0").start()
				r.advance(time.Minute)
				r.want("holder", r.holder(), "a")
				r.stub("b", "1.19.0", "1.19.0").start()
				c := r.stub("c", "1.19.0", "1.19.0").start()
				r.advance(3 * time.Minute)
				r.want("holder", r.holder(), "b")
				a.stop()
				apitest.Remove[*coordinationv1beta1.LeaseCandidate](r.server, ctlNamespace, "b")
				apitest.Remove[*coordinationv1.Lease](r.server, ctlNamespace, ctlLease)
				r.advance(time.Minute)
				if r.holder() == "" {
					r.Error("nobody leads")
				}
				select {
				case arrived <- struct{}{}: // there were not so many requests
					r.advance(2 * time.Second)
				default:
				}
				c.stop()
				r.stop()
			}))
		}
	}
}

// TestControllersSideBySide: two Controllers that both work cost conflicts, and
// nothing else.
func TestControllersSideBySide(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		r.start()
		r.start()
		a := r.stub("a", "1.19.0", "1.19.0").start()
		r.stub("b", "1.19.0", "1.19.0").start()
		r.advance(time.Minute)
		r.want("holder", r.holder(), "a")
		a.stop()
		r.advance(16 * time.Second)
		r.want("holder", r.holder(), "b")
		r.advance(time.Hour)
		r.want("transitions", *r.lease().Spec.LeaseTransitions, 1)
		r.want("reported", r.errors(), []error{})
		if n := len(r.requests()); n > 30 {
			r.Errorf("%d requests: %v", n, r.requests())
		}
	})(t)
}

func TestTheVoteOfADeadCandidateDoesNotDelayAnElection(t *testing.T) {
	for name, lease := range map[string]bool{"absent": false, "silent": true} {
		t.Run(name, ctlBubble(func(r *ctlRig) {
			dead := r.stub("dead", "1.37.0", "1.37.0").set(func(s *ctlStub) { s.strat = "example.com/unknown" }).start()
			r.advance(time.Second)
			dead.stop()
			if lease {
				r.server.Put(r.leads("gone", 0))
			}
			r.start()
			r.stub("live", "1.36.0", "1.36.0").start()
			r.advance(25 * time.Second)
			r.want("holder", r.holder(), "live")
		}))
	}
}

func TestDeadCandidatesArePingedTogether(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		for i := range 10 {
			dead := r.stub(fmt.Sprintf("dead-%d", i), "1.35.0", "1.35.0").start()
			r.advance(time.Second)
			dead.stop()
		}
		r.stub("live", "1.36.0", "1.36.0").start()
		r.advance(10 * time.Second) // no answer is fresh
		r.start()
		r.advance(11 * time.Second)
		r.want("holder", r.holder(), "live")
	})(t)
}

// A fleet that died leaves its candidates for half an hour. All are better than the
// next version's, which needs two timeouts, however many they are.
func TestManyDeadCandidatesCostOneRound(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		r.server.Inject(apitest.Fault{Match: apitest.Match{User: ctlUser, Verb: "patch"}, Latency: 10 * time.Millisecond})
		for i := range 120 {
			r.stub(fmt.Sprintf("dead-%03d", i), "1.35.0", "1.35.0").start().stop()
		}
		r.stub("a-live", "1.36.0", "1.36.0").start()
		r.advance(10 * time.Second) // no answer is fresh
		r.start()
		r.server.ResetJournal()
		r.advance(13 * time.Second)
		r.want("holder", r.holder(), "a-live")
		pings, first := 0, ""
		for _, q := range r.server.Requests(apitest.Match{User: ctlUser, Verb: "patch", Resource: "leasecandidates"}) {
			pings++
			if pings == 2 {
				first = q.Name
			}
		}
		if pings > 121 || first == "a-live" {
			r.Errorf("%d pings of 121 candidates, after the first that of %s: better candidates come first", pings, first)
		}
	})(t)
}

// Another client that undoes pings makes no storm of them.
func TestPingsThatAreUndoneAreCharged(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		r.stub("a", "1.36.0", "1.36.0").set(func(s *ctlStub) { s.deaf = true }).start()
		r.advance(10 * time.Second)
		r.start()
		for range 600 {
			if lc := r.candidate("a"); lc != nil && lc.Spec.PingTime != nil {
				apitest.Edit(r.server, ctlNamespace, "a", func(c *coordinationv1beta1.LeaseCandidate) { c.Spec.PingTime = nil })
			}
			r.advance(10 * time.Millisecond)
		}
		if n := len(r.requests()); n > 12+10 {
			r.Errorf("%d requests in six seconds", n)
		}
	})(t)
}
