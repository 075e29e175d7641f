// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"fmt"
	"hash/maphash"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/callback"
	"github.com/kubewright/kubewright/internal/callqueue"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/report"
	"github.com/kubewright/kubewright/internal/slots"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

// A Controller registers Nodes and keeps their status true. Make it with [New].
// All its methods may be called by any number of goroutines, from setters and
// hooks too; none of them blocks but Run and Flush.
type Controller struct {
	cfg       Config
	rules     status.Rules // of all nodes
	clock     clock
	nodes     *slots.Scheduler[*node]
	queue     *callqueue.Queue // of requests, which a round must not wait for
	functions functions
	requests  sender
	gates     gates
	report    reporter
	once      lifecycle.Once
	progress  *lifecycle.Progress
	sleeps    sleepWatch

	life    context.Context         // of Run
	exit    context.CancelCauseFunc // ends Run with an error
	ended   atomic.Bool             // Run has returned
	handled atomic.Bool             // EventHandler was called: the program has an informer
}

// New returns a Controller for a valid Config. The error names every field that
// is wrong. New sends nothing and starts nothing. It calls Follow of Config.Lease.
func New(cfg Config) (*Controller, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	c := &Controller{
		cfg:   cfg,
		clock: clock{epoch: time.Now().Add(-1)}, // so that no time is 0, which means never
		rules: status.Rules{
			Setters: len(cfg.Setters), Checks: len(cfg.HealthChecks),
			Interval: cfg.SyncInterval, Report: cfg.ReportInterval, Grace: cfg.GracePeriod,
			Reregister: cfg.OnDeleted == DeletedReregister, NodeCredentials: cfg.NodeCredentials,
			KeepTaints: cfg.KeepTaints, Seed: maphash.MakeSeed(),
		},
		requests: sender{client: cfg.Client},
		sleeps:   sleepWatch{limit: max(cfg.GracePeriod, 2*cfg.SyncInterval)},
	}
	c.functions = functions{template: cfg.Template, setters: cfg.Setters, checks: cfg.HealthChecks, fields: fieldsOf(&cfg), wake: c.Trigger}
	c.report = reporter{cfg: &c.cfg, seed: c.rules.Seed, ready: lifecycle.NewReady(cfg.Name)}
	c.queue = callqueue.New(cfg.Workers, c.act)
	c.gates = gates{allows: gatesOf(&cfg), report: &c.report, room: callback.Room[struct{}]{Name: "Gate", Limit: callback.GateLimit, Patience: gatePatience, Fresh: true, Late: c.queue.Add}}
	c.clock.bug = c.impossible
	// Rounds that did not come round for so long mean that something is stuck.
	c.progress = lifecycle.NewProgress(cfg.Name, c.patience())
	c.nodes = slots.New(slots.Config[*node]{
		Interval:    cfg.SyncInterval,
		Workers:     cfg.Workers,
		MinGap:      minGap,
		Hold:        roundHold,
		StartWithin: c.patience(),
		Do:          c.round,
		Farewell:    c.farewell(),
		Overloaded:  c.overloaded,
		Gone:        func(_ context.Context, _ string, n *node) { n.end(); c.report.leave(n, (*apierr.Group).Retire) },
	})
	if cfg.NodeName != "" {
		c.nodes.Add(cfg.NodeName, c.newNode(cfg.NodeName))
	}
	if cfg.Lease != nil {
		if err := cfg.Lease.Follow(c); err != nil {
			return nil, fmt.Errorf("nodestatus: invalid config: Lease: %w", err)
		}
	}
	return c, nil
}

func (c *Controller) newNode(name string) *node {
	return &node{name: name, clock: &c.clock, state: status.New(&c.rules)}
}

// impossible reports an event that package status did not expect. The node goes on.
func (c *Controller) impossible(err error) {
	if c.life == nil {
		return // nothing that can fail happens before Run
	}
	report.Tell(c.life, c.cfg.ErrorHandler, fmt.Errorf("nodestatus: a defect: %w", err), "A decision about a node is not possible")
}

