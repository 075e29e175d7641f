// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"encoding/json"
	"maps"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/apierr"
)

// describe writes p and the name of its strategy into a LeaseCandidate. It reports
// whether that changed the object.
func describe(lc *coordinationv1beta1.LeaseCandidate, p Peer, strategy string) (changed bool) {
	before := lc.DeepCopy()
	lc.Spec.BinaryVersion, lc.Spec.EmulationVersion = p.BinaryVersion, p.emulated()
	lc.Spec.Strategy = coordinationv1.CoordinatedLeaseStrategy(strategy)
	delete(lc.Annotations, spec.PeerAnnotation)
	if p.Priority != 0 || len(p.Attributes) > 0 {
		raw, _ := json.Marshal(Peer{Priority: p.Priority, Attributes: p.Attributes}) // never fails
		metav1.SetMetaDataAnnotation(&lc.ObjectMeta, spec.PeerAnnotation, string(raw))
	}
	return !equality.Semantic.DeepEqual(before, lc)
}

// candidacy is the state that a LeaseCandidate should have.
type candidacy struct {
	self     Peer
	present  bool   // it should exist
	stopping bool   // it should not, and Run waits for its deletion
	inquiry  string // the name of another candidate's to read; "" for none
}

// candidacy returns the LeaseCandidate as it should be now. A candidate that does
// not want to lead withdraws it. It does not exist before the Lease was read, or its
// creation would be seen: otherwise an assignment over a live leader could be the first
// observation.
func (m *machine) candidacy(now time.Duration) candidacy {
	return candidacy{self: m.self, present: m.settled && !m.stopping && !m.self.LastResort && now >= m.standBackTo, stopping: m.stopping, inquiry: m.inquiry}
}

// upkeep decides about the LeaseCandidate of a candidate. Like machine, it is pure
// state.
type upkeep struct {
	setup
	want      candidacy
	changedAt time.Duration // when its content last changed

	follower
	known   bool
	object  *coordinationv1beta1.LeaseCandidate // nil if it does not exist
	written time.Duration                       // when it was last written
	renewAt time.Duration
	denials int           // writes in a row that failed
	stopBy  time.Duration // 0 while not stopping
	asked   string        // the candidate that was read last
	ended   bool
}

// The requests of an upkeep.
const (
	opInquire Op = "inquire" // the GET of another candidate's object
	opCreate  Op = "create"
	opUpdate  Op = "update"
	opDelete  Op = "delete"
)

// watching reports whether the object should be watched, and can be.
func (u *upkeep) watching() bool { return u.known && !u.polling && u.stopBy == 0 }

// next returns the next step.
func (u *upkeep) next(now instant) step[*coordinationv1beta1.LeaseCandidate] {
	u.begin(now.mono, recordInterval)
	if u.want.stopping {
		if u.stopBy == 0 {
			u.stopBy, u.retryAt = now.mono+u.ShutdownTimeout, 0
		}
		untouched := !u.known && u.failures == 0
		u.ended = u.due(now.mono, u.stopBy) || u.known && !u.reread && u.object == nil || untouched
	}
	s := step[*coordinationv1beta1.LeaseCandidate]{object: u.object, timeout: u.CallTimeout}
	if u.stopBy != 0 {
		s.timeout = max(time.Millisecond, min(s.timeout, u.stopBy-now.mono))
	}
	desired, at := u.desired(now)
	switch {
	case u.ended:
	case u.due(now.mono, u.nextRead(u.known && !u.polling)):
		s.op = OpRead
	case u.want.inquiry != "":
		s.op, s.object, u.asked = opInquire, &coordinationv1beta1.LeaseCandidate{ObjectMeta: metav1.ObjectMeta{Name: u.want.inquiry}}, u.want.inquiry
	case !u.due(now.mono, u.retryAt):
	case !u.want.present && u.object != nil:
		s.op = opDelete
	case !u.want.present, !u.due(now.mono, at):
	case u.object == nil:
		s.op, s.object = opCreate, desired
	default:
		s.op, s.object = opUpdate, desired
	}
	s.wake = u.wakeAt
	return s
}

// desired returns the object as it should be, and the time at which to write it.
func (u *upkeep) desired(now instant) (*coordinationv1beta1.LeaseCandidate, time.Duration) {
	o := &coordinationv1beta1.LeaseCandidate{ObjectMeta: metav1.ObjectMeta{Namespace: u.Lease.Namespace, Name: u.id}}
	due := time.Duration(0)
	if u.object != nil {
		o = u.object.DeepCopy()
		due = u.renewAt
	}
	o.Spec.LeaseName = u.Lease.Name
	if describe(o, u.want.self, u.Strategy.Name()) && u.object != nil {
		due = min(due, u.changedAt+changeGap)
	}
	ping, before := o.Spec.PingTime, o.Spec.RenewTime
	if ping != nil && (before == nil || before.Before(ping)) {
		due = 0 // a coordinator waits for the answer
	}
	// A ping comes from another clock. An answer must not be earlier.
	t := metav1.NewMicroTime(now.wall.Truncate(time.Microsecond))
	if t.Before(ping) {
		t = *ping
	}
	if before.Equal(&t) {
		t.Time = t.Add(time.Microsecond)
	}
	o.Spec.RenewTime = &t
	if u.written != 0 {
		due = max(due, u.written+publishGap)
	}
	return o, due
}

// observe updates u from the stored object, or from the object as it was deleted.
func (u *upkeep) observe(o *coordinationv1beta1.LeaseCandidate, deleted bool) {
	if u.object != nil && o != nil && spec.Older(o.ResourceVersion, u.object.ResourceVersion) {
		return
	}
	if deleted {
		o = nil
	}
	u.known, u.object = true, o
}

