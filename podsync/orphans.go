// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

const (
	// orphanGets is how many orphans are asked about at once.
	orphanGets = 8
	// orphanRest is how long an instance that turned out to be none is left
	// alone, at most.
	orphanRest = time.Hour
	// massOrphans is how many orphans are never too many.
	massOrphans = 5
	// massShare is the part of the provider's pods that are.
	massShare = 4
	// massPasses is how often too many orphans must be found before it is
	// believed.
	massPasses = 10
)

// A verdict is what the API says of an orphan.
type verdict int

const (
	verdictUnknown verdict = iota // the API did not answer
	verdictGone
	verdictThere
)

// runOrphans verifies orphans after each List until ctx is done.
func (c *Controller) runOrphans(ctx context.Context) {
	for {
		select {
		case <-c.verify:
			c.verifyOrphans(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// verifyOrphans asks the API about the orphans that are due. A cache must not
// decide this: one that is empty by mistake would end every pod of the node.
func (c *Controller) verifyOrphans(ctx context.Context) {
	c.mu.Lock()
	now := c.now()
	var due []*podState
	for _, t := range c.tracks {
		if t.orphan() && t.held() && t.sched.orphanAt <= now && c.mayAct(t) {
			due = append(due, t)
		}
	}
	idle := len(due) == 0 && !c.heldBack
	c.mu.Unlock()
	if idle {
		return
	}
	verdicts := make([]verdict, len(due))
	var (
		wg     sync.WaitGroup
		places = make(chan struct{}, orphanGets)
	)
	for i, t := range due {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			verdicts[i] = c.checkOrphan(ctx, t.ref)
		})
	}
	wg.Wait()
	if ctx.Err() == nil {
		c.applyVerdicts(ctx, due, verdicts)
	}
}

// checkOrphan finds out whether the pod of an instance is gone.
func (c *Controller) checkOrphan(ctx context.Context, ref Ref) verdict {
	key := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}.String()
	if obj, ok, _ := c.informer.GetIndexer().GetByKey(key); ok {
		if pod, ok := obj.(*corev1.Pod); ok && pod.UID == ref.UID {
			return verdictThere // it is there, only not ours
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	start := time.Now()
	pod, err := c.get(ctx, ref)
	if hook := c.cfg.Hooks.APICall; hook != nil {
		hook(APICall{Op: OpGet, Ref: ref, Latency: time.Since(start), Err: err})
	}
	switch {
	case err != nil:
		klog.FromContext(ctx).V(4).Info("Could not verify an orphan", "podUID", ref.UID, "err", err)
		return verdictUnknown
	case pod == nil:
		return verdictGone
	}
	return verdictThere
}

// applyVerdicts does what follows from the verdicts.
func (c *Controller) applyVerdicts(ctx context.Context, due []*podState, verdicts []verdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer wake(c.kick)
	now := c.now()
	held := 0
	for _, t := range c.tracks {
		if t.held() {
			held++
		}
	}
	var gone []*podState
	unknown := 0
	for i, t := range due {
		if !t.orphan() || c.tracks[t.ref.UID] != t {
			continue // it has changed meanwhile
		}
		switch verdicts[i] {
		case verdictUnknown:
			unknown++
		case verdictGone:
			gone = append(gone, t)
		case verdictThere:
			t.sched.orphanPasses = 0
			t.sched.orphanWait = min(2*t.sched.orphanWait, orphanRest)
			t.sched.orphanAt = now + t.sched.orphanWait
			c.dropped(t.ref, DroppedOrphan, nil)
		}
	}
	if c.tooMany(gone, unknown, held) {
		if len(gone) == 0 {
			return // as many as before, for all we know
		}
		refs := make([]Ref, len(gone))
		for i, t := range gone {
			refs[i] = t.ref
		}
		c.holdBack(ctx, refs, held)
		return
	}
	if c.heldBack {
		c.holdBack(ctx, nil, held)
	}
	for _, t := range gone {
		c.stopOrphan(ctx, t, now)
	}
}

// tooMany reports whether so many orphans are more likely to be a mistake. Those
// that the API did not answer for count: it may answer for a few at a time, and
// a mistake must not be carried out in small parts.
func (c *Controller) tooMany(gone []*podState, unknown, held int) bool {
	most := max(massOrphans, held/massShare)
	if c.cfg.Policy.AllowMassOrphans || len(gone)+unknown <= most {
		return false
	}
	believed := len(gone) > most
	for _, t := range gone {
		t.sched.orphanPasses++
		believed = believed && t.sched.orphanPasses >= massPasses
	}
	return !believed
}

// holdBack says which orphans are held back now, if any.
func (c *Controller) holdBack(ctx context.Context, refs []Ref, held int) {
	logger := klog.FromContext(ctx)
	switch {
	case len(refs) == 0:
		c.later(func() { logger.Info("Orphans are not held back any more", "held", held) })
	case !c.heldBack:
		c.later(func() { logger.Info("Too many orphans: none is removed", "orphans", len(refs), "held", held) })
	default:
		c.later(func() {
			logger.V(4).Info("Still too many orphans: none is removed", "orphans", len(refs), "held", held)
		})
	}
	c.heldBack = len(refs) > 0
	if hook := c.cfg.Hooks.MassOrphans; hook != nil {
		c.later(func() { hook(MassOrphans{Refs: refs, Held: held}) })
	}
}

// stopOrphan makes an orphan end.
func (c *Controller) stopOrphan(ctx context.Context, t *podState, now instant) {
	t.api.presence = presenceGone
	t.beginTermination(now, StopOrphaned, nil, minGrace)
	t.end.reason, t.end.grace = StopOrphaned, minGrace
	logger := klog.FromContext(ctx)
	ref := t.ref
	c.later(func() {
		logger.Info("Stopping an orphan", "pod", klog.KRef(ref.Namespace, ref.Name), "podUID", ref.UID)
	})
	c.warn(t, reasonOrphanRemoved, actionStop, "the pod does not exist any more; its instance is being stopped")
	c.markDirty(t)
}
