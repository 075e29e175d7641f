// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcev1client "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/report"
	"github.com/kubewright/kubewright/resourceslice/internal/core"
	"github.com/kubewright/kubewright/resourceslice/internal/validation"
)

// fieldManagerPrefix and Config.Name are the field manager of writes.
const fieldManagerPrefix = "kubewright-"

// A Controller publishes pools of devices. Create it with [New], start it with
// Run, and pass it pools with Set, SetAll and Remove. All methods may be called
// by any number of goroutines; only Run, Wait and Withdraw block.
type Controller struct {
	cfg      Config
	checked  func(error) // for tests: called with the Check of each pool's state
	hasher   hasher
	client   resourcev1client.ResourceSliceInterface
	once     lifecycle.Once
	ready    *lifecycle.Ready
	progress *lifecycle.Progress
	tokens   chan struct{} // one for each write that may be under way
	view     view
	owner    ownerCache

	// outlives is the context of writes: it ends ShutdownTimeout after that of
	// Run. Run sets it before anything reads it.
	outlives context.Context

	mu      sync.Mutex
	self    core.Instance      // the same one for all pools
	since   string             // the resource version of the first list
	ahead   map[string]*record // written before since, by an instance that may be a newer sibling
	pools   map[PoolID]*pool
	named   map[string]map[string]bool               // by driver: the pools of the last SetAll
	queue   workqueue.TypedDelayingInterface[PoolID] // nil unless running
	session *session                                 // nil unless running
	paused  time.Time                                // no write before: the API server throttles
}

// New returns a Controller for a valid Config. The error lists every invalid
// field. New sends nothing and starts no goroutine.
func New(cfg Config) (*Controller, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return &Controller{
		cfg:      cfg,
		self:     core.Instance{Manager: fieldManagerPrefix + cfg.Name, At: time.Now().UnixMilli(), ID: fmt.Sprintf("%08x", rand.Uint32())},
		hasher:   newHasher(),
		client:   cfg.Client.ResourceSlices(),
		ready:    lifecycle.NewReady(cfg.Name),
		progress: lifecycle.NewProgress(cfg.Name, 2*beatInterval+3*callTimeout),
		tokens:   make(chan struct{}, concurrency),
		view:     view{slices: map[string]*entry{}},
		owner:    ownerCache{source: cfg.Owner, turn: make(chan struct{}, 1)},
		ahead:    make(map[string]*record),
		pools:    make(map[PoolID]*pool),
		named:    make(map[string]map[string]bool),
	}, nil
}

// Name returns Config.Name.
func (c *Controller) Name() string { return c.cfg.Name }

// Ready returns a checker that is done when the slices on the API server are
// known for the first time. Pools are published from then on; Wait returns when
// one is. A controller with neither NodeName nor Driver watches nothing before
// the first Set.
func (c *Controller) Ready() cache.DoneChecker { return c.ready }

// Check reports whether the controller makes progress. It returns nil before
// Run, and an error after Run. It also returns nil while the API server does
// not answer, because a restart of the process would not help;
// [Controller.Status] reports that. The request is not used and may be nil.
func (c *Controller) Check(*http.Request) error { return c.progress.Check() }

