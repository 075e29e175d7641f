// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/report"
)

// startCall starts the provider call that is due for t, if there is a place. It returns
// when to call startCall again.
func (c *Controller) startCall(t *podState, now instant, waited bool) (wake instant) {
	s := t.decideCall(&c.rules, now, c.nameFree(t))
	if s.cancel {
		t.call.inflight.fate = fateCanceled
		t.call.inflight.cancel()
	}
	if s.op == "" || c.draining {
		return s.wake
	}
	if !c.mayAct(t) || c.removing[t.ref.UID] {
		return noDeadline // until the gate opens, or the record is removed
	}
	q := queueOf(s.op)
	if !c.take(t, q, now, waited) {
		return noDeadline // its turn comes
	}
	c.seq++
	call := t.callStarted(now, c.seq, s)
	ctx, cancel := context.WithCancel(c.callCtx)
	call.cancel = cancel
	if s.op == OpStop && t.end.stops == 1 {
		c.recordKills(t)
	}
	c.running[laneOf(q)]++
	opts := StopOptions{Grace: s.grace}
	if t.end != nil {
		opts.Reason = t.end.reason
	}
	node := c.nodeOf(t)
	c.calls.Go(func() {
		defer cancel()
		if err := c.askGate(c.callCtx, node); err != nil || c.isStale(call) {
			c.callGated(t, call, node, err)
			return
		}
		st, err := c.callProvider(ctx, t.ref, call, opts)
		c.finishCall(t, call, st, err)
	})
	return noDeadline
}

// nameFree reports whether no other pod of the same name blocks it.
func (c *Controller) nameFree(t *podState) bool {
	for other := c.names[nameOf(t.ref)]; other != nil; other = other.next {
		if other != t && other.blocksName() {
			return false
		}
	}
	return true
}

// isStale reports whether the gate has closed since the call was planned.
func (c *Controller) isStale(call *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return call.fate == fateStale
}

// callGated ends a call that the gate did not allow: now, or, if err is nil, since it was
// planned.
func (c *Controller) callGated(t *podState, call *call, node string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.call.inflight = nil
	c.running[laneOf(queueOf(call.op))]--
	if err != nil && c.callCtx.Err() == nil {
		c.closeGate(c.callCtx, node, err)
	}
	c.markDirty(t)
	wake(c.kick)
}

// callProvider makes one provider call. Its result shares no memory with the provider.
func (c *Controller) callProvider(ctx context.Context, ref Ref, call *call, opts StopOptions) (st State, err error) {
	var pod *corev1.Pod
	if call.pod != nil && call.op != OpInspect && call.op != OpRelease {
		pod = call.pod.DeepCopy()
	}
	err = contain(string(call.op), func() (err error) {
		switch call.op {
		case OpAdmit:
			err = c.caps.admitter.Admit(ctx, pod, c.active)
		case OpAnnotate:
			st.Annotations, err = c.caps.annotator.Annotate(ctx, pod)
		case OpStart:
			st, err = c.cfg.Provider.Start(ctx, pod)
			if err == nil && !st.Stopped && c.rules.checkpoints {
				err = c.save(ctx, call.pod, 0)
				call.saved = err == nil
			}
		case OpUpdate:
			st, err = c.caps.updater.Update(ctx, pod)
		case OpSave:
			err = c.save(ctx, call.pod, call.lostSince)
		case OpRemove:
			err = c.cfg.Checkpoint.Remove(ctx, ref.UID)
		case OpStop:
			opts.Pod = pod
			st, err = c.cfg.Provider.Stop(ctx, ref, opts)
		case OpInspect:
			st, err = c.caps.inspector.Inspect(ctx, ref)
		case OpRelease:
			err = c.caps.releaser.Release(ctx, ref)
		}
		return err
	})
	st.Ref = ref
	return st.private(), err
}

