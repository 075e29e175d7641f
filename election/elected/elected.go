// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package elected runs the controllers of a controller-runtime manager on the leader of
// an election only, while caches, webhooks and servers run in every replica.
//
//	mgr, err := elected.New(config, ctrl.Options{ … }, election.Config{ … })
//	…
//	err = (&BalancerReconciler{ … }).SetupWithManager(mgr)
//	…
//	return mgr.Start(ctx)
//
// The setup code of the controllers stays as it is. Compared with the election of the
// manager, a standby watches instead of polling, a loss stops the reconcilers at once
// instead of after RenewDeadline, and the lease is given away after they have returned. A
// reconciler that ignores the end of its context keeps the lease, as long as it can be
// renewed; set [election.Config.OnOverrun] to end the process when it can't.
//
// Set EnableWarmup of options.Controller if the strategy prefers some replicas. A replica is
// then the last resort until its controllers are warm. Without it, a better replica whose
// caches never sync takes the lease from one that works, and reconciles nothing until
// CacheSyncTimeout ends it; when it has restarted, it does so again.
//
// controller-runtime has no option for another election: LeaderElectionResourceLockInterface
// replaces only the object that its own elector writes. So the package makes the manager
// and wraps it: a manager does not show whether its own election is on.
package elected

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/kubewright/kubewright/election"
)

// Manager is a manager whose leader runnables wait for an election.Candidate.
type Manager struct {
	manager.Manager
	candidate *election.Candidate
	elected   chan struct{}
	end       context.CancelCauseFunc // of the candidate; set by Start of the candidate

	mu      sync.Mutex
	waiting []manager.Runnable
	warming []*warmed              // added before stand
	run     func(manager.Runnable) // starts a runnable in the term; nil before it
}

// New makes a manager as manager.New does, with an election of its own. cfg.Lead must be
// nil. The health checks of the manager include the Candidate's Check, under cfg.Name. It is
// nil in a standby too; the Ready of the Candidate can be a readiness check. The Candidate logs
// to the logger of the manager, unless the context of options.BaseContext has one.
//
// options.LeaderElection must be false. If it were true, the manager would stand in a second
// election. Losing that one ends the program before the reconcilers have returned. If both
// use one Lease, the manager can hold it while no replica reconciles.
//
// A controller can be started once. So Start returns an error when the term is over, for
// example one that is election.ErrLost, and the program ends, as with the election of
// the manager. This includes a hand-over to a better candidate (election.ErrSuperseded).
// All reconcilers have returned by then, unless options.GracefulShutdownTimeout has ended
// before. It must be longer than Timing.Drain and ShutdownTimeout of cfg together, or the
// lease is not given away; its default of 30 s is.
func New(config *rest.Config, options manager.Options, cfg election.Config) (*Manager, error) {
	m := &Manager{elected: make(chan struct{})}
	var errs []error
	if options.LeaderElection {
		errs = append(errs, errors.New("elected: Options.LeaderElection must be false: the Candidate takes the place of the manager's own election"))
	}
	if cfg.Lead != nil {
		errs = append(errs, errors.New("elected: Config.Lead must be nil: the leader runs the controllers"))
	}
	cfg.Lead = m.lead
	var err error
	if m.candidate, err = election.New(cfg); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...) // before the manager opens its listeners
	}
	if m.Manager, err = manager.New(config, options); err != nil {
		return nil, err
	}
	return m, errors.Join(m.Manager.Add(always(m.stand)), m.AddHealthzCheck(m.candidate.Name(), m.candidate.Check))
}

// Candidate returns the candidate, for example for its Resign and Leader.
func (m *Manager) Candidate() *election.Candidate { return m.candidate }

// Elected returns a channel that is closed when this replica has become the leader.
func (m *Manager) Elected() <-chan struct{} { return m.elected }

