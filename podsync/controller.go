// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/report"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// listTimeout is the deadline of a LIST of pods, which may be long, and of the
// provider's List.
const listTimeout = 2 * time.Minute

// stuckAfter is the time that the loop may take for one round before Check fails.
const stuckAfter = 2 * time.Minute

// A Controller runs the pods of one node or of many. [New] makes it. All its
// methods may be called by any number of goroutines, also from the provider and from
// hooks. Only Run blocks.
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
	askGates chan struct{} // a node is new

	cacheErrors    *cacheErrors
	reach          *reach
	providerErrors report.Group
	apiErrors      report.Group

	calls     sync.WaitGroup
	callCtx   context.Context // of calls of the provider; set by Run
	apiCtx    context.Context // of requests; outlives callCtx to store final statuses
	cancelAPI context.CancelFunc

	mu          sync.Mutex
	seq         uint64 // orders calls, reports and lists
	listNo      uint32
	gates       map[string]gateState // by node
	closedGates int
	undecided   map[types.UID]types.NamespacedName // pods about which Owns panicked
	retried     map[string]instant                 // by namespace, the last call of retryWrites
	listing     listing
	tracks      map[types.UID]*podState
	names       map[types.NamespacedName]*podState // heads of chains
	early       map[types.UID]early
	dirty       []*podState
	wakes       wakes
	queues      [queueCount]fifo
	running     [laneCount]int
	breaker     breaker
	effects     []func()
	synced      bool                  // the first List was reconciled
	records     map[types.UID]*record // of Config.Checkpoint, of pods that are not tracked
	removing    map[types.UID]bool    // records that are being removed
	restored    bool                  // the informer's last list is older than the one before
	heldBack    bool                  // the last pass has found too many orphans
	lossHeld    bool                  // the last List has left out too many pods
	draining    bool                  // Run's context is done
	closed      bool                  // Run has returned
}

