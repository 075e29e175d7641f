// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/listwatch"
	"github.com/kubewright/kubewright/internal/report"
)

// idleBeat is the longest time between two rounds of the loop, which show Check that
// the loop runs.
const idleBeat = 30 * time.Second

// loop reconciles each dirty pod until ctx is done and the known final statuses have
// been stored.
func (c *Controller) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var drained <-chan time.Time
	done := ctx.Done()
	for {
		wait, finished := c.round(ctx)
		c.progress.Beat()
		if finished {
			return
		}
		timer.Reset(wait)
		select {
		case <-c.kick:
		case <-timer.C:
		case <-done:
			done = nil
			c.drain()
			shutdown := time.NewTimer(c.cfg.ShutdownTimeout)
			defer shutdown.Stop()
			drained = shutdown.C
		case <-drained:
			c.cancelAPI()
		}
	}
}

// drain stops new provider calls, and all API requests except those that store and
// release pods that have ended.
func (c *Controller) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draining = true
	for _, t := range c.tracks {
		c.markDirty(t)
		if t.write.inflight != nil && !t.write.inflight.over {
			t.write.inflight.cancel() // the next process learns the status from List
		}
	}
}

// round reconciles every pod that is dirty or due. It returns the time until the next
// pod is due, and whether Run may return.
func (c *Controller) round(ctx context.Context) (wait time.Duration, finished bool) {
	c.mu.Lock()
	now := c.now()
	for len(c.wakes) > 0 && c.wakes[0].sched.wakeAt <= now {
		t := c.wakes[0]
		c.wakes.set(t, noDeadline)
		c.markDirty(t)
	}
	for len(c.dirty) > 0 {
		batch := c.dirty
		c.dirty = nil
		for _, t := range batch {
			t.sched.dirty = false
			c.reconcile(ctx, t, now)
		}
	}
	wait = c.startQueued(ctx, now)
	if len(c.wakes) > 0 {
		wait = min(wait, max(0, c.wakes[0].sched.wakeAt-now))
	}
	finished = c.draining && len(c.dirty) == 0 && c.quiet()
	effects := c.effects
	c.effects = nil
	c.mu.Unlock()
	for _, effect := range effects {
		effect()
	}
	return wait, finished
}

// startQueued starts the calls and requests that wait for a place, while there are
// places.
func (c *Controller) startQueued(ctx context.Context, now instant) (wait time.Duration) {
	wait = idleBeat
	for q := range c.queues {
		for c.queues[q].len() > 0 {
			ok, wake := c.free(laneOf(q), now)
			if !ok {
				if wake != noDeadline {
					wait = min(wait, max(0, wake-now))
				}
				break
			}
			t := c.queues[q].pop()
			t.sched.queued[q] = false
			if q >= queueUrgent {
				c.startWrite(t, now, true)
			} else {
				c.startCall(t, now, true)
			}
			c.publish(ctx, t)
		}
	}
	return wait
}

// free reports whether a lane has a place.
func (c *Controller) free(lane int, now instant) (ok bool, wake instant) {
	switch lane {
	case laneAdmit:
		return c.running[lane] == 0, noDeadline
	case laneAPI:
		if c.running[lane] >= c.breaker.trip {
			return false, noDeadline
		}
		return c.breaker.allows(now, c.running[lane])
	}
	return c.running[lane] < c.cfg.MaxCalls, noDeadline
}

// take reports whether t may start in a queue's lane now; otherwise it waits.
// Pods that have waited go first.
func (c *Controller) take(t *podState, q int, now instant, waited bool) bool {
	if ok, _ := c.free(laneOf(q), now); ok && (waited || c.queues[q].len() == 0) {
		return true
	}
	if !t.sched.queued[q] {
		t.sched.queued[q] = true
		c.queues[q].push(t)
	}
	return false
}

// quiet reports whether no call or request is in flight or, while the API may be
// called, due.
func (c *Controller) quiet() bool {
	for lane := range c.running {
		if c.running[lane] > 0 {
			return false
		}
	}
	if c.apiCtx.Err() != nil {
		return true
	}
	for _, t := range c.tracks {
		if t.stopped() && t.provider.listed && t.api.pod != nil && !t.removed() && t.api.notFoundAt == 0 && (!t.final() || t.unreleased()) {
			return false
		}
	}
	return true
}

