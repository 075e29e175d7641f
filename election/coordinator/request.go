// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/callback"
)

// visit decides about a Lease and sends the next request.
func (c *Controller) visit(ctx context.Context, key types.NamespacedName) {
	now := time.Now()
	c.mu.Lock()
	e := c.index[key]
	if e == nil {
		c.mu.Unlock()
		return
	}
	e.offersFrom = time.Time{}
	if !c.droppedAt.IsZero() {
		e.offersFrom = c.droppedAt.Add(droppedFor + e.spread)
	}
	d, err := callback.Get("Strategies", func() (decision, error) { return decide(now, c.rules, &e.situation), nil })
	if err != nil {
		c.mu.Unlock()
		c.electing.Fail(ctx, c.cfg.ErrorHandler, &e.streak, fmt.Errorf("coordinator: choose for Lease %v: %w", key, err), "A strategy panicked", "lease", key)
		c.queue.AddAfter(key, failedRetry)
		return
	}
	silent := e.newlySilent(now, c.rules)
	var r *request
	switch {
	case d.do == wait:
		if e.holder() != "" && now.Before(e.silentAt(c.rules)) {
			e.failing, e.failures = wait, 0 // the Lease is held and renewed
			c.reportSuccess(ctx, e)
		}
	case now.Before(e.retryAt):
		d.wakeAt = e.retryAt
	case !d.firstPing(now, c.rules) && !e.pace.TryAccept():
		d.wakeAt = now.Add(time.Second / requestRate)
	default:
		r = e.request(now, d)
	}
	c.mu.Unlock()
	for _, name := range silent {
		klog.FromContext(ctx).V(2).Info("Candidate has not answered", "lease", key, "candidate", name)
		spec.Call(c.cfg.Hooks.Silent, Silent{Lease: key, Candidate: name})
	}
	if r != nil {
		klog.FromContext(ctx).V(5).Info("Decided", "lease", key, "action", d.do, "candidate", r.name, "why", d.why)
		c.carryOut(ctx, e, r)
	} else if !d.wakeAt.IsZero() {
		c.queue.AddAfter(key, d.wakeAt.Sub(now))
	}
}

// firstPing reports whether d pings a candidate for the first time in this round. Such
// pings are not paced: each candidate gets one, however many are dead.
func (d decision) firstPing(now time.Time, r *rules) bool {
	return d.do == ping && !now.Before(d.who.asked.Add(2*r.AckTimeout))
}

// carryOut sends a request and requeues the Lease.
func (c *Controller) carryOut(ctx context.Context, e *entry, r *request) {
	err := c.send(ctx, r)
	if err != nil && ctx.Err() != nil {
		return // the next Controller continues from the stored state
	}
	c.mu.Lock()
	now := time.Now()
	current := c.index[r.key] == e
	var wait time.Duration
	if current {
		c.takeIn(now, e, r)
		if err == nil {
			err = c.effect(now, r)
		}
		wait = e.outcome(now, r, err)
	}
	if err == nil {
		c.reportSuccess(ctx, e)
	}
	failures := e.failures
	c.mu.Unlock()
	c.report(ctx, e, r, err, failures)
	if current {
		c.queue.AddAfter(r.key, wait)
	}
}

// The pace of requests about one Lease, except for the first ping of a candidate in a
// round. An election needs two or three. More requests mean that another client undoes
// the writes.
const (
	requestBurst = 12
	requestRate  = 1 // a second
)

// The longest waits after failures, and after those that last until an operator
// acts.
const (
	failedRetry  = 30 * time.Second
	refusedRetry = 5 * time.Minute
)

// After an offer was dropped, the Controller tries again after an hour, with one Lease
// after the other within most of another hour. The result of the first one holds for
// all.
const (
	droppedFor    = time.Hour
	droppedSpread = 50 * time.Minute
)

