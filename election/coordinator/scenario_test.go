// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
)

// The scenarios of the tests of kube-apiserver's controller, under their names.

// TestReconcileElectionStep has the objects before the controller starts, and those
// some seconds later.
func TestReconcileElectionStep(t *testing.T) {
	type want struct {
		lease             bool
		holder, preferred string
		strategy          coordinationv1.CoordinatedLeaseStrategy
		pinged            []string
	}
	const oldest = coordinationv1.OldestEmulationVersion
	for _, tc := range []struct {
		name  string
		setUp func(*ctlRig)
		after time.Duration
		want  want
	}{
		{"no candidates, no lease, noop", func(*ctlRig) {}, time.Minute, want{}},
		{"no candidates, lease exists. noop, not managed by CLE", func(r *ctlRig) { r.server.Put(r.leads("x", time.Hour)) }, time.Minute,
			want{lease: true, holder: "x"}},
		{"candidates exist, no existing lease should create lease", func(r *ctlRig) { r.stub("component-identity-1", "1.19.0", "1.19.0").start() }, time.Second,
			want{lease: true, holder: "component-identity-1", strategy: oldest, pinged: []string{"component-identity-1"}}},
		{"candidates exist, lease exists, unoptimal should set preferredHolder", func(r *ctlRig) {
			r.server.Put(r.leads("component-identity-1", 0))
			r.stub("component-identity-1", "1.19.0", "1.19.0").start()
			r.stub("component-identity-2", "1.18.0", "1.18.0").start()
		}, 31 * time.Second, want{lease: true, holder: "component-identity-1", preferred: "component-identity-2", strategy: oldest, pinged: []string{"component-identity-2"}}},
		{"candidates exist, should only elect leader from acked candidates", func(r *ctlRig) {
			r.server.Put(r.stub("component-identity-1", "1.19.0", "1.19.0").record())
			r.stub("component-identity-2", "1.20.0", "1.20.0").start()
		}, 6 * time.Second, want{lease: true, holder: "component-identity-2", strategy: oldest, pinged: []string{"component-identity-1", "component-identity-2"}}},
		{"candidates exist, lease exists, lease expired", func(r *ctlRig) {
			r.server.Put(r.leads("component-identity-expired", time.Minute))
			r.stub("component-identity-1", "1.19.0", "1.19.0").start()
		}, 16 * time.Second, want{lease: true, holder: "component-identity-1", strategy: oldest, pinged: []string{"component-identity-1"}}},
		// Not an error here: it goes on as soon as one renews.
		{"candidates exist, no acked candidates should return error", func(r *ctlRig) {
			r.server.Put(r.stub("component-identity-1", "1.19.0", "1.19.0").record())
		}, time.Minute, want{pinged: []string{"component-identity-1"}}},
		{"candidates exist, should ping on election", func(r *ctlRig) {
			r.server.Put(r.stub("component-identity-1", "1.19.0", "1.19.0").record())
		}, 0, want{pinged: []string{"component-identity-1"}}},
		{"candidate exist, pinged candidate should have until electionDuration until election decision is made", func(r *ctlRig) {
			record := r.stub("component-identity-1", "1.19.0", "1.19.0").record()
			record.Spec.PingTime = ptr.To(metav1.NewMicroTime(record.Spec.RenewTime.Add(time.Second)))
			r.server.Put(record)
			r.stub("component-identity-2", "1.20.0", "1.20.0").start()
		}, 5*time.Second - 1, want{pinged: []string{"component-identity-1"}}},
		{"candidates exist, lease exists, lease expired, 3rdparty strategy", func(r *ctlRig) {
			lease := r.leads("component-identity-expired", time.Minute)
			lease.Spec.Strategy = ptr.To[coordinationv1.CoordinatedLeaseStrategy]("foo.com/bar")
			r.server.Put(lease)
			r.stub("component-identity-1", "1.19.0", "1.19.0").set(func(s *ctlStub) { s.strat = "foo.com/bar" }).start()
		}, time.Hour, want{lease: true, holder: "component-identity-expired", strategy: "foo.com/bar", pinged: []string{"component-identity-1"}}},
	} {
		t.Run(tc.name, ctlBubble(func(r *ctlRig) {
			tc.setUp(r)
			r.advance(time.Second)
			r.start()
			r.advance(tc.after)
			lease := r.lease()
			if (lease != nil) != tc.want.lease {
				r.Fatalf("lease = %v", lease)
			}
			if lease != nil {
				r.want("holder", r.holder(), tc.want.holder)
				r.want("preferredHolder", r.preferred(), tc.want.preferred)
				r.want("strategy", ptr.Deref(lease.Spec.Strategy, ""), tc.want.strategy)
			}
			var pinged []string
			for _, c := range apitest.List[*coordinationv1beta1.LeaseCandidate](r.server, ctlNamespace) {
				if c.Spec.PingTime != nil {
					pinged = append(pinged, c.Name)
				}
			}
			r.want("pinged", pinged, tc.want.pinged)
			if errs := r.errors(); len(errs) > 0 {
				r.Errorf("reported %v", errs)
			}
		}))
	}
}

