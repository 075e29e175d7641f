// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/callback"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/report"
	"github.com/kubewright/kubewright/internal/slots"
	"github.com/kubewright/kubewright/lease/internal/life"
	"github.com/kubewright/kubewright/lease/internal/plan"
)

// triggerGap is the least time between two visits to a node that Trigger asks
// for.
const triggerGap = 100 * time.Millisecond

// A Controller keeps the leases of one node or many. Make it with [New].
// All its methods may be called by any number of goroutines, from hooks too;
// none of them blocks but Run.
type Controller struct {
	cfg    Config
	rules  plan.Rules
	leases coordinationv1client.LeaseInterface
	epoch  time.Time
	wall   func() time.Time  // the clock of RenewTime; tests step it
	check  func(*node) error // after every event; for tests
	life   *life.System      // tests run several processes in one

	once     lifecycle.Once
	ready    *lifecycle.Ready
	progress *lifecycle.Progress
	work     context.Context // that of Run; set before the first turn

	nodes    *slots.Scheduler[*node]
	room     callback.Room[plan.Consent] // of the gates and Owner
	live     GateFunc                    // of the Nodes that the lease follows; may be nil
	reporter reporter
	reset    resetter

	mu      sync.Mutex
	stopped bool // Run has returned, or is about to
}

// New returns a Controller for a valid Config. The error names every field that
// is wrong. New sends nothing and starts nothing.
func New(cfg Config) (*Controller, error) {
	shared := cfg.Process == "" // every process on the host has the default
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	c := &Controller{
		cfg: cfg,
		rules: plan.Rules{
			Duration: cfg.Duration, Interval: cfg.RenewInterval,
			Process: plan.Process{Name: cfg.Process, Start: strconv.FormatUint(rand.Uint64(), 36)},
			Shared:  shared,
		},
		leases:   cfg.Client.Leases(corev1.NamespaceNodeLease),
		epoch:    time.Now(),
		wall:     time.Now,
		life:     life.Here(),
		ready:    lifecycle.NewReady(cfg.Name),
		reporter: reporter{handler: cfg.ErrorHandler, recorder: cfg.EventRecorder, process: cfg.Process},
	}
	c.reporter.hooks = &c.cfg.Hooks
	c.room = callback.Room[plan.Consent]{Name: "Gate", Limit: cfg.RenewInterval / 4, Patience: patience, Late: c.Trigger}
	// A turn has two rounds of conflicts at most: six calls, in addition to Gate,
	// Owner and the wait for its slot, or after a failure a longer one.
	c.progress = lifecycle.NewProgress(cfg.Name, 2*cfg.RenewInterval+8*cfg.CallTimeout+max(plan.Retries().Cap, cfg.Duration))
	c.nodes = slots.New(slots.Config[*node]{
		Interval:    cfg.RenewInterval,
		Workers:     cfg.Workers,
		MinGap:      triggerGap,
		StartWithin: cfg.Duration,
		Do:          c.visit,
		Farewell:    c.farewell(),
		Gone:        c.gone,
		Overloaded:  c.reporter.overloaded,
	})
	if cfg.NodeName != "" {
		c.nodes.Add(cfg.NodeName, newNode())
	}
	return c, nil
}

// Run keeps the leases until ctx is done. It returns nil then, after everything
// that it started has ended and OnShutdown is carried out. A second call returns
// [ErrAlreadyRun]. Without Config.Owner, and without a call of [Controller.Follow] before, it
// returns [ErrNoOwner].
func (c *Controller) Run(ctx context.Context) error {
	if err := c.begin(); err != nil {
		return err
	}
	logger := klog.LoggerWithName(klog.FromContext(ctx), c.cfg.Name)
	ctx = klog.NewContext(ctx, logger)
	c.work = ctx
	c.contain(ctx)
	logger.V(3).Info("Started", "nodes", c.nodes.Len(), "renewInterval", c.cfg.RenewInterval, "duration", c.cfg.Duration)
	defer logger.V(3).Info("Stopped")

	c.progress.Beat()
	c.nodes.Run(ctx)
	c.room.Wait()
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.progress.Stop()
	shutdown, cancel := lifecycle.Shutdown(ctx, c.cfg.ShutdownTimeout)
	defer cancel()
	if nodes := c.nodes.End(shutdown); nodes > 0 {
		logger.Info("Shutdown timed out before every node lease was released", "nodes", nodes, "onShutdown", c.cfg.OnShutdown)
	}
	return nil
}

// begin begins Run.
func (c *Controller) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.once.Begin() {
		return ErrAlreadyRun
	}
	if c.cfg.Owner == nil {
		c.stopped = true
		c.progress.Stop()
		return ErrNoOwner
	}
	if c.rules.Shared {
		if self := c.life.Self(); self != "" {
			c.rules.Life = plan.LifeAnnotationOf(c.rules.Process, self)
		}
	}
	return nil
}

// contain makes panics of the hooks and of ResetConnections errors that are reported.
func (c *Controller) contain(ctx context.Context) {
	report.ContainHooks(ctx, c.cfg.ErrorHandler, &c.cfg.Hooks)
	if reset := c.cfg.ResetConnections; reset != nil {
		c.reset.reset = func() { report.Call(ctx, c.cfg.ErrorHandler, "ResetConnections", reset) }
	}
}

// Add starts to manage a node. It is a no-op if the node is managed, so the handlers
// of an informer can call it. It returns [ErrStopped] after Run has returned, and
// an error if nodeName is not a valid name of a Node. A node that was removed, and
// whose OnShutdown is under way, starts again after that.
func (c *Controller) Add(nodeName string) error {
	if msgs := validation.IsDNS1123Subdomain(nodeName); len(msgs) > 0 {
		return fmt.Errorf("lease: invalid node name %q: %s", nodeName, strings.Join(msgs, "; "))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return ErrStopped
	}
	if c.once.Begun() && c.nodes.Len() == 0 {
		c.progress.Beat() // nothing was to be done until now
	}
	c.nodes.Add(nodeName, newNode())
	return nil
}

// Remove stops managing a node. OnShutdown is applied once, with CallTimeout for each
// call, after Remove has returned, and once more if Run ends in the meantime.
// [Hooks.PhaseChanged] is called with PhaseStopped after that. Remove is a no-op if
// the node is not managed.
func (c *Controller) Remove(nodeName string) {
	c.nodes.Leave(nodeName)
}

// Trigger makes the controller ask the Gate and the Owner of a node now, and write the
// lease if necessary. A lease that was renewed within the last quarter of
// RenewInterval, and is as it should be, is not written again. Triggers that come
// faster than ten a second are one. It is a no-op if the node is not managed.
func (c *Controller) Trigger(nodeName string) { c.nodes.Trigger(nodeName) }

// Ready returns a checker that is done when the first lease has been written.
// For one of several nodes see [Controller.Status].
func (c *Controller) Ready() cache.DoneChecker { return c.ready }

// Name returns Config.Name.
func (c *Controller) Name() string { return c.cfg.Name }

// Check returns nil before Run and while the controller makes progress, and an
// error after Run. An API server that does not answer is no reason to restart
// the process, so that is not an error here; [Controller.Status] has it. The
// request is not used and may be nil.
func (c *Controller) Check(*http.Request) error {
	if !c.hasStopped() && c.nodes.Len() == 0 {
		return nil
	}
	return c.progress.Check()
}

// served returns a node that is managed.
func (c *Controller) served(nodeName string) (*node, bool) {
	return c.nodes.Get(nodeName)
}

func (c *Controller) hasStopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopped
}
