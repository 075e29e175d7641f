// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// The defects of the Kubernetes controller of July 2024 and of that of
// Kubernetes 1.36 and 1.37, each as a test that fails with it.

func TestControllerRegressions(t *testing.T) {
	for _, tc := range []struct {
		name string
		test func(*ctlRig)
	}{
		{"the expiry of a lease is noticed without any event", func(r *ctlRig) {
			a, _ := r.pair()
			a.stop()
			r.advance(15*time.Second + 100*time.Millisecond)
			r.want("holder", r.holder(), "b")
		}},
		{"a hand-over is not a hot loop", func(r *ctlRig) {
			r.start()
			r.stub("a", "1.20.0", "1.20.0").start()
			r.advance(time.Minute)
			r.server.ResetJournal()
			r.stub("b", "1.19.0", "1.19.0").start()
			r.advance(time.Minute)
			r.want("holder", r.holder(), "b")
			// Ask; the holder stops; look and ping before it expires; assign.
			r.want("requests", r.requests(), []string{"patch leases", "get leases", "patch leasecandidates", "patch leases"})
		}},
		{"no failure ends an election", func(r *ctlRig) {
			a, _ := r.pair()
			for _, fault := range []apitest.Fault{
				{Match: apitest.Match{Verb: "get", User: ctlUser}, Times: 1, Status: statuserr.InternalError("x")},
				{Match: apitest.Match{Verb: "patch", Resource: "leasecandidates", User: ctlUser}, Times: 2, Status: statuserr.New(409, metav1.StatusReasonConflict, "x")},
				{Match: apitest.Match{Verb: "patch", Resource: "leases", User: ctlUser}, Times: 1, Err: apitest.ErrConnReset},
			} {
				r.server.Inject(fault)
			}
			a.stop()
			r.advance(16 * time.Second)
			r.want("holder", r.holder(), "b")
		}},
		{"a restart while a candidate has a ping to answer", func(r *ctlRig) {
			a, b := r.pair()
			b.set(func(s *ctlStub) { s.deaf = true })
			a.stop()
			r.advance(13 * time.Second)
			r.stop()
			b.set(func(s *ctlStub) { s.deaf = false })
			r.start()
			r.advance(16 * time.Second) // it can't know for how long the holder was silent
			b.touch()
			r.advance(time.Second)
			r.want("holder", r.holder(), "b")
		}},
		{"dead candidates cost one ping each, and no second one", func(r *ctlRig) {
			for i := range 3 {
				r.server.Put(r.stub(fmt.Sprintf("dead-%d", i), "1.18.0", "1.18.0").record())
			}
			live := r.stub("live", "1.19.0", "1.19.0").start()
			r.start()
			r.advance(15*time.Second + time.Second)
			r.want("holder", r.holder(), "live")
			r.want("requests", r.requests(), append(slices.Repeat([]string{"patch leasecandidates"}, 4), "create leases"))
			live.set(func(s *ctlStub) { s.idle = true })
			r.server.ResetJournal()
			r.advance(17 * time.Second)
			r.want("transitions", *r.lease().Spec.LeaseTransitions, 1)
			r.want("requests", r.requests(), []string{"get leases", "patch leasecandidates", "patch leases"})
		}},
		{"a change of version during a ping counts", func(r *ctlRig) {
			r.server.Put(r.stub("a", "1.19.0", "1.19.0").record())
			r.start()
			b := r.stub("b", "1.20.0", "1.20.0").start()
			r.advance(time.Second)
			apitest.Edit(r.server, ctlNamespace, "a", func(c *coordinationv1beta1.LeaseCandidate) {
				c.Spec.BinaryVersion, c.Spec.EmulationVersion = "1.21.0", "1.21.0"
			})
			synctest.Wait()
			r.want("holder", r.holder(), "b")
			b.stop()
		}},
		{"pings don't wait for each other", func(r *ctlRig) {
			r.server.Inject(apitest.Fault{Match: apitest.Match{Resource: "leasecandidates", Verb: "patch,update"}, Latency: 2 * time.Second})
			for i := range 5 {
				r.stub(fmt.Sprintf("c-%d", i), "1.19.0", "1.19.0").start()
			}
			r.advance(3 * time.Second)
			r.start()
			r.advance(5 * time.Second)
			r.want("holder", r.holder(), "c-0")
		}},
		{"a lease that is deleted while the watch is broken", func(r *ctlRig) {
			r.pair()
			watches := apitest.Match{User: ctlUser, Resource: "leases", Verb: "watch"}
			r.server.StallWatches(watches)()
			undo := r.server.Inject(apitest.Fault{Match: watches, Err: apitest.ErrConnReset})
			r.server.BreakWatches(watches)
			synctest.Wait()
			apitest.Remove[*coordinationv1.Lease](r.server, ctlNamespace, ctlLease)
			r.server.Compact()
			undo()
			r.advance(2 * time.Minute)
			if r.holder() == "" {
				r.Error("nobody was elected")
			}
			r.want("transitions", *r.lease().Spec.LeaseTransitions, 0)
		}},
		{"a leader leaves, and withdraws just after it was pinged", func(r *ctlRig) {
			// The watch delivers the end of the record before the answer to the ping arrives.
			a, _ := r.pair()
			a.set(func(s *ctlStub) { s.deaf = true })
			r.server.Inject(apitest.Fault{
				Match: apitest.Match{Verb: "patch", Resource: "leasecandidates", User: ctlUser}, Times: 1,
				Served: func(apitest.Request) {
					a.stop()
					apitest.Remove[*coordinationv1beta1.LeaseCandidate](r.server, ctlNamespace, "a")
					time.Sleep(time.Millisecond)
				},
			})
			apitest.Edit(r.server, ctlNamespace, ctlLease, func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = ptr.To("") })
			r.advance(100 * time.Millisecond)
			r.want("holder", r.holder(), "b")
			r.want("calls of hooks", r.told(), []string{"elected b"})
		}},
		{"a silent candidate costs nothing until it is collected", func(r *ctlRig) {
			_, b := r.pair()
			b.stop()
			r.server.ResetJournal()
			r.advance(28 * time.Minute)
			r.want("requests", r.requests(), []string{})
		}},
		{"every term is counted and dated", func(r *ctlRig) {
			a, b := r.pair()
			for i := 1; i <= 4; i++ {
				before := r.lease()
				for _, s := range []*ctlStub{a, b} {
					s.set(func(s *ctlStub) { s.idle = s.name == r.holder() })
				}
				r.advance(20 * time.Second)
				l := r.lease()
				r.want("transitions", *l.Spec.LeaseTransitions, i)
				if l.Spec.AcquireTime == nil || before.Spec.AcquireTime != nil && !l.Spec.AcquireTime.After(before.Spec.AcquireTime.Time) {
					r.Errorf("acquireTime = %v after %v", l.Spec.AcquireTime, before.Spec.AcquireTime)
				}
			}
		}},
		{"heartbeats of nodes and leases without candidates are left alone", func(r *ctlRig) {
			r.start()
			for i := range 50 {
				r.server.Put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: fmt.Sprintf("n%d", i)}})
				r.server.Put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: fmt.Sprintf("l%d", i)}})
			}
			r.advance(time.Minute)
			r.want("requests", r.requests(), []string{})
			for _, q := range r.server.Requests(apitest.Match{User: ctlUser}) {
				r.want("field selector", q.FieldSelector, "metadata.namespace!=kube-node-lease")
			}
		}},
		{"candidates made in the same second: who leads stays", func(r *ctlRig) {
			for i := range 5 {
				r.stub(fmt.Sprintf("c-%d", i), "1.19.0", "1.19.0").start()
			}
			r.start()
			r.advance(25 * time.Minute)
			r.want("told", r.told(), []string{"elected c-0"})
			r.want("requests", r.requests(), []string{"patch leasecandidates", "create leases"})
		}},
		{"dead candidates of the old version rank best: one round each", func(r *ctlRig) {
			old := r.stub("old", "1.18.0", "1.18.0").start()
			r.start()
			r.stub("new-1", "1.19.0", "1.19.0").start()
			r.stub("new-2", "1.19.0", "1.19.0").start()
			r.advance(time.Minute)
			r.want("holder", r.holder(), "old")
			old.stop()
			r.advance(16 * time.Second)
			r.want("holder", r.holder(), "new-1")
			r.server.ResetJournal()
			r.advance(25 * time.Minute)
			r.want("holder", r.holder(), "new-1")
			r.want("requests", r.requests(), []string{"patch leasecandidates"}) // old, once, after the minimum tenure
		}},
		{"no holder is no holder, nil or empty", func(r *ctlRig) {
			lease := r.leads("", time.Hour)
			r.server.Put(lease)
			r.start()
			r.stub("a", "1.19.0", "1.19.0").start()
			r.want("holder", r.holder(), "a")
			for range 3 {
				for _, spec := range []coordinationv1.LeaseSpec{{}, {HolderIdentity: ptr.To("")}, {Strategy: ptr.To(coordinationv1.OldestEmulationVersion)},
					{LeaseDurationSeconds: ptr.To[int32](1)}, {HolderIdentity: ptr.To("x")}, {HolderIdentity: ptr.To("x"), RenewTime: &metav1.MicroTime{}}} {
					apitest.Edit(r.server, ctlNamespace, ctlLease, func(l *coordinationv1.Lease) { l.Spec = spec })
					r.advance(16 * time.Second)
					r.want("holder", r.holder(), "a")
				}
			}
		}},
		{"a candidate without renewTime is not pinged", func(r *ctlRig) {
			record := r.stub("a", "1.19.0", "1.19.0").record()
			record.Spec.RenewTime = nil
			r.server.Put(record)
			r.start()
			r.advance(20 * time.Minute)
			r.want("requests", r.requests(), []string{})
		}},
		{"the preferred candidate dies before the holder has given way", func(r *ctlRig) {
			r.start()
			r.stub("a", "1.20.0", "1.20.0").start()
			r.advance(time.Minute)
			b := r.stub("b", "1.19.0", "1.19.0").start()
			r.want("preferredHolder", r.preferred(), "b")
			b.stop()
			r.advance(21 * time.Second)
			r.want("holder", r.holder(), "a")
			r.want("preferredHolder", r.preferred(), "")
			r.advance(time.Hour)
			r.want("transitions", *r.lease().Spec.LeaseTransitions, 1)
		}},
		{"the preferred candidate is gone while the holder renews", func(r *ctlRig) {
			lease := r.leads("a", 0)
			lease.Spec.Strategy, lease.Spec.PreferredHolder = ptr.To(coordinationv1.OldestEmulationVersion), ptr.To("gone")
			r.server.Put(lease)
			r.stub("a", "1.20.0", "1.20.0").start()
			r.start()
			r.want("preferredHolder", r.preferred(), "")
			r.advance(time.Minute)
			r.want("transitions", ptr.Deref(r.lease().Spec.LeaseTransitions, 0), 0)
		}},
		{"an elected candidate that could not renew for a while is elected again", func(r *ctlRig) {
			r.start()
			a := r.stub("a", "1.19.0", "1.19.0").start()
			a.set(func(s *ctlStub) { s.idle = true })
			r.advance(40 * time.Second)
			a.set(func(s *ctlStub) { s.idle = false })
			r.advance(20 * time.Second)
			l := r.lease()
			if r.holder() != "a" || time.Since(l.Spec.RenewTime.Time) > 3*time.Second {
				r.Errorf("holder %s renewed %v ago", r.holder(), time.Since(l.Spec.RenewTime.Time))
			}
		}},
		{"one that answers pings but never takes its term makes room for another", func(r *ctlRig) {
			r.start()
			r.stub("a", "1.18.0", "1.18.0").set(func(s *ctlStub) { s.idle = true }).start()
			r.stub("b", "1.19.0", "1.19.0").start()
			r.want("holder", r.holder(), "a")
			r.advance(16 * time.Second)
			r.want("holder", r.holder(), "b")
			r.advance(time.Hour)
			// Tried again after one, two, four, eight, sixteen minutes …, each
			// time for a term.
			r.want("transitions", *r.lease().Spec.LeaseTransitions, 13)
		}},
		{"a holder that knows nothing of candidates is left alone", func(r *ctlRig) {
			stop := r.legacy("legacy")
			r.start()
			r.stub("a", "1.19.0", "1.19.0").start()
			r.stub("b", "1.20.0", "1.20.0").start()
			r.advance(time.Hour)
			r.want("holder", r.holder(), "legacy")
			r.want("requests", r.requests(), []string{})
			stop()
			r.advance(16 * time.Second)
			r.want("holder", r.holder(), "a")
		}},
		{"the lease of another controller's strategy is created and then left alone", func(r *ctlRig) {
			r.start()
			for i := range 3 {
				r.stub(fmt.Sprintf("c-%d", i), "1.19.0", "1.19.0").set(func(s *ctlStub) { s.strat = "foo.com/bar" }).start()
			}
			r.advance(time.Hour)
			l := r.lease()
			r.want("holder", l.Spec.HolderIdentity, (*string)(nil))
			r.want("strategy", *l.Spec.Strategy, "foo.com/bar")
			r.want("requests", r.requests(), []string{"create leases"})
		}},
		{"candidates that disagree still have a leader", func(r *ctlRig) {
			r.start()
			r.stub("a", "1.19.0", "1.19.0").set(func(s *ctlStub) { s.strat = coordinationv1.CoordinatedLeaseStrategy(election.NewestVersion().Name()) }).start()
			b := r.stub("b", "1.19.0", "1.19.0").start()
			r.want("holder", r.holder(), "a")
			r.advance(time.Hour)
			r.want("told", r.told(), []string{"elected a"})
			b.stop()
		}},
		{"calls have a deadline", func(r *ctlRig) {
			r.server.Inject(apitest.Fault{Match: apitest.Match{User: ctlUser, Verb: "create"}, Times: 1, Hang: true})
			r.start()
			r.stub("a", "1.19.0", "1.19.0").start()
			r.advance(callTimeout - 1)
			r.want("requests under way", r.requests(), []string{"create leases"})
			r.advance(time.Second)
			r.want("holder", r.holder(), "a")
		}},
		{"a holder whose clock is far behind is not expired", func(r *ctlRig) {
			r.server.Put(r.leads("a", time.Hour))
			r.stub("a", "1.20.0", "1.20.0").set(func(s *ctlStub) { s.skew = -time.Hour }).start()
			r.start()
			r.stub("b", "1.20.0", "1.20.0").start()
			r.advance(time.Hour)
			r.want("told", r.told(), []string{})
			r.want("holder", r.holder(), "a")
		}},
		{"an idle hour costs nothing", func(r *ctlRig) {
			r.pair()
			r.advance(time.Minute)
			r.server.ResetJournal()
			r.advance(time.Hour)
			r.want("requests", r.requests(), []string{})
			if n := len(r.server.Requests(apitest.Match{User: ctlUser})); n > 2*13 { // watches end after five to ten minutes
				r.Errorf("%d requests", n)
			}
		}},
	} {
		t.Run(tc.name, ctlBubble(tc.test))
	}
}

