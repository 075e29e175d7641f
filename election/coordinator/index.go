// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/election/internal/valid"
	"github.com/kubewright/kubewright/internal/report"
)

// index has the observed candidates by their Lease. The cost of a change depends on the
// number of candidates of its Lease, and not on the number of Leases. A change of a
// Lease without candidates costs one map access.
type index map[types.NamespacedName]*entry

// entry is one Lease for which there are candidates.
type entry struct {
	key types.NamespacedName
	situation

	failing  action // the request that failed last; wait for none
	failures int    // in a row
	retryAt  time.Time
	streak   report.Member
	pace     flowcontrol.RateLimiter
	spread   time.Duration // of offers after one was dropped
}

// situation is the observed state of a Lease and its candidates. Times are those of
// this process.
type situation struct {
	lease      *coordinationv1.Lease // nil: there is none; never modified
	candidates map[string]*candidate

	pulseAt  time.Time // when a renewal was last observed
	termAt   time.Time // when the present term was first observed
	lookedAt time.Time // when the Lease was last read
	// offersFrom is the time of the next try of an offer. It is in the future if the
	// API server dropped one.
	offersFrom time.Time
	// assignee is the candidate to which this controller assigned the Lease and that
	// has not renewed it yet.
	assignee *candidate
}

// candidate is a LeaseCandidate with its observed history.
type candidate struct {
	key         types.NamespacedName
	uid         types.UID
	version     string
	peer        election.Peer
	strategy    string
	invalid     error // why it can't be considered
	terminating bool
	renewTime   int64 // microseconds of the candidate's clock, 0 for none
	pingTime    int64
	answered    int64 // the pingTime that it has answered

	seen   time.Time // when it was first observed, or its last renewal was
	heard  time.Time // when its last renewal or its creation was observed; zero for never
	pinged time.Time // since when it has a ping to answer; zero for none
	missed bool      // the late ping was reported
	asked  time.Time // when this controller last sent it a ping

	doubts       int       // assignments in a row that it did not claim
	doubtedUntil time.Time // until then it is a last resort
	retryAt      time.Time // no request about it is sent before
	refusals     int
	reported     bool // that it is invalid
}

// usable reports whether the candidate can be considered.
func (c *candidate) usable() bool { return c.invalid == nil && c.renewTime != 0 }

// open reports whether the candidate considers its ping unanswered.
func (c *candidate) open() bool { return c.pingTime > c.renewTime }

// spins reports whether the candidate has answered a ping and still considers it
// unanswered, because its clock is behind that of the coordinator that pinged. Such a
// candidate answers repeatedly.
func (c *candidate) spins() bool { return c.open() && c.pingTime == c.answered }

// late reports whether the candidate has left a ping unanswered.
func (c *candidate) late(now time.Time, r *rules) bool {
	return !c.pinged.IsZero() && !now.Before(c.pinged.Add(r.AckTimeout))
}

// entry returns the entry of a Lease, and creates it if there is none.
func (x index) entry(key types.NamespacedName) *entry {
	e := x[key]
	if e == nil {
		e = &entry{key: key, situation: situation{candidates: map[string]*candidate{}}, spread: rand.N(droppedSpread)}
		e.pace = flowcontrol.NewTokenBucketRateLimiter(requestRate, requestBurst)
		x[key] = e
	}
	return e
}

// leaseKey returns the Lease of a candidate.
func leaseKey(obj *coordinationv1beta1.LeaseCandidate) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.Namespace, Name: obj.Spec.LeaseName}
}

// seen reports whether a version is the known one, or older.
func seen(version, known string) bool {
	return version == known || spec.Older(version, known)
}

// holder returns the holder of the Lease, "" for none.
func (s *situation) holder() string { return spec.HolderOf(s.lease) }

// expiresAt returns the time at which the Lease expires without another renewal.
func (s *situation) expiresAt(r *rules) time.Time {
	return s.pulseAt.Add(spec.DurationOf(s.lease, r.LeaseDuration))
}

// silentAt returns the time from which a holder without a renewal counts as silent.
// It is early enough to ping a candidate before the Lease expires.
func (s *situation) silentAt(r *rules) time.Time {
	return s.expiresAt(r).Add(-min(r.AckTimeout, spec.DurationOf(s.lease, r.LeaseDuration)/3))
}

