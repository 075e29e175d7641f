// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
)

const (
	// contentionAfter repairs are contention, unless between them was a pause
	// of contentionWindow and the longest delay.
	contentionAfter  = 3
	contentionWindow = 5 * time.Minute
	maxRepairDelay   = 5 * time.Minute
	// forbiddenRetry is how often what is forbidden is tried again.
	forbiddenRetry = time.Minute
	// refusedRetry is how often content is sent again that the API server has
	// refused: a webhook may have been at fault.
	refusedRetry = time.Hour
	// compactInterval is the least time between two compactions of a pool
	// that nothing else asks for.
	compactInterval = time.Hour
	// quickRetries is how often a pool is planned anew at once because
	// somebody else was faster.
	quickRetries = 3
)

var (
	retryBackoff = backoff.Policy{Base: 50 * time.Millisecond, Cap: 30 * time.Second}
	// ownerBackoff is for an owner that doesn't exist yet.
	ownerBackoff = backoff.Policy{Base: time.Second, Cap: 30 * time.Second}
)

// job is one look at a pool. While a worker has it, nobody else has the same
// pool.
type job struct {
	c       *Controller
	s       *session
	p       *pool
	w       *work
	ctx     context.Context // of Run; writes outlive it
	logger  klog.Logger
	want    *desired
	asked   Status // as of the beginning
	setAt   time.Time
	drift   time.Time
	urgent  bool
	cluster bool
	delay   time.Duration // for a repair
	open    bool
	owner   *metav1.OwnerReference
	live    []*record
	repair  bool
}

// sync makes the pool what is wanted, as far as that goes now, and has it
// looked at again when there is more to do.
func (c *Controller) sync(ctx context.Context, id PoolID) {
	j := c.begin(ctx, id)
	if j == nil {
		return
	}
	if wait := j.hold(); wait > 0 {
		j.later(wait)
		return
	}
	j.c.mu.Lock()
	j.p.urgent = false
	j.c.mu.Unlock()
	if j.w.revision != j.asked.Revision {
		j.w.revision, j.w.began = j.asked.Revision, time.Now()
		j.w.forget(j.want)
	}
	for quick := 0; ; {
		r := j.try()
		switch {
		case r.done:
			return
		case r.again && quick < quickRetries:
			quick++
			continue
		case r.progress:
			quick = 0
			continue
		}
		wait := j.failed(r)
		if j.ctx.Err() == nil || !j.open {
			j.later(wait)
			return
		}
		// Half published, and Run is to end: there is no later.
		select {
		case <-time.After(wait):
		case <-c.outlives.Done():
			return
		}
	}
}

func (c *Controller) begin(ctx context.Context, id PoolID) *job {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pools[id]
	if p == nil || c.session == nil || ctx.Err() != nil && !p.open {
		return nil
	}
	if p.want == nil && p.status.Published == p.status.Revision {
		return nil // whatever slices it has now are somebody else's
	}
	return &job{
		c: c, s: c.session, p: p, w: &p.work, ctx: ctx,
		logger: klog.LoggerWithValues(klog.FromContext(ctx), "driver", id.Driver, "pool", id.Name),
		want:   p.want, asked: p.status, setAt: p.setAt, drift: p.drift, urgent: p.urgent, cluster: p.cluster,
		delay: p.repairDelay(c.cfg.RepairDelay), open: p.open,
	}
}

// hold returns how long the pool has to wait before anything may be done.
func (j *job) hold() time.Duration {
	if j.ctx.Err() != nil {
		return 0
	}
	j.c.mu.Lock()
	paused := time.Until(j.c.paused)
	j.c.mu.Unlock()
	if paused > 0 {
		return paused
	}
	isNew := j.w.revision != j.asked.Revision
	if wait := time.Until(j.w.retryAt); wait > 0 && (!isNew || j.w.failures > 0) {
		return wait
	}
	if isNew && !j.urgent && !j.w.began.IsZero() {
		if wait := time.Until(j.w.began.Add(j.c.cfg.MinInterval)); wait > 0 {
			return wait
		}
	}
	if !isNew && j.asked.Published == j.asked.Revision && !j.drift.IsZero() {
		return time.Until(j.drift.Add(j.delay))
	}
	return 0
}

// later has the pool looked at again after a while.
func (j *job) later(wait time.Duration) {
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	j.c.enqueue(j.p.id, wait)
}

// result is how a try ended.
type result struct {
	done     bool          // nothing more to do now
	again    bool          // somebody else was faster: plan anew
	progress bool          // something was done: plan anew
	err      error         // try again later
	after    time.Duration // so much later, at least; with err nil: later is no failure
}

