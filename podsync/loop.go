// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// idleBeat is how often the loop comes round when there is nothing to do, to
// show that it does.
const idleBeat = 30 * time.Second

// loop looks at each pod that something happened to, and starts the calls that
// follow from it, until ctx is done and what is known has been stored.
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

// drain begins the end: calls of the provider are not started any more, and of
// the API only what stores and releases pods that have ended.
func (c *Controller) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draining = true
	for _, t := range c.tracks {
		c.touch(t)
		if t.write != nil && !t.write.over {
			t.write.cancel() // the next process has it from List
		}
	}
}

// round looks at everything that is dirty or due. It returns how long there is
// nothing more to do by itself, and whether Run may return.
func (c *Controller) round(ctx context.Context) (wait time.Duration, finished bool) {
	c.mu.Lock()
	now := c.now()
	for len(c.wakes) > 0 && c.wakes[0].wakeAt <= now {
		t := c.wakes[0]
		c.wakes.set(t, never)
		c.touch(t)
	}
	for len(c.dirty) > 0 {
		batch := c.dirty
		c.dirty = nil
		for _, t := range batch {
			t.dirty = false
			c.settle(ctx, t, now)
		}
	}
	wait = c.startQueued(ctx, now)
	if len(c.wakes) > 0 {
		wait = min(wait, max(0, c.wakes[0].wakeAt-now))
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

// startQueued starts what waits for a place, as far as there are places.
func (c *Controller) startQueued(ctx context.Context, now instant) (wait time.Duration) {
	wait = idleBeat
	for q := range c.queues {
		for c.queues[q].len() > 0 {
			ok, wake := c.free(laneOf(q), now)
			if !ok {
				if wake != never {
					wait = min(wait, max(0, wake-now))
				}
				break
			}
			t := c.queues[q].pop()
			t.queued[q] = false
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
		return c.running[lane] == 0, never
	case laneAPI:
		if c.running[lane] >= c.cfg.StatusWriters {
			return false, never
		}
		return c.breaker.allows(now, c.running[lane])
	}
	return c.running[lane] < c.cfg.MaxCalls, never
}

// take reports whether t may start in a queue's lane now; otherwise it waits.
// Those that have waited go first.
func (c *Controller) take(t *track, q int, now instant, waited bool) bool {
	if ok, _ := c.free(laneOf(q), now); ok && (waited || c.queues[q].len() == 0) {
		return true
	}
	if !t.queued[q] {
		t.queued[q] = true
		c.queues[q].push(t)
	}
	return false
}

// quiet reports whether nothing runs, and nothing that Run waits for is left to
// be done.
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
		if t.over() && t.known && t.pod != nil && !t.removed && t.goneAt == 0 && (!t.final || t.deleted && !t.released) {
			return false
		}
	}
	return true
}

// touch makes the loop look at t.
func (c *Controller) touch(t *track) {
	if !t.dirty {
		t.dirty = true
		c.dirty = append(c.dirty, t)
	}
}

// settle starts what follows from what is known of t.
func (c *Controller) settle(ctx context.Context, t *track, now instant) {
	if c.tracks[t.ref.UID] != t {
		return // forgotten
	}
	expired, wake := t.advance(&c.rules, now)
	if expired {
		c.warn(t, ReasonDeadlineExceeded, actionStop, messageDeadline)
	}
	wake = min(wake, c.startCall(t, now, false), c.startWrite(t, now, false))
	c.publish(ctx, t)
	if t.forgettable() && !c.lingers(t) {
		c.forget(ctx, t)
		return
	}
	c.wakes.set(t, wake)
}

// publish tells others of the stage that t has come to.
func (c *Controller) publish(ctx context.Context, t *track) {
	blocking := t.blocksName()
	if t.blocking && !blocking {
		for other := c.names[nameOf(t.ref)]; other != nil; other = other.next {
			if other != t {
				c.touch(other)
			}
		}
	}
	t.blocking = blocking

	from, to := t.stage, t.position()
	if from == to {
		return
	}
	t.stage = to
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

// later makes the loop call f once it holds no lock.
func (c *Controller) later(f func()) { c.effects = append(c.effects, f) }

// dropped tells the hook that something was left out.
func (c *Controller) dropped(ref Ref, reason string, err error) {
	if hook := c.cfg.Hooks.Dropped; hook != nil {
		c.later(func() { hook(Dropped{Ref: ref, Reason: reason, Err: err}) })
	}
}

func nameOf(ref Ref) types.NamespacedName {
	return types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
}

// add makes a track for a pod.
func (c *Controller) add(ref Ref, now instant) *track {
	c.seq++
	t := &track{ref: ref, since: now, born: c.seq, want: 1}
	c.tracks[ref.UID] = t
	name := nameOf(ref)
	t.next = c.names[name]
	c.names[name] = t
	return t
}

// lingers reports whether t is an orphan that was dealt with and that the
// provider lists all the same. Forgotten, it would be a new one.
func (c *Controller) lingers(t *track) bool {
	return t.end.reason == StopOrphaned && t.listNo == c.listNo
}

// forget drops everything that is known of a pod.
func (c *Controller) forget(ctx context.Context, t *track) {
	c.wakes.set(t, never)
	delete(c.tracks, t.ref.UID)
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
	c.providerErrors.Retire(&t.callErrs)
	c.apiErrors.Retire(&t.apiErrs)
	logger := klog.FromContext(ctx).V(4)
	ref, stage := t.ref, t.stage
	if logger.Enabled() {
		c.later(func() { logger.Info("Forgot pod", "pod", klog.KRef(ref.Namespace, ref.Name), "podUID", ref.UID) })
	}
	if hook := c.cfg.Hooks.StageChanged; hook != nil {
		c.later(func() { hook(StageChanged{Ref: ref, From: stage, To: stage, Forgotten: true}) })
	}
}
