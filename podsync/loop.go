// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/report"
	core "github.com/kubewright/kubewright/podsync/internal/pod"
	"github.com/kubewright/kubewright/podsync/internal/queue"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// An instant is a time since the controller was made.
type instant = core.Instant

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

// An entry is a pod in the table: its state, and what the drivers keep of it.
//
// Invariant: dirty means that the entry is in table.dirty, queued[q] that it is in table.queues[q].
// Invariant: the cancel of a lane is set while a call or request is under way in it, and only then.
type entry struct {
	core.State
	ref  Ref
	next *entry // the next pod of the same namespace and name

	stage    core.Stage // as last published
	blocking bool       // as last published to the pods of its name
	dirty    bool
	queued   [queueCount]bool
	reported bool       // it was reported that the orphan is kept
	shown    uint64     // when the last List that shows it began
	slot     queue.Slot // in table.wakes

	cancel [2]context.CancelFunc // by core.Lane

	callErrs, apiErrs apierr.Member
	warned            string // the last event
	problems          string // the invalid fields that were last logged
}

// Slot implements queue.Slotted.
func (t *entry) Slot() *queue.Slot { return &t.slot }

// A runState is what Run gives to the drivers.
type runState struct {
	calls     sync.WaitGroup  // calls and requests
	callCtx   context.Context // of calls of the provider
	apiCtx    context.Context // of requests; outlives callCtx to store final statuses
	cancelAPI context.CancelFunc
}

// A table has all pods. Its lock guards them, and the state of the drivers that their comments
// name. No callback is called with the lock.
type table struct {
	rules   core.Rules
	epoch   time.Time // the instant 0
	handler report.Handler
	run     *runState

	kick   chan struct{} // something is dirty, or an effect waits
	relist chan struct{} // List is wanted now
	verify chan struct{} // suspects are due

	mu       sync.Mutex
	seq      uint64 // the last number in the order of events
	listed   uint64 // when the last List that was applied began; 0: none was
	pods     map[types.UID]*entry
	names    map[types.NamespacedName]*entry // heads of chains
	nameless map[types.NamespacedName]bool   // the last List has an instance without a UID, and has not decided whose it is
	dirty    []*entry
	queues   [queueCount]queue.Fifo[*entry] // of those that wait for a place
	wakes    queue.Heap[*entry]
	effects  []func()
	synced   bool // the first List was reconciled
	draining bool // Run's context is done
	closed   bool // Run has returned
}

// now returns the present instant.
func (b *table) now() instant { return time.Since(b.epoch) }

// moment returns the present moment.
func (b *table) moment() core.Moment {
	now := time.Now()
	return core.Moment{Since: now.Sub(b.epoch), Wall: now.Round(0)}
}

// tick returns the next number in the order of events.
func (b *table) tick() uint64 {
	b.seq++
	return b.seq
}

// apply applies an event to a pod. An illegal step is reported.
func (b *table) apply(t *entry, at core.Moment, event core.Event) core.News {
	news, err := t.Apply(at, event)
	if err != nil {
		err = explain("follow", t.ref, err)
		b.later(func() { report.Tell(b.run.callCtx, b.handler, err, "A pod took an illegal step: please report it") })
	}
	if news.Abort {
		b.abort(t, core.Calls)
		b.abort(t, core.Writes)
	}
	if news.Relist {
		wake(b.relist)
	}
	if news.Verify {
		wake(b.verify)
	}
	return news
}

// abort cancels the call or request of a lane that is under way.
func (b *table) abort(t *entry, lane core.Lane) {
	if cancel := t.cancel[lane]; cancel != nil {
		cancel()
	}
}

// take reports whether t may start in a queue now, which has a free place or not; otherwise it
// waits. Pods that have waited go first.
func (b *table) take(t *entry, q int, free, waited bool) bool {
	if free && (waited || b.queues[q].Len() == 0) {
		return true
	}
	if !t.queued[q] {
		t.queued[q] = true
		b.queues[q].Push(t)
	}
	return false
}

// end records the result of a call or request of a lane. running counts those that hold a place.
func (b *table) end(t *entry, lane core.Lane, running *int, apply func(at core.Moment)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*running--
	t.cancel[lane] = nil // the context would be kept with it
	apply(b.moment())
	b.markDirty(t)
}

// holdTime returns for how long too many pods are held back, in words.
func (b *table) holdTime() string {
	if b.rules.MassHold < 0 {
		return "ever"
	}
	return b.rules.MassHold.String()
}

// markDirty makes the loop reconcile t.
func (b *table) markDirty(t *entry) {
	if !t.dirty {
		t.dirty = true
		b.dirty = append(b.dirty, t)
		wake(b.kick)
	}
}

// later makes the loop call f without the lock.
func (b *table) later(f func()) {
	b.effects = append(b.effects, f)
	wake(b.kick)
}

// keyOf returns the key in table.pods. The key of an instance without a UID is
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

// add adds a pod. The loop reconciles it.
func (b *table) add(ref Ref, state core.State) *entry {
	t := &entry{State: state, ref: ref}
	b.pods[keyOf(ref)] = t
	name := nameOf(ref)
	t.next = b.names[name]
	b.names[name] = t
	b.markDirty(t)
	return t
}

