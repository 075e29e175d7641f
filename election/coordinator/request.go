// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/election/coordinator/internal/contest"
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
	var offersFrom time.Time
	if !c.droppedAt.IsZero() {
		offersFrom = c.droppedAt.Add(droppedFor + e.spread)
	}
	silent := e.Apply(now, contest.Tick{OffersFrom: offersFrom}).Silent
	d, err := callback.Get("Strategies", func() (contest.Decision, error) { return e.Next(now), nil })
	switch {
	case err != nil:
		c.electing.Fail(ctx, c.cfg.ErrorHandler, &e.streak, fmt.Errorf("coordinator: choose for Lease %v: %w", key, err), "A strategy panicked", "lease", key)
		d = contest.Decision{WakeAt: now.Add(contest.FailedRetry)}
	case d.Do == contest.Wait:
		e.Apply(now, contest.Idle{})
		c.reportSuccess(ctx, e)
	default:
		e.Apply(now, contest.Sent{Decision: d})
	}
	c.checkInvariants(e)
	c.mu.Unlock()
	for _, name := range silent {
		klog.FromContext(ctx).V(2).Info("Candidate has not answered", "lease", key, "candidate", name)
		spec.Call(c.cfg.Hooks.Silent, Silent{Lease: key, Candidate: name})
	}
	if d.Do != contest.Wait {
		klog.FromContext(ctx).V(5).Info("Decided", "lease", key, "action", d.Do, "candidate", d.Name, "why", d.Why)
		c.carryOut(ctx, e, &request{Decision: d, key: key})
	} else if !d.WakeAt.IsZero() {
		c.queue.AddAfter(key, d.WakeAt.Sub(now))
	}
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
	if current {
		e.Apply(now, r.answer())
		c.dropIfEmpty(e)
		if err == nil {
			err = c.effect(now, r)
		}
		e.Apply(now, contest.Concluded{To: r.Decision, Result: r.result(err), RetryAfter: apierr.RetryAfter(err)})
	}
	if err == nil {
		c.reportSuccess(ctx, e)
	}
	c.checkInvariants(e)
	failures := e.Failures()
	c.mu.Unlock()
	c.report(ctx, e, r, err, failures)
	if current {
		c.queue.Add(r.key)
	}
}

// result returns the kind of result of a request.
func (r *request) result(err error) contest.Result {
	class := apierr.Classify(err)
	apiMissing := class == apierr.NotFound && !r.gone
	switch {
	case err == nil, errors.Is(err, ErrOffersDropped):
		return contest.OK
	case class == apierr.Forbidden, class == apierr.Invalid, apiMissing, errors.Is(err, errAltered):
		return contest.Refused
	case class == apierr.Unauthorized:
		return contest.Unauthorized
	case isConflict(class):
		return contest.Conflict
	}
	return contest.Failed
}

// answer returns the fact that a request was answered.
func (r *request) answer() contest.Answered {
	e := contest.Answered{To: r.Decision, Lease: r.gotLease, Gone: r.gone, Read: r.read}
	if r.gotCandidate != nil {
		got := candidateOf(r.gotCandidate)
		e.Candidate = &got
	}
	return e
}

// isConflict reports whether a request failed because the object is not as it was
// known.
func isConflict(class apierr.Class) bool {
	return class == apierr.Conflict || class == apierr.AlreadyExists || class == apierr.NotFound
}

// reportSuccess reports that requests about a Lease succeed, if none fails. c.mu must
// be held.
func (c *Controller) reportSuccess(ctx context.Context, e *entry) {
	if !e.Failing() {
		c.electing.OK(ctx, &e.streak, "Requests about Leases work again")
	}
}

// request is a decision with its answer.
type request struct {
	contest.Decision
	key types.NamespacedName // of the Lease

	// The object in the answer, if any.
	gotLease     *coordinationv1.Lease
	gotCandidate *coordinationv1beta1.LeaseCandidate
	// gone reports that the object of the request does not exist.
	gone bool
	// read reports that the answer is that of a GET.
	read bool
}

// send sends the request. If the object is not as it was known, send reads it.
func (c *Controller) send(ctx context.Context, r *request) (err error) {
	if r.Do == contest.Look {
		return c.read(ctx, r)
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	leases, candidates := c.cfg.Client.Leases(r.key.Namespace), c.cfg.Candidates.LeaseCandidates(r.key.Namespace)
	body := r.body()
	switch {
	case r.Do == contest.Collect:
		err = candidates.Delete(call, r.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.UID, ResourceVersion: &r.Version}})
		r.gone = err == nil
	case r.Do.OfCandidate():
		r.gotCandidate, err = candidates.Patch(call, r.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: spec.FieldManager})
	case r.Lease == nil:
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
func (r *request) body() []byte {
	metadata, changes := map[string]any{"name": r.key.Name}, map[string]any{}
	if r.Lease != nil {
		metadata["uid"], metadata["resourceVersion"] = r.Lease.UID, r.Lease.ResourceVersion
	}
	if r.Do.OfCandidate() {
		metadata = map[string]any{"uid": r.UID}
	}
	switch r.Do {
	case contest.Ping:
		metadata["resourceVersion"] = r.Version
		changes["pingTime"] = metav1.NewMicroTime(time.UnixMicro(r.PingTime))
	case contest.Unping:
		changes["pingTime"] = nil
	case contest.Assign:
		now := metav1.NowMicro()
		changes["holderIdentity"], changes["strategy"], changes["preferredHolder"] = r.Name, r.Strategy, nil
		changes["leaseDurationSeconds"] = int32(leaseDuration / time.Second)
		changes["acquireTime"], changes["renewTime"] = now, now
		changes["leaseTransitions"] = 0
		if r.Lease != nil {
			changes["leaseTransitions"] = spec.NextTransition(spec.TransitionsOf(r.Lease))
		}
	case contest.Announce:
		changes["strategy"] = r.Strategy
	case contest.Offer:
		changes["strategy"], changes["preferredHolder"] = r.Strategy, r.Name
	case contest.Retract:
		changes["preferredHolder"] = nil
	}
	data, _ := json.Marshal(map[string]any{"metadata": metadata, "spec": changes}) // never fails
	return data
}

