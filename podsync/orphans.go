// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/report"
)

// Two kinds of pods are suspects: orphans, which are instances whose pods the
// informer never showed, and missing pods, which a LIST of the informer, or an
// answer to a write, left out. The API is asked about each. A suspect whose pod
// is gone is stopped, unless there are suspiciously many.

const (
	// suspectGets is the number of suspects that the API is asked about at once.
	suspectGets = 8
	// suspectRest is the longest time between two questions about a suspect.
	suspectRest = time.Hour
	// heldRest is the time between two questions about a suspect that is held
	// back because there are too many.
	heldRest = time.Minute
	// missingDelay is the time that a pod must be missing before the API is asked.
	// It lets all pods that one LIST left out be counted together.
	missingDelay = time.Second
	// fewSuspects is the number of suspects that is never too large, unless
	// they are all that the provider holds.
	fewSuspects = 5
	// suspectShare is the fraction, 1/suspectShare, of the provider's pods
	// above which there are too many suspects.
	suspectShare = 4
)

// A verdict is the API's answer about a suspect.
type verdict int

const (
	verdictUnknown   verdict = iota // the API did not answer
	verdictForbidden                // the credentials can't see whether the pod exists
	verdictGone
	verdictThere
)

// errUnconfirmed is the error of an instance that is kept because the API does
// not say whether its pod exists.
var errUnconfirmed = errors.New("the credentials can't see whether its pod exists, and State.NodeName does not say that it was started for this node")

// suspect reports whether the API must be asked about the pod.
func (t *podState) suspect() bool {
	return t.api.presence == presenceMissing || t.orphan() && t.held()
}

// runOrphans asks the API about suspects until ctx is done.
func (c *Controller) runOrphans(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-c.verify:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		timer.Reset(c.verifySuspects(ctx))
	}
}

