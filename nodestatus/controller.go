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

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/report"
	"github.com/kubewright/kubewright/internal/slots"
)

// minGap is the least time between two rounds of a node: triggers that come
// faster are one.
const minGap = 100 * time.Millisecond

// A Controller registers Nodes and keeps their status true. Make it with [New].
// All its methods may be called by any number of goroutines, from setters and
// hooks too; none of them blocks but Run.
type Controller struct {
	cfg      Config
	epoch    time.Time    // what state's durations count from
	seed     maphash.Seed // of the hashes in state
	nodes    *slots.Scheduler[*state]
	once     lifecycle.Once
	ready    *lifecycle.Ready
	progress *lifecycle.Progress
	queue    callQueue
	life     context.Context // of Run, for setters that outlast their round
	running  sync.WaitGroup  // setters and health checks under way
	sleeps   sleepWatch

	// The failures of many nodes at once are reported once.
	calling, setting, invalid, asking report.Group

	exit    context.CancelCauseFunc // ends Run with an error; for rounds
	ended   atomic.Bool             // Run has returned
	handled atomic.Bool             // EventHandler was called: the program has an informer
}

// New returns a Controller for a valid Config. The error names every field that
// is wrong. New sends nothing and starts nothing.
func New(cfg Config) (*Controller, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	c := &Controller{
		cfg:   cfg,
		epoch: time.Now().Add(-1), // so that no time is 0, which means never
		seed:  maphash.MakeSeed(),
		ready: lifecycle.NewReady(cfg.Name),
	}
	// A round is bounded by its setters and a few calls; three that did not
	// come round mean that something is stuck.
	c.progress = lifecycle.NewProgress(cfg.Name, c.patience())
	c.sleeps.limit = max(cfg.GracePeriod, 2*cfg.SyncInterval)
	c.queue = callQueue{limit: cfg.Workers, call: c.act}
	c.nodes = slots.New(slots.Config[*state]{
		Interval:    cfg.SyncInterval,
		Workers:     cfg.Workers,
		MinGap:      minGap,
		StartWithin: c.patience(),
		Do:          c.round,
		Farewell:    c.farewell(),
		Gone:        c.gone,
	})
	if cfg.NodeName != "" {
		c.nodes.Add(cfg.NodeName, &state{})
	}
	return c, nil
}

// roundLimit is the longest duration of a round: its setters, a read and two writes.
func (c *Controller) roundLimit() time.Duration {
	return 2*c.cfg.SetterTimeout + 3*c.cfg.CallTimeout
}

// patience is the time after its last round at which a node counts as neglected: for
// Live, and for the scheduler if it has more to run than it can.
func (c *Controller) patience() time.Duration { return 3*c.cfg.SyncInterval + c.roundLimit() }

// Run serves the nodes until ctx is done and then returns nil, after what
// OnShutdown asks for. It returns an error that wraps [ErrNodeDeleted] or
// [ErrNodeReplaced] if the policies ask for that, and [ErrAlreadyRun] at a second
// call. An API server that is away or refuses is no reason to return.
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
	c.queue.open(runCtx)
	if c.cfg.NodeName != "" && !c.handled.Load() {
		c.running.Go(func() { c.watch(runCtx) })
	}
	c.nodes.Run(runCtx)
	c.queue.close()
	var fatal error
	if ctx.Err() == nil {
		fatal = context.Cause(runCtx) // a round has ended us
	}

	shutdown, cancel := lifecycle.Shutdown(ctx, c.cfg.ShutdownTimeout)
	defer cancel()
	if nodes := c.nodes.End(shutdown); nodes > 0 {
		logger.Info("Shutdown timed out before every node was released", "nodes", nodes, "onShutdown", c.cfg.OnShutdown)
	}
	c.running.Wait()
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
	c.nodes.Add(nodeName, &state{})
	return nil
}

// Remove stops managing a node. Under ShutdownLeave it cancels the round that
// is under way and writes nothing: the Node stays as it is, and
// kube-controller-manager calls it Unknown after a while. Under the other
// policies Run then makes the last write that they ask for. Remove never blocks.
func (c *Controller) Remove(nodeName string) {
	if c.nodes.Leave(nodeName) {
		c.queue.cancel(nodeName)
	}
}

// gone takes a node that is no longer managed out of the reports.
func (c *Controller) gone(_ context.Context, _ string, st *state) {
	c.calling.Retire(&st.calling)
	c.setting.Retire(&st.setting)
	c.invalid.Retire(&st.invalid)
	c.asking.Retire(&st.asking)
}

// Trigger runs the setters and health checks of a node now, and writes the changes.
// Calls that come before the round they ask for has begun are one, and rounds are at
// least 100 ms apart. It never blocks, and does nothing for a node that is not managed.
func (c *Controller) Trigger(nodeName string) {
	c.nodes.Trigger(nodeName)
}

// SetNotReady makes the Ready condition False with the reason and the message of
// cause, from now on and whatever the health checks return, until it is called with
// nil. It is for a program that drains its node before it ends: the scheduler and
// endpoints learn of it at once, and the node stays alive, because its status and
// its lease are renewed as before. It never blocks, and does nothing for a node that
// is not managed.
func (c *Controller) SetNotReady(nodeName string, cause *NotReadyError) {
	st, ok := c.nodes.Get(nodeName)
	if !ok {
		return
	}
	if cause != nil {
		cause = &NotReadyError{Reason: cause.Reason, Message: cause.Message}
	}
	st.mu.Lock()
	st.markExtra().notReady = cause
	st.mu.Unlock()
	c.nodes.Trigger(nodeName)
}

// Resync reads the Node and writes its whole status, now. Call it when another client
// may have set the node to Unknown in the meantime, as from the lease controller's hook
// Recovered. It never blocks.
func (c *Controller) Resync(nodeName string) {
	if st, ok := c.nodes.Get(nodeName); ok {
		st.requestLook()
		c.nodes.Trigger(nodeName)
	}
}

// Ready returns a checker that is done when the first node has been registered.
// For one of several nodes see [Controller.Status].
func (c *Controller) Ready() cache.DoneChecker { return c.ready }

// Name returns Config.Name.
func (c *Controller) Name() string { return c.cfg.Name }

// Check reports whether the controller makes progress: nil while it does, and
// before Run. An API server that does not answer is no reason to restart the
// process, so that is not an error here; [Controller.Status] has it. The
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
		if st, ok := c.nodes.Get(name); ok && !st.idle() {
			return true
		}
	}
	return false
}

// now returns the monotonic time since New.
func (c *Controller) now() time.Duration { return time.Since(c.epoch) }

// A sleepWatch notices that the whole process did not run for a while.
type sleepWatch struct {
	limit time.Duration

	mu     sync.Mutex
	last   time.Time
	sleeps uint32
}

// tick returns the number of times that the process slept up to now. The clock is the
// wall's, because the monotonic one stands still while a machine is suspended;
// a step of the wall clock counts as a sleep, which costs one read per node.
func (w *sleepWatch) tick(now time.Time) uint32 {
	now = now.Round(0)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.last.IsZero() && now.Sub(w.last) > w.limit {
		w.sleeps++
	}
	w.last = now
	return w.sleeps
}