// remove removes a pod.
func (b *table) remove(t *entry) {
	b.wakes.Set(t, core.Never)
	delete(b.pods, keyOf(t.ref))
	name := nameOf(t.ref)
	switch before := b.names[name]; {
	case before != t:
		for before.next != t {
			before = before.next
		}
		before.next = t.next
	case t.next != nil:
		b.names[name] = t.next
	default:
		delete(b.names, name)
	}
}

// shows reports whether the last List that was applied shows t.
func (b *table) shows(t *entry) bool { return t.shown == b.listed }

// has reports whether t is in the table.
func (b *table) has(t *entry) bool { return b.pods[keyOf(t.ref)] == t }

// find returns the pod of a ref; if the ref has no UID, the only pod of its
// name.
func (b *table) find(ref Ref) *entry {
	if ref.UID != "" {
		return b.pods[ref.UID]
	}
	if t := b.pods[keyOf(ref)]; t != nil {
		return t
	}
	t := b.names[nameOf(ref)]
	if t == nil || t.next != nil {
		return nil
	}
	return t
}

// nameFree reports whether no other pod of the same name blocks t.
func (b *table) nameFree(t *entry) bool {
	for other := b.names[nameOf(t.ref)]; other != nil; other = other.next {
		if other != t && other.Blocks() {
			return false
		}
	}
	return true
}

// counts reports whether t is one of the pods that the provider is known to hold. One that ends and
// that the last List left out is held only because that may be a mistake: it proves nothing.
func (b *table) counts(t *entry) bool {
	_, ending := t.Ending()
	return t.Held() && (!ending || b.shows(t))
}

// waiters yields the pods that wait for the name of the orphan t.
func (b *table) waiters(t *entry) func(yield func(*entry) bool) {
	return func(yield func(*entry) bool) {
		if !t.Blocks() {
			return
		}
		for other := b.names[nameOf(t.ref)]; other != nil; other = other.next {
			if _, ends := other.Ending(); other.Seen() && !ends && !other.Held() && !yield(other) {
				return
			}
		}
	}
}

// retry ends the backoff of a lane of the pods that pick chooses.
func (b *table) retry(lane core.Lane, at core.Moment, pick func(*entry) bool) {
	for _, t := range b.pods {
		if t.Failures(lane) > 0 && pick(t) {
			b.apply(t, at, core.RetryNow{Lane: lane})
			b.markDirty(t)
		}
	}
}

// wake wakes the goroutine that receives from ch.
func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// sleep waits, at most until ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// idleBeat is the longest time between two rounds of the loop, which show Check that
// the loop runs.
const idleBeat = 30 * time.Second

// A loop starts the calls and requests that are due, and forgets pods.
type loop struct {
	pods     *table
	caller   *caller
	writer   *writer
	observer *observer
	reports  *reports
	progress *lifecycle.Progress
	timeout  time.Duration // Config.ShutdownTimeout
}

// run reconciles each dirty pod until ctx is done and the known final statuses have
// been stored.
func (l *loop) run(ctx context.Context) {
	timer := time.NewTimer(idleBeat)
	var drained <-chan time.Time
	done := ctx.Done()
	for {
		wait, finished := l.round(ctx)
		l.progress.Beat()
		if finished {
			return
		}
		timer.Reset(wait)
		select {
		case <-l.pods.kick:
		case <-timer.C:
		case <-done:
			done = nil
			l.drain()
			drained = time.After(l.timeout)
		case <-drained:
			l.pods.run.cancelAPI()
		}
	}
}

// drain stops new provider calls, and all API requests except those that store and
// release pods that have ended. Their records are written too.
func (l *loop) drain() {
	l.pods.mu.Lock()
	defer l.pods.mu.Unlock()
	l.pods.draining = true
	for _, t := range l.pods.pods {
		if call := t.InFlight(core.Writes); call != nil && !call.Over {
			l.pods.abort(t, core.Writes) // the next process learns the status from List
		}
	}
}

// round reconciles every pod that is dirty or due. It returns the time until the next
// pod is due, and whether Run may return.
func (l *loop) round(ctx context.Context) (wait time.Duration, finished bool) {
	b := l.pods
	b.mu.Lock()
	at := b.moment()
	for b.wakes.Next() <= at.Since {
		b.markDirty(b.wakes.Pop())
	}
	for len(b.dirty) > 0 {
		batch := b.dirty
		b.dirty = nil
		for _, t := range batch {
			t.dirty = false
			if b.has(t) { // else it is forgotten
				l.reconcile(ctx, t, at)
			}
		}
	}
	next := min(l.startQueued(ctx, at), b.wakes.Next())
	wait = min(idleBeat, next-at.Since)
	finished = b.draining && l.idle()
	effects := b.effects
	b.effects = nil
	b.mu.Unlock()
	for _, effect := range effects {
		effect()
	}
	return wait, finished
}

