// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/report"
	"github.com/kubewright/kubewright/resourceslice/internal/core"
)

const (
	// forbiddenRetry is the time between two tries of a forbidden request.
	forbiddenRetry = time.Minute
	// resendAge is the age of a fault at which an outage of the API server is a
	// reason to try again.
	resendAge = time.Minute
	// compactInterval is the least time between two compactions of a pool for
	// no other reason.
	compactInterval = time.Hour
	// quickRetries is the number of times that a pool is planned again at once
	// because another writer was faster.
	quickRetries = 3
)

var (
	retryBackoff = backoff.Policy{Base: 50 * time.Millisecond, Cap: 30 * time.Second}
	// divergeBackoff is for a webhook that changes slices.
	divergeBackoff = backoff.Policy{Base: time.Second, Cap: 5 * time.Minute}

	errDiverges = errors.New("resourceslice: the API server stores something else than it was sent")
	errRaces    = errors.New("resourceslice: another writer keeps changing the slices")
)

// job is one reconciliation of a pool. It belongs to one worker.
type job struct {
	c      *Controller
	s      *session
	p      *pool
	ctx    context.Context // of Run; writes outlive it
	logger klog.Logger

	mu sync.Mutex // of w, while writers run in parallel; not held together with Controller.mu
	w  *work

	// As of the beginning.
	want             *desired
	status           Status
	setAt, driftedAt time.Time
	cluster          bool

	self  core.Instance
	owner *metav1.OwnerReference
	live  []*record          // newest generation first
	times map[string][]taint // live taints, by device
}

// reconcile makes a pool as desired, as far as that is possible now, and
// requeues it if more is to do.
func (c *Controller) reconcile(ctx context.Context, id PoolID) {
	j := c.begin(ctx, id)
	if j == nil {
		return
	}
	for quick, rounds := 0, 0; ; {
		r := j.try()
		switch r.verdict {
		case done:
			return
		case outdated:
			if quick++; quick <= quickRetries {
				continue
			}
			r.err = errRaces
		case stored:
			if rounds++; rounds <= quickRetries {
				continue
			}
			r.err = errDiverges
		case refused:
			continue
		}
		switch {
		case r.err != nil:
			r.after, r.why = max(r.after, j.failed(r.err)), core.Failing
		case r.why != core.Failing:
			// What fails when the wait is over is another failure.
			j.w.streak.OK(j.ctx, "The pool waits for another reason", "driver", j.p.id.Driver, "pool", j.p.id.Name, "phase", r.why)
		}
		if j.ctx.Err() == nil || !j.isHalf() {
			c.retry(j.p, r)
			return
		}
		// Run ends and the pool is half published: there is no later.
		select {
		case <-time.After(r.after):
		case <-c.outlives.Done():
			return
		}
	}
}

// begin returns the job for a pool, or nil if nothing may be done now.
func (c *Controller) begin(ctx context.Context, id PoolID) *job {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pools[id]
	if p == nil || c.session == nil || ctx.Err() != nil && !p.half() || p.isGone() {
		return nil
	}
	if c.session.gone.Load() && ctx.Err() == nil {
		return nil // the next session requeues all pools
	}
	if wait := max(p.wait(), time.Until(c.paused)); wait > 0 && ctx.Err() == nil {
		c.enqueue(id, wait)
		return nil
	}
	if p.resendAll {
		p.work.forget(resendAge)
	}
	p.resendAll = false
	p.work.forget(retryFaults)
	if p.state.IsNew() {
		p.work.begin(p.want)
	}
	c.apply(p, core.Begin{})
	return &job{
		c: c, s: c.session, p: p, w: &p.work, ctx: ctx,
		logger: klog.LoggerWithValues(klog.FromContext(ctx), "driver", id.Driver, "pool", id.Name),
		want:   p.want, status: p.status, setAt: p.setAt, driftedAt: p.state.Drifted(), cluster: p.cluster,
	}
}

