// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/report"
)

// describe writes what p says into a LeaseCandidate, and reports whether that
// changed it.
func describe(lc *coordinationv1beta1.LeaseCandidate, p Peer, strategy string) (changed bool) {
	set := func(field *string, value string) {
		if *field != value {
			*field, changed = value, true
		}
	}
	set(&lc.Spec.BinaryVersion, p.BinaryVersion)
	set(&lc.Spec.EmulationVersion, p.emulated())
	set((*string)(&lc.Spec.Strategy), strategy)
	extras := ""
	if p.Priority != 0 || len(p.Attributes) > 0 {
		raw, err := json.Marshal(spec.PeerExtras{Priority: p.Priority, Attributes: p.Attributes})
		if err == nil { // always: strings and a number
			extras = string(raw)
		}
	}
	if lc.Annotations[spec.PeerAnnotation] == extras {
		return changed
	}
	if extras == "" {
		delete(lc.Annotations, spec.PeerAnnotation)
		return true
	}
	if lc.Annotations == nil {
		lc.Annotations = make(map[string]string, 1)
	}
	lc.Annotations[spec.PeerAnnotation] = extras
	return true
}

// candidacy is what the LeaseCandidate of a candidate should say.
type candidacy struct {
	self     Peer
	present  bool // it should exist at all
	stopping bool // and its keeper should end when it does not
}

// candidacy returns the LeaseCandidate as it should be now. A candidate that does
// not want to lead withdraws it. It does not exist before the Lease was read:
// otherwise an assignment over a live leader could be the first observation.
func (m *machine) candidacy(now time.Duration) candidacy {
	return candidacy{self: m.self, present: m.known && !m.stopping && !m.self.LastResort && now >= m.standBackTo, stopping: m.stopping}
}

// upkeep decides what is done about the LeaseCandidate of a candidate. Like
// machine, it does nothing by itself.
type upkeep struct {
	namespace, name, lease string
	strategy               string
	shutdownTimeout        time.Duration
	poll                   time.Duration // between two reads where there is no watch
	random                 func() float64

	want      candidacy
	changedAt time.Duration // when what it says last changed

	known   bool
	object  *coordinationv1beta1.LeaseCandidate // nil where it does not exist
	reread  bool
	polling bool
	// pollUntil is when a watch is tried again.
	pollUntil time.Duration
	// watchStale: the watch waits for versions that will not come.
	watchStale bool
	readAt     time.Duration
	written    time.Duration // when it was last written
	renewAt    time.Duration
	failures   int
	retryAt    time.Duration
	stopBy     time.Duration // 0 while not stopping
}

// An upkeepOp is what is done about a LeaseCandidate.
type upkeepOp int

const (
	upkeepWait upkeepOp = iota
	upkeepRead
	upkeepCreate
	upkeepUpdate
	upkeepDelete
	upkeepEnd
)

// upkeepStep is what to do next.
type upkeepStep struct {
	op     upkeepOp
	object *coordinationv1beta1.LeaseCandidate
	wake   time.Duration
}

// next says what to do now.
func (u *upkeep) next(now instant) upkeepStep {
	if u.want.stopping && u.stopBy == 0 {
		u.stopBy, u.retryAt = now.mono+u.shutdownTimeout, 0
	}
	wake := now.mono + recordInterval
	if u.stopBy != 0 {
		if now.mono >= u.stopBy || u.known && !u.reread && u.object == nil || !u.known && u.failures == 0 {
			return upkeepStep{op: upkeepEnd}
		}
		wake = u.stopBy
	}
	u.polling = u.polling && now.mono < u.pollUntil
	if now.mono < u.retryAt {
		return upkeepStep{wake: min(wake, u.retryAt)}
	}
	if u.polling {
		wake = min(wake, u.readAt)
	}
	if !u.known || u.reread || u.polling && now.mono >= u.readAt {
		return upkeepStep{op: upkeepRead}
	}
	switch {
	case !u.want.present && u.object == nil:
		return upkeepStep{wake: wake}
	case !u.want.present:
		return upkeepStep{op: upkeepDelete, object: u.object}
	}
	o, due := u.desired(now)
	if now.mono < due {
		return upkeepStep{wake: min(wake, due)}
	}
	if u.object == nil {
		return upkeepStep{op: upkeepCreate, object: o}
	}
	return upkeepStep{op: upkeepUpdate, object: o}
}

