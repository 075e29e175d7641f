// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

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
	// divergeBackoff is for what somebody else has to mend.
	divergeBackoff = backoff.Policy{Base: time.Second, Cap: 5 * time.Minute}
	// ownerBackoff is for an owner that doesn't exist yet.
	ownerBackoff = backoff.Policy{Base: time.Second, Cap: 30 * time.Second}
)

// errDiverges is what comes of a webhook that changes what it is shown.
var errDiverges = errors.New("resourceslice: the API server keeps something else than it was sent")

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
	anew := j.p.anew
	j.p.urgent, j.p.anew = false, false
	j.c.mu.Unlock()
	if anew {
		j.w.anew()
	}
	if j.w.revision != j.asked.Revision {
		j.w.revision, j.w.began = j.asked.Revision, time.Now()
		j.w.forget(j.want)
	}
	for quick, rounds := 0, 0; ; {
		r := j.try()
		if r.written {
			rounds++
		}
		switch {
		case r.done:
			return
		case r.again && quick < quickRetries:
			quick++
			continue
		case rounds > quickRetries:
			r.err = errDiverges
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
	if p.isGone() {
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
	written  bool          // all that was planned was
	err      error         // try again later
	after    time.Duration // so much later, at least; with err nil: later is no failure
}

// try plans and writes once.
func (j *job) try() result {
	live, known := j.s.live(j.p.id, j.cluster)
	if !known {
		return result{done: true} // the session will have all pools looked at
	}
	if len(j.w.unanswered) > 0 {
		if err := j.resolve(live); err != nil {
			return result{err: err}
		}
		if live, known = j.s.live(j.p.id, j.cluster); !known {
			return result{done: true}
		}
	}
	j.live = live
	for _, rec := range live {
		j.w.floor = max(j.w.floor, rec.generation)
	}
	if len(live) == 0 && j.w.floor == math.MaxInt64 {
		j.w.floor = 0 // nobody can remember it, and there is no later one
	}
	p, r := j.plan()
	if p == nil {
		return r
	}
	if j.c.own.keep(p.pages) {
		return result{progress: true} // from now on a late delete is noticed; was it before?
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
		j.w.forgetRefusals()
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
		compact:    time.Since(j.w.compacted) >= compactInterval,
		unanswered: j.w.unanswered,
		owner:      j.owner, labels: j.c.cfg.Labels,
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
	if len(j.live) == 0 && len(j.w.unanswered) > 0 {
		return nil, result{after: time.Second} // a create may still be carried out
	}
	if len(j.live) == 0 {
		return &plan{}, result{}
	}
	return planRemove(j.live), result{}
}

func (j *job) askOwner() error {
	ctx := j.ctx
	if j.isOpen() {
		ctx = j.c.outlives // what is half published is completed when Run is to end
	}
	owner, err := j.c.owner.get(ctx, j.c.cfg.CallTimeout)
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