// markDirty makes the loop reconcile t.
func (c *Controller) markDirty(t *podState) {
	if !t.sched.dirty {
		t.sched.dirty = true
		c.dirty = append(c.dirty, t)
	}
}

// reconcile starts the call and the request that are due for t.
func (c *Controller) reconcile(ctx context.Context, t *podState, now instant) {
	if c.tracks[keyOf(t.ref)] != t {
		return // forgotten
	}
	if t.illegal != "" && !t.sched.illegalTold {
		t.sched.illegalTold = true
		err := explain("follow", t.ref, errors.New(t.illegal))
		c.later(func() { report.Tell(ctx, c.cfg.ErrorHandler, err, "A pod took an illegal step: please report it") })
	}
	expired, wake := t.advance(&c.rules, now, time.Now().Round(0))
	if expired {
		c.warn(t, ReasonDeadlineExceeded, actionStop, messageDeadline)
	}
	if t.unapplied(&c.rules) {
		c.warn(t, reasonFailedUpdate, actionUpdate, messageUnapplied)
	}
	wake = min(wake, c.startCall(t, now, false), c.startWrite(t, now, false))
	c.publish(ctx, t)
	if t.forgettable() && !c.lingers(t) {
		c.forget(ctx, t)
		return
	}
	c.wakes.set(t, wake)
	t.close()
}

// publish reports a new stage of t to logs, hooks and the pods that wait for its name.
func (c *Controller) publish(ctx context.Context, t *podState) {
	blocking := t.blocksName()
	if t.sched.blocking && !blocking {
		for other := c.names[nameOf(t.ref)]; other != nil; other = other.next {
			if other != t {
				c.markDirty(other)
			}
		}
	}
	t.sched.blocking = blocking

	from, to := t.sched.stage, t.stage()
	if from == to {
		return
	}
	t.sched.stage = to
	level := klog.Level(4)
	if to == StageRunning || to == StageTerminating || to == StageStopped {
		level = 2
	}
	if logger := klog.FromContext(ctx).V(int(level)); logger.Enabled() {
		values := []any{"pod", klog.KRef(t.ref.Namespace, t.ref.Name), "podUID", t.ref.UID, "from", from, "to", to}
		if t.end != nil {
			values = append(values, "reason", t.end.reason)
		}
		c.later(func() { logger.Info("Pod changed stage", values...) })
	}
	if hook := c.cfg.Hooks.StageChanged; hook != nil {
		change := StageChanged{Ref: t.ref, From: from, To: to}
		c.later(func() { hook(change) })
	}
}

// later makes the loop call f without the lock.
func (c *Controller) later(f func()) { c.effects = append(c.effects, f) }

// dropped calls Hooks.Dropped.
func (c *Controller) dropped(ref Ref, reason string, err error) {
	if hook := c.cfg.Hooks.Dropped; hook != nil {
		c.later(func() { hook(Dropped{Ref: ref, Reason: reason, Err: err}) })
	}
}

// keyOf returns the key in Controller.tracks. The key of an instance without a UID is
// its name, which looks like no UID.
func keyOf(ref Ref) types.UID {
	if ref.UID != "" {
		return ref.UID
	}
	return types.UID(ref.Namespace + "/" + ref.Name)
}

func nameOf(ref Ref) types.NamespacedName {
	return types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
}

// add makes the state of a pod.
func (c *Controller) add(ref Ref, now instant) *podState {
	c.seq++
	t := &podState{ref: ref}
	t.api.since, t.sched.born, t.write.statusSeq = now, c.seq, 1
	c.claim(t, now)
	c.tracks[keyOf(ref)] = t
	name := nameOf(ref)
	t.next = c.names[name]
	c.names[name] = t
	return t
}

// lingers reports whether t is an orphan that was stopped and that the provider still
// lists. If it were forgotten, it would be found again as a new orphan.
func (c *Controller) lingers(t *podState) bool {
	return t.ref.UID != "" && t.end.reason == StopOrphaned && t.sched.listNo == c.listNo
}