// try plans and writes once.
func (j *job) try() result {
	for {
		live, known := j.s.live(j.p.id, j.cluster)
		if !known {
			return result{verdict: done} // the session requeues all pools when it knows
		}
		slices.SortFunc(live, byRecord)
		j.live = live
		if len(j.w.unanswered) == 0 {
			break
		}
		if r := j.repeat(); r.verdict != stored {
			return r
		}
	}
	if len(j.live) > 0 {
		j.w.floor = max(j.w.floor, j.live[0].generation)
	} else if j.w.floor == math.MaxInt64 {
		j.w.floor = 0 // there is no later generation, and no slice either
	}
	p, r := j.plan()
	if p == nil {
		return r
	}
	j.indexTimes()
	if r := j.rehearse(p); r.verdict != stored {
		return r
	}
	if p.empty() {
		j.published(p)
		return result{verdict: done}
	}
	j.noteRepair(p)
	return j.execute(p)
}

// plan returns nil and a result if nothing can be planned.
func (j *job) plan() (*plan, result) {
	if j.want == nil {
		return j.planRemoval()
	}
	if wait := time.Until(j.setAt.Add(j.c.cfg.HoldEmpty)); wait > 0 && len(j.want.devices) == 0 &&
		slices.ContainsFunc(j.live, func(rec *record) bool { return rec.has(false) }) {
		return nil, waitFor(wait, core.Holding)
	}
	if err := j.askOwner(); err != nil {
		return nil, failureOf(err)
	}
	for _, rec := range j.live {
		if j.isForeign(rec) {
			// Two publishers that give their pools one name would delete each
			// other's slices.
			other := rec.otherOwner(j.owner)
			name := strings.ToLower(other.Kind) + " " + other.Name
			j.report("contended by "+name, &ContendedError{Pool: j.p.id, Manager: name}, "The pool belongs to another owner")
			return nil, waitFor(forbiddenRetry, core.Forbidden)
		}
	}
	if r := j.yield(); r.verdict != stored {
		return nil, r
	}
	return newPlan(j.want, &observed{
		memory: &j.w.memory, live: j.live,
		compact: time.Since(j.w.compacted) >= compactInterval,
		self:    j.self, owner: j.owner, labels: j.c.cfg.Labels,
	}), result{}
}

// planRemoval removes the slices of this publisher; slices that other nodes
// publish under the same name stay.
func (j *job) planRemoval() (*plan, result) {
	if slices.ContainsFunc(j.live, j.isForeign) {
		if err := j.askOwner(); err != nil {
			return nil, failureOf(err)
		}
		j.live = slices.DeleteFunc(j.live, j.isForeign)
	}
	j.c.mu.Lock()
	isLost := j.p.state.LostCreate(time.Now())
	j.c.mu.Unlock()
	switch {
	case len(j.live) == 0 && isLost:
		return nil, waitFor(time.Second, core.Holding) // the first attempt may still be carried out
	case len(j.live) == 0:
		return &plan{}, result{}
	}
	if r := j.yield(); r.verdict != stored {
		j.removed()
		return nil, r
	}
	return planRemoval(j.live), result{}
}

// removed ends the Waits for the removal of a pool that a newer instance publishes. The
// slices are removed if that is silent.
func (j *job) removed() {
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	if j.p.status.Revision == j.status.Revision {
		j.p.update(func(s *Status) { s.Published = s.Revision })
	}
}