// verifySuspects asks the API about the suspects that are due, and returns when
// the next one is due. The informer's cache must not decide: one that is empty
// by mistake would end every pod of the node.
func (c *Controller) verifySuspects(ctx context.Context) (wait time.Duration) {
	c.mu.Lock()
	now := c.now()
	var due []*podState
	var nodes []string
	var missing []bool
	for _, t := range c.tracks {
		if t.suspect() && t.sched.suspectAt <= now && c.mayAct(t) {
			due, nodes = append(due, t), append(nodes, c.nodeOfSuspect(t))
			missing = append(missing, t.api.presence == presenceMissing)
		}
	}
	idle := len(due) == 0 && !c.heldBack
	c.mu.Unlock()
	if !idle {
		verdicts := make([]verdict, len(due))
		var (
			wg     sync.WaitGroup
			places = make(chan struct{}, suspectGets)
		)
		for i, t := range due {
			places <- struct{}{}
			wg.Go(func() {
				defer func() { <-places }()
				verdicts[i] = c.checkSuspect(ctx, t.ref, nodes[i], missing[i])
			})
		}
		wg.Wait()
		if ctx.Err() != nil {
			return suspectRest
		}
		c.applyVerdicts(ctx, due, verdicts)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	wait = suspectRest
	now = c.now()
	for _, t := range c.tracks {
		if t.api.presence == presenceMissing || t.suspect() && t.sched.goneSince > 0 {
			wait = min(wait, max(t.sched.suspectAt-now, missingDelay))
		}
	}
	return wait
}

// nodeOfSuspect returns the node that the instance was started for, as far as
// that is certain.
func (c *Controller) nodeOfSuspect(t *podState) string {
	if t.api.pod == nil && t.provider.nodeName == "" && !c.cfg.Policy.ExclusiveBackend {
		return ""
	}
	return c.nodeOf(t)
}

// foreign reports whether the instance was started for a node of another
// Controller.
func (c *Controller) foreign(st *State) bool {
	return st.NodeName != "" && c.cfg.NodeName != "" && st.NodeName != c.cfg.NodeName
}

// checkSuspect asks the API whether the pod of an instance exists.
func (c *Controller) checkSuspect(ctx context.Context, ref Ref, node string, missing bool) verdict {
	if obj, ok, _ := c.informer.GetIndexer().GetByKey(nameOf(ref).String()); ok && !missing {
		if v := versionOf(obj); v != nil && v.uid() == ref.UID {
			return verdictThere // Owns has said no
		}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	start := time.Now()
	pod, err := c.get(ctx, ref, node)
	if hook := c.cfg.Hooks.APICall; hook != nil {
		hook(APICall{Op: OpGet, Ref: ref, Latency: time.Since(start), Err: err})
	}
	switch {
	case errors.Is(err, errUnconfirmed):
		return verdictForbidden
	case err != nil:
		klog.FromContext(ctx).V(4).Info("Failed to ask whether the pod of an instance exists", "pod", klog.KRef(ref.Namespace, ref.Name), "podUID", ref.UID, "err", err)
		return verdictUnknown
	case pod == nil:
		return verdictGone
	}
	return verdictThere
}

// applyVerdicts applies the API's answers about the suspects that were due, and stops
// those that are gone unless there are too many.
func (c *Controller) applyVerdicts(ctx context.Context, due []*podState, verdicts []verdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer wake(c.kick)
	now := c.now()
	for i, t := range due {
		if !t.suspect() || c.tracks[keyOf(t.ref)] != t || !c.mayAct(t) {
			continue // it changed during the call
		}
		t.sched.unsure = false
		switch verdicts[i] {
		case verdictUnknown:
			t.sched.unsure = true
		case verdictForbidden:
			t.rest(now)
			c.keepUnconfirmed(ctx, t)
		case verdictGone:
			if t.sched.goneSince == 0 {
				t.sched.goneSince = now - 1 // so that a MassHold of 1 ns is over
			}
		case verdictThere:
			t.sched.goneSince = 0
			if t.api.presence == presenceMissing {
				t.api.presence = presencePresent // the informer will show it
				c.markDirty(t)
				continue
			}
			t.rest(now)
			c.dropped(t.ref, DroppedOrphan, nil)
		}
	}
	var gone []*podState
	unsure, held := 0, 0
	for _, t := range c.tracks {
		if t.held() {
			held++
		}
		switch {
		case !t.suspect():
		case t.sched.unsure:
			unsure++
		case t.sched.goneSince > 0:
			gone = append(gone, t)
		}
	}
	many := tooMany(len(gone), unsure, held)
	var kept []Ref
	for _, t := range gone {
		if many && !c.believed(t, now, len(gone), unsure, held) {
			kept = append(kept, t.ref)
			if t.sched.suspectAt <= now {
				t.sched.suspectAt = now + heldRest
				if hold := c.cfg.Policy.MassHold; hold > 0 {
					t.sched.suspectAt = min(t.sched.suspectAt, max(t.sched.goneSince+hold, now+missingDelay))
				}
			}
			continue
		}
		c.stopSuspect(ctx, t, now)
	}
	for _, t := range c.tracks {
		if t.orphan() && t.held() {
			c.announce(ctx, t)
		}
	}
	if len(kept) > 0 && len(due) > 0 || len(kept) == 0 && c.heldBack && !many {
		c.holdBack(ctx, kept, held)
	}
}

// rest doubles the time until the API is asked again about the orphan.
func (t *podState) rest(now instant) {
	t.sched.suspectWait = min(max(2*t.sched.suspectWait, time.Second), suspectRest)
	t.sched.suspectAt = now + t.sched.suspectWait
}

// tooMany reports whether so many suspects are more likely a mistake, such as an
// API server that was restored from a backup, than the truth. Suspects that the
// API did not answer for count: it may answer for a few at a time, and a mistake
// must not be carried out in small parts.
func tooMany(gone, unsure, held int) bool {
	n := gone + unsure
	return n > max(fewSuspects, held/suspectShare) || n > 1 && n >= held
}

// believed reports whether the suspect has been gone for Policy.MassHold.
func (c *Controller) believed(t *podState, now instant, gone, unsure, held int) bool {
	hold := c.cfg.Policy.MassHold
	return hold > 0 && now-t.sched.goneSince >= hold && (unsure == 0 || tooMany(gone, 0, held))
}

// holdBack reports the suspects that are held back now, if any.
func (c *Controller) holdBack(ctx context.Context, refs []Ref, held int) {
	logger := klog.FromContext(ctx)
	switch {
	case len(refs) == 0:
		c.later(func() { logger.Info("Pods that are gone from the API are no longer held back", "held", held) })
	case !c.heldBack:
		hold := c.cfg.Policy.MassHold.String()
		if c.cfg.Policy.MassHold < 0 {
			hold = "ever"
		}
		err := fmt.Errorf("podsync: %d of the %d pods that the provider holds are gone from the API: they run on for %s", len(refs), held, hold)
		c.later(func() {
			report.Tell(ctx, c.cfg.ErrorHandler, err, "Too many pods are gone at once: none is stopped", "gone", len(refs), "held", held, "hold", hold)
		})
	default:
		c.later(func() {
			logger.V(4).Info("Still too many pods are gone: none is stopped", "gone", len(refs), "held", held)
		})
	}
	c.heldBack = len(refs) > 0
	if hook := c.cfg.Hooks.MassOrphans; hook != nil {
		c.later(func() { hook(MassOrphans{Refs: refs, Held: held}) })
	}
}

// stopSuspect begins the termination of a suspect whose pod is gone.
func (c *Controller) stopSuspect(ctx context.Context, t *podState, now instant) {
	t.sched.goneSince = 0
	defer c.markDirty(t)
	if t.api.presence == presenceMissing {
		t.markDeleted(now)
		return
	}
	t.api.presence = presenceGone
	t.beginTermination(now, StopOrphaned, nil, minGrace)
	t.end.reason, t.end.grace = StopOrphaned, minGrace
	logger := klog.FromContext(ctx)
	ref := t.ref
	c.later(func() {
		logger.Info("Stopping an orphan: the API server has no such pod", "pod", klog.KRef(ref.Namespace, ref.Name), "podUID", ref.UID)
	})
	c.warn(t, reasonOrphanRemoved, actionStop, messageOrphanRemoved)
}

// keepUnconfirmed reports an orphan that is kept, once.
func (c *Controller) keepUnconfirmed(ctx context.Context, t *podState) {
	if t.sched.reported {
		return
	}
	t.sched.reported = true
	ref := t.ref
	err := explain("keep the instance of", ref, errUnconfirmed)
	c.later(func() {
		report.Tell(ctx, c.cfg.ErrorHandler, err, "Keeping an instance that may be an orphan", "pod", klog.KRef(ref.Namespace, ref.Name), "podUID", ref.UID)
	})
	c.warn(t, reasonOrphanKept, actionSync, errUnconfirmed.Error())
	c.dropped(ref, DroppedUnconfirmed, errUnconfirmed)
}

// announce reports to the pods that wait for the name of an orphan why they wait.
func (c *Controller) announce(ctx context.Context, t *podState) {
	if !c.blocks(t) {
		return
	}
	why := "the API server has not confirmed yet that its pod is gone"
	switch {
	case t.sched.reported:
		why = errUnconfirmed.Error()
	case t.sched.goneSince > 0:
		why = "too many pods are gone from the API at once"
	case !t.sched.unsure:
		return // the API has not been asked
	}
	logger := klog.FromContext(ctx)
	for other := c.names[nameOf(t.ref)]; other != nil; other = other.next {
		if other == t || other.api.pod == nil || other.end != nil || other.held() || other.sched.warned == reasonNameTaken {
			continue
		}
		ref, uid := other.ref, t.ref.UID
		message := fmt.Sprintf("waiting for the instance of pod %s, which had the same name, to stop: %s", uid, why)
		c.warn(other, reasonNameTaken, actionStart, message)
		other.sched.warned = reasonNameTaken // once, whatever the cause is next
		c.later(func() {
			logger.Info("A pod waits for an orphan of its name", "pod", klog.KRef(ref.Namespace, ref.Name), "podUID", ref.UID, "orphanUID", uid, "reason", why)
		})
	}
}