// outcome updates e after a request, and returns the wait until the next decision.
func (e *entry) outcome(now time.Time, r *request, err error) time.Duration {
	c := e.candidates[r.name]
	if err == nil || errors.Is(err, ErrOffersDropped) {
		if e.failing == r.do {
			e.failing, e.failures = wait, 0
		}
		if c != nil {
			c.refusals = 0
		}
		return 0
	}
	class := apierr.Classify(err)
	apiMissing := class == apierr.NotFound && !r.gone
	refused := class == apierr.Forbidden || class == apierr.Invalid || apiMissing || errors.Is(err, errAltered)
	if refused && r.ofCandidate() && c != nil {
		c.refusals++
		c.retryAt = now.Add(spec.Retry(c.refusals, refusedRetry, rand.Float64(), apierr.RetryAfter(err)))
		return 0 // another candidate may be elected
	}
	if e.failing != r.do {
		e.failing, e.failures = r.do, 0
	}
	e.failures++
	limit, failures := failedRetry, e.failures
	switch {
	case refused || class == apierr.Unauthorized:
		limit = refusedRetry
	case isConflict(class):
		failures-- // the object was read again, so the first repetition need not wait
	}
	delay := spec.Retry(failures, limit, rand.Float64(), apierr.RetryAfter(err))
	e.retryAt = now.Add(delay)
	return delay
}

// isConflict reports whether a request failed because the object is not as it was
// known.
func isConflict(class apierr.Class) bool {
	return class == apierr.Conflict || class == apierr.AlreadyExists || class == apierr.NotFound
}

// reportSuccess reports that requests about a Lease succeed, if none fails. c.mu must
// be held.
func (c *Controller) reportSuccess(ctx context.Context, e *entry) {
	failing := e.failures > 0
	for _, candidate := range e.candidates {
		failing = failing || candidate.refusals > 0
	}
	if !failing {
		c.electing.OK(ctx, &e.streak, "Requests about Leases work again")
	}
}

// newlySilent returns the candidates with a late ping, each once for a ping.
func (e *entry) newlySilent(now time.Time, r *rules) (names []string) {
	for name, c := range e.candidates {
		if !c.missed && c.late(now, r) {
			c.missed = true
			names = append(names, name)
		}
	}
	return names
}

// request is a decision with its arguments and its answer. It shares nothing with the
// index that changes.
type request struct {
	do       action
	key      types.NamespacedName // of the Lease
	strategy string
	lease    *coordinationv1.Lease // as it was; nil for none
	silence  time.Duration

	name     string // of the candidate, if any
	uid      types.UID
	version  string
	pingTime int64 // to write, in microseconds; 0 for none

	// The object in the answer, if any.
	gotLease     *coordinationv1.Lease
	gotCandidate *coordinationv1beta1.LeaseCandidate
	// gone reports that the object of the request does not exist.
	gone bool
	// read reports that the answer is that of a GET.
	read bool
}

// request returns the request of a decision.
func (e *entry) request(now time.Time, d decision) *request {
	r := &request{do: d.do, key: e.key, strategy: d.strategy, lease: e.lease}
	if e.holder() != "" {
		r.silence = now.Sub(e.pulseAt)
	}
	if c := d.who; c != nil {
		r.name, r.uid, r.version = c.key.Name, c.uid, c.version
		if d.do == ping {
			// A candidate answers a ping that is later than its own last renewal.
			// This one is, and any answer will be later than it, whatever the
			// clocks of the candidate and of this machine show.
			r.pingTime = c.renewTime + 1
			c.asked = now
		}
	}
	return r
}

// ofCandidate reports whether the request is about a LeaseCandidate.
func (r *request) ofCandidate() bool { return r.do == ping || r.do == unping || r.do == collect }

