// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/internal/report"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// earlyFor is how long a report waits for its pod to be seen.
const earlyFor = 5 * time.Minute

// early is a report of a pod that was not seen yet.
type early struct {
	state State
	print uint64
	at    instant
}

// handlers take what the informer says. They do little: a pod is noted and
// marked, however many come at once.
func (c *Controller) handlers() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { c.seen(obj) },
		UpdateFunc: func(old, obj any) {
			// A relist shows a pod that was deleted and made again under its
			// name as a change.
			if a, ok := old.(*corev1.Pod); ok {
				if b, ok := obj.(*corev1.Pod); ok && a.UID != b.UID {
					c.gone(a)
				}
			}
			c.seen(obj)
		},
		DeleteFunc: c.gone,
	}
}

// seen takes a pod that the informer has.
func (c *Controller) seen(obj any) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	t, now := c.tracks[pod.UID], c.now()
	fresh := t == nil || t.pod == nil
	if fresh && !c.cfg.Owns(pod) {
		return // also if the provider holds it: see judge
	}
	if t == nil {
		t = c.add(RefOf(pod), now)
		c.supersede(t, now)
	}
	t.inCache = true
	if !older(pod, t.pod) {
		t.orphan, t.removed = false, false
	}
	if !t.desire(&c.rules, now, pod) {
		return
	}
	if fresh {
		c.firstSight(t, now)
	}
	c.touch(t)
	poke(c.kick)
}

// supersede takes note that the API has the pod t: others of its name are gone.
func (c *Controller) supersede(t *track, now instant) {
	for other := t.next; other != nil; other = other.next {
		if !other.orphan && other.inCache {
			other.inCache = false
			other.vanish(now)
			c.touch(other)
		}
	}
}

// firstSight begins with a pod of which only reports were known, if anything.
func (c *Controller) firstSight(t *track, now instant) {
	if e, ok := c.early[t.ref.UID]; ok {
		delete(c.early, t.ref.UID)
		c.seq++
		t.observe(&c.rules, now, c.seq, &e.state, e.print, false)
	}
	t.known = false
	switch {
	case !c.synced:
	case t.held || t.stopped || !t.evidence():
		t.classify(&c.rules, now)
	default:
		// It ran before. Whether the provider still holds it, a List that
		// begins now says.
		poke(c.relist)
	}
}

// gone takes note that the informer does not have a pod any more.
func (c *Controller) gone(obj any) {
	var key string
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		key, obj = tombstone.Key, tombstone.Obj
	}
	pod, _ := obj.(*corev1.Pod)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	now := c.now()
	drop := func(t *track) {
		t.inCache = false
		t.vanish(now)
		c.touch(t)
	}
	if pod != nil {
		// An orphan is not ours, or it is too new to be seen: it is verified.
		if t := c.tracks[pod.UID]; t != nil && t.pod != nil {
			t.desire(&c.rules, now, pod) // its last version
			drop(t)
		}
	} else if namespace, name, err := cache.SplitMetaNamespaceKey(key); err == nil {
		for t := c.names[types.NamespacedName{Namespace: namespace, Name: name}]; t != nil; t = t.next {
			if t.inCache {
				drop(t)
			}
		}
	}
	poke(c.kick)
}

// find returns the track of a ref; without a UID that of the one pod with its
// name.
func (c *Controller) find(ref Ref) *track {
	if ref.UID != "" {
		return c.tracks[ref.UID]
	}
	t := c.names[nameOf(ref)]
	if t == nil || t.next != nil {
		return nil
	}
	return t
}

// Report takes a state that the provider has learnt of, as the report function
// of Watch does. It never blocks for longer than another report takes to be
// noted, and may be called by anybody at any time, also before and after Run.
// Of several reports about a pod the last one counts; one about a pod that was
// not seen yet waits for it for five minutes.
func (c *Controller) Report(st State) {
	print := c.prints.of(&st)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	now := c.now()
	t := c.find(st.Ref)
	if t == nil && st.UID == "" {
		c.dropped(st.Ref, DroppedAmbiguous, nil)
		poke(c.kick)
		return
	}
	if t != nil && t.print == print && t.stopped == st.Stopped {
		c.seq++
		t.seen, t.absences = c.seq, 0
		return
	}
	st.Status = *st.Status.DeepCopy()
	if t == nil {
		c.early[st.UID] = early{state: st, print: print, at: now}
		return
	}
	c.seq++
	c.observe(t, now, c.seq, &st, print, false)
	poke(c.kick)
}

// observe gives a report to its track.
func (c *Controller) observe(t *track, now instant, seq uint64, st *State, print uint64, listed bool) {
	st.Ref = t.ref
	if why := t.observe(&c.rules, now, seq, st, print, listed); why != "" {
		c.dropped(t.ref, why, nil)
	}
	if !t.known && c.synced && t.pod != nil && t.held {
		t.classify(&c.rules, now)
	}
	c.touch(t)
}

// runWatch runs the provider's Watch again and again.
func (c *Controller) runWatch(ctx context.Context) {
	var streak report.Streak
	failures := 0
	for ctx.Err() == nil {
		start := time.Now()
		err := c.caps.watcher.Watch(ctx, c.Report)
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
		poke(c.relist) // what was missed
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

// An Eviction says why a pod is evicted.
type Eviction struct {
	// Reason becomes status.reason. Default: ReasonEvicted.
	Reason string
	// Message becomes status.message, and says for example which resource ran
	// out.
	Message string
	// Grace is how long the pod may take to end. It is at least a second, and
	// not longer than what is left of it if the pod is ending already.
	// Default: spec.terminationGracePeriodSeconds.
	Grace time.Duration
}

// Evict stops a pod from the node's side. Its phase becomes Failed with the
// reason and message, and the condition DisruptionTarget tells a Job that the
// fault was not the pod's (KEP-3329). The object stays until somebody deletes
// it. The error is ErrNotFound for a pod that is not there or has stopped; a pod
// that is ending already ends as it would have, but sooner if Grace says so.
func (c *Controller) Evict(ref Ref, eviction Eviction) error {
	if eviction.Reason == "" {
		eviction.Reason = ReasonEvicted
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.find(ref)
	if t == nil || t.pod == nil || t.stopped || t.removed {
		return ErrNotFound
	}
	if eviction.Grace <= 0 {
		eviction.Grace = specGrace(t.pod)
	}
	if t.end == nil {
		c.warn(t, eviction.Reason, actionStop, eviction.Message)
	}
	t.finish(c.now(), StopEvicted, &podstatus.Failure{
		Reason: eviction.Reason, Message: eviction.Message, DisruptionReason: corev1.PodReasonTerminationByKubelet,
	}, eviction.Grace)
	c.touch(t)
	poke(c.kick)
	return nil
}