// Add adds a runnable. Like the manager's own, it lets a runnable wait for the election
// unless that says that it need not, or is a cluster. The Warmup of one that waits is called
// in every replica.
func (m *Manager) Add(r manager.Runnable) error {
	_, hasCache := r.(interface{ GetCache() cache.Cache })
	chooses, ok := r.(manager.LeaderElectionRunnable)
	if hasCache || ok && !chooses.NeedLeaderElection() {
		return m.Manager.Add(r)
	}
	if w, ok := r.(warmer); ok {
		warmed := &warmed{Runnable: r, warmer: w, done: make(chan struct{})}
		if err := m.Manager.Add(always(warmed.warmUp)); err != nil {
			return err
		}
		r = warmed
		m.mu.Lock()
		m.warming = append(m.warming, warmed)
		m.mu.Unlock()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.run != nil {
		m.run(r)
	} else {
		m.waiting = append(m.waiting, r)
	}
	return nil
}

// stand runs the candidate until ctx is done or its term is over.
func (m *Manager) stand(ctx context.Context) error {
	if _, err := logr.FromContext(ctx); err != nil { // unless Options.BaseContext has one
		ctx = logr.NewContext(ctx, m.GetLogger())
	}
	var warming sync.WaitGroup
	defer warming.Wait()
	standing, end := context.WithCancelCause(ctx)
	defer end(nil)
	m.end = end
	if cold := m.standBack(); cold != nil {
		warming.Go(func() { m.standWhenWarm(standing, cold) })
	}
	err := m.candidate.Run(standing)
	if err == nil && ctx.Err() == nil {
		err = context.Cause(standing)
	}
	if err != nil {
		return fmt.Errorf("elected: %w", err)
	}
	return nil
}

// standBack makes the candidate the last resort if there are runnables that must warm up, and
// returns them. Otherwise a replica whose caches never sync would take the lease from one that
// works, if it is the better candidate. If the candidate is the last resort already, the
// program decides when that ends, and standBack returns nil.
func (m *Manager) standBack() []*warmed {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.warming) == 0 {
		return nil
	}
	var was bool
	err := m.candidate.Update(func(p *election.Peer) { was, p.LastResort = p.LastResort, true })
	if err != nil || was {
		return nil
	}
	return m.warming
}

// standWhenWarm ends standBack when all of its runnables are warm.
func (m *Manager) standWhenWarm(ctx context.Context, cold []*warmed) {
	for _, w := range cold {
		select {
		case <-w.done:
		case <-ctx.Done():
			return
		}
	}
	_ = m.candidate.Update(func(p *election.Peer) { p.LastResort = false })
}

// lead runs the controllers until ctx is done or one of them fails.
func (m *Manager) lead(ctx context.Context, _ election.Term) error {
	working, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var running sync.WaitGroup
	run := func(r manager.Runnable) {
		running.Go(func() {
			if err := r.Start(working); err != nil {
				fail(err)
			}
		})
	}
	m.mu.Lock()
	for _, r := range m.waiting {
		run(r)
	}
	m.run = run
	m.mu.Unlock()
	close(m.elected)

	<-working.Done()
	m.mu.Lock()
	m.run = func(manager.Runnable) {} // too late
	m.mu.Unlock()
	running.Wait()
	if ctx.Err() != nil {
		m.end(context.Cause(ctx)) // no second term
	}
	return context.Cause(working)
}

// always is a runnable that does not wait for the election of the manager.
type always func(context.Context) error

// Start implements manager.Runnable.
func (f always) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (always) NeedLeaderElection() bool { return false }

// warmer is a runnable that prepares in every replica for Start, for example a controller
// with Options.EnableWarmup.
type warmer interface {
	Warmup(ctx context.Context) error
}

// warmed starts a runnable when it is warm.
type warmed struct {
	manager.Runnable
	warmer warmer
	done   chan struct{}      // closed when Warmup has succeeded; an error ends the manager
	cool   context.CancelFunc // ends the context of Warmup; set before done is closed
}

// warmUp is added to the manager.
func (w *warmed) warmUp(ctx context.Context) error {
	ctx, w.cool = context.WithCancel(ctx)
	err := w.warmer.Warmup(ctx)
	if err == nil {
		close(w.done)
	}
	return err
}

// Start implements manager.Runnable. The context of Warmup ends with ctx, because the queue
// of a controller that was warm is closed with the former, and its workers return only when
// the queue is closed.
func (w *warmed) Start(ctx context.Context) error {
	select {
	case <-w.done:
	case <-ctx.Done():
		return nil
	}
	defer context.AfterFunc(ctx, w.cool)()
	return w.Runnable.Start(ctx)
}