// send sends the request. If the object is not as it was known, send reads it.
func (c *Controller) send(ctx context.Context, r *request) (err error) {
	if r.do == look {
		return c.read(ctx, r)
	}
	call, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	leases, candidates := c.cfg.Client.Leases(r.key.Namespace), c.cfg.Candidates.LeaseCandidates(r.key.Namespace)
	body := r.body(c.rules)
	switch {
	case r.do == collect:
		err = candidates.Delete(call, r.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.uid, ResourceVersion: &r.version}})
		r.gone = err == nil
	case r.ofCandidate():
		r.gotCandidate, err = candidates.Patch(call, r.name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: spec.FieldManager})
	case r.lease == nil:
		lease := &coordinationv1.Lease{}
		_ = json.Unmarshal(body, lease) // never fails
		r.gotLease, err = leases.Create(call, lease, metav1.CreateOptions{FieldManager: spec.FieldManager})
	default:
		r.gotLease, err = leases.Patch(call, r.key.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: spec.FieldManager})
	}
	if err = r.answered(err); err == nil {
		return nil
	}
	r.gotLease, r.gotCandidate = nil, nil // a client returns empty objects
	if isConflict(apierr.Classify(err)) {
		_ = c.read(ctx, r) // the failure of the request is reported
	}
	return err
}

// body returns the fields that a request writes, as a merge patch or as a new Lease. A
// patch, and not an update, keeps fields that are newer than this library. The
// precondition is the resourceVersion of the observed object, except for unping, because
// the candidate writes the object too often.
func (r *request) body(rules *rules) []byte {
	metadata, changes := map[string]any{"name": r.key.Name}, map[string]any{}
	if r.lease != nil {
		metadata["uid"], metadata["resourceVersion"] = r.lease.UID, r.lease.ResourceVersion
	}
	if r.ofCandidate() {
		metadata = map[string]any{"uid": r.uid}
	}
	switch r.do {
	case ping:
		metadata["resourceVersion"] = r.version
		changes["pingTime"] = metav1.NewMicroTime(time.UnixMicro(r.pingTime))
	case unping:
		changes["pingTime"] = nil
	case assign:
		now := metav1.NowMicro()
		changes["holderIdentity"], changes["strategy"], changes["preferredHolder"] = r.name, r.strategy, nil
		changes["leaseDurationSeconds"] = int32(rules.LeaseDuration / time.Second)
		changes["acquireTime"], changes["renewTime"] = now, now
		changes["leaseTransitions"] = 0
		if r.lease != nil {
			changes["leaseTransitions"] = spec.NextTransition(spec.TransitionsOf(r.lease))
		}
	case announce:
		changes["strategy"] = r.strategy
	case offer:
		changes["strategy"], changes["preferredHolder"] = r.strategy, r.name
	case retract:
		changes["preferredHolder"] = nil
	}
	data, _ := json.Marshal(map[string]any{"metadata": metadata, "spec": changes}) // never fails
	return data
}

// read reads the object of a request.
func (c *Controller) read(ctx context.Context, r *request) (err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	if r.ofCandidate() {
		r.gotCandidate, err = c.cfg.Candidates.LeaseCandidates(r.key.Namespace).Get(ctx, r.name, metav1.GetOptions{})
	} else {
		r.gotLease, err = c.cfg.Client.Leases(r.key.Namespace).Get(ctx, r.key.Name, metav1.GetOptions{})
	}
	if err = r.answered(err); err != nil {
		r.gotLease, r.gotCandidate, r.gone = nil, nil, r.isMissing(err)
	}
	r.read = err == nil || r.gone
	if r.gone {
		return nil
	}
	return err
}

// answered returns the error of a call, or an error if the answer is about another
// object, such as an empty one that a proxy makes up.
func (r *request) answered(err error) error {
	switch {
	case r.gotCandidate != nil:
		_, err = apierr.Answer(r.gotCandidate, err, r.name)
	case r.gotLease != nil:
		_, err = apierr.Answer(r.gotLease, err, r.key.Name)
	}
	return err
}

// isMissing reports whether err means that the object does not exist, and not its API.
func (r *request) isMissing(err error) bool {
	if r.ofCandidate() {
		return apierr.IsMissing(err, "leasecandidates", r.name)
	}
	return apierr.IsMissing(err, "leases", r.key.Name)
}