// Run serves the nodes until ctx is done and then returns nil, after what
// OnShutdown asks for. It returns an error that wraps [ErrNodeDeleted] if
// OnDeleted asks for that, and [ErrAlreadyRun] at a second call. An API server that is
// away or refuses is no reason to return.
//
// It returns after every setter, health check and hook it called has returned:
// a setter that ignores its context holds it up.
func (c *Controller) Run(ctx context.Context) error {
	if !c.once.Begin() {
		return ErrAlreadyRun
	}
	logger := klog.LoggerWithName(klog.FromContext(ctx), c.cfg.Name)
	ctx = klog.NewContext(ctx, logger)
	logger.V(3).Info("Started", "nodes", c.nodes.Len())
	runCtx, exit := context.WithCancelCause(ctx)
	defer exit(nil)
	c.exit = exit
	report.ContainHooks(ctx, c.cfg.ErrorHandler, &c.cfg.Hooks)
	c.progress.Beat()

	c.life = runCtx
	c.queue.Open(runCtx)
	var watching sync.WaitGroup
	if c.cfg.NodeName != "" && !c.handled.Load() {
		watching.Go(func() { watchNode(runCtx, &c.cfg, c.handler()) })
	}
	c.nodes.Run(runCtx)
	c.queue.Close()
	var fatal error
	if ctx.Err() == nil {
		fatal = context.Cause(runCtx) // a round has ended us
	}

	shutdown, cancel := lifecycle.Shutdown(ctx, c.cfg.ShutdownTimeout)
	defer cancel()
	if nodes := c.nodes.End(shutdown); nodes > 0 {
		logger.Info("Shutdown timed out before every node was released", "nodes", nodes, "onShutdown", c.cfg.OnShutdown)
	}
	c.functions.calls.Wait()
	watching.Wait()
	c.gates.room.Wait()
	c.progress.Stop()
	c.ended.Store(true)
	logger.V(3).Info("Stopped")
	return fatal
}

// Add starts to manage a node, before or while Run runs. It is a no-op if the node is
// managed. A node that was removed, and whose OnShutdown is under way, starts again
// after that. Add returns an error if nodeName is not a valid name of a Node, and
// [ErrStopped] after Run has returned. It never blocks.
func (c *Controller) Add(nodeName string) error {
	if problems := validation.IsDNS1123Subdomain(nodeName); len(problems) > 0 {
		return fmt.Errorf("nodestatus: invalid node name %q: %s", nodeName, problems[0])
	}
	if c.ended.Load() {
		return ErrStopped
	}
	if c.once.Begun() && c.nodes.Len() == 0 {
		c.progress.Beat() // nothing was to be done until now
	}
	c.nodes.Add(nodeName, c.newNode(nodeName))
	return nil
}

// Remove stops managing a node. Under ShutdownLeave it cancels the round that
// is under way and writes nothing: the Node stays as it is, and
// kube-controller-manager calls it Unknown after a while. Under the other
// policies Run then makes the last write that they ask for. Remove never blocks.
func (c *Controller) Remove(nodeName string) {
	n, ok := c.nodes.Get(nodeName)
	switch removed := c.nodes.Leave(nodeName); {
	case !ok:
	case removed:
		c.queue.Cancel(nodeName)
		n.end()
	default:
		c.queue.Add(nodeName) // its last write does not wait for the round that is under way
	}
}

// Trigger runs the setters and health checks of a node now, and writes the changes.
// Calls that come before the round they ask for has begun are one, and rounds are at
// least 100 ms apart. It never blocks, and does nothing for a node that is not managed.
func (c *Controller) Trigger(nodeName string) { c.nodes.Trigger(nodeName) }

