// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// ctlReplica is a process with a Candidate.
type ctlReplica struct {
	rig    *ctlRig
	name   string
	cancel context.CancelFunc
	done   sync.WaitGroup
	linger atomic.Int64 // for how long work goes on after its context was cancelled

	mu    sync.Mutex
	leads bool
}

// run runs a Candidate until the end of the test, stop or crash.
func (p *ctlReplica) run(cfg election.Config, lead election.LeadFunc) {
	cfg.ExclusiveIdentity = true
	cfg.Lead = func(ctx context.Context, term election.Term) error {
		p.set(true)
		defer p.set(false)
		return lead(ctx, term)
	}
	candidate, err := election.New(cfg)
	if err != nil {
		p.rig.Fatal(err)
	}
	ctx, cancel := context.WithCancel(p.rig.Context())
	p.cancel = cancel
	p.rig.Cleanup(p.stop)
	p.done.Go(func() {
		if err := candidate.Run(ctx); err != nil {
			p.rig.Errorf("%s: %v", p.name, err)
		}
	})
}

func (p *ctlReplica) stop() {
	p.cancel()
	p.done.Wait()
}

// crash cuts the process off for good.
func (p *ctlReplica) crash() {
	p.rig.server.Inject(apitest.Fault{Match: apitest.Match{User: p.name}, Err: apitest.ErrConnReset})
	p.rig.server.BreakWatches(apitest.Match{User: p.name})
}

func (p *ctlReplica) set(leads bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leads = leads
}

func (p *ctlReplica) leading() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.leads
}

// coordinator is a replica that coordinates while it leads.
func (r *ctlRig) coordinator(name string) *ctlReplica {
	p := &ctlReplica{rig: r, name: name}
	clients := r.server.Client(apitest.User{Name: name})
	cfg := r.cfg
	cfg.Client, cfg.Candidates = clients.CoordinationV1(), clients.CoordinationV1beta1()
	p.run(election.Config{
		Client: clients.CoordinationV1(), Self: election.Peer{Identity: name},
		Lease: types.NamespacedName{Namespace: "kube-system", Name: BuiltInLease},
	}, func(ctx context.Context, _ election.Term) error {
		c, err := New(cfg)
		if err != nil {
			return err
		}
		return c.Run(ctx)
	})
	return p
}

// worker is a replica that stands for ctlLease and leaves the choice to the
// Controller.
func (r *ctlRig) worker(name, version string, change ...func(*election.Config)) *ctlReplica {
	p := &ctlReplica{rig: r, name: name}
	clients := r.server.Client(apitest.User{Name: name})
	cfg := election.Config{
		Client: clients.CoordinationV1(), Self: election.Peer{Identity: name, BinaryVersion: version}, Registry: election.LeaseCandidates(clients.CoordinationV1beta1()),
		Lease: types.NamespacedName{Namespace: ctlNamespace, Name: ctlLease},
	}
	for _, f := range change {
		f(&cfg)
	}
	p.run(cfg, func(ctx context.Context, _ election.Term) error {
		<-ctx.Done()
		time.Sleep(time.Duration(p.linger.Load()))
		return nil
	})
	return p
}

// TestControllerHA: Controllers behind Candidates, which elect candidates of
// this package, while one process after the other dies.
func TestControllerHA(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		first := r.coordinator("coordinator-1")
		r.advance(time.Second)
		second := r.coordinator("coordinator-2")
		a := r.worker("a", "1.37.0")
		r.advance(time.Second)
		b := r.worker("b", "1.37.0")
		workers := []*ctlReplica{a, b}
		// watch fails the test when two lead, and returns for how long none did.
		watch := func(d time.Duration) (vacant time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				r.advance(20 * time.Millisecond)
				n := 0
				for _, w := range workers {
					if w.leading() {
						n++
					}
				}
				if n > 1 {
					t.Fatalf("%v: %d leaders", time.Since(ctlEpoch), n)
				}
				if n == 0 {
					vacant += 20 * time.Millisecond
				}
			}
			return vacant
		}
		r.want("nobody leads", watch(time.Minute), time.Duration(0))
		r.want("leads", a.leading(), true)
		r.want("coordinates", first.leading() && !second.leading(), true)

		// The coordinator dies, without effect. The leader dies while there is
		// none.
		first.crash()
		r.want("nobody leads", watch(5*time.Second), time.Duration(0))
		a.crash()
		// Ten seconds until the second one coordinates, to whom the holder seems
		// to have renewed just then.
		if vacant := watch(time.Minute); vacant > 10*time.Second+15*time.Second {
			t.Errorf("nobody led for %v", vacant)
		}
		r.want("leads", b.leading(), true)
		r.want("coordinates", second.leading(), true)

		// A better one takes over without a gap.
		c := r.worker("c", "1.36.0")
		workers = append(workers, c)
		if vacant := watch(time.Minute); vacant > 100*time.Millisecond {
			t.Errorf("nobody led for %v", vacant)
		}
		r.want("leads", c.leading(), true)
		r.want("told", r.told(), []string{"elected a", "elected b", "preferred c"})
	})(t)
}