// pair starts the Controller and two equal candidates, of which a leads.
func (r *ctlRig) pair() (a, b *ctlStub) {
	r.start()
	a = r.stub("a", "1.19.0", "1.19.0").start()
	b = r.stub("b", "1.19.0", "1.19.0").start()
	r.advance(time.Minute)
	r.want("holder", r.holder(), "a")
	r.server.ResetJournal()
	r.told()
	return a, b
}

// touch lets the candidate renew its record.
func (s *ctlStub) touch() {
	apitest.Edit(s.rig.server, ctlNamespace, s.name, func(c *coordinationv1beta1.LeaseCandidate) {
		c.Spec.RenewTime = ptr.To(metav1.NowMicro())
	})
	synctest.Wait()
}

// The LeaseCandidate of a leader that has released the Lease goes late, or not at all. Nobody
// waits for an answer of that one: the next candidate leads at once.
func TestAReleaseNeedsNoDeletion(t *testing.T) {
	for name, f := range map[string]apitest.Fault{
		"late":    {Latency: 6 * time.Second},
		"refused": {Status: statuserr.Forbidden("leasecandidates", "c", "no")},
	} {
		t.Run(name, ctlBubble(func(r *ctlRig) {
			r.start()
			a := r.worker("a", "1.31.0")
			r.advance(5 * time.Second)
			c := r.worker("c", "1.30.0")
			r.advance(45 * time.Second)
			r.want("c leads", c.leading(), true)
			f.Match = apitest.Match{User: "c", Verb: "delete"}
			r.server.Inject(f)
			go c.stop()
			r.advance(100 * time.Millisecond)
			r.want("a leads", a.leading(), true)
			r.advance(10 * time.Second)
		}))
	}
}
