// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/internal/spec"
)

// index has the observed candidates by their Lease. The cost of a change depends on the
// number of candidates of its Lease, and not on the number of Leases. A change of a
// Lease without candidates costs one map access.
type index map[types.NamespacedName]*entry

// entry is one Lease for which there are candidates.
type entry struct {
	key types.NamespacedName
	situation
	attempts
}

// situation is the observed state of a Lease and its candidates. Times are those of
// this process.
type situation struct {
	lease      *leaseView // nil: there is none
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

// leaseView has the fields of a Lease that decisions depend on.
type leaseView struct {
	pulse
	version   string
	preferred string
}

// pulse has the fields that a holder changes when it renews. The resourceVersion is
// not one of them, because other clients write the Lease too.
type pulse struct {
	uid         types.UID
	holder      string // "" for none: nil and "" are the same
	transitions int32
	renewTime   int64 // microseconds, 0 for none
	duration    time.Duration
}

func viewOf(l *coordinationv1.Lease) *leaseView {
	return &leaseView{
		pulse: pulse{
			uid:         l.UID,
			holder:      ptr.Deref(l.Spec.HolderIdentity, ""),
			transitions: ptr.Deref(l.Spec.LeaseTransitions, 0),
			renewTime:   micros(l.Spec.RenewTime),
			duration:    time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 0)) * time.Second,
		},
		version:   l.ResourceVersion,
		preferred: ptr.Deref(l.Spec.PreferredHolder, ""),
	}
}

// term returns the time for which the holder has the Lease after a renewal. A Lease
// without a duration gets the one of an assigned Lease.
func (l *leaseView) term(r *rules) time.Duration {
	if l.duration <= 0 {
		return r.duration
	}
	return l.duration
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
	return !c.pinged.IsZero() && !now.Before(c.pinged.Add(r.ackTimeout))
}

// micros returns a time in microseconds, 0 for none.
func micros(t *metav1.MicroTime) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// entry returns the entry of a Lease, and creates it if there is none.
func (x index) entry(key types.NamespacedName) *entry {
	e := x[key]
	if e == nil {
		e = &entry{key: key, situation: situation{candidates: map[string]*candidate{}}}
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

// silentAtOf returns the time from which a holder without a renewal counts as silent.
// It is early enough to ping a candidate before the Lease expires.
func (s *situation) silentAtOf(l *leaseView, r *rules) time.Time {
	term := l.term(r)
	return s.pulseAt.Add(term - min(r.ackTimeout, term/3))
}

// observe updates e from a Lease that was observed at now, nil for none. It reports
// whether a decision is needed. A renewal in time needs none.
func (e *entry) observe(now time.Time, lease *coordinationv1.Lease, r *rules) bool {
	before := e.lease
	if lease == nil {
		e.lease, e.assignee = nil, nil
		return before != nil
	}
	l := viewOf(lease)
	e.lease = l
	silent := before != nil && !now.Before(e.silentAtOf(before, r))
	newTerm := before == nil || before.uid != l.uid || before.holder != l.holder || before.transitions != l.transitions
	if newTerm {
		if e.assignee != nil && silent {
			e.assignee.doubt(now)
		}
		e.termAt, e.assignee = now, nil
	}
	renewed := before == nil || before.pulse != l.pulse
	if renewed {
		e.pulseAt = now
		if e.assignee != nil {
			e.assignee.doubts, e.assignee = 0, nil // it has claimed the Lease
		}
	}
	return newTerm || renewed && silent && before.holder != "" || before.preferred != l.preferred || before.duration != l.duration
}

// assigned updates e after this controller made a candidate the holder.
func (e *entry) assigned(now time.Time, c *candidate, lease *coordinationv1.Lease, r *rules) {
	e.observe(now, lease, r)
	if e.lease.holder == c.peer.Identity {
		e.assignee = c
	}
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
	renewed := micros(obj.Spec.RenewTime)
	if c == nil || c.uid != obj.UID {
		c = &candidate{key: types.NamespacedName{Namespace: obj.Namespace, Name: obj.Name}, uid: obj.UID, seen: now}
		e.candidates[obj.Name] = c
		if fresh {
			c.heard = now
		}
	} else if renewed != c.renewTime {
		c.seen, c.heard, c.pinged, c.missed = now, now, time.Time{}, false
		c.answered = c.pingTime
	}
	c.version, c.renewTime, c.pingTime = obj.ResourceVersion, renewed, micros(obj.Spec.PingTime)
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
	p := election.Peer{
		Identity:         obj.Name,
		BinaryVersion:    obj.Spec.BinaryVersion,
		EmulationVersion: obj.Spec.EmulationVersion,
		Created:          obj.CreationTimestamp.Time,
	}
	extras, err := spec.ExtrasOf(obj)
	if err != nil {
		return p, err
	}
	p.Priority, p.Attributes = extras.Priority, extras.Attributes
	var problems field.ErrorList
	path := field.NewPath("spec")
	problems = append(problems, spec.CheckLease(path.Child("leaseName"), leaseKey(obj))...)
	for _, msg := range spec.CheckStrategyName(string(obj.Spec.Strategy)) {
		problems = append(problems, field.Invalid(path.Child("strategy"), obj.Spec.Strategy, msg))
	}
	if _, ok := spec.ParseVersion(p.BinaryVersion); !ok {
		problems = append(problems, field.Invalid(path.Child("binaryVersion"), p.BinaryVersion, spec.NotAVersion))
	}
	if _, ok := spec.ParseVersion(p.EmulationVersion); !ok && p.EmulationVersion != "" {
		problems = append(problems, field.Invalid(path.Child("emulationVersion"), p.EmulationVersion, spec.NotAVersion))
	}
	return p, problems.ToAggregate()
}

// dismiss removes a candidate, and the entry with its last candidate.
func (x index) dismiss(key types.NamespacedName, name string, uid types.UID) (e *entry, c *candidate) {
	e = x[key]
	if e == nil {
		return nil, nil
	}
	c = e.candidates[name]
	if c == nil || uid != "" && c.uid != uid {
		return e, nil
	}
	delete(e.candidates, name)
	if e.assignee == c {
		e.assignee = nil
	}
	if len(e.candidates) == 0 {
		delete(x, key)
	}
	return e, c
}
