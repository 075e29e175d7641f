// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/report"
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
	e.offersFrom = c.dropped.retryAt(key)
	d := decide(now, c.rules, &e.situation)
	silent := e.newlySilent(now, c.rules)
	var r *request
	if d.do == wait {
		e.resetFailures(now, c)
	} else if hold := e.hold(now); hold > 0 {
		d.wakeAt = now.Add(hold)
	} else {
		r = e.request(now, d)
	}
	c.mu.Unlock()
	c.tellSilent(ctx, key, silent)
	if r != nil {
		klog.FromContext(ctx).V(5).Info("Decided", "lease", key, "action", d.do, "candidate", r.name, "why", d.why)
		c.carryOut(ctx, e, r)
		return
	}
	if !d.wakeAt.IsZero() {
		c.queue.AddAfter(key, d.wakeAt.Sub(now))
	}
}

// carryOut sends a request and requeues the Lease.
func (c *Controller) carryOut(ctx context.Context, e *entry, r *request) {
	err := c.send(ctx, r)
	if err != nil && ctx.Err() != nil {
		return // the next Controller continues from the stored state
	}
	if err != nil {
		c.refresh(ctx, r, err)
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
	succeeds := e.succeeds()
	c.mu.Unlock()
	c.tell(ctx, e, r, err, succeeds)
	if current {
		c.queue.AddAfter(r.key, wait)
	}
}

const worksAgain = "Requests about Leases work again"

// attempts counts the requests about a Lease and their failures.
type attempts struct {
	failing  action // that failed last; wait for none
	failures int    // in a row
	retryAt  time.Time
	streak   report.Member

	tokens  float64 // requests that may be sent now
	tokenAt time.Time
}

// The pace of requests about one Lease. An election needs three or four, and one more
// every AckTimeout while candidates do not answer. More requests mean that another
// client undoes the writes.
const (
	requestBurst = 12
	requestRate  = 1 // a second
)

// hold returns the time until a request may be sent. If it is 0, it counts one.
func (e *entry) hold(now time.Time) time.Duration {
	if wait := e.retryAt.Sub(now); wait > 0 {
		return wait
	}
	if e.tokenAt.IsZero() {
		e.tokens = requestBurst
	} else {
		e.tokens = min(requestBurst, e.tokens+requestRate*now.Sub(e.tokenAt).Seconds())
	}
	e.tokenAt = now
	if e.tokens < 1 {
		return time.Duration((1-e.tokens)/requestRate*float64(time.Second)) + 1
	}
	e.tokens--
	return 0
}

// The longest waits after failures, and after those that last until an operator
// acts.
const (
	failedRetry  = 30 * time.Second
	refusedRetry = 5 * time.Minute
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
	if class == apierr.NotFound && !r.gone {
		class = apierr.Forbidden // the API is missing, not the object
	}
	if r.ofCandidate() && c != nil && (class == apierr.Forbidden || class == apierr.Invalid || errors.Is(err, errAltered)) {
		c.refusals++
		c.retryAt = now.Add(spec.Retry(c.refusals, refusedRetry, err))
		return 0 // another candidate may be elected
	}
	if e.failing != r.do {
		e.failing, e.failures = r.do, 0
	}
	e.failures++
	limit := failedRetry
	if class == apierr.Forbidden || class == apierr.Invalid || class == apierr.Unauthorized || errors.Is(err, errAltered) {
		limit = refusedRetry
	}
	failures := e.failures
	if class == apierr.Conflict || class == apierr.AlreadyExists || class == apierr.NotFound {
		failures-- // the object was read again, so the first repetition need not wait
	}
	delay := spec.Retry(failures, limit, err)
	e.retryAt = now.Add(delay)
	return delay
}

// succeeds reports whether no request about the Lease fails.
func (e *entry) succeeds() bool {
	if e.failures > 0 {
		return false
	}
	for _, c := range e.candidates {
		if c.refusals > 0 {
			return false
		}
	}
	return true
}

// resetFailures ends the failures of a Lease that is held and renewed.
func (e *entry) resetFailures(now time.Time, c *Controller) {
	if e.failures > 0 && e.lease != nil && e.lease.holder != "" && now.Before(e.silentAtOf(e.lease, c.rules)) {
		e.failing, e.failures = wait, 0
		if e.succeeds() {
			c.electing.OK(c.ctx, &e.streak, worksAgain)
		}
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

// dropped records that the API server drops preferredHolder.
type dropped struct {
	at       time.Time
	reported bool
}

// The Controller tries again after an hour, with one Lease after the other within
// another hour. The result of the first one holds for all.
const (
	droppedFor    = time.Hour
	droppedSpread = time.Hour
)

// retryAt returns when to try an offer about a Lease again.
func (d dropped) retryAt(key types.NamespacedName) time.Time {
	if d.at.IsZero() {
		return time.Time{}
	}
	h := fnv.New32a()
	h.Write([]byte(key.String())) // never fails
	return d.at.Add(droppedFor + time.Duration(float64(h.Sum32())/(1<<32)*float64(droppedSpread)))
}

// request is a decision with its arguments and its answer. It shares nothing with the
// index.
type request struct {
	do       action
	key      types.NamespacedName // of the Lease
	strategy string
	lease    *leaseView // as it was; nil for none
	silence  time.Duration

	name    string // of the candidate, if any
	uid     types.UID
	version string
	renewed int64

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
	if e.lease != nil && e.lease.holder != "" {
		r.silence = now.Sub(e.pulseAt)
	}
	if c := d.who; c != nil {
		r.name, r.uid, r.version, r.renewed = c.key.Name, c.uid, c.version, c.renewTime
	}
	return r
}

// ofCandidate reports whether the request is about a LeaseCandidate.
func (r *request) ofCandidate() bool { return r.do == ping || r.do == unping || r.do == collect }

// creates reports whether the request creates the Lease.
func (r *request) creates() bool { return r.lease == nil && (r.do == assign || r.do == announce) }

// verb returns the verb of the request.
func (r *request) verb() string {
	switch {
	case r.do == look:
		return "get"
	case r.do == collect:
		return "delete"
	case r.creates():
		return "create"
	}
	return "patch"
}

// send sends the request. The precondition is the resourceVersion of the observed
// object, except for unping, because the candidate writes the object too often.
func (c *Controller) send(ctx context.Context, r *request) (err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	leases, candidates := c.cfg.Client.Leases(r.key.Namespace), c.cfg.Candidates.LeaseCandidates(r.key.Namespace)
	switch {
	case r.do == look:
		return c.read(ctx, r)
	case r.do == collect:
		err = candidates.Delete(ctx, r.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.uid, ResourceVersion: &r.version}})
		r.gone = err == nil
	case r.creates():
		r.gotLease, err = leases.Create(ctx, c.newLease(r), metav1.CreateOptions{FieldManager: spec.FieldManager})
	case r.ofCandidate():
		r.gotCandidate, err = candidates.Patch(ctx, r.name, types.MergePatchType, r.patch(c.rules), metav1.PatchOptions{FieldManager: spec.FieldManager})
	default:
		r.gotLease, err = leases.Patch(ctx, r.key.Name, types.MergePatchType, r.patch(c.rules), metav1.PatchOptions{FieldManager: spec.FieldManager})
	}
	if err != nil {
		r.gotLease, r.gotCandidate = nil, nil
	}
	return err
}

// newLease returns the Lease that assign and announce create.
func (c *Controller) newLease(r *request) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: r.key.Namespace, Name: r.key.Name}}
	lease.Spec.Strategy = new(coordinationv1.CoordinatedLeaseStrategy(r.strategy))
	if r.do == assign {
		now := metav1.NowMicro()
		lease.Spec.HolderIdentity = &r.name
		lease.Spec.LeaseDurationSeconds = new(int32(c.rules.duration / time.Second))
		lease.Spec.AcquireTime, lease.Spec.RenewTime = &now, &now
		lease.Spec.LeaseTransitions = new(int32(0))
	}
	return lease
}