// Set makes p the desired content of a pool. It may be called at any time and
// never waits for I/O; it takes effect while Run runs. It copies p. A Set that
// changes nothing costs a microsecond per device and no request.
//
// Set returns an *InvalidError that lists every problem of the pool as a whole: its
// identity, its nodes, names of devices, counter sets and references to them, and content
// that the scheduler can't parse. The previous content then stays desired. All else in a
// device is checked by the API server, with the limits of its version. A device that it
// refuses is left out: Wait and [Status] have the *InvalidError, and Config.ErrorHandler
// is called with it.
//
// A pool that has slices already, for example of an earlier process, is not
// touched before it is Set or removed.
func (c *Controller) Set(id PoolID, p Pool) error {
	if err := c.checkID(id); err != nil {
		return err
	}
	if c.isOthers(id.Driver) {
		problem := field.NotSupported(field.NewPath("driver"), id.Driver, []string{c.cfg.Driver})
		return &InvalidError{Pool: id, Err: field.ErrorList{problem}.ToAggregate()}
	}
	before := &desired{}
	c.mu.Lock()
	if p := c.pools[id]; p != nil && p.want != nil {
		before = p.want
	}
	c.mu.Unlock()

	d, fresh, same := c.hasher.newDesired(id, &p, c.cfg.NodeName, before)
	if !same {
		spec := d.base
		spec.Devices, spec.SharedCounters, spec.SkipNodeOperations = p.Devices, p.SharedCounters, p.SkipNodeOperations
		if problems := validation.Pool(&spec, fresh); len(problems) > 0 {
			return &InvalidError{Pool: id, Err: problems.ToAggregate()}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pools[id]; same && p != nil && p.want == before {
		p.want = d // the next writes follow its order
		return nil
	}
	c.want(id, d, d.urgent(before))
	return nil
}

// SetAll makes pools, by name, all pools of a driver: it Sets them and removes
// every other pool of the driver, also one that an earlier process published
// under another name, or for other nodes. A controller of a node removes
// the pools of that node and those that its Owner owns. A controller without a
// node removes all pools of the driver that have its Owner, or no owner if
// Config has none.
//
// If driver is not Config.Driver but a former name of it, pools must be empty: SetAll
// then removes what was published under that name, and watches it from then on.
//
// Each pool is written on its own: a device that moves to another pool may be in both for
// a moment, or in none. If it must not be in both, first Remove the pool that it leaves, or
// Set that without it, and Wait.
//
// The error joins the errors of Set. A pool with an error is not removed.
func (c *Controller) SetAll(driver string, pools map[string]Pool) error {
	if problems := validation.DriverName(driver, field.NewPath("driver")); len(problems) > 0 {
		return &InvalidError{Pool: PoolID{Driver: driver}, Err: problems.ToAggregate()}
	}
	var problems []error
	names := make(map[string]bool, len(pools))
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		names[name] = true
		problems = append(problems, c.Set(PoolID{driver, name}, pools[name]))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.named[driver] = names
	for id := range c.pools {
		if id.Driver == driver && !names[id.Name] {
			c.want(id, nil, true)
		}
	}
	if c.session != nil {
		c.session.poke()
	}
	return errors.Join(problems...)
}

// claim makes the pool of a slice one of this controller's: it removes the pool
// if SetAll did not name it, and publishes it once more if this process
// published it without looking at the slices that belong to no node. managed says that
// the pool was there, and not removed, before the slice was read. claim returns false if
// it must be called again: a pool that SetAll named has not been Set yet, or the removal
// of the pool has just ended.
func (c *Controller) claim(rec *record, owner *metav1.OwnerReference, managed bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	names, ok := c.named[rec.id.Driver]
	isClusters := rec.nodeName == ""
	if !ok || rec.deleting() || isClusters && (rec.otherOwner(owner) != nil || owner != nil && len(rec.OwnerReferences) == 0) {
		return true
	}
	p := c.pools[rec.id]
	switch {
	case p == nil && names[rec.id.Name]:
		return false // Set refused it
	case managed && (p == nil || p.isGone()):
		return false // perhaps with this slice
	case p == nil || p.isGone():
		klog.FromContext(c.outlives).Info("Removing a pool that the driver no longer has", "driver", rec.id.Driver, "pool", rec.id.Name)
		if p == nil {
			p = newPool(rec.id, core.New(&c.self, c.cfg.MinInterval))
			c.pools[rec.id] = p
		}
	case !isClusters || p.cluster:
		return true
	}
	p.cluster = p.cluster || isClusters
	// A new revision, because a reconciliation that is under way has not seen
	// the slices without a node, and must not count as the last word.
	c.set(p, p.want, true)
	c.session.poke() // it may have to watch more
	c.enqueue(rec.id, 0)
	return true
}

// checkID validates the identity of a pool.
func (c *Controller) checkID(id PoolID) error {
	if problems := validation.ID(id.Driver, id.Name); len(problems) > 0 {
		return &InvalidError{Pool: id, Err: problems.ToAggregate()}
	}
	return nil
}

// isOthers reports whether Config.Driver is another driver. Its pools can be removed
// only: it may be an earlier name of the same driver.
func (c *Controller) isOthers(driver string) bool {
	return c.cfg.Driver != "" && driver != c.cfg.Driver
}

// Remove deletes the slices of a pool. It may be called like Set, and also for
// a pool of the node that this process never Set. A controller of a node must
// have Set a cluster pool to remove it, or use SetAll. The driver may be another one
// than Config.Driver, such as a former name of it. Remove returns an *InvalidError
// if id is invalid.
func (c *Controller) Remove(id PoolID) error {
	if err := c.checkID(id); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pools[id]; p != nil && p.isGone() {
		c.set(p, nil, true) // another client may have created it again
		c.enqueue(id, 0)
		return nil
	}
	c.want(id, nil, true)
	return nil
}

// want makes d, or nil for no slices, the desired pool. c.mu must be held.
func (c *Controller) want(id PoolID, d *desired, urgent bool) {
	p := c.pools[id]
	if p == nil {
		p = newPool(id, core.New(&c.self, c.cfg.MinInterval))
		c.pools[id] = p
	} else if d == nil && p.want == nil {
		return
	}
	c.set(p, d, urgent)
	if names := c.named[id.Driver]; names != nil {
		names[id.Name] = d != nil
	}
	if (p.cluster || c.cfg.NodeName == "" || c.isOthers(id.Driver)) && c.session != nil {
		c.session.poke() // it may have to watch more
	}
	c.enqueue(id, p.wait())
}

// set makes d the desired pool, nil for none. c.mu must be held.
func (c *Controller) set(p *pool, d *desired, urgent bool) {
	p.want, p.setAt = d, time.Now()
	p.cluster = p.cluster || d != nil && d.nodeName == ""
	c.apply(p, core.Set{Remove: d == nil, Urgent: urgent})
	p.update(func(s *Status) {
		s.Revision++
		s.Err = nil
	})
}

// apply records a fact about a pool. c.mu must be held.
func (c *Controller) apply(p *pool, e core.Event) {
	if err := p.state.Apply(time.Now(), e); err != nil {
		report.Tell(c.outlives, c.cfg.ErrorHandler, fmt.Errorf("%w: pool %s", err, p.id), "A step of a pool came at the wrong time")
	}
	if c.checked != nil {
		c.checked(p.state.Check())
	}
}

// enqueue requeues a pool after a wait. c.mu must be held.
func (c *Controller) enqueue(id PoolID, after time.Duration) {
	if c.queue != nil {
		c.queue.AddAfter(id, after)
	}
}

// purge forgets pools that were removed a while ago.
func (c *Controller) purge() {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.pools, func(_ PoolID, p *pool) bool {
		return p.isGone() && time.Since(p.status.Since) >= keepGone && time.Since(p.state.LastRepair()) >= keepGone
	})
}

// resendAll makes all pools forget the answers about refused and dropped content:
// the API server may have been restarted with other features.
func (c *Controller) resendAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, p := range c.pools {
		p.resendAll = true
		if c.apply(p, core.Restarted{}); p.state.Phase() == core.Faulty || p.state.Phase() == core.Stuck {
			c.enqueue(id, 0)
		}
	}
}

