// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import "time"

// changed is told of each slice that is new or changed.
func (c *Controller) changed(old, rec *record) {
	if c.own.knows(rec) {
		return
	}
	c.drifted(rec, old != nil)
	if old != nil && old.id != rec.id {
		c.drifted(old, true)
	}
}

// deleted is told of each slice that is gone.
func (c *Controller) deleted(rec *record) {
	if c.own.knowsDeleted(rec) {
		return
	}
	c.owner.doubt()
	c.drifted(rec, true)
}

// drifted has a pool looked at because somebody else has done something.
func (c *Controller) drifted(rec *record, ours bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pools[rec.id]
	if p == nil {
		return
	}
	if p.drift.IsZero() {
		p.drift = time.Now()
	}
	if rec.manager != "" && ours {
		p.manager = rec.manager
	}
	c.enqueue(rec.id, p.repairDelay(c.cfg.RepairDelay))
}

// repairDelay is how long to wait before a change by somebody else is undone:
// longer and longer while that goes on.
func (p *pool) repairDelay(base time.Duration) time.Duration {
	if time.Since(p.repaired) > contentionWindow+maxRepairDelay {
		p.repairs = 0
	}
	delay := base
	for n := contentionAfter; n <= p.repairs && delay < maxRepairDelay; n++ {
		delay *= 2
	}
	return max(base, min(delay, maxRepairDelay))
}
