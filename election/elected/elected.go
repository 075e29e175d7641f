// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package elected runs the controllers of a controller-runtime manager on the leader of
// an election only, while caches, webhooks and servers run in every replica.
//
//	mgr, err := ctrl.NewManager(config, ctrl.Options{ … }) // LeaderElection off
//	…
//	elected, err := elected.New(mgr, election.Config{ … }) // without Lead
//	…
//	err = (&BalancerReconciler{ … }).SetupWithManager(elected)
//	…
//	return elected.Start(ctx)
//
// The setup code of the controllers stays as it is. Compared with the election of the
// manager, a standby watches instead of polling, a loss stops the reconcilers at once
// instead of after RenewDeadline, and the lease is given away after they have returned. A
// reconciler that ignores the end of its context keeps the lease, as long as it can be
// renewed; set [election.Config.OnOverrun] to end the process when it can't.
//
// controller-runtime has no option for another election: LeaderElectionResourceLockInterface
// replaces only the object that its own elector writes. So the package wraps the manager.
package elected

import (
	"context"
	"errors"
	"fmt"
	"sync"

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
	run     func(manager.Runnable) // starts a runnable in the term; nil before it
}

// New returns mgr with an election of its own. mgr must have LeaderElection off. cfg.Lead
// must be nil. The Candidate is added to mgr, with its health check.
//
// A controller can be started once. So Start returns an error when the term is over, for
// example one that is election.ErrLost, and the program ends, as with the election of
// the manager. All reconcilers have returned by then.
func New(mgr manager.Manager, cfg election.Config) (*Manager, error) {
	if cfg.Lead != nil {
		return nil, errors.New("elected: Config.Lead must be nil: the leader runs the controllers")
	}
	m := &Manager{Manager: mgr, elected: make(chan struct{})}
	cfg.Lead = m.lead
	var err error
	if m.candidate, err = election.New(cfg); err != nil {
		return nil, err
	}
	return m, errors.Join(mgr.Add(always(m.stand)), mgr.AddHealthzCheck(m.candidate.Name(), m.candidate.Check))
}

// Candidate returns the candidate, for example for its Resign and Leader.
func (m *Manager) Candidate() *election.Candidate { return m.candidate }

// Elected returns a channel that is closed when this replica has become the leader.
func (m *Manager) Elected() <-chan struct{} { return m.elected }

// Add adds a runnable. Like the manager's own, it lets a runnable wait for the election
// unless that says that it need not, or is a cluster.
func (m *Manager) Add(r manager.Runnable) error {
	_, hasCache := r.(interface{ GetCache() cache.Cache })
	chooses, ok := r.(manager.LeaderElectionRunnable)
	if hasCache || ok && !chooses.NeedLeaderElection() {
		return m.Manager.Add(r)
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
	standing, end := context.WithCancelCause(ctx)
	defer end(nil)
	m.end = end
	err := m.candidate.Run(standing)
	if err == nil && ctx.Err() == nil {
		err = context.Cause(standing)
	}
	if err != nil {
		return fmt.Errorf("elected: %w", err)
	}
	return nil
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