// finishCall applies the result of a provider call.
func (c *Controller) finishCall(t *podState, call *call, st State, err error) {
	fp := c.prints.of(&st)
	ctx := c.callCtx
	if ctx.Err() != nil && err != nil {
		c.abandoned(t, call) // Run is returning: nothing is wrong
		return
	}
	c.mu.Lock()
	now := c.now()
	c.seq++
	canceled := call.fate != fateCounts
	c.running[laneOf(queueOf(call.op))]--
	if call.fate == fateStale {
		// The gate was closed during the call: only a List that begins now shows its
		// effect.
		c.seq++
		t.call.inflight, t.provider.listed, t.sched.born = nil, t.api.pod == nil, c.seq
		if err == nil && st.Stopped && !c.rules.releases {
			t.keepReport(&st.Status, nil)
		}
		c.markDirty(t)
		c.mu.Unlock()
		wake(c.relist)
		wake(c.kick)
		return
	}
	wasEnding, before := t.end != nil, c.eventBase(t)
	lost := t.callReturned(&c.rules, now, c.seq, &st, fp, err)
	if lost {
		c.warn(t, ReasonLost, actionSync, messageLost)
	}
	c.recordStarts(t, before)
	c.afterCall(t, call, err, wasEnding)
	if t.sched.relist {
		t.sched.relist = false
		wake(c.relist)
	}
	c.markDirty(t)
	c.mu.Unlock()
	wake(c.kick)

	switch {
	case err == nil || errors.Is(err, ErrNotFound):
		c.providerErrors.OK(ctx, &t.sched.callErrs, "Calls of the provider succeed again")
	case !canceled && !isReject(err):
		c.providerErrors.Fail(ctx, c.cfg.ErrorHandler, &t.sched.callErrs, explain(call.op, t.ref, err), "Failed to call the provider",
			panicValues(err, "op", call.op, "pod", klog.KRef(t.ref.Namespace, t.ref.Name), "podUID", t.ref.UID)...)
	}
	if hook := c.cfg.Hooks.ProviderCall; hook != nil {
		hook(ProviderCall{Op: call.op, Ref: t.ref, Latency: now - call.since, Err: err})
	}
}

// abandoned ends a call that failed because Run is returning.
func (c *Controller) abandoned(t *podState, call *call) {
	c.mu.Lock()
	t.call.inflight = nil
	c.running[laneOf(queueOf(call.op))]--
	c.mu.Unlock()
	wake(c.kick)
}

func isReject(err error) bool {
	_, ok := errors.AsType[*RejectError](err)
	return ok
}

// afterCall records the event of a failed call.
func (c *Controller) afterCall(t *podState, call *call, err error, wasEnding bool) {
	if err == nil {
		t.sched.warned = ""
		return
	}
	if reject, ok := errors.AsType[*RejectError](err); ok && !wasEnding && (call.op == OpStart || call.op == OpAdmit || call.op == OpAnnotate) {
		c.warn(t, reject.Reason, actionAdmit, reject.Message)
		return
	}
	if call.fate != fateCounts || errors.Is(err, ErrNotFound) {
		return
	}
	switch call.op {
	case OpAnnotate:
		c.warn(t, ReasonFailedStart, actionStart, err.Error())
	case OpAdmit:
		c.warn(t, reasonFailedAdmit, actionAdmit, err.Error())
	case OpStart:
		c.warn(t, ReasonFailedStart, actionStart, err.Error())
	case OpUpdate:
		c.warn(t, reasonFailedUpdate, actionUpdate, err.Error())
	case OpSave, OpRemove:
		c.warn(t, reasonFailedCheckpoint, actionSync, err.Error())
	case OpStop:
		c.warn(t, reasonFailedStop, actionStop, err.Error())
	case OpRelease:
		c.warn(t, reasonFailedRelease, actionRelease, err.Error())
	}
}

// The API refuses events with a longer reason or note.
const (
	maxEventReason = 128
	maxEventNote   = 1024
)

// cut returns s with at most limit bytes of UTF-8.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	const dots = "..."
	return strings.ToValidUTF8(s[:limit-len(dots)], "") + dots
}

// warn records a Warning about t, once for each distinct message in a row.
func (c *Controller) warn(t *podState, reason, action, message string) {
	reason, message = cut(reason, maxEventReason), cut(message, maxEventNote)
	if c.cfg.EventRecorder == nil || t.sched.warned == reason+message {
		return
	}
	t.sched.warned = reason + message
	regarding := &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: t.ref.Namespace, Name: t.ref.Name, UID: t.ref.UID,
	}
	c.record(c.cfg.EventRecorder, regarding, corev1.EventTypeWarning, reason, action, message)
}

