// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import "time"

// Every change of the record goes through this file. Its methods are called
// with mu held, and leave sit, the news and the status in step with the disk.

// update commits what change makes of the record. Where change returns false
// and nothing waits to be written, nothing is. On an error nothing has changed.
func (c *Controller[T]) update(change func(record) (record, bool)) error {
	next, changed := change(c.sit.rec)
	if !changed && !c.unsaved {
		return nil
	}
	if err := c.store.commit(next); err != nil {
		c.storeFailed(err)
		c.refresh()
		return err
	}
	c.sit.rec, c.unsaved, c.sit.store, c.storeFailures = c.store.rec, false, nil, 0
	c.refresh()
	return nil
}

// storeFailed keeps why the store could not be written, for the status.
func (c *Controller[T]) storeFailed(err error) {
	c.sit.store = &ReasonError{Reason: storeReason(err), Err: err}
}

// bar rejects ref, whether that can be written or not.
func (c *Controller[T]) bar(ref Ref, reason Reason, message string) error {
	x := rejection{Digest: ref.Digest, Build: c.cfg.Build, Reason: reason, Message: tidy(message, maxMessage), Time: time.Now()}
	c.sit.rec, c.unsaved = reject(c.sit.rec, x), true
	if c.attempt == ref.Digest {
		c.attempt = Digest{}
	}
	assigned := c.sit.rec.Assigned
	info := Rejected{Ref: ref, Reason: x.Reason, Message: x.Message, RolledBack: assigned != nil && assigned.Digest == ref.Digest}
	c.tell(func(o observer) { o.rejected(info) })
	return c.update(func(r record) (record, bool) { return r, true })
}

// tell keeps something for Run to hand to the hooks.
func (c *Controller[T]) tell(news func(observer)) { c.news = append(c.news, news) }

// promote ends the trial of what runs well.
func (c *Controller[T]) promote(byVerdict bool) error {
	ref := c.sit.running
	promoted := false
	err := c.update(func(r record) (record, bool) {
		r, promoted = promote(r, ref.Digest)
		return r, promoted
	})
	if err != nil || !promoted {
		return err
	}
	c.attempt, c.soak, c.sit.health = Digest{}, soak{}, nil
	c.active.Trial = false
	info := Promoted{Ref: ref, ByVerdict: byVerdict}
	c.tell(func(o observer) { o.promoted(info) })
	c.refresh()
	c.prune()
	return nil
}

// rollBack ends the trial of what runs badly.
func (c *Controller[T]) rollBack(reason Reason, message string) error {
	c.diverged = true
	return c.bar(c.sit.running, reason, message)
}

// prune removes what nothing refers to any more. A file that can't be removed
// costs space only, so the error is for Run to report; the next prune tries
// again.
func (c *Controller[T]) prune() { c.untidy = c.store.prune() }

// refresh computes the status anew.
func (c *Controller[T]) refresh() {
	c.sit.before = c.Status().OK
	st := c.sit.status()
	if st.OK != c.sit.before {
		c.since = time.Now()
	}
	st.Since = c.since
	c.statusMu.Lock()
	defer c.statusMu.Unlock()
	c.status = st
}