// desired returns the object as it should be, and when it is to be written.
func (u *upkeep) desired(now instant) (*coordinationv1beta1.LeaseCandidate, time.Duration) {
	o := &coordinationv1beta1.LeaseCandidate{ObjectMeta: metav1.ObjectMeta{Namespace: u.namespace, Name: u.name}}
	due := time.Duration(0)
	if u.object != nil {
		o = u.object.DeepCopy()
		due = u.renewAt
	}
	o.Spec.LeaseName = u.lease
	if describe(o, u.want.self, u.strategy) && u.object != nil {
		due = min(due, u.changedAt+changeGap)
	}
	if pinged(o) {
		due = 0
	}
	// A ping comes from another clock: to be later than it is the answer.
	t := metav1.NewMicroTime(now.wall.Truncate(time.Microsecond))
	if ping := o.Spec.PingTime; ping != nil && t.Before(ping) {
		t = *ping
	}
	if before := o.Spec.RenewTime; before != nil && before.Equal(&t) {
		t.Time = t.Add(time.Microsecond)
	}
	o.Spec.RenewTime = &t
	if u.written != 0 {
		due = max(due, u.written+publishGap)
	}
	return o, due
}

// pinged reports whether a controller asks whether the candidate is there.
func pinged(o *coordinationv1beta1.LeaseCandidate) bool {
	return o.Spec.PingTime != nil && (o.Spec.RenewTime == nil || o.Spec.RenewTime.Before(o.Spec.PingTime))
}

// observe takes in the object as a watch or a request has shown it.
func (u *upkeep) observe(o *coordinationv1beta1.LeaseCandidate, deleted bool) {
	if u.object != nil && o != nil && spec.Older(o.ResourceVersion, u.object.ResourceVersion) {
		return
	}
	if deleted {
		o = nil
	}
	u.known, u.object = true, o
}

// watchRefused says that the object can't be watched for now.
func (u *upkeep) watchRefused(now time.Duration) {
	u.polling, u.pollUntil, u.readAt = true, now+pollFor, now+u.poll
}

// done takes in the answer to a request.
func (u *upkeep) done(now instant, s upkeepStep, o *coordinationv1beta1.LeaseCandidate, err error) {
	class := apierr.Classify(err)
	u.reread = u.reread && s.op != upkeepRead
	gone := class == apierr.NotFound && (s.op == upkeepRead || s.op == upkeepDelete || s.op == upkeepUpdate)
	switch {
	case class == apierr.None && s.op == upkeepDelete, gone:
		u.observe(nil, false)
		u.readAt = now.mono + u.poll
		if s.op != upkeepRead {
			u.failures = 0
		}
		return
	case class == apierr.None:
		u.readAt = now.mono + u.poll
		if s.op != upkeepRead {
			u.failures = 0
			u.written = now.mono
			u.renewAt = now.mono + time.Duration((0.9+0.2*u.random())*float64(recordInterval))
			if u.object == nil || describe(u.object.DeepCopy(), u.want.self, u.strategy) {
				u.changedAt = now.mono
			}
		} else if !u.known {
			// Of a predecessor, or of ours in a former life: it must say what
			// this process is, at once.
			u.renewAt, u.changedAt = now.mono, now.mono-changeGap
		} else if u.object != nil && spec.Older(o.ResourceVersion, u.object.ResourceVersion) {
			// Nothing was seen since it was asked for, so versions have gone back:
			// the API server was restored from a backup.
			u.object, u.watchStale = nil, true
		}
		u.observe(o, false)
		return
	case class == apierr.Conflict || class == apierr.AlreadyExists || apierr.MayHaveCommitted(err):
		u.reread = u.known
	}
	u.failures++
	delay := hintRetries().Delay(u.failures)
	if class == apierr.Conflict && u.failures == 1 {
		delay = 0
	}
	u.retryAt = now.mono + max(delay, apierr.RetryAfter(err))
}

// keeper keeps the LeaseCandidate of a candidate, beside the loop that keeps
// the Lease: neither waits for the other.
type keeper struct {
	*Candidate
	upkeep  upkeep
	trouble report.Streak
	watch   *watcher[*coordinationv1beta1.LeaseCandidate]
	gone    int // watches in a row that have brought nothing but the loss of their place
	wg      sync.WaitGroup

	mu      sync.Mutex
	wanted  candidacy
	changed chan struct{}
	abort   context.CancelFunc // of the request under way
}

func newKeeper(c *Candidate) *keeper {
	return &keeper{
		Candidate: c,
		upkeep: upkeep{
			namespace: c.cfg.Lease.Namespace, name: c.identity, lease: c.cfg.Lease.Name, strategy: c.cfg.Strategy.Name(),
			shutdownTimeout: c.cfg.ShutdownTimeout, poll: c.cfg.Timing.RenewInterval, random: rand.Float64,
		},
		wanted:  candidacy{self: c.cfg.Self},
		changed: make(chan struct{}, 1),
	}
}

