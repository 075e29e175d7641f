// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

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

// Unrest returns what is left undone although nothing is running: what the loop must have done, and
// what must lead to a wakeup. A test calls it when all goroutines of the controller wait.
func (c *Controller) Unrest() (left []string) {
	b := c.pods
	b.mu.Lock()
	defer b.mu.Unlock()
	wrong := func(format string, args ...any) { left = append(left, fmt.Sprintf(format, args...)) }
	now := b.now()
	if len(b.dirty) > 0 || len(b.effects) > 0 {
		wrong("%d pods are dirty, and %d effects wait", len(b.dirty), len(b.effects))
	}
	if next := b.wakes.Next(); next <= now {
		wrong("a pod is due since %v", now-next)
	}
	for q := range b.queues {
		free := c.loop.caller.free
		if q >= callQueues {
			free = c.loop.writer.free
		}
		if ok, again := free(q, now); b.queues[q].Len() > 0 && (ok || again <= now) {
			wrong("%d pods wait in queue %d, which has a free place", b.queues[q].Len(), q)
		}
	}
	c.checkMaps(wrong)
	cached := map[types.UID]bool{}
	for _, obj := range c.intake.informer.GetIndexer().List() {
		if v := versionOf(obj); v != nil {
			cached[v.UID()] = true
		}
	}
	for _, t := range b.pods {
		if t.Seen() && t.Cached() != cached[t.ref.UID] {
			wrong("%s: the informer has it: %v", t.ref, !t.Cached())
		}
		c.checkRest(t, now, func(format string, args ...any) { wrong("%s: "+format, append([]any{t.ref}, args...)...) })
	}
	return left
}

// checkMaps checks that the maps and counters of the drivers agree.
func (c *Controller) checkMaps(wrong func(format string, args ...any)) {
	b := c.pods
	chained := 0
	for name, head := range b.names {
		for t := head; t != nil; t = t.next {
			if chained++; nameOf(t.ref) != name || !b.has(t) {
				wrong("the chain of %s has %s", name, t.ref)
			}
		}
	}
	if chained != len(b.pods) {
		wrong("%d of %d pods are in chains", chained, len(b.pods))
	}
	closed := 0
	for node, n := range c.gates.nodes {
		if n.state == gateClosed {
			closed++
		} else if n.state == gateUnasked && !n.asked.Load() {
			wrong("the gate of node %q was not asked", node)
		}
	}
	if closed != c.gates.closed {
		wrong("%d gates are closed, and %d count", closed, c.gates.closed)
	}
	for key := range c.reports.early {
		if t := b.pods[key]; t != nil {
			wrong("%s: a report waits for it", t.ref)
		}
	}
	for uid := range c.records.unclaimed {
		if t := b.pods[uid]; t != nil {
			wrong("%s: its record is unclaimed", t.ref)
		}
	}
}

// checkRest checks that t is published, and that nothing that is due for it is left undone.
func (c *Controller) checkRest(t *entry, now instant, wrong func(format string, args ...any)) {
	b := c.pods
	if t.stage != t.Stage() || t.blocking != t.Blocks() {
		wrong("it is %v and blocks: %v, published as %v, %v", Stage(t.Stage()), t.Blocks(), Stage(t.stage), t.blocking)
	}
	if t.Forgettable() && !c.loop.lingers(t) {
		wrong("it is not forgotten")
	}
	// With a gate the question may be due for long: it is asked a moment after the gate has opened.
	if s, _ := t.Suspect(); s.Missing && !s.Unsure && now-s.Due > 3*callTimeout && c.gates.gate == nil {
		wrong("the API was not asked whether it is gone for %v", now-s.Due)
	}
	gate := c.gates.nodes[c.gates.nodeOf(t)]
	if b.draining || c.gates.gate != nil && (gate == nil || gate.state != gateOpen) {
		return
	}
	for _, lane := range []core.Lane{core.Calls, core.Writes} {
		queues := t.queued[:callQueues]
		if lane == core.Writes {
			queues = t.queued[callQueues:]
		}
		waits := t.InFlight(lane) != nil || slices.Contains(queues, true) || lane == core.Calls && c.records.removing[t.ref.UID]
		switch s := t.Next(now, lane, lane == core.Writes || b.nameFree(t)); {
		case s.Cancel:
			wrong("%s was not canceled", t.InFlight(lane).Op)
		case s.Op != "" && !waits:
			wrong("%s is due", s.Op)
		case s.Op == "" && (s.Wake <= now || s.Wake < b.wakes.Next()):
			wrong("nothing wakes it in %v", s.Wake-now)
		}
	}
	if !t.dirty {
		t.Rest()
	}
}

// Remains returns what is under way although Run has returned. Effects may wait: what the informer or the
// provider says after the last round of the loop is told to nobody.
func (c *Controller) Remains() (left []string) {
	b := c.pods
	b.mu.Lock()
	defer b.mu.Unlock()
	wrong := func(format string, args ...any) { left = append(left, fmt.Sprintf(format, args...)) }
	for _, t := range b.pods {
		for _, lane := range []core.Lane{core.Calls, core.Writes} {
			if call := t.InFlight(lane); call != nil || t.cancel[lane] != nil {
				wrong("%s: a call or request is under way: %+v", t.ref, call)
			}
		}
	}
	if !c.loop.caller.idle() || c.loop.writer.running != 0 || len(c.records.removing) > 0 {
		wrong("%v calls, %d requests and %d removals are under way", c.loop.caller.running, c.loop.writer.running, len(c.records.removing))
	}
	for node, n := range c.gates.nodes {
		if n.asked.Load() {
			wrong("the gate of node %q is being asked", node)
		}
	}
	if !b.closed || c.run.apiCtx != nil && c.run.apiCtx.Err() == nil {
		wrong("it is not closed")
	}
	return left
}

// Size returns the number of pods.
func (c *Controller) Size() int {
	c.pods.mu.Lock()
	defer c.pods.mu.Unlock()
	return len(c.pods.pods)
}