// patch returns the merge patch of a request. A patch, and not an update, keeps
// fields that are newer than this library.
func (r *request) patch(rules *rules) []byte {
	metadata, changes := map[string]any{}, map[string]any{}
	switch r.do {
	case ping, unping:
		metadata["uid"] = r.uid
	default:
		metadata["uid"], metadata["resourceVersion"] = r.lease.uid, r.lease.version
	}
	switch r.do {
	case ping:
		metadata["resourceVersion"] = r.version
		// A candidate answers a ping that is later than its own last renewal.
		// This one is, and any answer will be later than it, whatever the
		// clocks of the candidate and of this machine show.
		changes["pingTime"] = metav1.NewMicroTime(time.UnixMicro(r.renewed + 1))
	case unping:
		changes["pingTime"] = nil
	case assign:
		now := metav1.NowMicro()
		changes["holderIdentity"] = r.name
		changes["leaseDurationSeconds"] = int32(rules.duration / time.Second)
		changes["acquireTime"], changes["renewTime"] = now, now
		changes["leaseTransitions"] = spec.NextTransition(r.lease.transitions)
		changes["strategy"], changes["preferredHolder"] = r.strategy, nil
	case offer:
		changes["strategy"], changes["preferredHolder"] = r.strategy, r.name
	case retract:
		changes["preferredHolder"] = nil
	}
	data, err := json.Marshal(map[string]any{"metadata": metadata, "spec": changes})
	if err != nil {
		return nil // strings, numbers and times can be encoded
	}
	return data
}