// read reads the object of a request.
func (c *Controller) read(ctx context.Context, r *request) (err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if r.Do.OfCandidate() {
		r.gotCandidate, err = c.cfg.Candidates.LeaseCandidates(r.key.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
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
		_, err = apierr.Answer(r.gotCandidate, err, r.Name)
	case r.gotLease != nil:
		_, err = apierr.Answer(r.gotLease, err, r.key.Name)
	}
	return err
}

// isMissing reports whether err means that the object does not exist, and not its API.
func (r *request) isMissing(err error) bool {
	if r.Do.OfCandidate() {
		return apierr.IsMissing(err, "leasecandidates", r.Name)
	}
	return apierr.IsMissing(err, "leases", r.key.Name)
}

// effect returns an error if the answer to a request lacks the field that the request
// has written. c.mu must be held.
func (c *Controller) effect(now time.Time, r *request) error {
	altered := false
	switch r.Do {
	case contest.Ping, contest.Unping:
		altered = spec.Micros(r.gotCandidate.Spec.PingTime) != r.PingTime
	case contest.Assign:
		altered = spec.HolderOf(r.gotLease) != r.Name
	case contest.Offer, contest.Retract:
		altered = spec.PreferredOf(r.gotLease) != r.Name
	}
	switch {
	case altered && r.Do == contest.Offer:
		c.droppedAt = now
		return ErrOffersDropped
	case altered:
		return errAltered
	case r.Do == contest.Offer:
		c.droppedAt = time.Time{}
	}
	return nil
}

// patientConflicts is the number of conflicts in a row that are not reported.
const patientConflicts = 3

// report reports the result of a request to the log, the hooks and the ErrorHandler.
func (c *Controller) report(ctx context.Context, e *entry, r *request, err error, failures int) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "lease", r.key, "action", r.Do, "candidate", r.Name)
	ctx = klog.NewContext(ctx, logger)
	previous := spec.HolderOf(r.Lease)
	switch {
	case err != nil:
		c.reportFailure(ctx, e, r, err, failures)
	case r.Do == contest.Assign:
		logger.V(2).Info("Elected a leader", "previous", previous, "strategy", r.Strategy, "unrenewed", r.Silence)
		spec.Call(c.cfg.Hooks.Elected, Elected{Lease: r.key, Holder: r.Name, Previous: previous, Strategy: r.Strategy, Unrenewed: r.Silence})
	case r.Do == contest.Offer:
		c.offering.OK(ctx, &c.dropped, "The API server keeps preferredHolder again")
		logger.V(2).Info("Asked the holder to give way", "holder", previous)
		spec.Call(c.cfg.Hooks.Preferred, Preferred{Lease: r.key, Holder: previous, PreferredHolder: r.Name})
	case r.Do == contest.Collect:
		logger.V(2).Info("Deleted a LeaseCandidate that was no longer renewed")
		spec.Call(c.cfg.Hooks.Collected, Collected{Lease: r.key, Candidate: r.Name})
	default:
		logger.V(4).Info("Sent request")
	}
}

func (c *Controller) reportFailure(ctx context.Context, e *entry, r *request, err error, failures int) {
	class := apierr.Classify(err)
	spec.Call(c.cfg.Hooks.RequestFailed, RequestFailed{Lease: r.key, Action: string(r.Do), Class: class.String(), Err: err})
	switch {
	case errors.Is(err, ErrOffersDropped):
		c.offering.Fail(ctx, c.cfg.ErrorHandler, &c.dropped, err, "Better candidates have to wait")
	case class == apierr.NotFound && !r.gone && r.Do.OfCandidate():
		klog.FromContext(ctx).V(4).Info("LeaseCandidates are not served", "err", err) // the watch has reported it
	case failures <= patientConflicts && isConflict(class):
		klog.FromContext(ctx).V(4).Info("Another client was faster", "err", err)
	default:
		c.electing.Fail(ctx, c.cfg.ErrorHandler, &e.streak, fmt.Errorf("coordinator: %v for Lease %v: %w", r.Do, r.key, apierr.Permission(err, "election-controller.yaml")), "Request about a Lease failed")
	}
}