// TestControllerTakesOver: the built-in controllers lose their Lease when
// another client releases it in the name of its holder, because the Candidate is faster than an
// elector that asks every two seconds.
func TestControllerTakesOver(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		builtIn := &clientGo{rig: r, name: "apiserver-1", plain: true, namespace: "kube-system", lease: BuiltInLease}
		builtIn.start()
		r.advance(5 * time.Second)
		r.want("the built-in one leads", builtIn.leading(), true)
		ours := r.coordinator("coordinator-1")
		r.advance(time.Minute)
		r.want("ours leads", ours.leading(), false)
		apitest.Edit(r.server, "kube-system", BuiltInLease, func(l *coordinationv1.Lease) {
			l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = nil, ptr.To[int32](1)
			l.Spec.AcquireTime, l.Spec.RenewTime = ptr.To(metav1.NowMicro()), ptr.To(metav1.NowMicro())
		})
		r.advance(100 * time.Millisecond)
		r.want("ours leads", ours.leading(), true)
		r.advance(time.Hour)
		r.want("ours leads", ours.leading(), true)
		r.want("the built-in one leads", builtIn.leading(), false)
	})(t)
}

// Candidates that may not watch the Lease see each assignment by a read, which may have
// missed a leader. They wait for that leader, and the Controller must wait for them.
func TestCandidatesThatPollAreElected(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		for _, name := range []string{"a", "b"} {
			r.server.Inject(apitest.Fault{Match: apitest.Match{User: name, Verb: "watch", Resource: "leases"}, Status: statuserr.Forbidden("leases", ctlLease, "no")})
		}
		r.start()
		a, b := r.worker("a", "1.37.0"), r.worker("b", "1.37.0")
		r.advance(2 * time.Minute)
		if !a.leading() && !b.leading() {
			r.Errorf("nobody leads; the Lease is %+v", r.lease().Spec)
		}
		// The leader crashes, and the other one is elected.
		crashed, other := a, b
		if b.leading() {
			crashed, other = b, a
		}
		crashed.crash()
		r.advance(2 * time.Minute)
		if !other.leading() {
			r.Errorf("nobody leads after a crash; the Lease is %+v", r.lease().Spec)
		}
	})(t)
}

// A better candidate may not update the Lease. The leader hands the Lease to it a few
// times, and each time it is doubted for longer.
func TestACandidateThatCannotClaimIsRarelyPreferred(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		r.server.Inject(apitest.Fault{Match: apitest.Match{User: "b", Verb: "update", Resource: "leases"}, Status: statuserr.Forbidden("leases", ctlLease, "no")})
		r.start()
		a := r.worker("a", "1.37.0")
		r.advance(time.Minute)
		r.want("leads", a.leading(), true)
		r.worker("b", "1.36.0")
		r.advance(10 * time.Minute)
		r.want("told", r.told(), []string{
			"elected a", "preferred b", "elected a", "preferred b", "elected a", "preferred b", "elected a", "preferred b", "elected a",
		})
		r.want("leads", a.leading(), true)
	})(t)
}

