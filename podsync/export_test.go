// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"fmt"
	"slices"

	core "github.com/kubewright/kubewright/podsync/internal/pod"
	"github.com/kubewright/kubewright/podsync/internal/queue"
)

// Kept returns the number of entries of all maps and queues.
func (c *Controller) Kept() int {
	c.pods.mu.Lock()
	defer c.pods.mu.Unlock()
	n := len(c.pods.pods) + len(c.pods.names) + len(c.reports.early) + len(c.pods.dirty) + c.pods.wakes.Len()
	for q := range c.pods.queues {
		n += c.pods.queues[q].Len()
	}
	return n
}

// Lag returns the number of pods that are known by an answer to a write, and not yet by
// the version of it that the informer has.
func (c *Controller) Lag() (n int) {
	c.pods.mu.Lock()
	defer c.pods.mu.Unlock()
	for key, t := range c.pods.names {
		obj, ok, err := c.intake.informer.GetIndexer().GetByKey(key.String())
		if err != nil || !ok || lags(t, versionOf(obj)) {
			n++
		}
	}
	return n
}

func lags(t *entry, informer *core.Version) bool {
	v := t.Version()
	return !v.Shares(informer)
}

// DropTracks makes the controller forget everything, and returns the number of pods
// it knew.
func (c *Controller) DropTracks() int {
	c.pods.mu.Lock()
	defer c.pods.mu.Unlock()
	n := len(c.pods.pods)
	c.pods.pods, c.pods.names, c.pods.dirty, c.pods.wakes = nil, nil, nil, queue.Heap[*entry]{}
	c.pods.queues = [queueCount]queue.Fifo[*entry]{}
	return n
}

// ListWith reconciles with the List of another provider.
func (c *Controller) ListWith(p Provider) {
	own := c.lister.provider
	c.lister.provider = p
	defer func() { c.lister.provider = own }()
	if err := c.lister.list(context.Background()); err != nil {
		panic(err)
	}
}

// OnPod shows a pod as the informer does.
func (c *Controller) OnPod(obj any) { c.intake.onUpdate(obj) }

// LimitWrites sets the number of concurrent API requests. It must be called before Run.
func (c *Controller) LimitWrites(n int) { c.loop.writer.breaker.Trip = n }

// A History has the earlier state of each pod, for invariants about changes.
type History map[*entry]core.Trace

// BrokenInvariants returns the invariants of the pods, and of the queues,
// that do not hold. It keeps in h what the next call compares with.
func (c *Controller) BrokenInvariants(h History) (broken []string) {
	b := c.pods
	b.mu.Lock()
	defer b.mu.Unlock()
	var calls [callQueues]int
	writes := 0
	for _, t := range b.pods {
		wrong := func(format string, args ...any) {
			broken = append(broken, fmt.Sprintf("%s: ", t.ref)+fmt.Sprintf(format, args...))
		}
		if err := t.Check(); err != nil {
			wrong("%v", err)
		}
		before := h[t]
		now, err := t.Since(before)
		if h[t] = now; err != nil {
			wrong("%v", err)
		}
		if t.dirty != slices.Contains(b.dirty, t) {
			wrong("dirty means that the pod is in table.dirty")
		}
		for q := range b.queues {
			if t.queued[q] != slices.Contains(b.queues[q].Items(), t) {
				wrong("queued[%d] means that the pod is in queue %d", q, q)
			}
		}
		if call := t.InFlight(core.Calls); call != nil {
			calls[queueOf(call.Op)]++
		}
		if t.InFlight(core.Writes) != nil {
			writes++
		}
		for _, lane := range []core.Lane{core.Calls, core.Writes} {
			if (t.cancel[lane] != nil) != (t.InFlight(lane) != nil) {
				wrong("the cancel of lane %d is set while a call or request is under way in it, and only then", lane)
			}
		}
	}
	if calls != c.loop.caller.running || writes != c.loop.writer.running {
		broken = append(broken, fmt.Sprintf("the drivers run %v and %d, and %v and %d are in flight", c.loop.caller.running, c.loop.writer.running, calls, writes))
	}
	return broken
}