// onForeign schedules the repair of a pool after another client has created,
// changed or deleted a slice.
func (c *Controller) onForeign(rec *record, deleted bool) {
	if deleted {
		c.owner.doubt()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pools[rec.id]
	writer := rec.writer()
	if !deleted && c.self.Precedes(writer) {
		c.heard(rec.id, writer)
	}
	if p == nil {
		return
	}
	if p.state.Drifted().IsZero() {
		p.contender = "" // that of an earlier change
	}
	if c.apply(p, core.Foreign{Deleted: deleted, Writer: writer}); p.isGone() {
		return
	}
	if !deleted && rec.manager != "" { // a deletion has none
		p.contender = rec.manager
	}
	c.enqueue(rec.id, p.wait())
}

// heard records that a newer instance lives, for the other pools of the driver that are
// left to it. c.mu must be held.
func (c *Controller) heard(of PoolID, writer core.Instance) {
	for id, p := range c.pools {
		if id != of && id.Driver == of.Driver && p.state.Above().ID == writer.ID {
			c.apply(p, core.Found{Writer: writer, Now: true})
		}
	}
}

// follow makes this process newer than the siblings that wrote listed slices before its
// first list. Those that were written later may be of a newer instance. c.mu must be held.
func (c *Controller) follow(records []*record) {
	for _, rec := range records {
		if w := rec.writer(); !newer(rec.ResourceVersion, c.since) && w.IsSiblingOf(c.self) && w.At >= c.self.At {
			c.ahead[rec.Name] = rec
		}
	}
	c.order(nil)
}

// order makes this process newer than the siblings that wrote the slices in c.ahead. owner is
// nil if it is not known yet: slices that may be another owner's stay until it is. c.mu must
// be held.
func (c *Controller) order(owner *metav1.OwnerReference) {
	maps.DeleteFunc(c.ahead, func(_ string, rec *record) bool {
		isForeign := c.isForeign(rec, owner)
		if !isForeign {
			c.self.Follow(rec.writer())
		}
		return !isForeign || owner != nil || c.cfg.Owner == nil
	})
}

// Wait blocks until the API server has the pool as of the latest Set or Remove
// before the call, or of a later one. It returns nil if the pool is published
// as a whole, and an *InvalidError or *DroppedFieldsError if the API server
// doesn't take all of it, and a *ContendedError if a newer instance of the program
// publishes it. It returns the cause if ctx is done, and
// ErrUnknownPool for a pool that was neither Set nor removed lately.
func (c *Controller) Wait(ctx context.Context, id PoolID) error {
	c.mu.Lock()
	p := c.pools[id]
	if p == nil {
		c.mu.Unlock()
		return ErrUnknownPool
	}
	target := p.status.Revision
	for {
		status, changed := p.status, p.changed
		c.mu.Unlock()
		if status.Published >= target || status.Err != nil {
			return status.Err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
		c.mu.Lock()
	}
}

// Status returns the state of a pool. It returns false for a pool that is
// not desired and, as far as this controller knows, not there.
func (c *Controller) Status(id PoolID) (Status, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pools[id]
	if p == nil || p.isGone() {
		return Status{}, false
	}
	return p.status, true
}

// Withdraw removes every pool that was Set, except for pools that a newer instance of
// the program publishes. It returns when their slices are gone, or the cause if ctx is
// done first. Run must be running: call Withdraw before its context is cancelled.
func (c *Controller) Withdraw(ctx context.Context) error {
	c.mu.Lock()
	var ids []PoolID
	for id := range c.pools {
		ids = append(ids, id)
		c.want(id, nil, true)
	}
	c.mu.Unlock()
	for _, id := range ids {
		if err := c.Wait(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// Run publishes until ctx is done and then returns nil; slices stay. It first
// completes pools that are half published, for ShutdownTimeout at most. A second
// call returns [ErrAlreadyRun], which is its only error.
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
	report.ContainHooks(outlives, c.cfg.ErrorHandler, &c.cfg.Hooks)

	queue := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[PoolID]{Name: c.cfg.Name})
	c.mu.Lock()
	c.queue = queue
	c.mu.Unlock()
	c.progress.Beat()
	logger.V(3).Info("Started", "node", klog.KRef("", c.cfg.NodeName))

	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for {
				id, shutdown := queue.Get()
				if shutdown {
					return
				}
				c.progress.Beat()
				c.reconcile(ctx, id)
				queue.Done(id)
			}
		})
	}
	c.serve(ctx)
	timer := time.AfterFunc(c.cfg.ShutdownTimeout, cancel)
	defer timer.Stop()
	c.shutDown(queue)
	running.Wait()
	logger.V(3).Info("Stopped")
	return nil
}

// shutDown ends the workers after they have reconciled the half published pools
// once more, because there is no later.
func (c *Controller) shutDown(queue workqueue.TypedInterface[PoolID]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, p := range c.pools {
		if p.half() {
			queue.Add(id)
		}
	}
	c.queue = nil
	queue.ShutDown()
}