// record records an event when c.mu is no longer held. A panic of the recorder is reported.
func (c *Controller) record(to events.EventRecorder, regarding *corev1.ObjectReference, kind, reason, action, note string) {
	c.later(func() {
		report.Call(c.callCtx, c.cfg.ErrorHandler, "EventRecorder.Eventf", func() { to.Eventf(regarding, nil, kind, reason, action, "%s", note) })
	})
}

// listGap is the least time between two Lists: pods that ask for one at the
// same time share it.
const listGap = time.Second

// runLists calls List until ctx is done: when the informer has synced, then each
// Config.Relist, and when c.relist is woken.
func (c *Controller) runLists(ctx context.Context, registration cache.ResourceEventHandlerRegistration) {
	synced := registration.HasSyncedChecker().Done()
	c.awaitPods(ctx, synced)
	var streak report.Streak
	for ctx.Err() == nil {
		c.askAll(ctx, true)
		c.askOwnsAgain()
		err := c.list(ctx)
		wait := time.Duration(float64(c.cfg.Relist) * (0.9 + 0.2*rand.Float64()))
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			streak.Fail(ctx, c.cfg.ErrorHandler, fmt.Errorf("podsync: list of the provider: %w", err), "Failed to list the provider's pods")
			wait = min(wait, c.breaker.policy.Delay(streak.Failures()))
		default:
			streak.OK(ctx, "Listing the provider's pods works again")
			if isDone(synced) { // before the List, as List has seen
				c.ready.Mark()
				if c.cfg.Checkpoint != nil {
					c.dropRecords(ctx)
				}
			}
			wake(c.verify)
		}
		c.waitForList(ctx, wait)
	}
}

// waitForList waits for the next List to be due, or asked for.
func (c *Controller) waitForList(ctx context.Context, wait time.Duration) {
	gap := min(listGap, wait)
	sleep(ctx, gap)
	timer := time.NewTimer(wait - gap)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.relist:
	case <-ctx.Done():
	}
}

// list calls the provider's List and applies its result to each pod.
func (c *Controller) list(ctx context.Context) error {
	c.mu.Lock()
	c.seq++
	begin := c.seq
	c.listing.began(c.now())
	c.mu.Unlock()

	callCtx, cancel := context.WithTimeout(ctx, max(listTimeout, c.cfg.Relist))
	defer cancel()
	start := time.Now()
	var states []State
	err := contain("List", func() (err error) {
		states, err = c.cfg.Provider.List(callCtx)
		return err
	})
	if hook := c.cfg.Hooks.ProviderCall; hook != nil {
		hook(ProviderCall{Op: OpList, Latency: time.Since(start), Err: err})
	}
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.listing.failed(err)
		c.dropEarly()
		return err
	}
	fps := make([]uint64, len(states))
	for i := range states {
		fps[i] = c.prints.of(&states[i])
	}
	klog.FromContext(ctx).V(5).Info("Listed the provider's pods", "pods", len(states))

	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if c.listing.err != nil {
		c.retryCalls() // the backend is back
	}
	c.listing.succeeded()
	c.listNo++
	for i := range states {
		c.listed(now, begin, &states[i], fps[i])
	}
	for _, t := range c.tracks {
		c.absentOrNew(t, now, begin)
	}
	c.decideLosses(now)
	c.synced = true
	c.dropEarly()
	c.pruneGates()
	wake(c.kick)
	return nil
}

// retryCalls ends the backoff of every pod. c.mu must be held.
func (c *Controller) retryCalls() {
	for _, t := range c.tracks {
		if t.call.failures > 0 {
			t.call.retryAt = 0
			c.markDirty(t)
		}
	}
}

// dropEarly drops the reports of pods that did not appear in time.
func (c *Controller) dropEarly() {
	now := c.now()
	for uid, e := range c.early {
		if now-e.at > earlyFor {
			delete(c.early, uid)
			c.dropped(e.state.Ref, DroppedUnknown, nil)
		}
	}
}