// observe updates e from a Lease that was observed at now, nil for none. It reports
// whether a decision is needed. A renewal in time needs none.
func (e *entry) observe(now time.Time, lease *coordinationv1.Lease, r *rules) bool {
	before, silent := e.lease, e.lease != nil && !now.Before(e.silentAt(r))
	e.lease = lease
	if lease == nil {
		e.assignee = nil
		return before != nil
	}
	was, is := spec.PulseOf(before), spec.PulseOf(lease)
	newTerm := before == nil || !is.SameTerm(was)
	if newTerm {
		if e.assignee != nil && silent {
			e.assignee.doubt(now)
		}
		e.termAt, e.assignee = now, nil
	}
	renewed := before == nil || is != was
	if renewed {
		e.pulseAt = now
		if e.assignee != nil {
			e.assignee.doubts, e.assignee = 0, nil // it has claimed the Lease
		}
	}
	return newTerm || renewed && silent && was.Holder != "" || spec.PreferredOf(before) != spec.PreferredOf(lease) || was.Duration != is.Duration
}

// doubt makes c the last resort for a while, because it did not take a Lease that
// was assigned to it.
func (c *candidate) doubt(now time.Time) {
	c.doubts++
	c.doubtedUntil = now.Add(spec.Doubt(c.doubts))
}

// admit updates e from a LeaseCandidate that was observed at now. fresh means that it
// was created just now.
func (e *entry) admit(now time.Time, obj *coordinationv1beta1.LeaseCandidate, fresh bool) *candidate {
	c := e.candidates[obj.Name]
	renewed := spec.Micros(obj.Spec.RenewTime)
	if c == nil || c.uid != obj.UID {
		c = &candidate{key: types.NamespacedName{Namespace: obj.Namespace, Name: obj.Name}, uid: obj.UID, seen: now}
		e.candidates[obj.Name] = c
		if fresh {
			c.heard = now
		}
	} else if renewed != c.renewTime && !spec.Older(obj.ResourceVersion, c.version) {
		// Not a renewal that a restored backup shows again.
		c.seen, c.heard, c.pinged, c.missed = now, now, time.Time{}, false
		c.answered = c.pingTime
	}
	c.version, c.renewTime, c.pingTime = obj.ResourceVersion, renewed, spec.Micros(obj.Spec.PingTime)
	switch {
	case !c.open() || c.spins():
		c.pinged = time.Time{}
	case c.pinged.IsZero():
		c.pinged = now // by this coordinator, now or before a restart, or by another one
	}
	c.terminating = obj.DeletionTimestamp != nil
	c.strategy = string(obj.Spec.Strategy)
	c.peer, c.invalid = peerOf(obj)
	return c
}

// peerOf returns the Peer that a LeaseCandidate describes, and the problems that the
// API server did not reject.
func peerOf(obj *coordinationv1beta1.LeaseCandidate) (election.Peer, error) {
	var p election.Peer
	extras := cmp.Or(obj.Annotations[spec.PeerAnnotation], "{}")
	if err := json.Unmarshal([]byte(extras), &p); err != nil {
		return p, fmt.Errorf("annotation %s of LeaseCandidate %s/%s: %w", spec.PeerAnnotation, obj.Namespace, obj.Name, err)
	}
	p.Identity, p.BinaryVersion, p.EmulationVersion, p.Created = obj.Name, obj.Spec.BinaryVersion, obj.Spec.EmulationVersion, obj.CreationTimestamp.Time
	path := field.NewPath("spec")
	problems := valid.CheckLease(path.Child("leaseName"), leaseKey(obj))
	problems = append(problems, valid.CheckStrategyName(path.Child("strategy"), string(obj.Spec.Strategy))...)
	problems = append(problems, valid.CheckVersion(path.Child("binaryVersion"), p.BinaryVersion)...)
	problems = append(problems, valid.CheckVersion(path.Child("emulationVersion"), p.EmulationVersion)...)
	if p.BinaryVersion == "" {
		problems = append(problems, field.Required(path.Child("binaryVersion"), ""))
	}
	return p, problems.ToAggregate()
}
