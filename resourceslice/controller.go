// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/lifecycle"
)

// fieldManagerPrefix and Config.Name are who managedFields names as the writer
// of slices.
const fieldManagerPrefix = "kubewright-"

// A Controller publishes pools of devices. Make it with [New], start it with
// Run, and tell it what there is with Set and Remove. All its methods may be
// called by any number of goroutines; none of them blocks but Run, Wait and
// Withdraw.
type Controller struct {
	cfg      Config
	hasher   hasher
	versions []version
	once     lifecycle.Once
	ready    *lifecycle.Ready
	progress *lifecycle.Progress
	tokens   chan struct{} // one for each write that may be under way
	own      ownWrites
	owner    ownerCache
	release  release

	// outlives is the context of writes: it goes on for ShutdownTimeout when
	// that of Run is done. Set by Run before anything reads it.
	outlives context.Context

	mu      sync.Mutex
	pools   map[PoolID]*pool
	queue   workqueue.TypedDelayingInterface[PoolID] // nil unless running
	session *session                                 // nil while there is none
	paused  time.Time                                // no write before: the API server asked for it
}

// New returns a Controller for a valid Config. The error names every field that
// is wrong. New sends nothing and starts nothing.
func New(cfg Config) (*Controller, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return &Controller{
		cfg:      cfg,
		hasher:   newHasher(),
		versions: versions(cfg.Client, fieldManagerPrefix+cfg.Name),
		ready:    lifecycle.NewReady(cfg.Name),
		progress: lifecycle.NewProgress(cfg.Name, 2*beatInterval+3*cfg.CallTimeout),
		tokens:   make(chan struct{}, cfg.Concurrency),
		own:      newOwnWrites(),
		owner:    newOwnerCache(cfg.Owner),
		release:  newRelease(cfg.Client),
		pools:    make(map[PoolID]*pool),
	}, nil
}

// Name returns Config.Name.
func (c *Controller) Name() string { return c.cfg.Name }

// Ready returns a checker that is done when it is known for the first time what
// the API server has: from then on pools are published. Whether one is, Wait
// tells. A controller with neither NodeName nor Driver doesn't know what to look
// at before the first Set.
func (c *Controller) Ready() cache.DoneChecker { return c.ready }

// Check reports whether the controller makes progress: nil while it does, and
// before Run. An API server that does not answer is no reason to restart the
// process, so that is not an error here; [Controller.Status] has it. The
// request is not used and may be nil.
func (c *Controller) Check(*http.Request) error { return c.progress.Check() }

// Set says what a pool has. It may be called at any time, by any goroutine, and
// never waits for I/O; it takes effect while Run runs. The pool is copied.
// What is the same as before is recognised and costs nothing.
//
// It returns an *InvalidError that lists every problem when the pool can't be
// published; the pool as it was Set before then stays, and so do others.
//
// A pool of which the API server has slices already, of an earlier process for
// example, is not touched before it is Set.
func (c *Controller) Set(id PoolID, p Pool) error {
	if err := c.checkID(id); err != nil {
		return err
	}
	c.mu.Lock()
	before := c.pools[id].desired()
	c.mu.Unlock()

	e := encoder{hasher: c.hasher}
	d, fresh, same := e.newDesired(id, &p, c.cfg.NodeName, before)
	if same {
		return nil
	}
	problems := validatePool(&p, fresh, c.cfg.NodeName)
	problems = append(problems, validatePartitionTypeOf(&p, id.Driver)...)
	if len(problems) > 0 {
		return &InvalidError{Pool: id, Err: problems.ToAggregate()}
	}
	c.want(id, d, d.urgent(before))
	return nil
}

func (c *Controller) checkID(id PoolID) error {
	problems := validatePoolID(id)
	if len(problems) == 0 && c.cfg.Driver != "" && id.Driver != c.cfg.Driver {
		problems = append(problems, notThisDriver(id.Driver, c.cfg.Driver))
	}
	if len(problems) > 0 {
		return &InvalidError{Pool: id, Err: problems.ToAggregate()}
	}
	return nil
}

