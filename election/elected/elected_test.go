// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package elected_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/elected"
)

// replica is a process with a manager and one controller.
type replica struct {
	mgr     *elected.Manager
	stop    func()
	ended   chan struct{}
	err     error
	calls   atomic.Int64 // of Reconcile
	working atomic.Bool  // an always-on runnable runs
}

// crowd notes reconcilers that run in two replicas at once.
type crowd struct {
	mu   sync.Mutex
	busy map[string]int
	both int
}

func (c *crowd) enter(name string) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy[name]++
	if len(c.busy) > 1 {
		c.both++
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.busy[name]--; c.busy[name] == 0 {
			delete(c.busy, name)
		}
	}
}

type everywhere struct{ running *atomic.Bool }

func (e everywhere) Start(ctx context.Context) error {
	e.running.Store(true)
	<-ctx.Done()
	return nil
}

func (everywhere) NeedLeaderElection() bool { return false }

func start(t *testing.T, s *apitest.Server, c *crowd, name string, warm bool) *replica {
	t.Helper()
	r := &replica{ended: make(chan struct{})}
	var err error
	r.mgr, err = elected.New(s.Config(apitest.User{Name: name}), options(warm), candidacy(s, name))
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(r.mgr.Add(everywhere{&r.working}),
		ctrl.NewControllerManagedBy(r.mgr).For(&corev1.Node{}).Complete(reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			defer c.enter(name)()
			r.calls.Add(1)
			time.Sleep(100 * time.Millisecond) // also after ctx is done
			return reconcile.Result{RequeueAfter: 50 * time.Millisecond}, nil
		})))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	r.stop = func() { stop(); <-r.ended }
	go func() {
		defer close(r.ended)
		r.err = r.mgr.Start(ctx)
	}()
	return r
}

func options(warm bool) ctrl.Options {
	skip := true
	return ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller: config.Controller{SkipNameValidation: &skip, EnableWarmup: &warm, CacheSyncTimeout: time.Hour},
	}
}

func candidacy(s *apitest.Server, name string) election.Config {
	cfg := election.Config{
		Client:   kubernetes.NewForConfigOrDie(s.Config(apitest.User{Name: name})).CoordinationV1(),
		Lease:    types.NamespacedName{Namespace: "default", Name: "balancer"},
		Self:     election.Peer{Identity: name},
		Strategy: election.HighestPriority(nil),
	}
	if name == "best" {
		cfg.Self.Priority = 1
	}
	return cfg
}

// elections runs the test twice: the second time the controllers warm up.
func elections(t *testing.T, test func(t *testing.T, s *apitest.Server, c *crowd, a, b *replica)) {
	t.Run("cold", func(t *testing.T) { contest(t, false, test) })
	t.Run("warm", func(t *testing.T) { contest(t, true, test) })
}

func contest(t *testing.T, warm bool, test func(t *testing.T, s *apitest.Server, c *crowd, a, b *replica)) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		c := &crowd{busy: map[string]int{}}
		a := start(t, s, c, "a", warm)
		time.Sleep(time.Second)
		b := start(t, s, c, "b", warm)
		time.Sleep(time.Minute)
		synctest.Wait()
		if a.calls.Load() == 0 || b.calls.Load() != 0 || !a.working.Load() || !b.working.Load() {
			t.Errorf("reconciles: %d of the leader, %d of the other; run everywhere: %v, %v", a.calls.Load(), b.calls.Load(), a.working.Load(), b.working.Load())
		}
		if watched := len(s.Requests(apitest.Match{User: "b", Resource: "nodes"})) > 0; watched != warm {
			t.Errorf("the other replica watches nodes: %v", watched)
		}
		test(t, s, c, a, b)
		a.stop()
		b.stop()
		if c.both > 0 {
			t.Errorf("reconciled in two replicas at once, %d times", c.both)
		}
	})
}

func TestTheNextReplicaReconcilesWhenTheLeaderStops(t *testing.T) {
	elections(t, func(t *testing.T, _ *apitest.Server, _ *crowd, a, b *replica) {
		a.stop()
		if a.err != nil {
			t.Errorf("Start = %v", a.err)
		}
		time.Sleep(time.Second)
		<-b.mgr.Elected()
		if b.calls.Load() == 0 {
			t.Error("no reconcile within a second")
		}
	})
}

