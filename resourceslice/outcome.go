// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/report"
)

// ownerError says that the owner could not be asked.
type ownerError struct{ err error }

func (e *ownerError) Error() string { return e.err.Error() }
func (e *ownerError) Unwrap() error { return e.err }

// failed books a failure, and returns when to try again.
func (j *job) failed(r result) time.Duration {
	if r.err == nil && r.after > 0 {
		j.w.retryAt = time.Now().Add(r.after)
		return r.after
	}
	if r.err == nil {
		r.err = errors.New("resourceslice: somebody else keeps changing the slices")
	}
	j.w.failures++
	if j.w.failing.IsZero() {
		j.w.failing = time.Now()
	}
	policy := retryBackoff
	if _, ok := errors.AsType[*ownerError](r.err); ok {
		policy = ownerBackoff
	}
	if errors.Is(r.err, errDiverges) {
		policy = divergeBackoff
	}
	wait := max(policy.Delay(j.w.failures), r.after)
	j.w.retryAt = time.Now().Add(wait)
	waiting := apierr.Classify(r.err) == apierr.NotFound // the owner doesn't exist yet
	if !waiting && time.Since(j.w.failing) >= reportAfter {
		j.w.streak.Fail(j.ctx, j.c.cfg.ErrorHandler, fmt.Errorf("resourceslice: pool %s: %w", j.p.id, r.err), "The pool can't be published",
			"driver", j.p.id.Driver, "pool", j.p.id.Name)
	} else {
		j.logger.V(4).Info("Will try again", "err", r.err, "after", wait)
	}
	return wait
}

// report tells of a lasting error once.
func (j *job) report(err error, message string) {
	key := err.Error()
	switch err := err.(type) { //nolint:errorlint // only what this package makes itself
	case *ContendedError:
		key = "contended by " + err.Manager
	case *DroppedFieldsError:
		key = "dropped " + strings.Join(err.Fields, " ")
	case *ForbiddenError:
		key = "forbidden to " + err.Verb
	}
	j.c.mu.Lock()
	known := j.w.reported[key]
	j.w.reported[key] = true
	j.c.mu.Unlock()
	if known {
		j.logger.V(4).Info(message, "err", err)
		return
	}
	report.Tell(klog.NewContext(j.ctx, j.logger), j.c.cfg.ErrorHandler, err, message)
}

// permanent records and reports an error that trying again doesn't change.
func (j *job) permanent(err error) {
	j.report(err, "The pool can't be published as it is")
	j.update(func(s *Status) {
		if s.Revision == j.asked.Revision {
			s.Err = err
		}
	})
}

func (j *job) update(change func(*Status)) {
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	j.p.update(change)
}

// noteRepair counts the repairs of what somebody else has changed.
func (j *job) noteRepair() {
	if j.repair || j.drift.IsZero() || j.asked.Published != j.asked.Revision {
		return
	}
	j.repair = true
	if time.Since(j.w.unsure) < lateWrites {
		return // it may be an own write that has landed late
	}
	j.c.mu.Lock()
	j.p.repairs++
	j.p.repaired = time.Now()
	repairs, manager := j.p.repairs, j.p.manager
	next := j.p.repairDelay(j.c.cfg.RepairDelay)
	j.c.mu.Unlock()
	j.logger.V(2).Info("Repairing what somebody else has changed", "manager", manager, "repairs", repairs)
	if repairs >= contentionAfter {
		j.report(&ContendedError{Pool: j.p.id, Manager: manager, Repairs: repairs, Next: next}, "Somebody else keeps changing the pool")
	}
}

// published records that the API server has what is wanted.
func (j *job) published(p *plan) {
	w := j.w
	w.streak.OK(j.ctx, "The pool is published again", "driver", j.p.id.Driver, "pool", j.p.id.Name)
	w.failures, w.failing, w.retryAt = 0, time.Time{}, time.Time{}
	j.closeWindow()
	done := Published{
		Pool: j.p.id, Revision: j.asked.Revision, Generation: p.generation, Slices: len(p.pages), Devices: p.devices(),
		Writes: w.writes, Window: w.lost, Repair: j.repair, Latency: time.Since(j.setAt),
	}
	if j.repair {
		done.Latency = time.Since(j.drift)
	}
	isNew := j.asked.Published != j.asked.Revision
	j.c.mu.Lock()
	if w.problem() == nil && j.p.repairs == 0 {
		clear(w.reported)
	}
	if j.p.drift.Equal(j.drift) {
		j.p.drift = time.Time{}
	}
	j.p.update(func(s *Status) {
		s.Published, s.Generation, s.Slices, s.Devices = done.Revision, done.Generation, done.Slices, done.Devices
		s.Complete = true
		if s.Revision == done.Revision {
			s.Err = w.problem()
		}
	})
	if j.p.isGone() {
		j.p.cluster = false
		j.s.poke() // there may be a watch too many
	}
	j.c.mu.Unlock()
	if len(w.refused) > 0 {
		j.later(time.Until(w.refusedAt.Add(refusedRetry)))
	}
	if w.writes == 0 && !isNew {
		return
	}
	w.writes, w.lost = 0, 0
	j.logger.V(2).Info("Published a pool", "revision", done.Revision, "generation", done.Generation, "slices", done.Slices,
		"devices", done.Devices, "writes", done.Writes, "latency", done.Latency, "window", done.Window, "repair", done.Repair)
	if j.c.cfg.Hooks.Published != nil {
		j.c.cfg.Hooks.Published(done)
	}
}

// problem is what keeps the API server from having all that is wanted.
func (w *work) problem() error {
	switch {
	case w.invalid != nil:
		return w.invalid
	case w.dropped != nil:
		return w.dropped
	}
	return nil
}

// openWindow notes that the pool is half published. Writers call it at the same
// time.
func (j *job) openWindow() {
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	if j.w.window.IsZero() {
		j.w.window = time.Now()
	}
	j.open, j.p.open = true, true
	j.p.update(func(s *Status) { s.Complete = false })
}

func (j *job) closeWindow() {
	if !j.w.window.IsZero() {
		j.w.lost += time.Since(j.w.window)
	}
	j.w.window, j.open = time.Time{}, false
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	j.p.open = false
}