// forget drops the state of a pod.
func (c *Controller) forget(ctx context.Context, t *podState) {
	c.wakes.set(t, noDeadline)
	delete(c.tracks, keyOf(t.ref))
	name := nameOf(t.ref)
	if head := c.names[name]; head == t {
		if t.next == nil {
			delete(c.names, name)
		} else {
			c.names[name] = t.next
		}
	} else {
		for ; head != nil; head = head.next {
			if head.next == t {
				head.next = t.next
				break
			}
		}
	}
	t.next = nil
	c.providerErrors.Retire(&t.sched.callErrs)
	c.apiErrors.Retire(&t.sched.apiErrs)
	logger := klog.FromContext(ctx).V(4)
	ref, stage := t.ref, t.sched.stage
	if logger.Enabled() {
		c.later(func() { logger.Info("Forgot pod", "pod", klog.KRef(ref.Namespace, ref.Name), "podUID", ref.UID) })
	}
	if hook := c.cfg.Hooks.StageChanged; hook != nil {
		c.later(func() { hook(StageChanged{Ref: ref, From: stage, To: stage, Forgotten: true}) })
	}
}

// earlyFor is the time that a report waits for its pod to be seen.
const earlyFor = 5 * time.Minute

// maxEarly is the number of reports that wait for their pods. It bounds the memory that a
// provider with unknown UIDs costs while List hangs.
const maxEarly = 10_000

// early is a report of a pod that was not seen yet.
type early struct {
	state State
	fp    uint64
	at    instant
}

// handlers returns the informer's event handlers. They record the pod and mark it
// dirty, so that many events at once do not block the informer.
func (c *Controller) handlers() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: c.onPodUpdate,
		UpdateFunc: func(old, obj any) {
			// A relist shows a pod that was deleted and created again under its
			// name as a change.
			if a, b := versionOf(old), versionOf(obj); a != nil && b != nil && a.uid() != b.uid() {
				c.onPodReplaced(a, b)
			}
			c.onPodUpdate(obj)
		},
		DeleteFunc: c.onPodDelete,
	}
}