// Remove deletes the slices of a pool. It may be called like Set, and also for
// a pool of the node that this process never Set. A pool of a cluster has to
// have been Set, unless the controller has no node.
func (c *Controller) Remove(id PoolID) { c.want(id, nil, true) }

// want makes d, or nil for nothing, what a pool is to be.
func (c *Controller) want(id PoolID, d *desired, urgent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pools[id]
	if p == nil {
		p = newPool(id)
		c.pools[id] = p
	} else if d == nil && p.want == nil {
		return
	}
	p.set(d, urgent)
	if (p.cluster || c.cfg.NodeName == "") && c.session != nil {
		c.session.poke() // it may have to watch more
	}
	c.enqueue(id, 0)
}

// enqueue has a pool looked at after a while. The lock is held.
func (c *Controller) enqueue(id PoolID, after time.Duration) {
	if c.queue != nil {
		c.queue.AddAfter(id, after)
	}
}

// Wait returns when the pool is on the API server as the latest Set or Remove
// before the call has asked for, or a later one: nil when that is all there,
// and *InvalidError, *DroppedFieldsError or *UnsupportedError when it never
// will be. It returns the cause when ctx is done, and ErrUnknownPool for a pool
// that was neither Set nor Removed.
func (c *Controller) Wait(ctx context.Context, id PoolID) error {
	var target int64
	for {
		c.mu.Lock()
		p := c.pools[id]
		if p == nil {
			c.mu.Unlock()
			return ErrUnknownPool
		}
		if target == 0 {
			target = p.status.Revision
		}
		done, err, changed := p.status.Published >= target || p.status.Err != nil, p.status.Err, p.changed
		c.mu.Unlock()
		if done {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

// Status returns where a pool stands, and false for one of which nothing is
// wanted and, as far as this controller is concerned, nothing is left.
func (c *Controller) Status(id PoolID) (Status, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pools[id]
	if p == nil || p.isGone() {
		return Status{}, false
	}
	return p.status, true
}

// Withdraw removes every pool that was Set, and returns when their slices are
// gone, or the cause when ctx is done before. It needs Run to be running: call
// it before its context is cancelled.
func (c *Controller) Withdraw(ctx context.Context) error {
	c.mu.Lock()
	ids := make([]PoolID, 0, len(c.pools))
	for id := range c.pools {
		ids = append(ids, id)
	}
	c.mu.Unlock()
	for _, id := range ids {
		c.Remove(id)
	}
	for _, id := range ids {
		if err := c.Wait(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// Run publishes until ctx is done and then returns nil; slices stay. A pool
// that is half published at that time is completed, for ShutdownTimeout at
// most. A second call returns [ErrAlreadyRun], which is its only error.
func (c *Controller) Run(ctx context.Context) error {
	if !c.once.Begin() {
		return ErrAlreadyRun
	}
	defer c.progress.Stop()
	if ctx.Err() != nil {
		return nil
	}
	logger := klog.LoggerWithName(klog.FromContext(ctx), c.cfg.Name)
	ctx = klog.NewContext(ctx, logger)
	outlives, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	c.outlives = outlives

	queue := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[PoolID]{
		Name: c.cfg.Name, MetricsProvider: c.cfg.QueueMetrics,
	})
	c.mu.Lock()
	c.queue = queue
	c.mu.Unlock()
	c.progress.Beat()
	logger.V(3).Info("Started", "node", klog.KRef("", c.cfg.NodeName))

	var workers sync.WaitGroup
	for range c.cfg.Workers {
		workers.Go(func() {
			for {
				id, shutdown := queue.Get()
				if shutdown {
					return
				}
				c.progress.Beat()
				c.sync(ctx, id)
				queue.Done(id)
			}
		})
	}
	c.serve(ctx)
	timer := time.AfterFunc(c.cfg.ShutdownTimeout, cancel)
	defer timer.Stop()
	c.shutDown(queue)
	workers.Wait()
	logger.V(3).Info("Stopped")
	return nil
}

// shutDown lets the workers end, with those pools that are half published and
// wait for something: what is to be done about them has to be done now.
func (c *Controller) shutDown(queue workqueue.TypedInterface[PoolID]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, p := range c.pools {
		if p.open {
			queue.Add(id)
		}
	}
	c.queue = nil
	queue.ShutDown()
}
