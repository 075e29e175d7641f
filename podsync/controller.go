// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/report"
)

// listTimeout is the deadline of a LIST of pods, which may be long, and of the
// provider's List.
const listTimeout = 2 * time.Minute

// stuckAfter is how long the loop may take for one round before Check says so.
const stuckAfter = 2 * time.Minute

// A Controller runs the pods of a node, or of many. Make it with [New]. All its
// methods may be called by any number of goroutines, from the provider and hooks
// too; none of them blocks but Run.
type Controller struct {
	cfg      Config
	caps     capabilities
	rules    rules
	prints   *fingerprints
	informer cache.SharedIndexInformer

	once     lifecycle.Once
	ready    *lifecycle.Ready
	progress *lifecycle.Progress
	kick     chan struct{} // something is dirty
	relist   chan struct{} // List is wanted now
	verify   chan struct{} // orphans are due

	providerErrors report.Group
	apiErrors      report.Group

	calls     sync.WaitGroup
	callCtx   context.Context // of calls of the provider; set by Run
	apiCtx    context.Context // of requests; outlives callCtx to store what is known
	cancelAPI context.CancelFunc

	mu       sync.Mutex
	seq      uint64 // orders calls, reports and lists
	listNo   uint32
	tracks   map[types.UID]*track
	names    map[types.NamespacedName]*track // heads of chains
	early    map[types.UID]early
	dirty    []*track
	wakes    wakes
	queues   [queueCount]fifo
	running  [laneCount]int
	breaker  breaker
	effects  []func()
	synced   bool // the first List was reconciled
	heldBack bool // the last pass has found too many orphans
	draining bool // Run is to return
	closed   bool // Run has returned
}

// New returns a Controller for a valid Config. The error names every field that
// is wrong. New sends nothing and starts nothing.
func New(cfg Config) (*Controller, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	retry := backoff.Policy{Base: cfg.RetryMin, Cap: cfg.RetryMax}
	c := &Controller{
		cfg:  cfg,
		caps: capabilitiesOf(cfg.Provider),
		rules: rules{
			policy: cfg.Policy, relist: cfg.Relist, pendingAfter: cfg.PendingAfter, retry: retry,
			epoch: time.Now().Add(-time.Second), // so that no instant is 0
		},
		prints:   newFingerprints(),
		informer: cfg.Informer,
		ready:    lifecycle.NewReady(cfg.Name),
		progress: lifecycle.NewProgress(cfg.Name, stuckAfter),
		kick:     make(chan struct{}, 1),
		relist:   make(chan struct{}, 1),
		verify:   make(chan struct{}, 1),
		tracks:   map[types.UID]*track{},
		names:    map[types.NamespacedName]*track{},
		early:    map[types.UID]early{},
		breaker: breaker{
			trip:   cfg.StatusWriters,
			policy: backoff.Policy{Base: cfg.RetryMin, Cap: max(cfg.RetryMin, min(cfg.RetryMax, breakerCap))},
		},
	}
	c.rules.updates = c.caps.updater != nil
	c.rules.releases = c.caps.releaser != nil
	c.rules.admits = c.caps.admitter != nil
	c.rules.inspects = c.caps.inspector != nil
	if c.informer == nil {
		c.informer = c.newInformer()
	}
	return c, nil
}

// Run runs the pods until ctx is done, and returns nil then. A second call returns
// [ErrAlreadyRun]. Any other error means that Config.Informer has been stopped. It
// returns after every goroutine and every call that it
// started has returned. It does not stop pods: they go on, and the next process
// finds them through List. Final statuses that are known are stored before it
// returns, for at most [Config.ShutdownTimeout].
func (c *Controller) Run(ctx context.Context) error {
	if !c.once.Begin() {
		return ErrAlreadyRun
	}
	defer c.progress.Stop()
	defer c.close()
	if ctx.Err() != nil {
		return nil
	}
	logger := klog.LoggerWithName(klog.FromContext(ctx), c.cfg.Name)
	ctx = klog.NewContext(ctx, logger)
	logger.V(3).Info("Started", "node", c.cfg.NodeName)
	defer logger.V(3).Info("Stopped", "node", c.cfg.NodeName)

	c.callCtx = ctx
	c.apiCtx, c.cancelAPI = context.WithCancel(context.WithoutCancel(ctx))
	defer c.cancelAPI()

	own := c.cfg.Informer == nil
	if own {
		if err := c.informer.SetWatchErrorHandlerWithContext(watchEnded); err != nil {
			return fmt.Errorf("podsync: %w", err)
		}
	}
	registration, err := c.informer.AddEventHandlerWithOptions(c.handlers(), cache.HandlerOptions{Logger: &logger})
	if err != nil {
		return fmt.Errorf("podsync: %w", err)
	}
	var loops sync.WaitGroup
	if own {
		loops.Go(func() { c.informer.RunWithContext(ctx) })
	}
	loops.Go(func() { c.runLists(ctx, registration) })
	loops.Go(func() { c.runOrphans(ctx) })
	if c.caps.watcher != nil {
		loops.Go(func() { c.runWatch(ctx) })
	}
	c.loop(ctx)
	// The error says that it isn't registered with this informer.
	_ = c.informer.RemoveEventHandler(registration)
	loops.Wait()
	c.calls.Wait()
	return nil
}

// close makes reports that come now go nowhere.
func (c *Controller) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// Ready returns a checker that is done when the provider's first List was
// reconciled with the pods of the API: from then on pods start.
func (c *Controller) Ready() cache.DoneChecker { return c.ready }

// Name returns Config.Name.
func (c *Controller) Name() string { return c.cfg.Name }

// Check reports whether the controller makes progress: nil while it does, and
// before Run. Neither an API server nor a provider that does not answer is a
// reason to restart the process, so that is not an error here; [Controller.All]
// has it. The request is not used and may be nil.
func (c *Controller) Check(*http.Request) error { return c.progress.Check() }

// now returns the present instant.
func (c *Controller) now() instant { return time.Since(c.rules.epoch) }

// poke makes the loop look at what is dirty.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