// onPodUpdate applies a pod that the informer has.
func (c *Controller) onPodUpdate(obj any) {
	v := versionOf(obj)
	if v == nil {
		return
	}
	pod := v.open()
	if pod.UID == "" {
		c.refuse(pod, ErrNoUID)
		return
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return // a kubelet made it of a static pod, which runs already
	}
	if c.isFresh(pod.UID) && !c.owns(pod) {
		return // also if the provider holds it: see checkOrphan
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	t, now := c.tracks[pod.UID], c.now()
	fresh := t == nil || t.api.pod == nil
	if t == nil {
		t = c.add(RefOf(pod), now)
		c.supersede(t, now)
	}
	t.api.cached = true
	if t.api.pod == nil || !olderVersion(v.resourceVersion(), t.api.pod.resourceVersion()) || t.rewound(v) {
		t.api.presence, t.api.restored, t.sched.goneSince = presencePresent, false, 0
	}
	if !t.setPod(&c.rules, now, v) {
		return
	}
	if fresh {
		c.firstSight(t, now)
	}
	c.markDirty(t)
	wake(c.kick)
}

// isFresh reports whether the informer has not shown the pod before.
func (c *Controller) isFresh(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tracks[uid]
	return t == nil || t.api.pod == nil
}

// owns calls Config.Owns, without a lock. If it panics the pod is not taken, and
// Owns is called again after the next List.
func (c *Controller) owns(pod *corev1.Pod) (yes bool) {
	err := contain("Owns", func() error {
		yes = c.cfg.Owns(pod)
		return nil
	})
	c.mu.Lock()
	if err != nil {
		c.undecided[pod.UID] = nameOf(RefOf(pod))
	} else {
		delete(c.undecided, pod.UID)
	}
	c.mu.Unlock()
	if err != nil {
		c.refuse(pod, err)
	}
	return yes && err == nil
}

// askOwnsAgain shows the pods about which Config.Owns panicked to it again.
func (c *Controller) askOwnsAgain() {
	c.mu.Lock()
	undecided := maps.Clone(c.undecided)
	clear(c.undecided)
	c.mu.Unlock()
	for _, name := range undecided {
		if obj, ok, _ := c.informer.GetIndexer().GetByKey(name.String()); ok {
			c.onPodUpdate(obj)
		}
	}
}

// refuse reports that a pod of the informer is not taken.
func (c *Controller) refuse(pod *corev1.Pod, err error) {
	report.Tell(c.callCtx, c.cfg.ErrorHandler, explain("take", RefOf(pod), err), "Failed to take a pod", panicValues(err, "pod", klog.KObj(pod))...)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped(RefOf(pod), DroppedRefused, err)
	wake(c.kick)
}

// supersede records that other pods of the name of t are gone, because the API has t.
func (c *Controller) supersede(t *podState, now instant) {
	for other := t.next; other != nil; other = other.next {
		if !other.orphan() && !other.api.restored && (other.api.cached || other.api.presence == presenceMissing) {
			other.api.cached = false
			other.markDeleted(now)
			c.markDirty(other)
		}
	}
}

// firstSight applies early reports to a pod that the informer shows for the first time.
func (c *Controller) firstSight(t *podState, now instant) {
	if t.provider.status != nil {
		t.nameContainer(t.provider.status) // it was reported before the pod was seen
	}
	if e, ok := c.early[t.ref.UID]; ok {
		delete(c.early, t.ref.UID)
		c.seq++
		t.observe(&c.rules, now, c.seq, &e.state, e.fp, false)
	}
	t.provider.listed = false
	if c.synced && c.mayAct(t) {
		c.classifyFresh(t)
	}
}

// classifyFresh classifies a pod that came after the first List.
func (c *Controller) classifyFresh(t *podState) {
	switch now := c.now(); {
	case !c.synced:
	case t.held() || t.stopped() || !t.evidence():
		t.classify(&c.rules, now)
	default:
		// It ran before. A List that begins now shows whether the provider still
		// holds it.
		wake(c.relist)
	}
}

// onPodReplaced applies that a list has another pod of the same name instead of old. It is gone,
// unless the API server was restored from a backup: then the pod may have never been deleted,
// and the API is asked as for any pod that a list left out.
func (c *Controller) onPodReplaced(old, next *version) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tracks[old.uid()]
	if c.closed || t == nil || t.api.pod == nil {
		return
	}
	now := c.now()
	t.api.cached = false
	t.api.restored = c.restored || olderVersion(next.resourceVersion(), old.resourceVersion())
	if t.api.restored {
		t.markMissing(now)
		wake(c.verify)
	} else {
		t.markDeleted(now)
	}
	c.markDirty(t)
	wake(c.kick)
}

// onPodDelete applies that the informer no longer has a pod.
func (c *Controller) onPodDelete(obj any) {
	last, tombstone := obj.(cache.DeletedFinalStateUnknown)
	if tombstone {
		obj = last.Obj
	}
	v := versionOf(obj)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	now := c.now()
	drop := func(t *podState) {
		t.api.cached = false
		if tombstone {
			// A LIST left it out, which is not as certain as an event.
			t.api.restored = c.restored
			t.markMissing(now)
			wake(c.verify)
		} else {
			t.markDeleted(now)
		}
		c.markDirty(t)
	}
	if v != nil {
		// An orphan is not ours, or it is too new to be seen: it is verified.
		if t := c.tracks[v.uid()]; t != nil && t.api.pod != nil {
			t.setPod(&c.rules, now, v) // its last version
			drop(t)
		}
	} else if namespace, name, err := cache.SplitMetaNamespaceKey(last.Key); err == nil {
		for t := c.names[types.NamespacedName{Namespace: namespace, Name: name}]; t != nil; t = t.next {
			if t.api.cached {
				drop(t)
			}
		}
	}
	wake(c.kick)
}

// find returns the state of a ref; if the ref has no UID, that of the only pod of its
// name.
func (c *Controller) find(ref Ref) *podState {
	if ref.UID != "" {
		return c.tracks[ref.UID]
	}
	if t := c.tracks[keyOf(ref)]; t != nil {
		return t
	}
	t := c.names[nameOf(ref)]
	if t == nil || t.next != nil {
		return nil
	}
	return t
}