// yield returns a wait if a newer instance of the program publishes the pool, or the other
// pools of the driver and has removed this one.
func (j *job) yield() result {
	others := j.others()
	j.c.mu.Lock()
	j.c.order(j.owner)
	isKnown := j.p.isLeft()
	for _, rec := range slices.Concat(j.live, others) {
		j.c.apply(j.p, core.Found{Writer: rec.writer()})
	}
	above := j.p.state.Above()
	j.self = j.p.state.Self()
	elsewhere := slices.ContainsFunc(others, func(rec *record) bool {
		w := rec.writer()
		return w.ID == above.ID || w.Asks && w.ID == j.self.ID // asked for another pool
	})
	do, wait := j.p.state.Turn(time.Now(), elsewhere)
	j.c.mu.Unlock()
	if do == core.Publish {
		if j.w.left != "" {
			j.logger.Info("Publishing the pool again: the newer instance is silent", "instance", above)
		}
		j.w.left = ""
		return result{}
	}
	if j.w.left != above.ID {
		j.logger.Info("Leaving the pool to a newer instance", "instance", above)
	}
	// The newer instance may have writes under way at this generation.
	j.w.left, j.w.ours = above.ID, 0
	if do == core.Ask {
		if err := j.ask(above, slices.Concat(j.live, others)); err != nil {
			return failureOf(err)
		}
		wait = core.ReplyTime
	}
	j.closeWindow()
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	if !isKnown && j.want != nil && j.p.status.Revision == j.status.Revision {
		j.p.update(func(s *Status) { s.Err = &ContendedError{Pool: j.p.id, Manager: above.Manager, Newer: true} })
	}
	return waitFor(wait, core.Yielding)
}

// others returns the slices that this publisher and its siblings have in other pools of the
// driver, if another client has deleted all of this one's: it may be a newer instance that
// does not have the pool.
func (j *job) others() []*record {
	if len(j.live) > 0 || j.driftedAt.IsZero() {
		return nil
	}
	return slices.DeleteFunc(j.c.view.all(), func(rec *record) bool {
		return rec.id.Driver != j.p.id.Driver || rec.deleting() || j.isForeign(rec)
	})
}

// ask writes one of the slices that the newer instance wrote, unchanged except for the
// annotation that makes a living one write it again. If no slice is left, a living one
// creates them.
func (j *job) ask(above core.Instance, of []*record) error {
	at := slices.IndexFunc(of, func(rec *record) bool { return rec.writer().ID == above.ID })
	if at >= 0 {
		slice, err := j.get(of[at].Name)
		if err != nil {
			return err
		}
		self := j.self
		self.Asks = true
		metav1.SetMetaDataAnnotation(&slice.ObjectMeta, instanceAnnotation, self.String())
		req := &request{slice: slice, verb: "update", name: slice.Name}
		err = j.call(req, func(ctx context.Context) (err error) {
			slice, err = j.c.put(ctx, slice, false)
			return err
		})
		if err != nil {
			return err
		}
		j.c.view.wrote(j.c.hasher.record(slice))
	}
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	j.c.apply(j.p, core.Asked{})
	return nil
}

func (j *job) isForeign(rec *record) bool { return j.c.isForeign(rec, j.owner) }

// isForeign reports whether a slice belongs to another owner than owner. A slice of the
// controller's node does not, whatever its owner.
func (c *Controller) isForeign(rec *record, owner *metav1.OwnerReference) bool {
	return (rec.nodeName == "" || rec.nodeName != c.cfg.NodeName) && rec.otherOwner(owner) != nil
}

func (j *job) askOwner() error {
	ctx := j.ctx
	if j.isHalf() {
		ctx = j.c.outlives // the pool is completed when Run ends
	}
	age := anyAge
	if len(j.live) == 0 {
		age = newPoolAge
	}
	var err error
	j.owner, err = j.c.owner.get(ctx, callTimeout, age)
	return err
}

// retry schedules the next reconciliation.
func (c *Controller) retry(p *pool, r result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apply(p, core.Delay{Wait: r.after, Phase: r.why})
	c.enqueue(p.id, p.wait())
}

// failed records a failure and returns the backoff.
func (j *job) failed(err error) time.Duration {
	patience := reportAfter
	if apierr.Classify(err) == apierr.NotFound {
		patience = math.MaxInt64 // the owner may not exist yet
	}
	policy := retryBackoff
	if errors.Is(err, errDiverges) {
		policy = divergeBackoff
	}
	j.w.streak.FailAfter(j.ctx, patience, j.c.cfg.ErrorHandler, fmt.Errorf("resourceslice: pool %s: %w", j.p.id, err), "The pool can't be published",
		"driver", j.p.id.Driver, "pool", j.p.id.Name)
	return policy.Delay(j.w.streak.Failures())
}