// want says what the LeaseCandidate should be.
func (k *keeper) want(w candidacy) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if reflect.DeepEqual(k.wanted, w) {
		return
	}
	if w.stopping && !k.wanted.stopping && k.abort != nil {
		k.abort() // there is little time left
	}
	k.wanted = w
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// run returns when it was told to stop and the LeaseCandidate is gone, or can't
// be deleted.
func (k *keeper) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer k.wg.Wait()
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		k.mu.Lock()
		k.upkeep.want = k.wanted
		k.mu.Unlock()
		now := k.clock.now()
		s := k.upkeep.next(now)
		switch s.op {
		case upkeepEnd:
			return
		case upkeepWait:
		default:
			k.carryOut(ctx, s)
			continue
		}
		k.tendWatch(ctx)
		timer.Reset(k.clock.span(s.wake - now.mono))
		select {
		case <-timer.C:
		case <-k.changed:
		case seen := <-k.watch.sights():
			k.sighted(ctx, seen)
		}
	}
}

// carryOut sends a request and takes in its answer.
func (k *keeper) carryOut(ctx context.Context, s upkeepStep) {
	timeout := k.cfg.CallTimeout
	if k.upkeep.stopBy != 0 {
		timeout = max(time.Millisecond, min(timeout, k.upkeep.stopBy-k.clock.now().mono))
	}
	ctx, cancel := context.WithTimeout(ctx, k.clock.span(timeout))
	defer cancel()
	k.mu.Lock()
	stale := k.wanted.stopping != k.upkeep.want.stopping
	k.abort = cancel
	k.mu.Unlock()
	if stale {
		return
	}
	o, err := k.do(ctx, s)
	k.mu.Lock()
	k.abort = nil
	k.mu.Unlock()
	k.upkeep.done(k.clock.now(), s, o, err)
	k.report(ctx, s, err)
}

func (k *keeper) do(ctx context.Context, s upkeepStep) (*coordinationv1beta1.LeaseCandidate, error) {
	candidates := k.cfg.Registry.candidates.LeaseCandidates(k.cfg.Lease.Namespace)
	switch s.op {
	case upkeepRead:
		return candidates.Get(ctx, k.identity, metav1.GetOptions{})
	case upkeepCreate:
		return candidates.Create(ctx, s.object, metav1.CreateOptions{FieldManager: spec.FieldManager})
	case upkeepUpdate:
		return candidates.Update(ctx, s.object, metav1.UpdateOptions{FieldManager: spec.FieldManager})
	default:
		return nil, candidates.Delete(ctx, k.identity, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.object.UID}})
	}
}

// report says what came of a request. The hook of the loop is not called: it is
// told of what concerns the Lease.
func (k *keeper) report(ctx context.Context, s upkeepStep, err error) {
	switch class := apierr.Classify(err); {
	case class == apierr.None:
		k.trouble.OK(ctx, "Requests about the LeaseCandidate succeed again")
		return
	case class == apierr.Canceled, class == apierr.Conflict, class == apierr.NotFound && s.op != upkeepCreate:
		return
	case class == apierr.NotFound && !missingNamespace(err):
		err = fmt.Errorf("%w: %w", ErrNoCandidateAPI, err)
	}
	k.trouble.Fail(ctx, k.cfg.ErrorHandler, fmt.Errorf("election: LeaseCandidate: %w", err), "Request about the LeaseCandidate failed")
}

// missingNamespace reports whether something was not created because its
// namespace does not exist.
func missingNamespace(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces"
}

// tendWatch starts the watch where there is none.
func (k *keeper) tendWatch(ctx context.Context) {
	if k.upkeep.watchStale {
		k.watch.stop()
		k.watch, k.upkeep.watchStale = nil, false
	}
	if k.watch != nil || !k.upkeep.known || k.upkeep.reread || k.upkeep.polling || k.upkeep.stopBy != 0 {
		return
	}
	from := ""
	if k.upkeep.object != nil {
		from = k.upkeep.object.ResourceVersion
	}
	k.watch = startWatch[*coordinationv1beta1.LeaseCandidate](ctx, &k.wg, k.identity, from,
		k.cfg.CallTimeout, k.cfg.Registry.candidates.LeaseCandidates(k.cfg.Lease.Namespace).Watch)
}

// sighted takes in what the watch has brought.
func (k *keeper) sighted(ctx context.Context, s sight[*coordinationv1beta1.LeaseCandidate]) {
	switch {
	case s.gone:
		k.watch.stop()
		k.watch, k.upkeep.reread = nil, true
		if k.gone++; k.gone >= patientGone {
			k.gone = 0
			k.refused(ctx, s.err)
		}
	case s.refused:
		k.watch.stop()
		k.watch = nil
		k.refused(ctx, s.err)
	case s.err == nil:
		k.gone = 0
		k.upkeep.observe(s.object, s.deleted)
	}
}

// refused makes do without a watch for a while.
func (k *keeper) refused(ctx context.Context, err error) {
	k.upkeep.watchRefused(k.clock.now().mono)
	k.trouble.Fail(ctx, k.cfg.ErrorHandler, fmt.Errorf("election: watch LeaseCandidate: %w", err), "The LeaseCandidate can't be watched")
}