// observe applies a report to the state of its pod.
func (c *Controller) observe(t *podState, now instant, seq uint64, st *State, fp uint64, listed bool) {
	st.Ref = t.ref
	before := c.eventBase(t)
	if why := t.observe(&c.rules, now, seq, st, fp, listed); why != "" {
		c.dropped(t.ref, why, nil)
	}
	c.recordStarts(t, before)
	if !t.provider.listed && c.synced && t.api.pod != nil && t.held() && c.mayAct(t) {
		t.classify(&c.rules, now)
	}
	c.markDirty(t)
}

// newInformer returns an informer of the pods bound to the node, and of no
// others: a node's credentials allow nothing else.
func (c *Controller) newInformer() cache.SharedIndexInformer {
	pods := c.cfg.Client.Pods(metav1.NamespaceAll)
	source := listwatch.New(listwatch.Config{
		List: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			if opts.ResourceVersion == "0" {
				// A reflector begins with any state of the past, as an API
				// server may have it that is behind. Pods that are gone would
				// be in it, and be started (k/k #59848).
				opts.ResourceVersion = ""
			}
			start := time.Now()
			list, err := pods.List(ctx, opts)
			if err == nil && list.ResourceVersion == "" {
				list, err = nil, errAnswer // not a list without pods, which would end them all
			}
			c.informerCalled(OpList, start, err)
			return list, err
		},
		Watch: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			start := time.Now()
			stream, err := pods.Watch(ctx, opts)
			c.informerCalled(OpWatch, start, err)
			return stream, err
		},
		Client:        c.cfg.Client,
		Listed:        c.informerListed,
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", c.cfg.NodeName).String(),
		ListTimeout:   listTimeout,
		AnswerTimeout: callTimeout,
		Retries:       c.breaker.policy,
		Outcome:       c.cacheErrors.note,
	})
	informer := cache.NewSharedIndexInformerWithOptions(source, &corev1.Pod{}, cache.SharedIndexInformerOptions{})
	_ = informer.SetTransform(Compact) // fails only once it runs
	return informer
}

// informerListed compares the version of a list with the last one that the informer had. If the
// list is older, the API server was restored from a backup.
func (c *Controller) informerListed(version string) {
	last := c.informer.LastSyncResourceVersion()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restored = olderVersion(version, last)
}

// informerCalled calls Hooks.APICall for a request of the informer.
func (c *Controller) informerCalled(op Op, start time.Time, err error) {
	if hook := c.cfg.Hooks.APICall; hook != nil {
		hook(APICall{Op: op, Latency: time.Since(start), Err: err})
	}
}

// cacheErrorsAgain is the time after which errors of the informer that go on are reported
// again.
const cacheErrorsAgain = time.Hour

// cacheErrors reports errors of the informer's list and watch: once per outage, and then each
// hour.
type cacheErrors struct {
	reach   *reach
	handler report.Handler
	streak  report.Streak
	told    time.Time // when the streak was last reported

	mu      sync.Mutex
	refused error     // the API server refuses the requests; nil if the last one succeeded
	since   time.Time // of refused
}

func (e *cacheErrors) note(ctx context.Context, err error) time.Duration {
	now := time.Now()
	e.refusal(now, err)
	e.reach.note(err)
	if err == nil {
		e.streak.OK(ctx, "Watching pods works again")
		return 0
	}
	err = fmt.Errorf("podsync: watch pods: %w", err)
	const msg = "Failed to watch pods"
	switch {
	case e.streak.Failures() == 0:
		e.told = now
	case now.Sub(e.told) >= cacheErrorsAgain:
		e.told = now
		report.Tell(ctx, e.handler, err, msg, "failures", e.streak.Failures())
	}
	e.streak.Fail(ctx, e.handler, err, msg)
	return 0
}

// refusal records an answer that the credentials may not read pods.
func (e *cacheErrors) refusal(now time.Time, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err == nil:
		e.refused = nil
	case apierr.Classify(err) != apierr.Forbidden: // says nothing
	case e.refused == nil:
		e.refused, e.since = err, now
	}
}

// check returns an error if the API server has refused the informer's requests for d.
func (e *cacheErrors) check(d time.Duration) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.refused == nil || time.Since(e.since) < d {
		return nil
	}
	return fmt.Errorf("podsync: the API server does not show the pods of the node: %w", e.refused)
}