// report reports a lasting error once, until the pool is published without one.
// Errors with the same key are one.
func (j *job) report(key string, err error, message string) {
	j.mu.Lock()
	known := j.w.reported[key]
	j.w.reported[key] = true
	j.mu.Unlock()
	if known {
		j.logger.V(4).Info(message, "err", err)
		return
	}
	report.Tell(klog.NewContext(j.ctx, j.logger), j.c.cfg.ErrorHandler, err, message)
}

// permanent reports and records an error that a retry doesn't change.
func (j *job) permanent(err error) {
	j.report(err.Error(), err, "The pool can't be published as it is")
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	if j.p.status.Revision == j.status.Revision {
		j.p.update(func(s *Status) { s.Err = err })
	}
}

// isRepair reports whether the job undoes another writer's change, and has counted that. The
// job may be one of several: earlier ones have failed.
func (j *job) isRepair() bool { return !j.driftedAt.IsZero() && j.w.repairs.Equal(j.driftedAt) }

// noteRepair counts the repairs of another writer's changes, each once.
func (j *job) noteRepair(p *plan) {
	if j.isRepair() || j.driftedAt.IsZero() || p.isReply() || j.status.Published != j.status.Revision {
		return
	}
	j.w.repairs = j.driftedAt
	j.c.mu.Lock()
	j.c.apply(j.p, core.Repair{})
	e := &ContendedError{Pool: j.p.id, Manager: j.p.contender, Repairs: j.p.state.Repairs(), Next: j.p.state.RepairDelay(time.Now())}
	j.c.mu.Unlock()
	j.logger.V(2).Info("Repairing what another writer changed", "manager", e.Manager, "repairs", e.Repairs)
	if e.Repairs == core.ContentionAfter {
		j.report("contended by "+e.Manager, e, "Another writer keeps changing the pool")
	}
}

// published records that the API server has the pool as desired.
func (j *job) published(p *plan) {
	w := j.w
	w.streak.OK(j.ctx, "The pool is published again", "driver", j.p.id.Driver, "pool", j.p.id.Name)
	w.ours = p.generation
	j.closeWindow()
	j.sumUp(p)
	done := Published{
		Pool: j.p.id, Revision: j.status.Revision, Generation: p.generation, Slices: len(p.pages), Devices: p.devices(),
		Writes: w.writes, Window: w.window, Repair: j.isRepair(), Latency: time.Since(j.setAt),
	}
	if done.Repair {
		done.Latency = time.Since(j.driftedAt)
	}
	isNew := j.status.Published != j.status.Revision
	if !isNew && !done.Repair && !j.driftedAt.IsZero() {
		w.writes = 0 // the reply to an older instance: it has changed nothing
	} else if isNew || done.Writes > 0 {
		w.writes, w.window = 0, 0
		j.logger.V(2).Info("Published a pool", "revision", done.Revision, "generation", done.Generation, "slices", done.Slices,
			"devices", done.Devices, "writes", done.Writes, "latency", done.Latency, "window", done.Window, "repair", done.Repair)
		if j.c.cfg.Hooks.Published != nil {
			j.c.cfg.Hooks.Published(done)
		}
	}
	j.finish(&done) // now Wait returns
}

// finish updates the status and schedules the next reconciliation, if any.
func (j *job) finish(done *Published) {
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	p := j.p
	if j.w.problem == nil {
		clear(j.w.reported)
	}
	if p.isLeft() {
		j.s.relist.Store(true)
		j.s.poke()
	}
	p.update(func(s *Status) {
		s.Published, s.Generation, s.Slices, s.Devices, s.Complete = done.Revision, done.Generation, done.Slices, done.Devices, true
		if s.Revision == done.Revision {
			s.Err = j.w.problem
		}
	})
	var fault time.Time
	if j.want != nil {
		fault = j.w.faultsDue()
	}
	j.c.apply(p, core.Published{Fault: fault})
	if p.status.Published != p.status.Revision {
		return // Set has scheduled it
	}
	if p.cluster && p.want != nil && !slices.ContainsFunc(j.live, func(rec *record) bool { return rec.nodeName == "" }) {
		p.cluster = false
		j.s.poke() // a watch may be of no use
	}
	if p.isGone() {
		j.s.poke()
		return
	}
	if p.state.Phase() != core.Idle {
		j.c.enqueue(p.id, p.wait())
	}
}