// The number of candidates that may not watch the Lease does not prolong an election,
// because the second assignment of the Lease lasts twice as long as the first.
func TestManyCandidatesThatPollAreElectedAsSoon(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		r.start()
		var workers []*ctlReplica
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			r.server.Inject(apitest.Fault{Match: apitest.Match{User: name, Verb: "watch", Resource: "leases"}, Status: statuserr.Forbidden("leases", ctlLease, "no")})
			workers = append(workers, r.worker(name, "1.37.0"))
			r.advance(700 * time.Millisecond)
		}
		for _, event := range []string{"at first", "after the leader stopped"} {
			r.advance(45 * time.Second)
			i := slices.IndexFunc(workers, (*ctlReplica).leading)
			if i < 0 {
				r.Fatalf("%s: nobody leads; the Lease is %+v", event, r.lease().Spec)
			}
			workers[i].stop()
		}
	})(t)
}

// Four candidates that may not update the Lease come before one that can lead. None of
// them is tried again before it, although the first doubt ends in the meantime.
func TestEachCandidateIsTriedBeforeAnyIsTriedAgain(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		r.start()
		for _, name := range []string{"a", "b", "c", "d"} {
			r.server.Inject(apitest.Fault{Match: apitest.Match{User: name, Verb: "update", Resource: "leases"}, Status: statuserr.Forbidden("leases", ctlLease, "no")})
			r.worker(name, "1.37.0")
			r.advance(700 * time.Millisecond)
		}
		e := r.worker("e", "1.37.0")
		r.advance(2 * time.Minute)
		r.want("leads", e.leading(), true)
		r.want("told", r.told(), []string{"elected a", "elected b", "elected c", "elected d", "elected e"})
	})(t)
}

// Another client writes a short duration. The leader does not know that it must renew
// earlier, and writes its own duration again with the next renewal.
func TestAShortDurationCostsNoTerm(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		r.start()
		a := r.worker("a", "1.37.0")
		r.advance(time.Second)
		r.worker("b", "1.37.0")
		r.advance(time.Minute)
		for range 20 {
			apitest.Edit(r.server, ctlNamespace, ctlLease, func(l *coordinationv1.Lease) { *l.Spec.LeaseDurationSeconds = 1 })
			r.advance(3300 * time.Millisecond)
		}
		r.want("leads", a.leading(), true)
		r.want("told", r.told(), []string{"elected a"})
	})(t)
}

// b begins while the Lease is assigned to a, which may wait for a leader that b has not
// seen. So b can't lead for two minutes, and is not chosen in that time.
func TestACandidateThatCannotLeadYetIsNotElected(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		long := func(cfg *election.Config) { cfg.Timing = election.LongOutageTiming() }
		r.start()
		r.server.Inject(apitest.Fault{Match: apitest.Match{User: "a", Verb: "update", Resource: "leases"}, Times: 1, Latency: 2 * time.Second})
		a := r.worker("a", "1.37.0", long)
		r.advance(time.Second)
		b := r.worker("b", "1.37.0", long)
		r.advance(5 * time.Second)
		r.want("leads", a.leading(), true)
		c := r.worker("c", "1.37.0", long)
		r.advance(5 * time.Second)
		a.stop()
		r.advance(time.Second)
		r.want("leads", c.leading(), true)
		r.advance(2 * time.Minute)
		c.stop()
		r.advance(time.Second)
		r.want("leads", b.leading(), true)
	})(t)
}

// The term of a is over, and its work ignores that. So a can't lead, and is not chosen.
func TestACandidateWhoseWorkHangsIsNotElected(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		r.start()
		var workers []*ctlReplica
		for _, name := range []string{"a", "b", "c"} {
			workers = append(workers, r.worker(name, "1.37.0"))
			r.advance(time.Second)
		}
		r.want("leads", workers[0].leading(), true)
		workers[0].linger.Store(int64(5 * time.Minute))
		cutOff := apitest.Match{User: "a"}
		answer, resume := r.server.Inject(apitest.Fault{Match: cutOff, Hang: true}), r.server.StallWatches(cutOff)
		r.advance(time.Minute)
		r.want("leads", workers[1].leading(), true)
		answer()
		resume()
		r.advance(time.Minute)
		workers[1].stop()
		r.advance(ackTimeout + time.Second)
		r.want("leads", workers[2].leading(), true)
	})(t)
}