// New returns a Controller for a valid Config. The error names every field that
// is wrong. New sends nothing and starts nothing.
func New(cfg Config) (*Controller, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	retry := backoff.Policy{Base: retryMin, Cap: retryMax}
	c := &Controller{
		cfg:  cfg,
		caps: capabilitiesOf(cfg.Provider),
		rules: rules{
			policy: cfg.Policy, relist: cfg.Relist, pendingAfter: cfg.PendingAfter, retry: retry,
			epoch: time.Now().Add(-time.Second), // so that no instant is 0
		},
		prints:    newFingerprints(),
		informer:  cfg.Informer,
		ready:     lifecycle.NewReady(cfg.Name),
		progress:  lifecycle.NewProgress(cfg.Name, stuckAfter),
		kick:      make(chan struct{}, 1),
		relist:    make(chan struct{}, 1),
		verify:    make(chan struct{}, 1),
		askGates:  make(chan struct{}, 1),
		retried:   map[string]instant{},
		gates:     map[string]gateState{},
		undecided: map[types.UID]types.NamespacedName{},
		tracks:    map[types.UID]*podState{},
		names:     map[types.NamespacedName]*podState{},
		early:     map[types.UID]early{},
		records:   map[types.UID]*record{},
		removing:  map[types.UID]bool{},
		breaker: breaker{
			trip:   statusWriters,
			policy: backoff.Policy{Base: retryMin, Cap: breakerCap},
		},
	}
	c.reach = &reach{}
	c.cacheErrors = &cacheErrors{handler: cfg.ErrorHandler, reach: c.reach}
	c.rules.checkpoints = cfg.Checkpoint != nil
	c.rules.updates = c.caps.updater != nil
	c.rules.releases = c.caps.releaser != nil
	c.rules.admits = c.caps.admitter != nil
	c.rules.inspects = c.caps.inspector != nil
	c.rules.annotates = c.caps.annotator != nil
	c.cfg.Hooks = c.containHooks(cfg.Hooks)
	if c.informer == nil {
		c.informer = c.newInformer()
	}
	return c, nil
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

	c.loadRecords(ctx)
	if closer, ok := c.cfg.Checkpoint.(io.Closer); ok {
		defer closer.Close() //nolint:errcheck // nothing is lost: each record is durable already
	}
	c.reach.begin()
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
	if c.cfg.Gate != nil {
		loops.Go(func() { c.runGates(ctx) })
	}
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

// close makes the Controller ignore later reports.
func (c *Controller) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// Ready returns a checker that is done when the provider's first List was
// reconciled with the pods of the API. Pods start from then on.
func (c *Controller) Ready() cache.DoneChecker { return c.ready }

// Name returns Config.Name.
func (c *Controller) Name() string { return c.cfg.Name }

// Check reports whether the loop makes progress: it returns nil while it does, and
// before Run. An API server or a provider that does not answer is not an error,
// because a restart of the process would not help; see [Controller.CheckProvider].
// The request is not used and may be nil.
func (c *Controller) Check(*http.Request) error { return c.progress.Check() }

// providerPatience is the time that List may fail or hang before CheckProvider
// returns an error.
const providerPatience = 20 * time.Second

// listing follows the calls of List.
type listing struct {
	since instant // when the first List without a success began; 0: the last one succeeded
	err   error
}

func (l *listing) began(now instant) {
	if l.since == 0 {
		l.since = now
	}
}
func (l *listing) failed(err error) { l.err = err }
func (l *listing) succeeded()       { *l = listing{} }

// CheckProvider reports whether the pods of the node are known and the provider answers.
// It returns an error until [Controller.Ready] is done, while List has failed or hung for
// 20 seconds, and while the API server has refused to show the pods (403) for as long. It
// fits nodestatus.HealthCheck: the Node is not ready before its pods are known, nor while its
// backend does not answer. An API server that does not answer at all is no error, because
// the Node's status could not be written anyway. The arguments are not used: a Controller has
// one provider.
func (c *Controller) CheckProvider(context.Context, string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.cacheErrors.check(providerPatience); err != nil {
		return err
	}
	d := c.now() - c.listing.since
	switch {
	case c.listing.since != 0 && d > providerPatience:
	case !isDone(c.ready.Done()):
		return errors.New("podsync: the pods of the node are not known yet")
	default:
		return nil
	}
	if c.listing.err != nil {
		return fmt.Errorf("podsync: the provider has not answered List for %v: %w", d.Round(time.Second), c.listing.err)
	}
	return fmt.Errorf("podsync: the provider has not answered List for %v", d.Round(time.Second))
}

// isDone reports whether ch is closed.
func isDone(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// now returns the present instant.
func (c *Controller) now() instant { return time.Since(c.rules.epoch) }

// wake wakes the goroutine that receives from ch.
func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Report records a state of the provider, as the report function of Watch does. It
// does not wait for calls or requests. It may be called at any time, also before and
// after Run. Of several reports about a pod the last one counts. A report about a
// pod that was not seen yet is kept for five minutes, unless 10,000 others are.
func (c *Controller) Report(st State) {
	fp := c.prints.of(&st)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	now := c.now()
	t := c.find(st.Ref)
	if st.UID == "" && (t == nil || !t.mayBe(c.seq+1)) {
		c.dropped(st.Ref, DroppedAmbiguous, nil)
		wake(c.kick)
		return
	}
	if t != nil && t.provider.fp == fp && t.stopped() == st.Stopped {
		c.seq++
		t.provider.seenSeq, t.provider.absences, t.provider.lostSince = c.seq, 0, 0
		return
	}
	st = st.private()
	if t == nil {
		if _, known := c.early[st.UID]; !known && len(c.early) >= maxEarly {
			c.dropped(st.Ref, DroppedUnknown, nil)
			wake(c.kick)
			return
		}
		c.early[st.UID] = early{state: st, fp: fp, at: now}
		return
	}
	c.seq++
	c.observe(t, now, c.seq, &st, fp, false)
	wake(c.kick)
}

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
	if eviction.Reason == "" {
		eviction.Reason = ReasonEvicted
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.find(ref)
	if t == nil || t.api.pod == nil || t.stopped() || t.removed() {
		return ErrNotFound
	}
	if !c.mayAct(t) {
		return ErrGateClosed
	}
	if eviction.Grace <= 0 {
		eviction.Grace = specGrace(t.pod())
	}
	if t.end == nil {
		c.warn(t, eviction.Reason, actionStop, eviction.Message)
	}
	failure := &podstatus.Failure{Reason: eviction.Reason, Message: eviction.Message}
	if !eviction.OwnLimit {
		failure.DisruptionReason = corev1.PodReasonTerminationByKubelet
	}
	t.beginTermination(c.now(), StopEvicted, failure, eviction.Grace)
	c.markDirty(t)
	wake(c.kick)
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
	// LastError is the error of the last of them, nil after a success.
	LastError error
}

// All returns the pods that the Controller tracks, orphans included, in no order. It
// may be used at any time. The pods are those at the beginning of the iteration.
func (c *Controller) All() iter.Seq2[Ref, Info] {
	return func(yield func(Ref, Info) bool) {
		c.mu.Lock()
		refs := make([]Ref, 0, len(c.tracks))
		infos := make([]Info, 0, len(c.tracks))
		pods := make([]version, 0, len(c.tracks))
		for _, t := range c.tracks {
			info, pod := c.infoOf(t)
			refs, infos, pods = append(refs, t.ref), append(infos, info), append(pods, pod)
		}
		c.mu.Unlock()
		for i, info := range infos {
			info.Pod = pods[i].private()
			if !yield(refs[i], info) {
				return
			}
		}
	}
}

// Get returns the Info of one pod. If ref.UID is empty, ref names the only pod of its
// namespace and name. Get reports false if the Controller tracks no such pod, or if
// a name without UID fits several.
func (c *Controller) Get(ref Ref) (Info, bool) {
	c.mu.Lock()
	t := c.find(ref)
	if t == nil {
		c.mu.Unlock()
		return Info{}, false
	}
	info, pod := c.infoOf(t)
	c.mu.Unlock()
	info.Pod = pod.private()
	return info, true
}

// infoOf returns the Info of a pod, without the pod, and the version of the pod. c.mu
// must be held.
func (c *Controller) infoOf(t *podState) (info Info, pod version) {
	info = Info{Ref: t.ref, Stage: t.stage(), Failures: int(t.call.failures), LastError: t.call.err}
	if t.call.inflight != nil {
		info.Call, info.CallSince = t.call.inflight.op, c.rules.epoch.Add(t.call.inflight.since)
	}
	if t.api.pod != nil {
		pod = *t.api.pod
	}
	return info, pod
}

// active yields private copies of the admitted pods, the oldest first. They are
// collected on iteration, because most admitters of thousands of pods need no list
// of those before each.
func (c *Controller) active(yield func(*corev1.Pod) bool) {
	c.mu.Lock()
	var versions []version
	for _, t := range c.tracks {
		if t.provider.admitted && !t.stopped() && t.api.pod != nil {
			versions = append(versions, *t.api.pod)
		}
	}
	c.mu.Unlock()
	pods := make([]*corev1.Pod, len(versions))
	for i, v := range versions {
		pods[i] = v.private()
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	for _, pod := range pods {
		if !yield(pod) {
			return
		}
	}
}
