// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/report"
)

// listGap is the least time between two Lists: pods that ask for one at the
// same time share it.
const listGap = time.Second

// runLists calls List until ctx is done: once the informer has what the API
// has, then every now and then, and when somebody asks for it.
func (c *Controller) runLists(ctx context.Context, registration cache.ResourceEventHandlerRegistration) {
	select {
	case <-registration.HasSyncedChecker().Done():
	case <-ctx.Done():
		return
	}
	var streak report.Streak
	for ctx.Err() == nil {
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
			c.ready.Mark()
			poke(c.verify)
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

// list asks the provider what it holds and gives each pod its part of the
// answer.
func (c *Controller) list(ctx context.Context) error {
	c.mu.Lock()
	c.seq++
	begin := c.seq
	c.mu.Unlock()

	callCtx, cancel := context.WithTimeout(ctx, max(listTimeout, c.cfg.Relist))
	defer cancel()
	start := time.Now()
	states, err := c.cfg.Provider.List(callCtx)
	if hook := c.cfg.Hooks.ProviderCall; hook != nil {
		hook(ProviderCall{Op: OpList, Latency: time.Since(start), Err: err})
	}
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.dropEarly()
		return err
	}
	prints := make([]uint64, len(states))
	for i := range states {
		prints[i] = c.prints.of(&states[i])
	}
	klog.FromContext(ctx).V(5).Info("Listed the provider's pods", "pods", len(states))

	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.listNo++
	for i := range states {
		c.listed(now, begin, &states[i], prints[i])
	}
	for _, t := range c.tracks {
		c.absentOrNew(t, now, begin)
	}
	c.synced = true
	c.dropEarly()
	poke(c.kick)
	return nil
}

// dropEarly drops the reports of pods that did not come in time.
func (c *Controller) dropEarly() {
	now := c.now()
	for uid, e := range c.early {
		if now-e.at > earlyFor {
			delete(c.early, uid)
			c.dropped(e.state.Ref, DroppedUnknown, nil)
		}
	}
}

// listed takes one entry of a List that began at begin.
func (c *Controller) listed(now instant, begin uint64, st *State, print uint64) {
	t := c.find(st.Ref)
	if t == nil {
		if st.UID == "" {
			// It may be of any pod of the name: none of them is absent.
			for t := c.names[nameOf(st.Ref)]; t != nil; t = t.next {
				t.listNo = c.listNo
			}
			c.dropped(st.Ref, DroppedAmbiguous, nil)
			return
		}
		if c.cfg.Policy.KeepOrphans {
			return
		}
		t = c.add(st.Ref, now)
		t.orphan, t.removed, t.known = true, true, true
		t.orphanWait = c.cfg.Policy.OrphanDelay
		t.orphanAt = now + t.orphanWait
		delete(c.early, st.UID)
	}
	t.listNo = c.listNo
	if t.print == print && t.stopped == st.Stopped && (t.held || t.stopped) {
		t.seen, t.absences, t.look = max(t.seen, begin), 0, false
		return
	}
	st.Status = *st.Status.DeepCopy()
	c.observe(t, now, begin, st, print, true)
}

// absentOrNew takes what a List that began at begin says by leaving t out, and
// decides about a pod that waited for it.
func (c *Controller) absentOrNew(t *track, now instant, begin uint64) {
	lost := false
	switch {
	case t.listNo != c.listNo && t.known:
		held := t.held
		lost = t.absent(&c.rules, now, begin, false)
		if lost || t.look || held != t.held || t.forgettable() {
			c.touch(t)
		}
	case !t.known && t.pod != nil && (!c.synced || t.born < begin || t.held):
		lost = t.classify(&c.rules, now)
		c.touch(t)
	}
	if lost {
		c.warn(t, ReasonLost, actionSync, messageLost)
	}
	if t.orphan && c.blocks(t) {
		t.orphanAt = now // somebody waits for its name
	}
}

// blocks reports whether a pod waits for the name of the orphan t.
func (c *Controller) blocks(t *track) bool {
	if !t.blocksName() || c.cfg.Policy.Overlap {
		return false
	}
	for other := c.names[nameOf(t.ref)]; other != nil; other = other.next {
		if other != t && other.pod != nil && other.end == nil && !other.held {
			return true
		}
	}
	return false
}