// openWindow records that the pool is half published. Writers call it in
// parallel.
func (j *job) openWindow(generation int64) {
	j.mu.Lock()
	j.w.ours = generation
	j.mu.Unlock()
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	j.p.openWindow(time.Now())
}

func (j *job) closeWindow() {
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	if !j.p.windowAt.IsZero() {
		j.w.window += time.Since(j.p.windowAt)
	}
	j.p.windowAt = time.Time{}
}

func (j *job) isHalf() bool {
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	return j.p.half()
}

// sumUp computes problem from answers: the oldest *InvalidError or, if there is
// none, one *DroppedFieldsError with all fields. It reports dropped fields. p is published.
func (j *job) sumUp(p *plan) {
	w := j.w
	var invalid *answer
	dropped := &DroppedFieldsError{Pool: j.p.id}
	for _, a := range w.answers {
		switch err := a.err.(type) { //nolint:errorlint // only errors of this package
		case *InvalidError:
			if invalid == nil || cmp.Or(a.at.Compare(invalid.at), strings.Compare(err.Error(), invalid.err.Error())) < 0 {
				invalid = a
			}
		case *DroppedFieldsError:
			dropped.Slice = max(dropped.Slice, err.Slice)
			dropped.Fields = append(dropped.Fields, err.Fields...)
			dropped.Withheld = append(dropped.Withheld, err.Withheld...)
		}
	}
	var problem error
	if len(dropped.Fields) > 0 {
		dropped.Withheld = append(dropped.Withheld, j.consumersWithout(p)...)
		for _, list := range []*[]string{&dropped.Fields, &dropped.Withheld} {
			slices.Sort(*list)
			*list = slices.Compact(*list)
		}
		j.report("dropped "+strings.Join(dropped.Fields, " "), dropped, "The API server dropped fields of a ResourceSlice")
		problem = dropped
	}
	if invalid != nil {
		problem = invalid.err
	}
	if problem == nil || w.problem == nil || problem.Error() != w.problem.Error() {
		w.problem = problem // else the same pointer: nothing has changed for callers
	}
}

// consumersWithout returns the names of the devices that p omits because they consume from a
// counter set that is withheld.
func (j *job) consumersWithout(p *plan) (names []string) {
	if j.want == nil {
		return nil
	}
	sets := map[string]bool{}
	for _, it := range j.want.sets {
		sets[it.name] = j.w.answers[it.hash].omits()
	}
	published := map[string]bool{}
	for _, page := range p.pages {
		for _, it := range page.items {
			published[it.name] = published[it.name] || !it.isSet
		}
	}
	for _, it := range j.want.devices {
		if !published[it.name] && slices.ContainsFunc(it.consumes, func(set string) bool { return sets[set] }) {
			names = append(names, it.name)
		}
	}
	return names
}

// retryFaults is the time between two tries of content that the API server refused
// or dropped: a webhook or a feature gate may have changed.
const retryFaults = time.Hour

// pool is the state of one pool. Controller.mu guards its fields. Only the worker that
// reconciles the pool uses work.
//
// Invariants, in addition to those of core.State:
//   - isGone: no slice of the pool is touched.
//   - unanswered has a write: no plan is made until the API server has answered
//     its repetition, or can't carry it out any longer.
//   - half implies that status.Complete is false.
type pool struct {
	id PoolID

	want    *desired // nil: no slices
	setAt   time.Time
	cluster bool // it has, or had, slices without a node
	status  Status
	changed chan struct{} // closed when the status changes

	state     *core.State // when it is reconciled, and by which instance
	contender string      // the field manager of another writer, if known
	resendAll bool        // the API server may have changed: forget its answers
	windowAt  time.Time   // the first write of a generation, until the last

	work work
}

