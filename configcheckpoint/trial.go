// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"errors"
	"time"
)

// followTrial starts and stops the checks of the trial with the trial itself.
func (l *loop[T]) followTrial() {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	onTrial := c.sit.onTrial()
	switch {
	case onTrial && !l.trial:
		l.trial = true
		l.check.Reset(0)
	case !onTrial && l.trial:
		l.trial = false
		l.check.Stop()
	}
}

// startCheck asks for the health of the configuration on trial.
func (l *loop[T]) startCheck(ctx context.Context) {
	health := l.c.cfg.Trial.Health
	if health == nil {
		l.observe(nil)
		return
	}
	if l.checked == nil {
		l.checked = l.calls.start(ctx, l.c.cfg.CallTimeout, &l.busy.health, health)
	}
}

// observe takes the result of a check and draws the conclusion.
func (l *loop[T]) observe(err error) {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if !l.trial || !c.sit.onTrial() {
		return
	}
	now := time.Now()
	var v verdict
	c.soak, v = c.soak.observe(now, err, c.cfg.Trial)
	next := c.soak.next(now, c.cfg.Trial)
	c.sit.health = nil
	if err != nil {
		c.sit.health = errors.New(c.cfg.Redact(err))
	}
	c.refresh()
	switch v {
	case passed:
		if err := c.promote(false); err != nil {
			next = l.storeRetry(err)
		}
	case failed:
		if err := c.rollBack(ReasonUnhealthy, c.cfg.Redact(err)); err != nil {
			l.storeErr = err
		}
	case undecided:
	}
	if next > 0 {
		l.check.Reset(next)
	}
}

// followRepair arranges for the repairs of what is good to be forgotten when it
// has run for Soak since the last one: only a disk that loses it over and over
// is to be given up.
func (l *loop[T]) followRepair() {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	rec := c.sit.rec
	mending := rec.Healed > 0 && rec.proven() && c.sit.running.Digest == rec.Assigned.Digest
	switch {
	case mending && !l.mending:
		l.mended.Reset(c.cfg.Trial.Soak)
	case !mending && l.mending:
		l.mended.Stop()
	}
	l.mending = mending
}

// forgetRepairs is that moment. Where it can't be written it comes again.
func (l *loop[T]) forgetRepairs() {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	l.mending = false
	if err := c.update(func(r record) (record, bool) { r.Healed = 0; return r, true }); err != nil {
		l.storeErr = err
	}
}