// startQueued starts the calls and requests that wait for a place, while there are places. It
// returns when to call it again.
func (l *loop) startQueued(ctx context.Context, at core.Moment) (again instant) {
	again = core.Never
	for q := range l.pods.queues {
		free, start := l.caller.free, l.caller.start
		if q >= callQueues {
			free, start = l.writer.free, l.writer.start
		}
		for waiting := &l.pods.queues[q]; waiting.Len() > 0; {
			ok, wake := free(q, at.Since)
			if !ok {
				again = min(again, wake)
				break
			}
			t := waiting.Pop()
			t.queued[q] = false
			start(t, at, true)
			l.publish(ctx, t)
		}
	}
	return again
}

// idle reports whether no call or request is in flight or, while the API may be
// called, due.
func (l *loop) idle() bool {
	if !l.caller.idle() || l.writer.running > 0 {
		return false
	}
	if l.pods.run.apiCtx.Err() != nil {
		return true
	}
	for _, t := range l.pods.pods {
		if t.Unfinished(core.Writes) || t.Unfinished(core.Calls) {
			return false
		}
	}
	return true
}

// reconcile starts the call and the request that are due for t.
func (l *loop) reconcile(ctx context.Context, t *entry, at core.Moment) {
	news := l.pods.apply(t, at, core.Passed{})
	if news.Expired {
		l.observer.warn(t, ReasonDeadlineExceeded, actionStop, core.MessageDeadline)
	}
	if news.Unapplied {
		l.observer.warn(t, reasonFailedUpdate, actionUpdate, core.MessageUnapplied)
	}
	wake := min(news.Wake, l.caller.start(t, at, false), l.writer.start(t, at, false))
	l.publish(ctx, t)
	if t.Forgettable() && !l.lingers(t) {
		l.forget(ctx, t)
		return
	}
	l.pods.wakes.Set(t, wake)
	if !t.dirty {
		t.Rest()
	}
}

// publish reports a new stage of t to logs, hooks and the pods that wait for its name.
func (l *loop) publish(ctx context.Context, t *entry) {
	blocking := t.Blocks()
	if t.blocking && !blocking {
		for other := l.pods.names[nameOf(t.ref)]; other != nil; other = other.next {
			if other != t {
				l.pods.markDirty(other)
			}
		}
	}
	t.blocking = blocking

	from, to := t.stage, t.Stage()
	if from == to {
		return
	}
	t.stage = to
	level := klog.Level(4)
	if to == core.Running || to == core.Terminating || to == core.Stopped {
		level = 2
	}
	if logger := klog.FromContext(ctx).V(int(level)); logger.Enabled() {
		values := []any{"pod", klog.KRef(t.ref.Namespace, t.ref.Name), "podUID", t.ref.UID, "from", Stage(from), "to", Stage(to)}
		if reason, ends := t.Ending(); ends {
			values = append(values, "reason", reason)
		}
		l.pods.later(func() { logger.Info("Pod changed stage", values...) })
	}
	l.observer.changed(StageChanged{Ref: t.ref, From: Stage(from), To: Stage(to)})
}

// lingers reports whether t is an orphan that was stopped and that the provider still
// lists. If it were forgotten, it would be found again as a new orphan.
func (l *loop) lingers(t *entry) bool {
	reason, _ := t.Ending()
	return t.ref.UID != "" && reason == core.StopOrphaned && l.pods.shows(t)
}

// forget drops a pod.
func (l *loop) forget(ctx context.Context, t *entry) {
	l.pods.remove(t)
	l.reports.keep(t)
	l.caller.errors.Retire(&t.callErrs)
	l.writer.errors.Retire(&t.apiErrs)
	ref, stage := t.ref, Stage(t.stage)
	if logger := klog.FromContext(ctx).V(4); logger.Enabled() {
		l.pods.later(func() { logger.Info("Forgot pod", "pod", klog.KRef(ref.Namespace, ref.Name), "podUID", ref.UID) })
	}
	l.observer.changed(StageChanged{Ref: ref, From: stage, To: stage, Forgotten: true})
}

// callQueues is the number of queues that the caller has: queueAdmit, queueStart and queueStop.
const callQueues = queueUrgent

// A caller calls the provider for pods, a bounded number of them at once. The lock of the
// table guards running.
type caller struct {
	pods     *table
	gates    *gates
	observer *observer
	records  *records
	provider Provider
	caps     capabilities
	prints   *fingerprints
	limit    int // concurrent calls of a queue; one is for queueAdmit

	errors  apierr.Group
	running [callQueues]int
}

// queueOf returns the queue of a call.
func queueOf(op core.Op) int {
	switch op {
	case core.Admit:
		return queueAdmit
	case core.Stop, core.Release:
		return queueStop
	}
	return queueStart
}

// free reports whether a queue has a place. When one is given back, the loop asks again.
func (c *caller) free(q int, _ instant) (ok bool, again instant) {
	if q == queueAdmit {
		return c.running[q] == 0, core.Never
	}
	return c.running[q] < c.limit, core.Never
}

// idle reports whether no call is in flight.
func (c *caller) idle() bool { return c.running == [callQueues]int{} }