// request is a write, to be repeated if its answer is lost.
type request struct {
	page   *page
	slice  *resourcev1.ResourceSlice // as sent; nil to delete rec
	rec    *record                   // as it was; nil to create
	dryRun bool                      // the API server answers and stores nothing
	window bool                      // the pool is incomplete from the first such write to the last
	sent   time.Time                 // the last time
	verb   string
	name   string // of the slice

	revision int64 // of the pool when it was planned, 0 for the last repetition
}

// work is what the workers of a pool hand on, one after the other: the queue gives a pool to
// one worker at a time. While a worker has several writers, job.mu guards it.
type work struct {
	memory
	// unanswered has the writes that the API server may yet carry out, by name.
	unanswered map[string]*request
	compacted  time.Time
	wrote      time.Time // the last write that succeeded
	repairs    time.Time // when the change was noticed whose repair was counted last
	left       string    // the ID of the newer instance to which the pool is left, as logged

	streak   apierr.Streak
	reported map[string]bool // errors that were reported
	problem  error           // what Status.Err is

	writes int           // since the pool was published
	window time.Duration // for which it was half published in that time
}

func newPool(id PoolID, state *core.State) *pool {
	return &pool{id: id, changed: make(chan struct{}), state: state, work: work{
		memory: memory{answers: map[hash]*answer{}, taken: map[string]bool{}}, unanswered: map[string]*request{}, reported: map[string]bool{},
	}}
}

// openWindow records that the pool is half published, or may be. Controller.mu must be held.
func (p *pool) openWindow(at time.Time) {
	if p.windowAt.IsZero() {
		p.windowAt = at
	}
	p.update(func(s *Status) { s.Complete = false })
}

// half reports whether a generation is begun and not complete, as far as this process knows.
func (p *pool) half() bool { return !p.windowAt.IsZero() }

// local reports whether no slice without a node is wanted.
func (p *pool) local() bool { return p.want == nil || p.want.nodeName != "" }

// isGone reports whether the pool was removed.
func (p *pool) isGone() bool { return p.state.Gone() }

// isLeft reports whether the status says that the pool is left to a newer instance.
func (p *pool) isLeft() bool {
	e, ok := p.status.Err.(*ContendedError) //nolint:errorlint // an own error
	return ok && e.Newer
}

// wait returns how long a pool must wait.
func (p *pool) wait() time.Duration { return p.state.Next(time.Now()) }

// update changes the status and wakes all Waits.
func (p *pool) update(change func(*Status)) {
	before := p.status
	change(&p.status)
	if p.status == before {
		return
	}
	p.status.Since = time.Now()
	close(p.changed)
	p.changed = make(chan struct{})
}

// begin prepares for the reconciliation of another revision: it forgets answers
// about content that is no longer wanted.
func (w *work) begin(d *desired) {
	if len(w.answers) == 0 {
		return
	}
	wanted := make(map[hash]bool)
	if d != nil {
		for _, it := range slices.Concat(d.devices, d.sets) {
			wanted[it.hash] = true
		}
		for _, head := range d.heads {
			wanted[head] = true
		}
	}
	maps.DeleteFunc(w.answers, func(h hash, a *answer) bool { return !wanted[h] || a.standing == suspect })
}

// forget forgets answers with an error that are that old, so that their content
// is sent again. It doubts those that a dry run can confirm.
func (w *work) forget(age time.Duration) {
	maps.DeleteFunc(w.answers, func(_ hash, a *answer) bool {
		old, asks := a.err != nil && time.Since(a.at) >= age, a.head || a.standing == withheld
		a.doubted = a.doubted || old && asks
		return old && !asks
	})
}

// faultsDue returns when content has to be sent again that the API server
// refused or dropped, zero if there is none.
func (w *work) faultsDue() (due time.Time) {
	for _, a := range w.answers {
		if at := a.at.Add(retryFaults); a.err != nil && (due.IsZero() || at.Before(due)) {
			due = at
		}
	}
	return due
}