// done updates u after a request.
func (u *upkeep) done(now instant, op Op, o *coordinationv1beta1.LeaseCandidate, err error) {
	class := apierr.Classify(err)
	gone := class == apierr.NotFound && op != opCreate || class == apierr.None && op == opDelete
	failures := &u.denials
	if op == OpRead {
		failures = &u.failures
	}
	if class != apierr.None && !gone {
		*failures++
		n := *failures
		if class == apierr.Conflict || class == apierr.AlreadyExists {
			n-- // the first repetition need not wait, because the object is read again
			u.reread = true
		}
		u.reread = u.reread || op != OpRead && apierr.MayHaveCommitted(err)
		u.retryAt = now.mono + spec.Retry(n, hintRetry, err)
		return
	}
	*failures, u.readAt, u.reread = 0, now.mono+u.poll, u.reread && op != OpRead
	switch {
	case gone:
		o = nil
	case op != OpRead:
		u.written = now.mono
		u.renewAt = now.mono + time.Duration((0.9+0.2*u.random())*float64(recordInterval))
		if u.object == nil || describe(u.object.DeepCopy(), u.want.self, u.Strategy.Name()) {
			u.changedAt = now.mono
		}
	case !u.known:
		// An earlier process wrote it. It must describe this one at once.
		u.renewAt, u.changedAt = now.mono, now.mono-changeGap
	case u.object != nil && spec.Older(o.ResourceVersion, u.object.ResourceVersion):
		// Nothing newer was observed since the read was sent, so versions have gone
		// back: the API server was restored from a backup.
		u.object, u.watchStale = nil, true
	}
	u.observe(o, gone)
}

// keeper keeps the LeaseCandidate of a candidate.
type keeper struct {
	lane[*coordinationv1beta1.LeaseCandidate]
	upkeep upkeep
}

// newKeeper returns the keeper of a candidate that uses LeaseCandidates.
func (l *loop) newKeeper() *keeper {
	k := &keeper{upkeep: upkeep{setup: l.machine.setup, follower: follower{poll: l.cfg.Timing.RenewInterval, reread: true}}}
	k.lane = lane[*coordinationv1beta1.LeaseCandidate]{
		follower: &k.upkeep.follower, loop: l, kind: "LeaseCandidate", name: l.identity,
		client:  l.cfg.Registry.candidates.LeaseCandidates(l.cfg.Lease.Namespace),
		answers: make(chan answer[*coordinationv1beta1.LeaseCandidate], 1),
	}
	return k
}

// keep does the next thing about the LeaseCandidate. It returns when to decide again.
func (l *loop) keep() time.Duration {
	k, now := l.keeper, l.clock.now()
	want := l.machine.candidacy(now.mono)
	if want.stopping && !k.upkeep.want.stopping {
		k.cancel() // little time is left
	}
	k.upkeep.want = want
	if k.abort != nil {
		return never
	}
	s := k.upkeep.next(now)
	k.take(s, k.upkeep.watching(), versionOf(k.upkeep.object))
	return s.wake
}

// verdictFor is the time for which the verdict about a preferred candidate holds.
const verdictFor = 30 * time.Second

// verdict is the judgment of a leader about the candidate that a coordinator prefers.
// The controller in the API server breaks ties at random, in every step again. A leader
// that obeyed would lead for less than a second.
type verdict struct {
	better bool
	until  time.Duration
}

// weighPreference gives way to the candidate that a coordinator prefers, after MinTenure
// and if the strategy prefers it too. A preference that the strategy does not support is
// withdrawn by the next renewal. If the Lease names another strategy than this
// candidate's, only the coordinator can judge.
func (m *machine) weighPreference(now time.Duration) {
	m.inquiry = ""
	to := spec.PreferredOf(m.lease)
	if to == "" || to == m.id || !m.due(now, m.term.began+m.Timing.MinTenure) {
		return
	}
	named := m.lease.Spec.Strategy
	if named == nil || string(*named) == m.Strategy.Name() {
		v, judged := m.verdicts[to]
		if !judged || m.due(now, v.until) {
			m.inquiry = to
			return
		}
		if !v.better {
			return
		}
	}
	m.term.target = to
	m.drain(now, ErrSuperseded)
}

// refuses reports whether a preference is to be withdrawn.
func (m *machine) refuses(preferred string, now time.Duration) bool {
	v, judged := m.verdicts[preferred]
	return judged && !v.better && now < v.until
}

// judge updates m after the LeaseCandidate of a preferred candidate was read. If that
// failed, the word of the coordinator stands; MinTenure limits what it can cost.
func (m *machine) judge(now time.Duration, name string, lc *coordinationv1beta1.LeaseCandidate, err error) {
	maps.DeleteFunc(m.verdicts, func(_ string, v verdict) bool { return now >= v.until })
	better := true
	switch {
	case apierr.Classify(err) == apierr.NotFound:
		better = false
	case err == nil:
		better = lc.DeletionTimestamp == nil && lc.Spec.LeaseName == m.Lease.Name &&
			(m.self.LastResort || Preempts(m.Strategy, described(lc), m.asPeer()))
	}
	if m.inquiry == name {
		m.inquiry = ""
	}
	m.verdicts[name] = verdict{better: better, until: now + verdictFor}
}

// described returns the Peer that a LeaseCandidate describes.
func described(lc *coordinationv1beta1.LeaseCandidate) (p Peer) {
	_ = json.Unmarshal([]byte(lc.Annotations[spec.PeerAnnotation]), &p) // without Priority and Attributes if it is none
	p.Identity, p.Created = lc.Name, lc.CreationTimestamp.Time
	p.BinaryVersion, p.EmulationVersion = lc.Spec.BinaryVersion, lc.Spec.EmulationVersion
	return p
}