// start starts the call that is due for t, if there is a place. It returns
// when to call start again.
func (c *caller) start(t *entry, at core.Moment, waited bool) (wake instant) {
	s := t.Next(at.Since, core.Calls, c.pods.nameFree(t))
	if s.Cancel {
		c.pods.apply(t, at, core.Canceled{})
		c.pods.abort(t, core.Calls)
	}
	if s.Op == "" || c.pods.draining && (!isRecord(s.Op) || !t.Unfinished(core.Calls) || c.pods.run.apiCtx.Err() != nil) {
		return s.Wake
	}
	if !c.gates.mayAct(t) || c.records.removing[t.ref.UID] {
		return core.Never // until the gate opens, or the record is removed
	}
	q := queueOf(s.Op)
	if free, _ := c.free(q, at.Since); !c.pods.take(t, q, free, waited) {
		return s.Wake // its turn comes
	}
	news := c.pods.apply(t, at, core.Called{Seq: c.pods.tick(), Action: s})
	ctx, cancel := context.WithCancel(c.contextOf(s.Op))
	t.cancel[core.Calls] = cancel
	if news.FirstStop {
		c.observer.kills(t)
	}
	c.running[q]++
	node := c.gates.nodeOf(t)
	c.pods.run.calls.Go(func() {
		defer cancel()
		c.make(ctx, t, news.Call, node)
	})
	return t.Next(at.Since, core.Calls, c.pods.nameFree(t)).Wake // when it is in the way of Stop
}

// isRecord reports whether a call is one of the Checkpoint.
func isRecord(op core.Op) bool { return op == core.Save || op == core.Remove }

// contextOf returns the context of the calls of op. Records are written for as long as final
// statuses are, also when Run is returning.
func (c *caller) contextOf(op core.Op) context.Context {
	if isRecord(op) {
		return c.pods.run.apiCtx
	}
	return c.pods.run.callCtx
}

// make makes a call if the gate lets it.
func (c *caller) make(ctx context.Context, t *entry, call *core.Call, node string) {
	base := c.contextOf(call.Op)
	err := c.gates.ask(base, node)
	if err != nil || !c.counts(call) {
		c.end(t, call, func(at core.Moment) {
			c.pods.apply(t, at, core.NotMade{Lane: core.Calls})
			if err != nil && base.Err() == nil {
				c.gates.close(base, node, err)
			}
		})
		return
	}
	slow := time.AfterFunc(slowCall, func() { c.tellSlow(base, t, call) })
	st, saved, err := c.call(ctx, t.ref, call)
	slow.Stop()
	c.finish(t, call, st, saved, err)
}

// tellSlow says that a call has not returned, which nothing else shows.
func (c *caller) tellSlow(ctx context.Context, t *entry, call *core.Call) {
	c.pods.mu.Lock()
	defer c.pods.mu.Unlock()
	if t.InFlight(core.Calls) != call {
		return
	}
	_, action := eventOf(call.Op)
	c.observer.warn(t, reasonSlowCall, action, fmt.Sprintf("%s has not returned for %v", call.Op, slowCall))
	logger, op, ref := klog.FromContext(ctx), Op(call.Op), t.ref
	c.pods.later(func() {
		logger.Info("A call of the provider has not returned", "op", op, "pod", klog.KRef(ref.Namespace, ref.Name), "podUID", ref.UID, "after", slowCall)
	})
}

// counts reports whether the gate has been open since the call was planned.
func (c *caller) counts(call *core.Call) bool {
	c.pods.mu.Lock()
	defer c.pods.mu.Unlock()
	return call.Counts()
}

// end gives back the place of a call, and records its result.
func (c *caller) end(t *entry, call *core.Call, apply func(at core.Moment)) {
	c.pods.end(t, core.Calls, &c.running[queueOf(call.Op)], apply)
}

// call makes one provider call. Its result shares no memory with the provider. saved says
// that the Checkpoint has the pod or, with an error, may have it.
func (c *caller) call(ctx context.Context, ref Ref, call *core.Call) (st State, saved bool, err error) {
	var pod *corev1.Pod
	if call.Pod != nil && call.Op != core.Inspect && call.Op != core.Release {
		pod = call.Pod.DeepCopy()
	}
	err = contain(string(call.Op), func() (err error) {
		switch call.Op {
		case core.Admit:
			err = c.caps.admitter.Admit(ctx, pod, c.active)
		case core.Annotate:
			st.Annotations, err = c.caps.annotator.Annotate(ctx, pod)
		case core.Start:
			st, err = c.provider.Start(ctx, pod)
			if err == nil && !st.Stopped && c.records.checkpoint != nil {
				saved = true
				err = c.records.save(ctx, call.Pod, 0, nil)
			}
		case core.Update:
			st, err = c.caps.updater.Update(ctx, pod)
		case core.Save:
			err = c.records.save(ctx, call.Pod, call.LostSince, call.End)
		case core.Remove:
			err = c.records.remove(ctx, ref.UID)
		case core.Stop:
			st, err = c.provider.Stop(ctx, ref, StopOptions{Grace: call.Grace, Reason: StopReason(call.Reason), Pod: pod})
		case core.Inspect:
			st, err = c.caps.inspector.Inspect(ctx, ref)
		case core.Release:
			err = c.caps.releaser.Release(ctx, ref)
		}
		return err
	})
	st.Ref = ref
	return st.private(), saved, err
}

