// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/report"
)

// A Controller elects leaders for Leases that have LeaseCandidate objects
// (coordination.k8s.io/v1beta1), as the controller inside kube-apiserver does
// with the feature gate CoordinatedLeaderElection (KEP-4355): it makes the best
// candidate that answers the holder of a vacant Lease, and asks a holder to give
// way to a better candidate. Candidates may be those of this package
// ([LeaseCandidates]) or client-go's. Make it with [NewController].
//
// It decides by what it sees and when it sees it, never by the time that
// another machine has written. A holder is taken to be gone when it was not seen
// to renew the Lease for as long as the Lease says; shortly before, the best of
// the other candidates is asked whether it is there, so that it can be elected
// in the moment of expiry. A candidate that doesn't answer within AckTimeout is
// passed over until it renews its LeaseCandidate by itself. Among equals who
// leads stays, so nothing changes without need; and a holder that is no
// candidate, such as an elector that knows nothing of them, is left alone until
// its term ends.
//
// The Controller takes part in nothing that makes leadership safe: the Lease
// and the timing of candidates do that. Two Controllers at the same time, or one
// and that of the API server, cost requests and changes of mind, but never make
// two leaders. None at all means that nobody is preferred; candidates of this
// package then claim a vacant Lease by themselves ([Config.FallbackAfter]),
// those of client-go wait.
//
// # High availability
//
// Run a Controller in each replica of a process, inside the Lead of a Candidate:
//
//	election.Config{
//		Lease: types.NamespacedName{Namespace: "kube-system", Name: election.BuiltInControllerLease},
//		Lead: func(ctx context.Context, _ election.Term) error {
//			controller, err := election.NewController(election.ControllerConfig{ … })
//			if err != nil {
//				return err
//			}
//			return controller.Run(ctx)
//		},
//		…
//	}
//
// With that name of the Lease it replaces the controllers inside the API
// servers, which compete for it as any elector does. To take it from one of them,
// release it in its name:
//
//	kubectl patch lease -n kube-system leader-election-controller --type=merge \
//		-p '{"spec":{"holderIdentity":"","leaseDurationSeconds":1}}'
//
// The Candidate, which watches the Lease, is faster than an elector that asks
// every two seconds; that one works on for up to ten seconds, which is harmless,
// see above. Where the gate is off they don't exist, and any other name will do.
// All works there in the same way as long as LeaseCandidates are served, but for
// preferredHolder, which the API server then drops; see [ErrOffersDropped].
//
// # Cost
//
// In an idle cluster there is no request but two watches. An election costs
// three writes, the ping, its answer and the Lease; one read goes before, where
// the holder fell silent, in case that it is the watch which is late. The work
// for a change is proportional to the candidates of its Lease; a renewal in
// time costs a look into a map.
type Controller struct {
	cfg   ControllerConfig
	rules *rules

	once     lifecycle.Once
	ready    *lifecycle.Ready
	progress *lifecycle.Progress
	watching report.Group
	electing report.Group

	// Set by Run before anything reads them.
	ctx        context.Context
	queue      workqueue.TypedDelayingInterface[types.NamespacedName]
	candidates []*mirror
	leases     []*mirror

	mu      sync.Mutex
	index   index
	dropped dropped
}

// beatInterval is how often the queue is tried when nothing happens.
const beatInterval = 10 * time.Second

// beat is no Lease: a worker that gets it shows that workers get something.
var beat types.NamespacedName

// NewController returns a Controller for a valid ControllerConfig. The error
// names every field that is wrong. It sends nothing and starts nothing.
func NewController(cfg ControllerConfig) (*Controller, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return &Controller{
		cfg:      cfg,
		rules:    cfg.rules(),
		ready:    lifecycle.NewReady(cfg.Name),
		progress: lifecycle.NewProgress(cfg.Name, 2*beatInterval+3*cfg.CallTimeout),
		index:    index{},
	}, nil
}

// Name returns ControllerConfig.Name.
func (c *Controller) Name() string { return c.cfg.Name }

// Ready returns a checker that is done when all Leases and LeaseCandidates are
// known for the first time: from then on leaders are elected.
func (c *Controller) Ready() cache.DoneChecker { return c.ready }

// Check reports whether the controller makes progress: nil while it does, and
// before Run. An API server that does not answer is no reason to restart the
// process, so that is not an error here. The request is not used and may be nil.
func (c *Controller) Check(*http.Request) error { return c.progress.Check() }

// Run elects leaders until ctx is done. It returns nil then, after everything
// that it started has ended; it leaves Leases and LeaseCandidates as they are,
// and the next Run of another Controller goes on where it stopped. A second call
// returns [ErrAlreadyRun], which is its only error.
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
	c.queue = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[types.NamespacedName]{
		Name: c.cfg.Name, MetricsProvider: c.cfg.QueueMetrics,
	})
	if err := c.setUp(); err != nil {
		c.queue.ShutDown()
		return err
	}
	logger.V(3).Info("Started", "namespaces", c.cfg.Namespaces)
	defer logger.V(3).Info("Stopped")

	var running sync.WaitGroup
	defer running.Wait()
	defer c.queue.ShutDown()
	// Leases are of interest only where there are candidates, so where the API
	// has none the Leases need not be read.
	if c.mirror(ctx, &running, c.candidates) && c.mirror(ctx, &running, c.leases) {
		logger.V(2).Info("Watching Leases and LeaseCandidates")
		c.ready.Mark()
		for range c.cfg.Workers {
			running.Go(func() { c.work(ctx) })
		}
		c.beatWhile(ctx, ctx.Done(), func() { c.queue.Add(beat) })
	}
	return nil
}

// setUp makes the mirrors.
func (c *Controller) setUp() error {
	namespaces := c.cfg.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, ns := range namespaces {
		candidates, err := c.mirrorCandidates(ns)
		if err != nil {
			return err
		}
		leases, err := c.mirrorLeases(ns)
		if err != nil {
			return err
		}
		c.candidates, c.leases = append(c.candidates, candidates), append(c.leases, leases)
	}
	return nil
}

// mirror starts mirrors, and reports whether all have delivered what there is
// before ctx was done.
func (c *Controller) mirror(ctx context.Context, running *sync.WaitGroup, mirrors []*mirror) bool {
	for _, m := range mirrors {
		running.Go(func() { m.informer.RunWithContext(ctx) })
	}
	for _, m := range mirrors {
		c.beatWhile(ctx, m.handled.HasSyncedChecker().Done(), c.progress.Beat)
	}
	return ctx.Err() == nil
}

// beatWhile calls f at once and every beatInterval until done or the end of ctx.
func (c *Controller) beatWhile(ctx context.Context, done <-chan struct{}, f func()) {
	ticker := time.NewTicker(beatInterval)
	defer ticker.Stop()
	for {
		f()
		select {
		case <-ctx.Done():
			return
		case <-done:
			return
		case <-ticker.C:
		}
	}
}

// work works on one Lease after the other.
func (c *Controller) work(ctx context.Context) {
	for {
		key, shutdown := c.queue.Get()
		if shutdown {
			return
		}
		c.progress.Beat()
		if key != beat && ctx.Err() == nil {
			c.visit(ctx, key)
		}
		c.queue.Done(key)
	}
}

// enqueue has a Lease looked at.
func (c *Controller) enqueue(key types.NamespacedName) { c.queue.Add(key) }
