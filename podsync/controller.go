// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/callback"
	"github.com/kubewright/kubewright/internal/lifecycle"
	core "github.com/kubewright/kubewright/podsync/internal/pod"
	"github.com/kubewright/kubewright/podsync/internal/queue"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// stuckAfter is the time that the loop may take for one round before Check fails.
const stuckAfter = 2 * time.Minute

// A Controller runs the pods of one node or of many. [New] makes it. All its
// methods may be called by any number of goroutines, also from the provider and from
// hooks. Only Run blocks.
type Controller struct {
	cfg  Config
	caps capabilities
	run  *runState
	once lifecycle.Once

	pods     *table
	gates    *gates
	observer *observer
	reports  *reports
	records  *records
	intake   *intake
	lister   *lister
	suspects *suspects
	loop     *loop
}

// New returns a Controller for a valid Config. The error names every field that
// is wrong. New sends nothing and starts nothing.
func New(cfg Config) (*Controller, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	c := &Controller{cfg: cfg, caps: capabilitiesOf(cfg.Provider), run: &runState{}}
	retries := backoff.Policy{Base: retryMin, Cap: breakerCap}
	prints, reach := newFingerprints(), &reach{}
	c.pods = &table{
		rules:   rulesOf(&cfg, c.caps),
		epoch:   time.Now().Add(-time.Second), // so that no instant is 0
		handler: cfg.ErrorHandler, run: c.run,
		kick: make(chan struct{}, 1), relist: make(chan struct{}, 1), verify: make(chan struct{}, 1),
		pods: map[types.UID]*entry{}, names: map[types.NamespacedName]*entry{}, nameless: map[types.NamespacedName]bool{},
	}
	c.observer = &observer{pods: c.pods, warnings: cfg.EventRecorder, containers: cfg.ContainerEvents}
	c.observer.hooks = c.observer.containHooks(cfg.Hooks)
	c.gates = &gates{pods: c.pods, gate: cfg.Gate, nodeName: cfg.NodeName, wanted: make(chan struct{}, 1), nodes: map[string]*gatedNode{}}
	c.gates.room = callback.Room[struct{}]{Name: "Gate", Limit: callback.GateLimit, Late: func(string) { wake(c.gates.wanted) }}
	c.reports = &reports{pods: c.pods, gates: c.gates, observer: c.observer, prints: prints, early: map[types.UID]early{}}
	c.records = &records{
		pods: c.pods, reports: c.reports, checkpoint: cfg.Checkpoint, nodeName: cfg.NodeName,
		reach: reach, after: cfg.OfflineAfter, unclaimed: map[types.UID]*record{}, removing: map[types.UID]bool{},
	}
	c.intake = &intake{
		pods: c.pods, gates: c.gates, observer: c.observer, reports: c.reports, records: c.records, informer: cfg.Informer, owns: cfg.Owns,
		errors: &cacheErrors{nodeName: cfg.NodeName, handler: cfg.ErrorHandler, reach: reach}, undecided: map[types.UID]types.NamespacedName{}, rivals: map[string]bool{},
	}
	if cfg.Informer == nil {
		c.intake.ownInformer(cfg.Client, cfg.NodeName, retries)
	}
	c.lister = &lister{
		pods: c.pods, gates: c.gates, observer: c.observer, reports: c.reports, records: c.records, intake: c.intake,
		provider: cfg.Provider, watcher: c.caps.watcher, nodeName: cfg.NodeName,
		relist: cfg.Relist, retries: retries, ready: lifecycle.NewReady(cfg.Name),
		hold: hold{
			begins: "Too many pods are lost at once: none is restarted or failed",
			ends:   "Pods that the provider's List left out are no longer held back",
		},
	}
	c.suspects = &suspects{
		pods: c.pods, gates: c.gates, observer: c.observer, client: cfg.Client, informer: c.intake.informer,
		exclusive: cfg.Policy.ExclusiveBackend,
		hold: hold{
			begins: "Too many pods are gone at once: none is stopped",
			ends:   "Pods that are gone from the API are no longer held back",
		},
	}
	c.loop = &loop{
		pods: c.pods, observer: c.observer, reports: c.reports, progress: lifecycle.NewProgress(cfg.Name, stuckAfter), timeout: cfg.ShutdownTimeout,
		caller: &caller{
			pods: c.pods, gates: c.gates, observer: c.observer, records: c.records, provider: cfg.Provider, caps: c.caps, prints: prints,
			limit: cfg.MaxCalls,
		},
		writer: &writer{
			pods: c.pods, gates: c.gates, observer: c.observer, client: cfg.Client, hostIPs: cfg.HostIPs,
			breaker: queue.Breaker{Trip: statusWriters, Policy: retries}, retried: map[string]instant{},
		},
	}
	c.lister.forget = func(t *entry) { c.loop.forget(c.run.callCtx, t) }
	return c, nil
}