// resultOf returns the meaning of what a call has returned.
func resultOf(op core.Op, err error) (ev core.Returned) {
	ev.Err = err
	if err == nil {
		return ev
	}
	ev.Result = core.Failed
	if errors.Is(err, ErrNotFound) && (op == core.Stop || op == core.Release || op == core.Inspect) {
		ev.Result = core.NoSuchPod
	}
	if reject, ok := errors.AsType[*RejectError](err); ok {
		ev.Result, ev.Rejection = core.Refused, core.Rejection{Reason: reject.Reason, Message: reject.Message}
	}
	if retry, ok := errors.AsType[*RetryError](err); ok {
		if ev.After = retry.After; ev.After <= 0 {
			ev.After = retryMin
		}
	}
	return ev
}

// finish applies the result of a provider call.
func (c *caller) finish(t *entry, call *core.Call, st State, saved bool, err error) {
	ctx := c.contextOf(call.Op)
	if ctx.Err() != nil && err != nil {
		// Run is returning: nothing is wrong.
		c.end(t, call, func(at core.Moment) { c.pods.apply(t, at, core.NotMade{Lane: core.Calls}) })
		return
	}
	ev := resultOf(call.Op, err)
	ev.Report, ev.FP, ev.Saved = st.report(), c.prints.of(&st), saved
	var news core.News
	var latency time.Duration
	c.end(t, call, func(at core.Moment) {
		latency = at.Since - call.Since
		before := c.observer.before(t)
		ev.Seq = c.pods.tick()
		if news = c.pods.apply(t, at, ev); news.Stale {
			return
		}
		if news.Lost {
			c.observer.warn(t, ReasonLost, actionSync, core.MessageLost)
		}
		c.observer.starts(t, before)
		c.warn(t, call.Op, ev, news)
	})
	if news.Stale {
		return
	}
	switch {
	case err == nil || errors.Is(err, ErrNotFound):
		c.errors.OK(ctx, &t.callErrs, "Calls of the provider succeed again")
	case !news.Canceled && ev.Result != core.Refused:
		c.errors.Fail(ctx, c.pods.handler, &t.callErrs, explain(Op(call.Op), t.ref, err), "Failed to call the provider",
			panicValues(err, "op", Op(call.Op), "pod", klog.KRef(t.ref.Namespace, t.ref.Name), "podUID", t.ref.UID)...)
	}
	c.observer.called(Op(call.Op), t.ref, latency, err)
}

// warn records the event of a failed call.
func (c *caller) warn(t *entry, op core.Op, ev core.Returned, news core.News) {
	switch {
	case ev.Err == nil:
		t.warned = ""
		return
	case news.Rejected:
		c.observer.warn(t, ev.Rejection.Reason, actionAdmit, ev.Rejection.Message)
		return
	case news.Canceled || errors.Is(ev.Err, ErrNotFound):
		return
	}
	if reason, action := eventOf(op); reason != "" {
		c.observer.warn(t, reason, action, ev.Err.Error())
	}
}

// eventOf returns the reason of the event of a call that failed, and the action of those about it.
func eventOf(op core.Op) (reason, action string) {
	switch op {
	case core.Annotate, core.Start:
		return ReasonFailedStart, actionStart
	case core.Admit:
		return reasonFailedAdmit, actionAdmit
	case core.Update:
		return reasonFailedUpdate, actionUpdate
	case core.Save, core.Remove:
		return reasonFailedCheckpoint, actionSync
	case core.Stop:
		return reasonFailedStop, actionStop
	case core.Release:
		return reasonFailedRelease, actionRelease
	}
	return "", actionSync
}