// listed applies one entry of a List that began at begin.
func (c *Controller) listed(now instant, begin uint64, st *State, fp uint64) {
	t := c.find(st.Ref)
	if t == nil {
		if st.UID == "" {
			// It may be the instance of any pod of the name: none is absent.
			for t := c.names[nameOf(st.Ref)]; t != nil; t = t.next {
				t.sched.listNo = c.listNo
			}
			c.dropped(st.Ref, DroppedAmbiguous, nil)
			return
		}
		if c.foreign(st) {
			return
		}
		t = c.add(st.Ref, now)
		t.api.presence, t.provider.listed = presenceOrphan, true
		t.sched.suspectWait = c.cfg.Policy.OrphanDelay
		t.sched.suspectAt = now + t.sched.suspectWait
		delete(c.early, st.UID)
	}
	if st.UID == "" && !t.mayBe(begin) {
		c.supersedeInstance(t, st.Ref, now)
		return
	}
	t.sched.listNo = c.listNo
	if st.NodeName != "" {
		t.provider.nodeName = st.NodeName
	}
	if !t.provider.listed && begin < t.sched.born && c.cfg.Gate != nil {
		return // from before the gate opened
	}
	if t.provider.fp == fp && t.stopped() == st.Stopped && (t.held() || t.stopped()) {
		t.provider.seenSeq, t.provider.absences, t.provider.needsInspect = max(t.provider.seenSeq, begin), 0, false
		t.provider.losses, t.provider.lostSince = 0, 0
		return
	}
	// A report that is not stored yet is kept. It must not keep the whole List.
	own := st.private()
	c.observe(t, now, begin, &own, fp, true)
}

// mayBe reports whether an instance without a UID, from a List that began at
// begin, may be t's: if t was started before, or is an instance without a UID.
// Otherwise the instance is that of an earlier pod of the name.
func (t *podState) mayBe(begin uint64) bool {
	if call := t.call.inflight; call != nil && call.op == OpStart {
		return call.seq < begin
	}
	return t.api.pod == nil || t.held() || t.stopped() || t.evidence()
}

// supersedeInstance stops the instance of an earlier pod of the name of t. The
// backend keeps no UIDs, so t would be taken to run already.
func (c *Controller) supersedeInstance(t *podState, ref Ref, now instant) {
	if !c.mayAct(t) {
		c.dropped(ref, DroppedAmbiguous, nil)
		return
	}
	if t.call.inflight != nil {
		return // Start is under way, and the List is older
	}
	earlier := c.add(ref, now)
	earlier.sched.listNo = c.listNo
	earlier.api.presence, earlier.provider.listed = presenceGone, true
	earlier.provider.nodeName = c.nodeOf(t)
	earlier.hold()
	earlier.beginTermination(now, StopOrphaned, nil, minGrace)
	c.warn(t, reasonNameTaken, actionStart, messageInstanceWithoutUID)
	c.markDirty(earlier)
}

// absentOrNew applies the absence of t from a List that began at begin, and classifies a
// pod that waited for the List.
func (c *Controller) absentOrNew(t *podState, now instant, begin uint64) {
	lost := false
	switch {
	case t.sched.listNo != c.listNo && t.provider.listed:
		held := t.held()
		lost = t.absent(&c.rules, now, begin, false)
		if lost || t.provider.needsInspect || held != t.held() || t.forgettable() {
			c.markDirty(t)
		}
	case !t.provider.listed && t.api.pod != nil && c.mayAct(t) && (!c.synced || t.sched.born < begin || t.held()):
		lost = t.classify(&c.rules, now)
		c.markDirty(t)
	}
	if lost {
		c.warn(t, ReasonLost, actionSync, messageLost)
	}
	if t.orphan() && c.blocks(t) {
		t.sched.suspectAt = min(t.sched.suspectAt, now) // another pod waits for its name
	}
}

// decideLosses decides about the pods that Lists have left out. So many losses at once are more
// likely a mistake of the backend: they are held, unless the Inspector confirms each.
func (c *Controller) decideLosses(now instant) {
	var lost []*podState
	held := 0
	for _, t := range c.tracks {
		switch {
		case t.suspectedLoss():
			lost = append(lost, t)
			held++
		case t.held():
			held++
		}
	}
	many := tooMany(len(lost), 0, held)
	var kept []Ref
	for _, t := range lost {
		hold := c.cfg.Policy.MassHold
		switch {
		case !many || hold > 0 && now-t.provider.lostSince >= hold:
			if t.markLost(&c.rules, now) {
				c.warn(t, ReasonLost, actionSync, messageLost)
			}
		case c.rules.inspects:
			t.provider.needsInspect = true
		default:
			kept = append(kept, t.ref)
		}
		c.markDirty(t)
	}
	if len(kept) > 0 || c.lossHeld {
		c.holdLosses(kept, held)
	}
}