// rulesOf returns what the core needs of the configuration.
func rulesOf(cfg *Config, caps capabilities) core.Rules {
	return core.Rules{
		Relist: cfg.Relist, PendingAfter: cfg.PendingAfter, Retry: backoff.Policy{Base: retryMin, Cap: retryMax},
		Lost: core.LostPolicy(cfg.Policy.Lost), OrphanDelay: cfg.Policy.OrphanDelay, MassHold: cfg.Policy.MassHold,
		CompleteList: cfg.Policy.CompleteList, UpdateMetadata: cfg.Policy.UpdateMetadata, TrustPhase: cfg.Policy.TrustPhase,
		Updates: caps.updater != nil, Releases: caps.releaser != nil, Admits: caps.admitter != nil,
		Inspects: caps.inspector != nil, Annotates: caps.annotator != nil,
		Checkpoints: cfg.Checkpoint != nil, Gated: cfg.Gate != nil,
	}
}

// Run runs the pods until ctx is done, and returns nil then. A second call returns
// [ErrAlreadyRun]. Any other error means that Config.Informer has been stopped. It
// returns after every goroutine and every call that it started has returned. It does
// not stop pods: they keep running, and the next process finds them through List.
// Known final statuses are stored before Run returns, for at most
// [Config.ShutdownTimeout].
func (c *Controller) Run(ctx context.Context) error {
	if !c.once.Begin() {
		return ErrAlreadyRun
	}
	defer c.loop.progress.Stop()
	defer c.close()
	if ctx.Err() != nil {
		return nil
	}
	logger := klog.LoggerWithName(klog.FromContext(ctx), c.cfg.Name)
	ctx = klog.NewContext(ctx, logger)
	logger.V(3).Info("Started", "node", c.cfg.NodeName)
	defer logger.V(3).Info("Stopped", "node", c.cfg.NodeName)

	c.run.callCtx = ctx
	c.run.apiCtx, c.run.cancelAPI = context.WithCancel(context.WithoutCancel(ctx))
	defer c.run.cancelAPI()

	c.records.load(ctx)
	defer c.records.close()
	c.records.reach.begin()
	own, informer := c.cfg.Informer == nil, c.intake.informer
	if own {
		if err := informer.SetWatchErrorHandlerWithContext(watchEnded); err != nil {
			return fmt.Errorf("podsync: %w", err)
		}
	}
	registration, err := informer.AddEventHandlerWithOptions(c.intake.handlers(), cache.HandlerOptions{Logger: &logger})
	if err != nil {
		return fmt.Errorf("podsync: %w", err)
	}
	var loops sync.WaitGroup
	if own {
		loops.Go(func() { informer.RunWithContext(ctx) })
	}
	loops.Go(func() { c.lister.run(ctx, registration.HasSyncedChecker()) })
	loops.Go(func() { c.suspects.run(ctx) })
	if c.cfg.Gate != nil {
		loops.Go(func() { c.gates.run(ctx) })
	}
	if c.caps.watcher != nil {
		loops.Go(func() { c.lister.watch(ctx, c.reports.take) })
	}
	c.loop.run(ctx)
	// The error says that it isn't registered with this informer.
	_ = informer.RemoveEventHandler(registration)
	loops.Wait()
	c.run.calls.Wait()
	c.gates.room.Wait()
	return nil
}

