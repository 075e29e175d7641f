// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// clientGo is a process with the candidate and the elector of client-go.
type clientGo struct {
	rig      *ctlRig
	name     string
	emulated string
	plain    bool // an elector without candidate, as before the feature
	release  bool

	namespace, lease string // default: ctlNamespace and ctlLease

	cancel context.CancelFunc
	done   sync.WaitGroup

	mu    sync.Mutex
	leads bool
}

func (p *clientGo) start() *clientGo {
	ctx, cancel := context.WithCancel(p.rig.Context())
	p.cancel = cancel
	p.rig.Cleanup(p.stop)
	if p.lease == "" {
		p.namespace, p.lease = ctlNamespace, ctlLease
	}
	clients := p.rig.server.Client(apitest.User{Name: p.name})
	if !p.plain {
		candidate, informers, err := leaderelection.NewCandidate(clients, ctlNamespace, p.name, ctlLease, "1.37.0", p.emulated, coordinationv1.OldestEmulationVersion)
		if err != nil {
			p.rig.Fatal(err)
		}
		p.done.Go(func() { candidate.Run(ctx); informers.(interface{ Shutdown() }).Shutdown() })
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: p.lease}, Client: clients.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: p.name},
		},
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Coordinated: !p.plain, ReleaseOnCancel: p.release,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { p.set(true) },
			OnStoppedLeading: func() { p.set(false) },
		},
	})
	if err != nil {
		p.rig.Fatal(err)
	}
	p.done.Go(func() {
		for ctx.Err() == nil { // as the kubelet restarts the process
			elector.Run(ctx)
		}
	})
	synctest.Wait()
	return p
}

func (p *clientGo) stop() {
	p.cancel()
	p.done.Wait()
}

func (p *clientGo) set(leads bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leads = leads
}

func (p *clientGo) leading() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.leads
}

// watchTwo fails the test when two of the processes lead at the same time, for
// as long as the test takes.
func watchTwo(r *ctlRig, d time.Duration, processes ...*clientGo) {
	r.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		r.advance(100 * time.Millisecond)
		n := 0
		for _, p := range processes {
			if p.leading() {
				n++
			}
		}
		if n > 1 {
			r.Fatalf("%v: %d leaders", time.Since(ctlEpoch), n)
		}
	}
}

// TestControllerClientGo elects processes that use client-go, as kube-scheduler
// and kube-controller-manager do. The names are those of the integration tests
// of Kubernetes.
func TestControllerClientGo(t *testing.T) {
	t.Run("TestSingleLeaseCandidate", ctlBubble(func(r *ctlRig) {
		r.start()
		a := (&clientGo{rig: r, name: "a", emulated: "1.37.0"}).start()
		watchTwo(r, 5*time.Second, a)
		r.want("leads", a.leading(), true)
		watchTwo(r, time.Hour, a)
		r.want("leads", a.leading(), true)
		r.want("requests", r.requests(), []string{"create leases"})
	}))
	t.Run("TestMultipleLeaseCandidate", ctlBubble(func(r *ctlRig) {
		a := (&clientGo{rig: r, name: "baz1", emulated: "1.37.0"}).start()
		b := (&clientGo{rig: r, name: "baz2", emulated: "1.36.0"}).start()
		c := (&clientGo{rig: r, name: "baz3", emulated: "1.35.0"}).start()
		r.advance(time.Second)
		r.start()
		watchTwo(r, 5*time.Second, a, b, c)
		r.want("leads", c.leading(), true)
	}))
	t.Run("TestLeaseSwapIfBetterAvailable", ctlBubble(func(r *ctlRig) {
		r.start()
		a := (&clientGo{rig: r, name: "bar1", emulated: "1.37.0"}).start()
		watchTwo(r, time.Minute, a)
		b := (&clientGo{rig: r, name: "bar2", emulated: "1.36.0"}).start()
		watchTwo(r, 20*time.Second, a, b)
		r.want("leads", b.leading(), true)
		watchTwo(r, time.Hour, a, b)
		r.want("told", r.told(), []string{"elected bar1", "preferred bar2", "elected bar2"})
	}))
	t.Run("TestUpgradeSkew", ctlBubble(func(r *ctlRig) {
		a := (&clientGo{rig: r, name: "foo1-130", plain: true, release: true}).start()
		r.advance(5 * time.Second)
		r.start()
		b := (&clientGo{rig: r, name: "foo1-131", emulated: "1.36.0"}).start()
		watchTwo(r, time.Hour, a, b)
		r.want("leads", a.leading(), true)
		r.want("requests", r.requests(), []string{})
		a.stop()
		watchTwo(r, 5*time.Second, a, b)
		r.want("leads", b.leading(), true)
	}))
	t.Run("TestLeaseCandidateCleanup", ctlBubble(func(r *ctlRig) {
		r.start()
		a := (&clientGo{rig: r, name: "a", emulated: "1.37.0", release: true}).start()
		watchTwo(r, time.Minute, a)
		a.stop()
		r.advance(31 * time.Minute)
		if r.candidate("a") != nil {
			r.Error("the LeaseCandidate is still there")
		}
	}))
	t.Run("crash", ctlBubble(func(r *ctlRig) {
		r.start()
		a := (&clientGo{rig: r, name: "a", emulated: "1.37.0"}).start()
		r.advance(time.Second)
		b := (&clientGo{rig: r, name: "b", emulated: "1.37.0"}).start()
		watchTwo(r, time.Minute, a, b)
		r.want("leads", a.leading(), true)
		a.stop()
		watchTwo(r, 15*time.Second+5*time.Second, a, b) // and it asks every 2 to 4.4 s
		r.want("leads", b.leading(), true)
	}))
	t.Run("TestCoordinatedLeaderElectionLeaseTransfer", ctlBubble(func(r *ctlRig) {
		r.start()
		a := (&clientGo{rig: r, name: "a", emulated: "1.36.0"}).start()
		b := (&clientGo{rig: r, name: "b", emulated: "1.37.0"}).start()
		watchTwo(r, time.Minute, a, b)
		r.want("leads", a.leading(), true)
		allow := r.server.Inject(apitest.Fault{Match: apitest.Match{User: "a", Verb: "update"}, Status: statuserr.Forbidden("leases", ctlLease, "policy")})
		watchTwo(r, time.Minute, a, b)
		r.want("leads", b.leading(), true)
		allow()
		watchTwo(r, 6*time.Minute, a, b)
		r.want("leads", a.leading(), true) // the better one, as soon as it is there again
	}))
}