// SetNotReady makes the Ready condition False with the reason and the message of
// cause, from now on and whatever the health checks return, until it is called with
// nil. It is for a program that drains its node before it ends: the scheduler and
// endpoints learn of it at once, and the node stays alive, because its status and
// its lease are renewed as before. It never blocks, and does nothing for a node that
// is not managed.
func (c *Controller) SetNotReady(nodeName string, cause *NotReadyError) {
	n, ok := c.nodes.Get(nodeName)
	if !ok {
		return
	}
	var failure *status.Failure
	if cause != nil {
		failure = &status.Failure{Field: "SetNotReady", Check: true, Reason: cause.Reason, Message: cause.Message}
	}
	n.apply(status.NotReadySet{Failure: failure})
	c.Trigger(nodeName)
}

// Resync reads the Node and writes its whole status, now. Call it when another client
// may have set the node to Unknown in the meantime, as from the lease controller's hook
// Recovered. It never blocks.
func (c *Controller) Resync(nodeName string) {
	if n, ok := c.nodes.Get(nodeName); ok {
		n.apply(status.Asked{})
		c.Trigger(nodeName)
	}
}

// Flush runs a round of the node that begins after the call, and returns nil when every
// setter has succeeded in it and the API server has its status. Otherwise it waits for
// the next round, and returns the error of ctx when that is done. It returns an error at
// once if the node is not managed. A node that is removed, or one whose gate is closed,
// ends no wait.
func (c *Controller) Flush(ctx context.Context, nodeName string) error {
	n, ok := c.nodes.Get(nodeName)
	if !ok {
		return fmt.Errorf("nodestatus: node %q is not managed", nodeName)
	}
	done := n.flushed()
	c.Trigger(nodeName)
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		n.abandon(done)
		return fmt.Errorf("nodestatus: flush the status of node %q: %w", nodeName, context.Cause(ctx))
	}
}

// EventHandler returns a handler for an informer of Nodes. With it the controller
// sees at once, and without a request of its own, that a Node was deleted or
// replaced, and that another client has overwritten a condition that it owns, as
// kube-controller-manager does after an outage.
//
// A program that has an informer of Nodes must call EventHandler before Run: Run
// then starts no watch. Otherwise Run watches the Node of Config.NodeName. Nodes that
// came with [Controller.Add] are not watched without this handler: such changes are
// then seen in the answer to the next write.
//
// Nodes that are not managed are ignored. A program with a watch of its own may
// call the methods of the handler; they never block and do not keep the object.
func (c *Controller) EventHandler() cache.ResourceEventHandler {
	c.handled.Store(true)
	return c.handler()
}

func (c *Controller) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { c.observe(obj, false) },
		UpdateFunc: func(_, obj any) { c.observe(obj, false) },
		DeleteFunc: func(obj any) { c.observe(obj, true) },
	}
}

// observe records an object that an informer shows.
func (c *Controller) observe(obj any, deleted bool) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	if n, ok := c.nodes.Get(node.Name); ok && n.apply(status.Shown{Node: node, Deleted: deleted}).Wake {
		c.Trigger(node.Name)
	}
}

// Ready returns a checker that is done when the first node has been registered.
// For one of several nodes see [Controller.Status].
func (c *Controller) Ready() cache.DoneChecker { return c.report.ready }

// Name returns Config.Name.
func (c *Controller) Name() string { return c.cfg.Name }

// Check returns nil before Run and while the controller makes progress, and an
// error after Run. An API server that does not answer is no reason to restart
// the process, so that is not an error here; [Controller.Status] has it. The
// request is not used and may be nil. With Name it is a HealthChecker of
// k8s.io/apiserver, and alone a healthz.Checker of controller-runtime.
func (c *Controller) Check(*http.Request) error {
	err := c.progress.Check()
	if err == nil || c.ended.Load() || c.busy() {
		return err
	}
	return nil // nothing to do is no reason to beat
}

// busy reports whether a round of any node is due.
func (c *Controller) busy() bool {
	for _, name := range c.nodes.Names() {
		if n, ok := c.nodes.Get(name); ok && !n.outlook().Resting {
			return true
		}
	}
	return false
}
