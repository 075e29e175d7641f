// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/lifecycle"
	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

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
	timer := time.NewTimer(0)
	defer timer.Stop()
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
			shutdown := time.NewTimer(l.timeout)
			defer shutdown.Stop()
			drained = shutdown.C
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
		l.pods.markDirty(t)
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
	publish := func(t *entry) { l.publish(ctx, t) }
	l.caller.startQueued(at, publish)
	next := min(l.writer.startQueued(at, publish), b.wakes.Next())
	wait = min(idleBeat, max(0, next-at.Since))
	finished = b.draining && len(b.dirty) == 0 && l.idle()
	effects := b.effects
	b.effects = nil
	b.mu.Unlock()
	for _, effect := range effects {
		effect()
	}
	return wait, finished
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
		if t.Unfinished() || t.Unrecorded() {
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
	return t.ref.UID != "" && reason == core.StopOrphaned && t.listNo == l.pods.listNo
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