// refresh reads the object of a request that failed because the object is not as
// it was known.
func (c *Controller) refresh(ctx context.Context, r *request, failure error) {
	switch apierr.Classify(failure) {
	case apierr.Conflict, apierr.AlreadyExists, apierr.NotFound:
		ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
		defer cancel()
		_ = c.read(ctx, r) // the failure of the request is reported
	}
}

// read reads the object of a request.
func (c *Controller) read(ctx context.Context, r *request) (err error) {
	var lease *coordinationv1.Lease
	var candidate *coordinationv1beta1.LeaseCandidate
	if r.ofCandidate() {
		candidate, err = c.cfg.Candidates.LeaseCandidates(r.key.Namespace).Get(ctx, r.name, metav1.GetOptions{})
	} else {
		lease, err = c.cfg.Client.Leases(r.key.Namespace).Get(ctx, r.key.Name, metav1.GetOptions{})
	}
	r.gone = isMissing(err, r)
	r.read = err == nil || r.gone
	switch {
	case r.gone:
		return nil
	case err == nil:
		r.gotLease, r.gotCandidate = lease, candidate
	}
	return err
}

// isMissing reports whether err means that the object does not exist. If its API does
// not exist, the error does not name the object.
func isMissing(err error, r *request) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	name := status.Status().Details.Name
	return name == r.key.Name && !r.ofCandidate() || name == r.name && r.ofCandidate()
}

// takeIn updates the index from the answer to a request. c.mu must be held.
func (c *Controller) takeIn(now time.Time, e *entry, r *request) {
	known := e.candidates[r.name]
	switch {
	case r.ofCandidate() && r.gone:
		c.dismiss(e.key, r.name, r.uid)
	case r.gotCandidate != nil:
		// The result of a GET counts even if its version is lower, because the API
		// server may have been restored from a backup, unless the watch has
		// delivered another object in the meantime.
		if known == nil || known.uid != r.gotCandidate.UID || r.read && known.version == r.version || !seen(r.gotCandidate.ResourceVersion, known.version) {
			e.admit(now, r.gotCandidate, false)
		}
	case !r.ofCandidate() && (r.gone || r.gotLease != nil):
		if r.read {
			e.lookedAt = now
		}
		asKnown := e.lease == r.lease
		switch {
		case r.gone:
			if asKnown {
				e.observe(now, nil, c.rules)
			}
		case r.do == assign && !r.read && known != nil:
			e.assigned(now, known, r.gotLease, c.rules)
		case e.lease == nil || r.read && asKnown || !seen(r.gotLease.ResourceVersion, e.lease.version):
			e.observe(now, r.gotLease, c.rules)
		}
	}
}

// effect returns an error if a request was answered by success but had no effect.
func (c *Controller) effect(now time.Time, r *request) error {
	switch r.do {
	case ping:
		if micros(r.gotCandidate.Spec.PingTime) != r.renewed+1 {
			return errAltered
		}
	case unping:
		if r.gotCandidate.Spec.PingTime != nil {
			return errAltered
		}
	case assign:
		if viewOf(r.gotLease).holder != r.name {
			return errAltered
		}
	case offer:
		if viewOf(r.gotLease).preferred != r.name {
			c.dropped.at = now
			return ErrOffersDropped
		}
		c.dropped.at = time.Time{}
	case retract:
		if viewOf(r.gotLease).preferred != "" {
			return errAltered
		}
	}
	return nil
}