// watchEnded is the informer's error handler. cacheErrors reports the errors.
func watchEnded(ctx context.Context, _ *cache.Reflector, err error) {
	klog.FromContext(ctx).V(4).Info("Watch of pods ended", "err", err)
}

// The queues in which pods wait for a free place.
const (
	queueAdmit = iota
	queueStart // Start, Update and Inspect
	queueStop  // Stop and Release, which a flood of hanging starts must not block
	queueUrgent
	queueWrite
	queueRetry // retries go last: the failure may concern one object only
	queueCount
)

// The lanes in which calls run.
const (
	laneAdmit = iota
	laneStart
	laneStop
	laneAPI
	laneCount
)

// queueOf returns the queue of a call of the provider.
func queueOf(op Op) int {
	switch op {
	case OpAdmit:
		return queueAdmit
	case OpStop, OpRelease:
		return queueStop
	}
	return queueStart
}

func laneOf(queue int) int { return min(queue, laneAPI) }

// A fifo is a queue of pods.
type fifo struct {
	items []*podState
	head  int
}

func (q *fifo) len() int { return len(q.items) - q.head }

func (q *fifo) push(t *podState) {
	if len(q.items) == cap(q.items) && q.head > len(q.items)/2 {
		// Make room instead of growing: a queue may not be empty for months.
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, t)
}

func (q *fifo) pop() *podState {
	t := q.items[q.head]
	q.items[q.head] = nil
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return t
}

// A breaker keeps a failing API server from being called by every pod at once.
// While requests fail one after the other because of the server, the breaker is
// tripped: there is one request at a time, after a backoff of its own. The first
// success resets it. Failures that may concern one object do not count.
type breaker struct {
	trip   int // failures in a row that trip the breaker
	policy backoff.Policy

	failures int
	until    instant
}

// allows reports whether another request may start while running requests are in
// flight, and when to ask again.
func (b *breaker) allows(now instant, running int) (ok bool, wake instant) {
	if b.failures < b.trip {
		return true, noDeadline
	}
	if running > 0 {
		return false, noDeadline
	}
	return now >= b.until, b.until
}

// done records the result of a request. It reports whether the server is back.
func (b *breaker) done(now instant, err error) (back bool) {
	if apierrors.IsInternalError(err) {
		return false // often an admission webhook, which fails for some objects only
	}
	switch apierr.Classify(err) {
	case apierr.Timeout, apierr.Unreachable, apierr.Server, apierr.Throttled, apierr.Unauthorized, apierr.Other:
		b.failures++
		if n := b.failures - b.trip; n >= 0 {
			b.until = now + b.policy.Delay(n+1)
		}
		return false
	case apierr.Canceled:
		return false
	}
	back = b.failures >= b.trip
	b.failures = 0
	return back
}

// breakerCap is the longest time between two requests of a tripped breaker. It
// bounds how long the end of an outage goes unnoticed.
const breakerCap = unansweredCap

// wakes is a heap of pods by the instant at which they are due.
type wakes []*podState

func (w wakes) Len() int           { return len(w) }
func (w wakes) Less(i, j int) bool { return w[i].sched.wakeAt < w[j].sched.wakeAt }
func (w wakes) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].sched.wakeIndex, w[j].sched.wakeIndex = int32(i+1), int32(j+1)
}

// Push implements heap.Interface.
func (w *wakes) Push(x any) {
	t := x.(*podState)
	*w = append(*w, t)
	t.sched.wakeIndex = int32(len(*w))
}

// Pop implements heap.Interface.
func (w *wakes) Pop() any {
	old := *w
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*w = old[:len(old)-1]
	t.sched.wakeIndex = 0
	return t
}

// set replaces the instant at which t is due.
func (w *wakes) set(t *podState, at instant) {
	switch {
	case t.sched.wakeIndex == 0 && at == noDeadline:
	case t.sched.wakeIndex == 0:
		t.sched.wakeAt = at
		heap.Push(w, t)
	case at == noDeadline:
		heap.Remove(w, int(t.sched.wakeIndex-1))
	case t.sched.wakeAt != at:
		t.sched.wakeAt = at
		heap.Fix(w, int(t.sched.wakeIndex-1))
	}
}