// active yields private copies of the admitted pods, the oldest first. They are
// collected on iteration, because most admitters of thousands of pods need no list
// of those before each.
func (c *caller) active(yield func(*corev1.Pod) bool) {
	c.pods.mu.Lock()
	var versions []core.Version
	for _, t := range c.pods.pods {
		if t.Admitted() {
			versions = append(versions, t.Version())
		}
	}
	c.pods.mu.Unlock()
	pods := make([]*corev1.Pod, len(versions))
	for i, v := range versions {
		pods[i] = v.Private()
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

// fieldManager is the manager of status fields in managedFields.
const fieldManager = core.FieldManager

// breakerCap is the longest time between two requests of a tripped breaker. It
// bounds how long the end of an outage goes unnoticed.
const breakerCap = core.UnansweredCap

// A writer sends the requests of pods to the API, a bounded number of them at once. The lock
// of the table guards running, breaker and retried.
type writer struct {
	pods     *table
	gates    *gates
	observer *observer
	client   corev1client.PodsGetter
	hostIPs  func(nodeName string) []string // nil: none

	errors  apierr.Group
	running int // in all queues
	breaker queue.Breaker
	retried map[string]instant // by namespace, the last call of retry
}

// free reports whether a request may start, from any queue, and else when to ask again.
func (w *writer) free(_ int, now instant) (ok bool, again instant) {
	if w.running >= w.breaker.Trip {
		return false, core.Never
	}
	return w.breaker.Allows(now, w.running)
}

// start starts the API request that is due for t, if there is a place. It returns
// when to call start again.
func (w *writer) start(t *entry, at core.Moment, waited bool) (wake instant) {
	s := t.Next(at.Since, core.Writes, true)
	if s.Op == "" || w.pods.draining && (!t.Unfinished(core.Writes) || w.pods.run.apiCtx.Err() != nil) {
		return s.Wake
	}
	if !w.gates.mayAct(t) {
		return core.Never // until the gate opens
	}
	q := queueWrite
	if t.Failures(core.Writes) > 0 {
		q = queueRetry
	} else if s.Urgent {
		q = queueUrgent
	}
	if free, _ := w.free(q, at.Since); !w.pods.take(t, q, free, waited) {
		return core.Never // its turn comes
	}
	call := w.pods.apply(t, at, core.Sent{Action: s}).Call
	ctx, cancel := context.WithTimeout(w.pods.run.apiCtx, callTimeout)
	t.cancel[core.Writes] = cancel
	w.running++
	node := w.gates.nodeOf(t)
	w.pods.run.calls.Go(func() {
		defer cancel()
		w.send(ctx, t, call, node)
	})
	return core.Never
}

// send sends a request if the gate lets it.
func (w *writer) send(ctx context.Context, t *entry, call *core.Call, node string) {
	if err := w.gates.ask(w.pods.run.apiCtx, node); err != nil {
		w.end(t, func(at core.Moment) {
			w.pods.apply(t, at, core.NotMade{Lane: core.Writes})
			if w.pods.run.apiCtx.Err() == nil {
				w.gates.close(w.pods.run.apiCtx, node, err)
			}
		})
		return
	}
	switch call.Op {
	case core.Patch:
		w.patch(ctx, t, call)
	case core.Delete:
		w.delete(ctx, t, call)
	case core.Get:
		pod, err := getPod(ctx, w.client, t.ref, node)
		if err != nil {
			w.finish(t, call, err, failureOf(err))
		} else {
			w.finish(t, call, nil, core.Read{Pod: pod})
		}
	}
}

// end gives back the place of a request, and records its result.
func (w *writer) end(t *entry, apply func(at core.Moment)) {
	w.pods.end(t, core.Writes, &w.running, apply)
}

// patch writes the status. If the API has it already, it sends no request.
func (w *writer) patch(ctx context.Context, t *entry, call *core.Call) {
	pod := call.Pod
	update := call.Update
	w.addHostIPs(ctx, pod, &update.Observed)
	next, problems := podstatus.Next(call.Base, update)
	if call.Minimal {
		next = podstatus.Minimal(pod, &next)
	}
	body := podstatus.Patch(pod, &next)
	if call.Pinned && next.Phase != pod.Status.Phase {
		body = pin(body, pod.ResourceVersion)
	}
	body = annotate(body, pod, call.Annotations)
	logger := klog.FromContext(ctx)
	if body == nil {
		logger.V(4).Info("Status is stored already", "pod", klog.KObj(pod), "podUID", pod.UID)
		w.end(t, func(at core.Moment) {
			w.pods.apply(t, at, core.Stored{})
			w.reportProblems(t, problems)
		})
		w.worked(t)
		return
	}
	w.pods.mu.Lock()
	call.Status = &next
	w.pods.mu.Unlock()
	resp, err := w.client.Pods(pod.Namespace).Patch(ctx, pod.Name, podstatus.PatchType, body,
		metav1.PatchOptions{FieldManager: fieldManager}, "status")
	if err == nil && resp.UID != pod.UID {
		err = errAnswer
	}
	logger.V(4).Info("Sent status", "pod", klog.KObj(pod), "podUID", pod.UID, "phase", next.Phase, "err", err)
	if err == nil {
		resp.ManagedFields = nil
		w.finish(t, call, nil, core.Stored{Pod: resp, Same: podstatus.Equal(&resp.Status, &next)}, problems...)
		return
	}
	switch {
	case isInstanceGone(err, pod.Name):
		w.finish(t, call, err, core.NotFound{})
	case apierr.Classify(err) == apierr.Conflict:
		w.finish(t, call, err, core.Conflicted{})
	case isAboutAnnotations(err) && len(call.Annotations) > 0:
		w.finish(t, call, err, core.AnnotationsRefused{})
	case isAboutStatus(err):
		w.finish(t, call, err, core.StatusRefused{})
	default:
		w.finish(t, call, err, failureOf(err))
	}
}

// addHostIPs fills in the addresses that the provider does not report.
func (w *writer) addHostIPs(ctx context.Context, pod *corev1.Pod, observed *corev1.PodStatus) {
	if w.hostIPs == nil {
		return
	}
	var ips []string
	err := contain("HostIPs", func() error {
		ips = w.hostIPs(pod.Spec.NodeName)
		return nil
	})
	if err != nil {
		report.Tell(ctx, w.pods.handler, explain("find the host addresses of", RefOf(pod), err), "Failed to find the addresses of a node",
			panicValues(err, "pod", klog.KObj(pod))...)
	}
	if observed.HostIP == "" && len(observed.HostIPs) == 0 {
		for _, ip := range ips {
			observed.HostIPs = append(observed.HostIPs, corev1.HostIP{IP: ip})
		}
	}
	if pod.Spec.HostNetwork && observed.PodIP == "" && len(observed.PodIPs) == 0 {
		for _, ip := range ips {
			observed.PodIPs = append(observed.PodIPs, corev1.PodIP{IP: ip})
		}
	}
}

// reportProblems reports the invalid fields of a report.
func (w *writer) reportProblems(t *entry, problems field.ErrorList) {
	if len(problems) == 0 {
		return
	}
	err := problems.ToAggregate()
	why := DroppedInvalid
	for _, problem := range problems {
		if problem.Type == field.ErrorTypeForbidden {
			why = DroppedTransition
		}
	}
	w.observer.dropped(t.ref, why, err)
	w.observer.warn(t, reasonInvalidStatus, actionSync, err.Error())
	if text := err.Error(); t.problems != text {
		t.problems = text
		ctx, ref := w.pods.run.apiCtx, t.ref
		w.pods.later(func() {
			klog.FromContext(ctx).Info("Left invalid fields of the provider's status out", "pod", klog.KRef(ref.Namespace, ref.Name), "podUID", ref.UID, "problems", text)
		})
	}
}

// delete sends the DELETE of the pod, of the version that has its end. If the API server was restored
// since, the pod of that UID may live again.
func (w *writer) delete(ctx context.Context, t *entry, call *core.Call) {
	only := &metav1.Preconditions{UID: &t.ref.UID}
	if version := call.Pod.ResourceVersion; call.Pinned && version != "" {
		only.ResourceVersion = &version
	}
	err := w.client.Pods(t.ref.Namespace).Delete(ctx, t.ref.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: only})
	klog.FromContext(ctx).V(4).Info("Sent deletion of pod", "pod", klog.KRef(t.ref.Namespace, t.ref.Name), "podUID", t.ref.UID, "err", err)
	switch {
	case err == nil:
		w.finish(t, call, nil, core.DeleteSent{})
	case apierrors.IsConflict(err) && call.Pinned:
		w.finish(t, call, err, core.Conflicted{})
	case isPodMissing(err, t.ref.Name) || apierrors.IsConflict(err):
		w.finish(t, call, nil, core.DeleteSent{NotFound: true}) // the pod, or the pod of this UID, is gone already
	default:
		w.finish(t, call, err, failureOf(err))
	}
}

// finish applies the result of a request.
func (w *writer) finish(t *entry, call *core.Call, err error, result core.Event, problems ...*field.Error) {
	var latency time.Duration
	w.end(t, func(at core.Moment) {
		latency = at.Since - call.Since
		if w.serverAnswered(at.Since, err) {
			w.retry(at, "")
		} else if err == nil && call.Op != core.Get && t.Failures(core.Writes) > 0 {
			w.retry(at, t.ref.Namespace) // a webhook may work again
		}
		if read, ok := result.(core.Read); ok {
			read.Seq = w.pods.tick()
			result = read
		}
		news := w.pods.apply(t, at, result)
		if news.Stale {
			return
		}
		w.reportProblems(t, problems)
		switch result.(type) {
		case core.AnnotationsRefused, core.StatusRefused:
			w.observer.dropped(t.ref, DroppedInvalid, err)
			w.observer.warn(t, reasonInvalidStatus, actionSync, err.Error())
		}
		if news.Fresh {
			w.observer.stored(t.ref, news.Lag)
		}
	})
	ctx := w.pods.run.apiCtx
	_, raced := result.(core.Conflicted)
	switch {
	case err == nil && call.Op == core.Get: // which says nothing of writes
	case err == nil:
		w.worked(t)
	case raced && call.Pinned: // another client was faster, which is no failure
	case ctx.Err() == nil && !isInstanceGone(err, t.ref.Name) && apierr.Classify(err) != apierr.Canceled:
		w.errors.Fail(ctx, w.pods.handler, &t.apiErrs, explain(Op(call.Op), t.ref, err), "Failed to write to a pod",
			"op", Op(call.Op), "pod", klog.KRef(t.ref.Namespace, t.ref.Name), "podUID", t.ref.UID)
	}
	w.observer.requested(Op(call.Op), t.ref, latency, err)
}

// worked records that the API has what was written to the pod.
func (w *writer) worked(t *entry) {
	w.errors.OK(w.pods.run.apiCtx, &t.apiErrs, "Writing to pods works again")
}

// serverAnswered tells the breaker of the result of a request. It reports whether the server
// is back.
func (w *writer) serverAnswered(now instant, err error) (back bool) {
	if apierrors.IsInternalError(err) {
		return false // often an admission webhook, which fails for some objects only
	}
	switch apierr.Classify(err) {
	case apierr.Timeout, apierr.Unreachable, apierr.Server, apierr.Throttled, apierr.Unauthorized, apierr.Other:
		w.breaker.Failed(now)
		return false
	case apierr.Canceled:
		return false
	}
	return w.breaker.Succeeded()
}

// retry ends the backoff of every pod of the namespace, or of all if it is
// empty: at most once each second, because each pod that recovers asks for it.
func (w *writer) retry(at core.Moment, namespace string) {
	now := at.Since
	if last, ok := w.retried[namespace]; ok && now-last < retryMin {
		return
	}
	for other, last := range w.retried {
		if now-last >= retryMin {
			delete(w.retried, other)
		}
	}
	w.retried[namespace] = now
	w.pods.retry(core.Writes, at, func(t *entry) bool { return namespace == "" || t.ref.Namespace == namespace })
}

// errAnswer is the error of an answer that can be decoded but lacks required fields,
// such as an empty object from a proxy.
var errAnswer = errors.New("podsync: the API server's answer is not about the pod")

// errUnconfirmed is the error of an instance that is kept because the API does
// not say whether its pod exists.
var errUnconfirmed = errors.New("the credentials can't see whether its pod exists, and State.NodeName does not say that it was started for this node")

// pin makes a patch conditional on the version from which it was computed. Changes of
// the phase are pinned: a pod that another client has ended must not become Running
// by a patch that was in flight. Other patches are not, because components that write
// different conditions would conflict.
func pin(body []byte, version string) []byte {
	rest, ok := bytes.CutPrefix(body, []byte(`{"metadata":{`))
	if !ok || version == "" {
		return body
	}
	return slices.Concat([]byte(`{"metadata":{"resourceVersion":`), strconv.AppendQuote(nil, version), []byte(`,`), rest)
}

// annotate adds annotations to a patch. body is nil if the status needs no patch.
func annotate(body []byte, pod *corev1.Pod, annotations map[string]string) []byte {
	if len(annotations) == 0 {
		return body
	}
	if body == nil {
		body = slices.Concat([]byte(`{"metadata":{"uid":`), strconv.AppendQuote(nil, string(pod.UID)), []byte(`}}`))
	}
	encoded, err := json.Marshal(annotations)
	rest, ok := bytes.CutPrefix(body, []byte(`{"metadata":{`))
	if err != nil || !ok {
		return body // can't happen
	}
	return slices.Concat([]byte(`{"metadata":{"annotations":`), encoded, []byte(`,`), rest)
}

// isInstanceGone reports whether a PATCH failed because the pod, or the pod of
// this UID, does not exist. The API server calls the latter an attempt to change
// an immutable field.
func isInstanceGone(err error, name string) bool {
	return isPodMissing(err, name) || isInvalidField(err, func(field string) bool { return field == "metadata.uid" })
}

// isInvalidField reports whether the API server calls a wanted field invalid.
func isInvalidField(err error, wanted func(field string) bool) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && apierrors.IsInvalid(err) && status.Status().Details != nil &&
		slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return wanted(c.Field) })
}