// patientConflicts is the number of conflicts in a row that are not reported.
const patientConflicts = 3

// tell reports the result of a request to the log, the hooks and the ErrorHandler.
func (c *Controller) tell(ctx context.Context, e *entry, r *request, err error, succeeds bool) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "lease", r.key, "action", r.do)
	if r.name != "" {
		logger = klog.LoggerWithValues(logger, "candidate", r.name)
	}
	if err != nil {
		c.tellFailure(klog.NewContext(ctx, logger), e, r, err)
		return
	}
	if succeeds {
		c.electing.OK(ctx, &e.streak, worksAgain)
	}
	previous := ""
	if r.lease != nil {
		previous = r.lease.holder
	}
	switch r.do {
	case assign:
		logger.V(2).Info("Elected a leader", "previous", previous, "strategy", r.strategy, "unrenewed", r.silence)
		if hook := c.cfg.Hooks.Elected; hook != nil {
			hook(Elected{Lease: r.key, Holder: r.name, Previous: previous, Strategy: r.strategy, Unrenewed: r.silence})
		}
	case offer:
		if c.offersWork() {
			logger.Info("The API server keeps preferredHolder again")
		}
		logger.V(2).Info("Asked the holder to give way", "holder", previous)
		if hook := c.cfg.Hooks.Preferred; hook != nil {
			hook(Preferred{Lease: r.key, Holder: previous, PreferredHolder: r.name})
		}
	case collect:
		logger.V(2).Info("Deleted a LeaseCandidate that was not renewed any more")
		if hook := c.cfg.Hooks.Collected; hook != nil {
			hook(Collected{Lease: r.key, Candidate: r.name})
		}
	default:
		logger.V(4).Info("Sent request")
	}
}

func (c *Controller) tellFailure(ctx context.Context, e *entry, r *request, err error) {
	class := apierr.Classify(err)
	if hook := c.cfg.Hooks.RequestFailed; hook != nil {
		hook(RequestFailed{Lease: r.key, Action: r.do.String(), Class: class.String(), Err: err})
	}
	c.mu.Lock()
	failures := e.failures
	first := errors.Is(err, ErrOffersDropped) && !c.dropped.reported
	c.dropped.reported = c.dropped.reported || first
	c.mu.Unlock()
	logger := klog.FromContext(ctx)
	switch {
	case errors.Is(err, ErrOffersDropped):
		if first {
			report.Tell(ctx, c.cfg.ErrorHandler, err, "Better candidates have to wait")
		} else {
			logger.V(4).Info("The API server still drops preferredHolder")
		}
		return
	case class == apierr.NotFound && !r.gone && r.ofCandidate():
		logger.V(4).Info("LeaseCandidates are not served", "err", err) // the watch has reported it
		return
	case failures <= patientConflicts && (class == apierr.Conflict || class == apierr.AlreadyExists || class == apierr.NotFound):
		logger.V(4).Info("Somebody else was faster", "err", err)
		return
	case class == apierr.Forbidden:
		resource := "leases"
		if r.ofCandidate() {
			resource = "leasecandidates"
		}
		err = &PermissionError{Verb: r.verb(), Resource: resource, Namespace: r.key.Namespace, Err: err}
	default:
		err = fmt.Errorf("coordinator: %v for Lease %v: %w", r.do, r.key, err)
	}
	c.electing.Fail(ctx, c.cfg.ErrorHandler, &e.streak, err, "Request about a Lease failed")
}

// offersWork records that an offer was stored, and reports whether an earlier one was
// reported as dropped.
func (c *Controller) offersWork() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	news := c.dropped.reported
	c.dropped.reported = false
	return news
}

// tellSilent reports candidates that did not answer.
func (c *Controller) tellSilent(ctx context.Context, key types.NamespacedName, names []string) {
	for _, name := range names {
		klog.FromContext(ctx).V(2).Info("Candidate has not answered", "lease", key, "candidate", name)
		if hook := c.cfg.Hooks.Silent; hook != nil {
			hook(Silent{Lease: key, Candidate: name})
		}
	}
}