// close makes the Controller ignore later reports.
func (c *Controller) close() {
	c.pods.mu.Lock()
	defer c.pods.mu.Unlock()
	c.pods.closed = true
}

// Ready returns a checker that is done when the provider's first List was
// reconciled with the pods of the API. Pods start from then on.
func (c *Controller) Ready() cache.DoneChecker { return c.lister.ready }

// Name returns Config.Name.
func (c *Controller) Name() string { return c.cfg.Name }

// Check returns nil before Run and while the loop makes progress, and an error
// after Run. An API server or a provider that does not answer is not an error,
// because a restart of the process would not help; see [Controller.CheckProvider].
// The request is not used and may be nil.
func (c *Controller) Check(*http.Request) error { return c.loop.progress.Check() }

// providerPatience is the time that List may fail or hang before CheckProvider
// returns an error.
const providerPatience = 20 * time.Second

// CheckProvider reports whether the loop makes progress, the pods of the node are known and
// the provider answers. It returns the error of [Controller.Check]. It also returns an error
// until [Controller.Ready] is done, while List has failed or hung for 20 seconds, and while
// the API server has refused to show the pods (403) for as long. It
// fits nodestatus.HealthCheck: the Node is not ready before its pods are known, nor while its
// backend does not answer. An API server that does not answer at all is no error, because
// the Node's status could not be written anyway. The arguments are not used: a Controller has
// one provider.
func (c *Controller) CheckProvider(context.Context, string) error {
	if err := c.Check(nil); err != nil {
		return err
	}
	if err := c.intake.errors.check(providerPatience); err != nil {
		return err
	}
	c.pods.mu.Lock()
	defer c.pods.mu.Unlock()
	health := c.lister.health
	d := c.pods.now() - health.since
	switch {
	case health.since != 0 && d > providerPatience:
	case !cache.IsDone(c.lister.ready):
		return errors.New("podsync: the pods of the node are not known yet")
	default:
		return nil
	}
	if health.err != nil {
		return fmt.Errorf("podsync: the provider has not answered List for %v: %w", d.Round(time.Second), health.err)
	}
	return fmt.Errorf("podsync: the provider has not answered List for %v", d.Round(time.Second))
}

// Gated reports whether Config.Gate is set. kubewright.Run refuses a controller without a
// gate next to a lease, because it would act for the node while another process holds that.
func (c *Controller) Gated() bool { return c.cfg.Gate != nil }

// Report records a state of the provider, as the report function of Watch does. It
// does not wait for calls or requests. It may be called at any time, also before and
// after Run. Of several reports about a pod the last one counts. A report about a
// pod that was not seen yet is kept for five minutes, unless 10,000 others are.
func (c *Controller) Report(st State) { c.reports.take(st) }

// An Eviction is the reason and the grace period of [Controller.Evict].
type Eviction struct {
	// Reason becomes status.reason. Default: ReasonEvicted.
	Reason string
	// Message becomes status.message, for example the resource that ran out.
	Message string
	// Grace is the time that the pod has to end. It is at least a second, and not
	// longer than the rest of the grace period of a pod that is ending already.
	// Default: spec.terminationGracePeriodSeconds.
	Grace time.Duration
	// OwnLimit says that the pod has exceeded a limit of its own. Then there is no
	// condition DisruptionTarget, and a Job counts the failure.
	OwnLimit bool
}

// Evict stops a pod on behalf of the node. Its phase becomes Failed with the reason and
// message, and the condition DisruptionTarget shows a Job that the pod is not to
// blame (KEP-3329), except with OwnLimit. The object stays until a client deletes it. The error is
// ErrNotFound if the pod is unknown or has stopped. A pod that is ending already
// keeps its reason, and ends sooner if Grace is shorter.
func (c *Controller) Evict(ref Ref, eviction Eviction) error {
	eviction.Reason = cmp.Or(eviction.Reason, ReasonEvicted)
	c.pods.mu.Lock()
	defer c.pods.mu.Unlock()
	t := c.pods.find(ref)
	if t == nil || !t.Evictable() {
		return ErrNotFound
	}
	if !c.gates.mayAct(t) {
		return ErrGateClosed
	}
	if eviction.Grace <= 0 {
		eviction.Grace = core.SpecGrace(t.Pod())
	}
	if _, ends := t.Ending(); !ends {
		c.observer.warn(t, eviction.Reason, actionStop, eviction.Message)
	}
	failure := &podstatus.Failure{Reason: eviction.Reason, Message: eviction.Message}
	if !eviction.OwnLimit {
		failure.DisruptionReason = corev1.PodReasonTerminationByKubelet
	}
	c.pods.apply(t, c.pods.moment(), core.Evicted{Failure: failure, Grace: eviction.Grace})
	c.pods.markDirty(t)
	return nil
}

