// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/apierr"
)

// request is a decision with what it takes to carry it out, and with the answer.
// It shares nothing with the index.
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

	// The answer: one of them, where there is one.
	gotLease     *coordinationv1.Lease
	gotCandidate *coordinationv1beta1.LeaseCandidate
	// gone says that the object that the request was about does not exist.
	gone bool
	// read says that the answer comes from a read that was sent for it.
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
func (r *request) ofCandidate() bool { return r.do == ping || r.do == hush || r.do == collect }

// creates reports whether the request creates the Lease.
func (r *request) creates() bool { return r.lease == nil && (r.do == assign || r.do == announce) }

// verb is what the request is to the API server.
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

// send sends the request. Every one has the resourceVersion of what was
// decided upon as its precondition, but for hush: its candidate writes the object
// faster than anybody could follow.
func (c *Controller) send(ctx context.Context, r *request) (err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	leases, candidates := c.cfg.Client.Leases(r.key.Namespace), c.cfg.Candidates.LeaseCandidates(r.key.Namespace)
	switch {
	case r.do == look:
		r.gotLease, err = leases.Get(ctx, r.key.Name, metav1.GetOptions{})
		r.read = err == nil
	case r.do == collect:
		err = candidates.Delete(ctx, r.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.uid, ResourceVersion: &r.version}})
		r.gone = err == nil
	case r.creates():
		r.gotLease, err = leases.Create(ctx, c.newLease(r), metav1.CreateOptions{FieldManager: fieldManager})
	case r.ofCandidate():
		r.gotCandidate, err = candidates.Patch(ctx, r.name, types.MergePatchType, r.patch(c.rules), metav1.PatchOptions{FieldManager: fieldManager})
	default:
		r.gotLease, err = leases.Patch(ctx, r.key.Name, types.MergePatchType, r.patch(c.rules), metav1.PatchOptions{FieldManager: fieldManager})
	}
	if err != nil {
		r.gotLease, r.gotCandidate = nil, nil
	}
	if r.do == look && apierrors.IsNotFound(err) {
		r.gone, r.read, err = true, true, nil
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
	metadata, spec := map[string]any{}, map[string]any{}
	switch r.do {
	case ping, hush:
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
		spec["pingTime"] = metav1.NewMicroTime(time.UnixMicro(r.renewed + 1))
	case hush:
		spec["pingTime"] = nil
	case assign:
		now := metav1.NowMicro()
		spec["holderIdentity"] = r.name
		spec["leaseDurationSeconds"] = int32(rules.duration / time.Second)
		spec["acquireTime"], spec["renewTime"] = now, now
		spec["leaseTransitions"] = nextTransition(r.lease.transitions)
		spec["strategy"], spec["preferredHolder"] = r.strategy, nil
	case offer:
		spec["strategy"], spec["preferredHolder"] = r.strategy, r.name
	case retract:
		spec["preferredHolder"] = nil
	}
	data, err := json.Marshal(map[string]any{"metadata": metadata, "spec": spec})
	if err != nil {
		return nil // strings, numbers and times can be encoded
	}
	return data
}

// refresh reads what a request was about after it failed because that is not
// what it was thought to be.
func (c *Controller) refresh(ctx context.Context, r *request, failure error) {
	class := apierr.Classify(failure)
	switch class {
	case apierr.Conflict, apierr.AlreadyExists, apierr.NotFound:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	var err error
	if r.ofCandidate() {
		var got *coordinationv1beta1.LeaseCandidate
		if got, err = c.cfg.Candidates.LeaseCandidates(r.key.Namespace).Get(ctx, r.name, metav1.GetOptions{}); err == nil {
			r.gotCandidate = got
		}
	} else {
		var got *coordinationv1.Lease
		if got, err = c.cfg.Client.Leases(r.key.Namespace).Get(ctx, r.key.Name, metav1.GetOptions{}); err == nil {
			r.gotLease = got
		}
	}
	r.read = err == nil || isMissing(err, r)
	r.gone = isMissing(err, r)
}

// isMissing reports whether a read was answered by that the object doesn't
// exist, and not by that its API doesn't: only the first names it.
func isMissing(err error, r *request) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	name := status.Status().Details.Name
	return name == r.key.Name && !r.ofCandidate() || name == r.name && r.ofCandidate()
}

// takeIn takes in the answer of a request. The lock is held.
func (c *Controller) takeIn(now time.Time, e *entry, r *request) {
	known := e.candidates[r.name]
	switch {
	case r.ofCandidate() && r.gone:
		e2, gone := c.index.dismiss(e.key, r.name, r.uid)
		if gone != nil && len(e2.candidates) == 0 {
			c.electing.Retire(&e.streak)
		}
	case r.gotCandidate != nil:
		// What was read on purpose counts, also where versions have gone back
		// because the API server was restored from a backup; but not against
		// what the watch has delivered meanwhile.
		if known == nil || known.uid != r.gotCandidate.UID || r.read && known.version == r.version || !olderThan(r.gotCandidate.ResourceVersion, known.version) {
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
			e.gave(now, known, r.gotLease, c.rules)
		case e.lease == nil || r.read && asKnown || !olderThan(r.gotLease.ResourceVersion, e.lease.version):
			e.observe(now, r.gotLease, c.rules)
		}
	}
}

// effect returns an error where a request was answered by success and did not
// have its effect.
func (c *Controller) effect(now time.Time, r *request) error {
	switch r.do {
	case ping:
		if micros(r.gotCandidate.Spec.PingTime) != r.renewed+1 {
			return errAltered
		}
	case hush:
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