// holdLosses reports the pods whose loss is not believed yet, if any.
func (c *Controller) holdLosses(refs []Ref, held int) {
	ctx := c.callCtx
	switch {
	case len(refs) == 0:
		c.later(func() { klog.FromContext(ctx).Info("Pods that the provider's List left out are no longer held back") })
	case !c.lossHeld:
		err := fmt.Errorf("podsync: the provider's List leaves out %d of %d pods that had started: they are not taken for lost before %v", len(refs), held, c.cfg.Policy.MassHold)
		c.later(func() {
			report.Tell(ctx, c.cfg.ErrorHandler, err, "Too many pods are lost at once: none is restarted or failed", "lost", len(refs), "held", held)
		})
	}
	c.lossHeld = len(refs) > 0
	if hook := c.cfg.Hooks.MassOrphans; hook != nil {
		c.later(func() { hook(MassOrphans{Refs: refs, Held: held, Lost: true}) })
	}
}

// blocks reports whether a pod waits for the name of the orphan t.
func (c *Controller) blocks(t *podState) bool {
	if !t.blocksName() {
		return false
	}
	for other := c.names[nameOf(t.ref)]; other != nil; other = other.next {
		if other != t && other.api.pod != nil && other.end == nil && !other.held() {
			return true
		}
	}
	return false
}

// runWatch runs the provider's Watch again and again.
func (c *Controller) runWatch(ctx context.Context) {
	var streak report.Streak
	failures := 0
	for ctx.Err() == nil {
		start := time.Now()
		err := contain("Watch", func() error { return c.caps.watcher.Watch(ctx, c.Report) })
		if hook := c.cfg.Hooks.ProviderCall; hook != nil {
			hook(ProviderCall{Op: OpWatch, Latency: time.Since(start), Err: err})
		}
		if ctx.Err() != nil {
			return
		}
		if time.Since(start) > time.Minute {
			failures = 0
		}
		failures++
		if err != nil {
			streak.Fail(ctx, c.cfg.ErrorHandler, fmt.Errorf("podsync: watch of the provider: %w", err), "Watch of the provider ended")
		} else {
			streak.OK(ctx, "Watch of the provider works again")
		}
		wake(c.relist) // for missed reports
		sleep(ctx, c.rules.retry.Delay(failures))
	}
}

// sleep waits, at most until ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// fingerprints detect reports without news. A fingerprint takes eight bytes instead of
// the last report, and computing it does not allocate. Two different reports have the
// same fingerprint once in 2^64 cases.
type fingerprints struct {
	seed    maphash.Seed
	buffers sync.Pool // of *[]byte
}

func newFingerprints() *fingerprints {
	return &fingerprints{seed: maphash.MakeSeed(), buffers: sync.Pool{New: func() any { return new([]byte) }}}
}

// of returns the fingerprint of a state. It is never 0.
func (f *fingerprints) of(st *State) uint64 {
	buffer := f.buffers.Get().(*[]byte)
	defer f.buffers.Put(buffer)
	size := st.Status.Size()
	if cap(*buffer) < size {
		*buffer = make([]byte, 0, 2*size)
	}
	b := (*buffer)[:size]
	// The encoding is the API's own, with maps in order of their keys.
	n, err := st.Status.MarshalToSizedBuffer(b)
	if err != nil {
		n = 0 // can't happen: the buffer has the size asked for
	}
	var h maphash.Hash
	h.SetSeed(f.seed)
	_, _ = h.Write(b[size-n:])
	// The encoding does not tell a nil list of conditions from an empty one, and
	// an empty one takes conditions off the pod.
	tail := [9]byte{0: bit(st.Stopped) | bit(st.Status.Conditions != nil)<<1 | bit(st.Delete)<<2}
	for i := range 8 {
		tail[1+i] = byte(st.Generation >> (8 * i))
	}
	_, _ = h.Write(tail[:])
	for _, key := range slices.Sorted(maps.Keys(st.Annotations)) {
		_, _ = h.WriteString(key + "=" + st.Annotations[key] + "\n")
	}
	return h.Sum64() | 1
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}