// Info describes one pod, for a debugging page, or for a server that must find a pod
// by its name.
type Info struct {
	// Ref names the pod.
	Ref Ref
	// Stage is the pod's stage.
	Stage Stage
	// Pod is the newest version of the object that was seen, a private copy.
	// It is nil for an orphan.
	Pod *corev1.Pod
	// Call is the call of the provider under way, "" if there is none.
	Call Op
	// CallSince is the time at which Call began.
	CallSince time.Time
	// Failures is the number of provider calls that failed in a row.
	Failures int
	// LastError is the error of the last of them, or says that the pod waits for an orphan of its
	// name. It is nil after a success.
	LastError error
}

// All returns the pods that the Controller tracks, orphans included, in no order. It
// may be used at any time. The pods are those at the beginning of the iteration.
func (c *Controller) All() iter.Seq2[Ref, Info] {
	return func(yield func(Ref, Info) bool) {
		c.pods.mu.Lock()
		infos := make([]Info, 0, len(c.pods.pods))
		pods := make([]core.Version, 0, len(c.pods.pods))
		for _, t := range c.pods.pods {
			infos, pods = append(infos, c.infoOf(t)), append(pods, t.Version())
		}
		c.pods.mu.Unlock()
		for i, info := range infos {
			info.Pod = pods[i].Private()
			if !yield(info.Ref, info) {
				return
			}
		}
	}
}

// Pods yields the pods of All, private copies without the orphans, as nodeapi wants them. A
// status that is being written is in its pod already, so whoever has seen it in the API finds it
// here too, unless another client has written the status since, or the gate has closed.
func (c *Controller) Pods(yield func(*corev1.Pod) bool) {
	type pod struct {
		core.Version
		write *core.Call
		sent  *corev1.PodStatus
	}
	c.pods.mu.Lock()
	pods := make([]pod, 0, len(c.pods.pods))
	for _, t := range c.pods.pods {
		next := pod{Version: t.Version()}
		if call := t.InFlight(core.Writes); call != nil && call.Counts() {
			next.write, next.sent = call, call.Status
		}
		pods = append(pods, next)
	}
	c.pods.mu.Unlock()
	for _, next := range pods {
		pod := next.Private()
		if pod == nil {
			continue
		}
		if next.sent != nil && podstatus.Equal(&pod.Status, &next.write.Pod.Status) {
			next.sent.DeepCopyInto(&pod.Status)
		}
		if !yield(pod) {
			return
		}
	}
}

// Get returns the Info of one pod. If ref.UID is empty, ref names the only pod of its
// namespace and name. Get reports false if the Controller tracks no such pod, or if
// a name without UID fits several.
func (c *Controller) Get(ref Ref) (Info, bool) {
	c.pods.mu.Lock()
	t := c.pods.find(ref)
	if t == nil {
		c.pods.mu.Unlock()
		return Info{}, false
	}
	info, pod := c.infoOf(t), t.Version()
	c.pods.mu.Unlock()
	info.Pod = pod.Private()
	return info, true
}

// infoOf returns the Info of a pod, without the pod. The lock of the table must be held.
func (c *Controller) infoOf(t *entry) Info {
	info := Info{Ref: t.ref, Stage: Stage(t.Stage()), Failures: t.Failures(core.Calls), LastError: t.LastError()}
	if call := t.InFlight(core.Calls); call != nil {
		info.Call, info.CallSince = Op(call.Op), c.pods.epoch.Add(call.Since)
	}
	return info
}