func TestALostLeaseEndsTheManager(t *testing.T) {
	elections(t, func(t *testing.T, s *apitest.Server, _ *crowd, a, b *replica) {
		apitest.Edit(s, "default", "balancer", func(l *coordinationv1.Lease) { *l.Spec.LeaseTransitions = 7 })
		time.Sleep(time.Second)
		synctest.Wait()
		select {
		case <-a.ended:
		default:
			t.Fatal("the manager runs a second after its lease was lost")
		}
		if !errors.Is(a.err, election.ErrLost) {
			t.Errorf("Start = %v", a.err)
		}
		time.Sleep(20 * time.Second)
		if b.calls.Load() == 0 {
			t.Error("the other replica does not reconcile")
		}
	})
}

func TestAFailedControllerReleasesTheLease(t *testing.T) {
	elections(t, func(t *testing.T, _ *apitest.Server, _ *crowd, a, b *replica) {
		broken := errors.New("broken")
		if err := a.mgr.Add(manual(func(context.Context) error { return broken })); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		<-a.ended
		if !errors.Is(a.err, broken) {
			t.Errorf("Start = %v", a.err)
		}
		if b.calls.Load() == 0 {
			t.Error("the other replica does not reconcile")
		}
	})
}

func TestARunnableStartsWhenItIsWarm(t *testing.T) {
	elections(t, func(t *testing.T, _ *apitest.Server, _ *crowd, a, b *replica) {
		slow := &slow{}
		if err := errors.Join(a.mgr.Add(slow), b.mgr.Add(slow)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(warmUp - time.Millisecond)
		synctest.Wait()
		if slow.started.Load() != 0 {
			t.Error("Start was called before Warmup had returned")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if slow.warm.Load() != 2 || slow.started.Load() != 1 {
			t.Errorf("%d replicas are warm and %d have started, not 2 and 1", slow.warm.Load(), slow.started.Load())
		}
	})
}

// The better of two replicas can't list what its controller needs. It leads only when it is
// warm: until then it would take the lease from a replica that works.
func TestAReplicaThatIsNotWarmTakesNoLease(t *testing.T) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		c := &crowd{busy: map[string]int{}}
		heal := s.Inject(apitest.Fault{Match: apitest.Match{User: "best", Resource: "nodes"}, Err: apitest.ErrConnRefused})
		worse := start(t, s, c, "worse", true)
		time.Sleep(time.Second)
		best := start(t, s, c, "best", true)
		time.Sleep(election.DefaultMinTenure + 30*time.Second)
		synctest.Wait()
		if !worse.mgr.Candidate().IsLeader() {
			t.Errorf("the replica that works has lost the lease: %v", worse.err)
		}
		heal()
		time.Sleep(2 * time.Minute) // an informer backs off for a minute at most
		synctest.Wait()
		if !best.mgr.Candidate().IsLeader() || !errors.Is(worse.err, election.ErrSuperseded) {
			t.Errorf("the best replica is warm and does not lead; the other ended with %v", worse.err)
		}
		worse.stop()
		best.stop()
		if c.both > 0 {
			t.Errorf("reconciled in two replicas at once, %d times", c.both)
		}
	})
}

func TestTheCandidateLogsToTheLoggerOfTheManager(t *testing.T) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		var lines atomic.Int64
		opts := options(false)
		opts.Logger = funcr.New(func(_, line string) {
			if strings.Contains(line, "Became leader") {
				lines.Add(1)
			}
		}, funcr.Options{})
		mgr, err := elected.New(s.Config(apitest.User{}), opts, candidacy(s, "a"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		if err := mgr.Add(manual(func(context.Context) error { stop(); return nil })); err != nil {
			t.Fatal(err)
		}
		if err := mgr.Start(ctx); err != nil || lines.Load() != 1 {
			t.Errorf("Start = %v, and the logger got %d lines of the election", err, lines.Load())
		}
	})
}

func TestNewRefuses(t *testing.T) {
	s := apitest.New(apitest.Options{})
	cfg, opts := candidacy(s, ""), options(false)
	cfg.Lead = func(context.Context, election.Term) error { return nil }
	opts.LeaderElection = true
	_, err := elected.New(s.Config(apitest.User{}), opts, cfg)
	for _, part := range []string{"Options.LeaderElection", "Config.Lead", "Self.Identity"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("New = %v, without %s", err, part)
		}
	}
}

// manual is a runnable that says nothing about elections, so it waits for one.
type manual func(context.Context) error

func (f manual) Start(ctx context.Context) error { return f(ctx) }

const warmUp = 5 * time.Second

// slow takes warmUp to warm up.
type slow struct{ warm, started atomic.Int64 }

func (s *slow) Warmup(context.Context) error {
	time.Sleep(warmUp)
	s.warm.Add(1)
	return nil
}

func (s *slow) Start(ctx context.Context) error {
	s.started.Add(1)
	<-ctx.Done()
	return nil
}