func TestController(t *testing.T) {
	t.Run("single candidate leader election", ctlBubble(func(r *ctlRig) {
		r.start()
		r.stub("a", "1.19.0", "1.19.0").start()
		r.want("holder", r.holder(), "a")
	}))
	t.Run("multiple candidate leader election", ctlBubble(func(r *ctlRig) {
		r.stub("a", "1.20.0", "1.20.0").start()
		r.stub("b", "1.19.0", "1.19.0").start()
		r.stub("c", "1.20.0", "1.21.0").start()
		r.start()
		r.advance(time.Second)
		r.want("holder", r.holder(), "b")
	}))
	t.Run("deletion of lease triggers reelection", ctlBubble(func(r *ctlRig) {
		r.start()
		r.stub("a", "1.19.0", "1.19.0").start()
		r.advance(time.Minute)
		apitest.Remove[*coordinationv1.Lease](r.server, ctlNamespace, ctlLease)
		r.advance(10 * time.Millisecond)
		r.want("holder", r.holder(), "a")
	}))
	t.Run("expired lease is replaced", ctlBubble(func(r *ctlRig) {
		r.server.Put(r.leads("x", time.Hour))
		r.start()
		r.stub("a", "1.19.0", "1.19.0").start()
		r.advance(15*time.Second - 1)
		r.want("holder", r.holder(), "x")
		r.advance(10 * time.Millisecond)
		r.want("holder", r.holder(), "a")
	}))
	t.Run("better candidate triggers reelection", ctlBubble(func(r *ctlRig) {
		r.start()
		r.stub("a", "1.20.0", "1.20.0").start()
		r.advance(time.Minute)
		r.stub("b", "1.19.0", "1.19.0").start()
		r.want("preferredHolder", r.preferred(), "b")
		r.advance(16 * time.Second)
		r.want("holder", r.holder(), "b")
		r.want("preferredHolder", r.preferred(), "")
	}))
	t.Run("better candidate triggers reelection, hand-over by the holder", ctlBubble(func(r *ctlRig) {
		r.start()
		r.stub("a", "1.20.0", "1.20.0").set(func(s *ctlStub) { s.obedient = true }).start()
		r.advance(time.Minute)
		r.stub("b", "1.19.0", "1.19.0").start()
		r.advance(2 * time.Second)
		r.want("holder", r.holder(), "b")
		r.advance(time.Hour)
		r.want("holder", r.holder(), "b")
	}))
}

// TestLeaseCandidateGCController has the upstream names of the collection of
// candidates, and TestLeaseCandidateCleanup of the integration tests.
func TestLeaseCandidateGCController(t *testing.T) {
	t.Run("delete expired lease candidates", ctlBubble(func(r *ctlRig) {
		r.start()
		a := r.stub("a", "1.19.0", "1.19.0").start()
		b := r.stub("b", "1.19.0", "1.19.0").start()
		r.advance(time.Second)
		b.stop()
		r.advance(30*time.Minute - 2*time.Second)
		if r.candidate("b") == nil {
			r.Error("deleted too soon")
		}
		r.advance(2 * time.Second)
		if r.candidate("b") != nil || r.candidate("a") == nil {
			r.Error("want a and not b")
		}
		r.want("told", r.told(), []string{"elected a", "collected b"})
		a.stop()
	}))
	t.Run("no expired lease candidates", ctlBubble(func(r *ctlRig) {
		r.start()
		r.stub("a", "1.19.0", "1.19.0").start()
		r.advance(time.Hour)
		r.want("requests", r.requests(), []string{"create leases"})
	}))
	t.Run("one that came back meanwhile is not deleted", ctlBubble(func(r *ctlRig) {
		r.start()
		b := r.stub("b", "1.19.0", "1.19.0").start()
		b.stop()
		r.advance(29 * time.Minute)
		r.server.StallWatches(apitest.Match{User: ctlUser, Resource: "leasecandidates"})
		b.start()
		r.advance(10 * time.Minute)
		if r.candidate("b") == nil {
			r.Error("deleted although it was renewed")
		}
		for _, q := range r.server.Requests(apitest.Match{User: ctlUser, Verb: "delete"}) {
			r.want("answer", q.Code, 409)
		}
	}))
}
