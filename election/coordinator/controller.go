// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"context"
	"net/http"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/election/coordinator/internal/contest"
	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/report"
)

// A Controller elects leaders for Leases that have LeaseCandidate objects. The
// package comment describes how. Make it with [New].
type Controller struct {
	cfg   Config
	rules *contest.Rules

	once     lifecycle.Once
	ready    *lifecycle.Ready
	progress *lifecycle.Progress
	watching apierr.Group
	electing apierr.Group
	offering apierr.Group // has one member
	dropped  apierr.Member

	// Set by Run before anything reads them.
	ctx        context.Context
	queue      workqueue.TypedDelayingInterface[types.NamespacedName]
	candidates *mirror
	leases     *mirror

	mu        sync.Mutex
	index     index
	droppedAt time.Time   // when the API server dropped an offer; zero after it stored one
	check     func(error) // tests: is called with the result of Contest.Check; nil otherwise
}

// beatInterval is the interval at which the progress of workers is checked.
const beatInterval = 10 * time.Second

// beat is not a Lease. A worker that takes it from the queue shows that it makes
// progress.
var beat types.NamespacedName

// New returns a Controller for a valid Config. The error names every invalid field.
// New sends no request and starts no goroutine.
func New(cfg Config) (*Controller, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return &Controller{
		cfg:      cfg,
		rules:    cfg.rules(),
		ready:    lifecycle.NewReady(cfg.Name),
		progress: lifecycle.NewProgress(cfg.Name, 2*beatInterval+3*callTimeout),
		index:    index{},
	}, nil
}

// Name returns Config.Name.
func (c *Controller) Name() string { return c.cfg.Name }

// Ready returns a checker that is done when all Leases and LeaseCandidates were listed
// for the first time. From then on leaders are elected.
func (c *Controller) Ready() cache.DoneChecker { return c.ready }

// Check returns nil before Run and while the controller makes progress, and an error
// after Run. An API server that does not answer is no error, because it is no reason
// to restart the process. The request is not used and may be nil.
func (c *Controller) Check(*http.Request) error { return c.progress.Check() }

// Run elects leaders until ctx is done. It returns nil after all of its goroutines have
// ended. Leases and LeaseCandidates stay, and another Controller continues from them. A
// second call returns [ErrAlreadyRun].
func (c *Controller) Run(ctx context.Context) error {
	if !c.once.Begin() {
		return ErrAlreadyRun
	}
	defer c.progress.Stop()
	if ctx.Err() != nil {
		return nil
	}
	logger := klog.LoggerWithName(klog.FromContext(ctx), c.cfg.Name)
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, logger))
	defer cancel()
	c.ctx = ctx
	report.ContainHooks(ctx, c.cfg.ErrorHandler, &c.cfg.Hooks)
	c.queue = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[types.NamespacedName]{Name: c.cfg.Name})
	c.setUp()
	logger.V(3).Info("Started", "namespace", c.cfg.Namespace)
	defer logger.V(3).Info("Stopped")

	var running sync.WaitGroup
	defer running.Wait()
	defer c.queue.ShutDown()
	// Leases are read after LeaseCandidates, because they are not needed if the API
	// does not serve LeaseCandidates.
	if c.candidates.start(ctx, &running) && c.leases.start(ctx, &running) {
		logger.V(2).Info("Watching Leases and LeaseCandidates")
		c.ready.Mark()
		for range workers {
			running.Go(func() { c.work(ctx) })
		}
		c.queue.Add(beat)
		<-ctx.Done()
	}
	return nil
}

// setUp creates the mirrors.
func (c *Controller) setUp() {
	candidates, leases := c.cfg.Candidates.LeaseCandidates(c.cfg.Namespace), c.cfg.Client.Leases(c.cfg.Namespace)
	c.candidates = newMirror(c, "leasecandidates", &coordinationv1beta1.LeaseCandidate{},
		candidates.List, candidates.Watch, c.candidateSeen, c.candidateGone)
	c.leases = newMirror(c, "leases", &coordinationv1.Lease{},
		leases.List, leases.Watch, func(_, lease *coordinationv1.Lease, _ bool) { c.leaseSeen(lease) }, c.leaseGone)
}

// work handles Leases of the queue, one after the other.
func (c *Controller) work(ctx context.Context) {
	for {
		key, shutdown := c.queue.Get()
		if shutdown {
			return
		}
		c.progress.Beat()
		switch {
		case key == beat:
			c.queue.AddAfter(beat, beatInterval)
		case ctx.Err() == nil:
			c.visit(ctx, key)
		}
		c.queue.Done(key)
	}
}