// takeIn updates the index from the answer to a request. c.mu must be held.
//
// The result of a GET counts even if its version is lower, because the API server may
// have been restored from a backup, unless the watch has delivered another object in
// the meantime.
func (c *Controller) takeIn(now time.Time, e *entry, r *request) {
	known := e.candidates[r.name]
	if r.ofCandidate() {
		got := r.gotCandidate
		switch {
		case r.gone:
			c.dismiss(e.key, r.name, r.uid)
		case got == nil:
		case known == nil || known.uid != got.UID || r.read && known.version == r.version || !seen(got.ResourceVersion, known.version):
			e.admit(now, got, false)
		}
		return
	}
	if r.read {
		e.lookedAt = now
	}
	asKnown := r.read && e.lease == r.lease
	if r.gone && asKnown || r.gotLease != nil && (asKnown || e.lease == nil || !seen(r.gotLease.ResourceVersion, e.lease.ResourceVersion)) {
		e.observe(now, r.gotLease, c.rules)
	}
	if r.do == assign && !r.read && known != nil && e.holder() == r.name {
		e.assignee = known
	}
}

// effect returns an error if the answer to a request lacks the field that the request
// has written. c.mu must be held.
func (c *Controller) effect(now time.Time, r *request) error {
	altered := false
	switch r.do {
	case ping, unping:
		altered = spec.Micros(r.gotCandidate.Spec.PingTime) != r.pingTime
	case assign:
		altered = spec.HolderOf(r.gotLease) != r.name
	case offer, retract:
		altered = spec.PreferredOf(r.gotLease) != r.name
	}
	switch {
	case altered && r.do == offer:
		c.droppedAt = now
		return ErrOffersDropped
	case altered:
		return errAltered
	case r.do == offer:
		c.droppedAt = time.Time{}
	}
	return nil
}

// patientConflicts is the number of conflicts in a row that are not reported.
const patientConflicts = 3

// report reports the result of a request to the log, the hooks and the ErrorHandler.
func (c *Controller) report(ctx context.Context, e *entry, r *request, err error, failures int) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "lease", r.key, "action", r.do, "candidate", r.name)
	ctx = klog.NewContext(ctx, logger)
	previous := spec.HolderOf(r.lease)
	switch {
	case err != nil:
		c.reportFailure(ctx, e, r, err, failures)
	case r.do == assign:
		logger.V(2).Info("Elected a leader", "previous", previous, "strategy", r.strategy, "unrenewed", r.silence)
		spec.Call(c.cfg.Hooks.Elected, Elected{Lease: r.key, Holder: r.name, Previous: previous, Strategy: r.strategy, Unrenewed: r.silence})
	case r.do == offer:
		c.offering.OK(ctx, &c.dropped, "The API server keeps preferredHolder again")
		logger.V(2).Info("Asked the holder to give way", "holder", previous)
		spec.Call(c.cfg.Hooks.Preferred, Preferred{Lease: r.key, Holder: previous, PreferredHolder: r.name})
	case r.do == collect:
		logger.V(2).Info("Deleted a LeaseCandidate that was no longer renewed")
		spec.Call(c.cfg.Hooks.Collected, Collected{Lease: r.key, Candidate: r.name})
	default:
		logger.V(4).Info("Sent request")
	}
}

func (c *Controller) reportFailure(ctx context.Context, e *entry, r *request, err error, failures int) {
	class := apierr.Classify(err)
	spec.Call(c.cfg.Hooks.RequestFailed, RequestFailed{Lease: r.key, Action: string(r.do), Class: class.String(), Err: err})
	switch {
	case errors.Is(err, ErrOffersDropped):
		c.offering.Fail(ctx, c.cfg.ErrorHandler, &c.dropped, err, "Better candidates have to wait")
	case class == apierr.NotFound && !r.gone && r.ofCandidate():
		klog.FromContext(ctx).V(4).Info("LeaseCandidates are not served", "err", err) // the watch has reported it
	case failures <= patientConflicts && isConflict(class):
		klog.FromContext(ctx).V(4).Info("Another client was faster", "err", err)
	default:
		c.electing.Fail(ctx, c.cfg.ErrorHandler, &e.streak, fmt.Errorf("coordinator: %v for Lease %v: %w", r.do, r.key, err), "Request about a Lease failed")
	}
}