// isAboutStatus reports whether a PATCH failed because the status itself is invalid or too
// large. An admission policy or a webhook answers 422 or 400 too, and a proxy 400: what they
// refuse now they may accept later.
func isAboutStatus(err error) bool {
	return apierrors.IsRequestEntityTooLargeError(err) ||
		isInvalidField(err, func(field string) bool { return strings.HasPrefix(field, "status") })
}

// isAboutAnnotations reports whether a PATCH failed because its annotations are invalid or
// too large.
func isAboutAnnotations(err error) bool {
	return isInvalidField(err, func(field string) bool { return strings.HasPrefix(field, "metadata.annotations") })
}

// isPodMissing reports whether a 404 is about this pod. A proxy's is not, and a missing
// pod is stopped.
func isPodMissing(err error, name string) bool { return apierr.IsMissing(err, "pods", name) }

// getPod reads the pod from the API, not from a cache. The result is nil if the pod of
// this UID does not exist.
//
// The credentials of a node may read only the node's pods. The answer about any
// other pod, whether it exists or not, is 403. They may list the pods of the
// node, and a pod never changes its node: if node is the pod's node, a LIST
// without the pod says that it is gone. If node is "", the error is
// errUnconfirmed.
func getPod(ctx context.Context, client corev1client.PodsGetter, ref Ref, node string) (*corev1.Pod, error) {
	pods := client.Pods(ref.Namespace)
	pod, err := pods.Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsForbidden(err) {
		if node == "" {
			return nil, errUnconfirmed
		}
		list, listErr := pods.List(ctx, metav1.ListOptions{FieldSelector: fields.Set{
			"metadata.name": ref.Name, "spec.nodeName": node,
		}.String()})
		switch {
		case listErr != nil:
			return nil, listErr
		case list.ResourceVersion == "":
			return nil, errAnswer
		case len(list.Items) == 0:
			return nil, nil
		}
		pod, err = &list.Items[0], nil
	}
	if isPodMissing(err, ref.Name) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	switch pod.UID {
	case ref.UID:
	case "":
		return nil, errAnswer
	default:
		return nil, nil
	}
	pod.ManagedFields = nil
	return pod, nil
}

// failureOf returns the meaning of an error of the API that may go away.
func failureOf(err error) core.WriteFailed {
	class := apierr.Classify(err)
	return core.WriteFailed{
		MayBeStored: apierr.MayHaveCommitted(err),
		Unanswered:  class == apierr.Timeout || class == apierr.Unreachable,
		After:       apierr.RetryAfter(err),
	}
}