// try plans and writes once.
func (j *job) try() result {
	live, known := j.s.live(j.p.id, j.cluster)
	if !known {
		return result{done: true} // the session will have all pools looked at
	}
	j.live = live
	for _, rec := range live {
		j.w.floor = max(j.w.floor, rec.generation)
	}
	p, r := j.plan()
	if p == nil {
		return r
	}
	if p.empty() {
		j.published(p)
		return result{done: true}
	}
	j.noteRepair()
	if p.bump && p.window {
		j.logger.V(4).Info("Switching to a new generation", "generation", p.generation, "slices", len(p.pages))
	}
	return j.execute(p)
}

// plan returns nil where nothing can be planned, with the reason.
func (j *job) plan() (*plan, result) {
	if j.want == nil {
		return j.planRemoval()
	}
	if j.w.blocked == j.want && time.Since(j.w.refusedAt) < refusedRetry {
		return nil, result{after: time.Until(j.w.refusedAt.Add(refusedRetry))}
	}
	if len(j.w.refused) > 0 && time.Since(j.w.refusedAt) >= refusedRetry {
		clear(j.w.refused)
		j.w.invalid = nil
	}
	if field := j.unsupported(); field != "" {
		j.permanent(&UnsupportedError{Pool: j.p.id, Version: j.s.version.name, Field: field})
		return nil, result{done: true}
	}
	if wait := j.holdEmpty(); wait > 0 {
		return nil, result{after: wait}
	}
	if err := j.askOwner(); err != nil {
		return nil, result{err: err}
	}
	if other := j.foreign(); other != nil {
		j.report(&ContendedError{Pool: j.p.id, Manager: strings.ToLower(other.Kind) + " " + other.Name}, "The pool belongs to somebody else")
		return nil, result{after: forbiddenRetry}
	}
	return newPlan(j.want, &observed{
		live: j.live, floor: j.w.floor, accepted: j.w.accepted, refused: j.w.refused, taken: j.w.taken,
		compact: time.Since(j.w.compacted) >= compactInterval,
		owner:   j.owner, labels: j.c.cfg.Labels,
	}), result{}
}

// planRemoval removes what is ours: slices of other nodes' pools of that name
// stay.
func (j *job) planRemoval() (*plan, result) {
	if j.foreign() != nil {
		if err := j.askOwner(); err != nil {
			return nil, result{err: err}
		}
		j.live = slices.DeleteFunc(j.live, j.isForeign)
	}
	if len(j.live) == 0 {
		return &plan{}, result{}
	}
	return planRemove(j.live), result{}
}

func (j *job) askOwner() error {
	owner, err := j.c.owner.get(j.ctx, j.c.cfg.CallTimeout)
	if err != nil {
		return &ownerError{err}
	}
	j.owner = owner
	return nil
}

// unsupported returns what the version in use doesn't have: before v1, counter
// sets stood in the slices of their devices.
func (j *job) unsupported() string {
	if j.s.version.name != versionNames[0] && len(j.want.sets) > 0 {
		return "sharedCounters"
	}
	return ""
}

// holdEmpty returns how long a pool may not be emptied yet.
func (j *job) holdEmpty() time.Duration {
	if len(j.want.devices) > 0 || j.c.cfg.HoldEmpty <= 0 {
		return 0
	}
	if !slices.ContainsFunc(j.live, func(rec *record) bool { return len(rec.devices) > 0 }) {
		return 0
	}
	return time.Until(j.setAt.Add(j.c.cfg.HoldEmpty))
}

// foreign returns the owner of the pool's slices where that is another object
// than ours, in whatever life: two publishers that give their pools one name
// would delete each other's slices.
func (j *job) foreign() *metav1.OwnerReference {
	for _, rec := range j.live {
		if j.isForeign(rec) {
			return rec.foreignOwner(j.owner)
		}
	}
	return nil
}

func (j *job) isForeign(rec *record) bool {
	if rec.nodeName != "" && rec.nodeName == j.c.cfg.NodeName {
		return false // whoever owns it: it is about our node
	}
	return rec.foreignOwner(j.owner) != nil
}

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
	if j.c.cfg.ErrorHandler != nil {
		j.c.cfg.ErrorHandler(j.ctx, err, message)
		return
	}
	j.logger.Error(err, message)
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
	done := Publish{
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
	if j.c.cfg.Hooks.Publish != nil {
		j.c.cfg.Hooks.Publish(done)
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

func (j *job) openWindow() {
	if j.w.window.IsZero() {
		j.w.window = time.Now()
	}
	j.open = true
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	j.p.open = true
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
