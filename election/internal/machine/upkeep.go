// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"encoding/json"
	"errors"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// An Upkeep keeps the LeaseCandidate of a candidate as it should be.
type Upkeep struct {
	rules     Rules
	want      Candidacy
	changedAt time.Duration // when the content of the object last changed

	follower
	// Invariant: there is no object before one was observed.
	known   bool
	object  *coordinationv1beta1.LeaseCandidate // nil if it does not exist
	written time.Duration                       // when it was last written
	renewAt time.Duration
	denials int           // writes in a row that failed
	stopBy  time.Duration // 0 while not stopping
	// Invariant: an upkeep ends only after Run.
	ended bool

	alarm alarm
}

// NewUpkeep returns the upkeep of a candidate.
func NewUpkeep(rules Rules) *Upkeep {
	return &Upkeep{rules: rules, follower: follower{poll: rules.RenewInterval, sure: uncertain}}
}

// Ended reports whether nothing is left to do.
func (u *Upkeep) Ended() bool { return u.ended }

// Apply updates u from a fact. It does nothing for facts about the Lease.
func (u *Upkeep) Apply(now Instant, e Event) {
	switch e := e.(type) {
	case Wanted:
		u.want = e.Candidacy
	case Tick:
		u.tick(now.Mono)
	case Answered[*coordinationv1beta1.LeaseCandidate]:
		if e.Op != Inquire {
			u.done(now.Mono, e)
		}
	case Seen[*coordinationv1beta1.LeaseCandidate]:
		u.observe(e.Object, e.Deleted)
	case WatchWorks:
		u.gone = 0
	case WatchLost:
		u.lost(now.Mono, e.Gone)
	}
}

// tick ends the upkeep if Run ends and the object does not exist, or can't be deleted
// in time.
func (u *Upkeep) tick(now time.Duration) {
	u.follower.tick(now)
	u.alarm = alarm{now + recordInterval}
	if !u.want.stopping {
		return
	}
	if u.stopBy == 0 {
		u.stopBy, u.retryAt = now+u.rules.ShutdownTimeout, 0
	}
	untouched := !u.known && u.failures == 0
	absent := u.sure == certain && u.object == nil
	u.ended = u.alarm.due(now, u.stopBy) || absent || untouched
}

// Next returns the next action after a Tick at now. It changes nothing.
func (u *Upkeep) Next(now Instant) Action[*coordinationv1beta1.LeaseCandidate] {
	a := u.alarm
	step := Action[*coordinationv1beta1.LeaseCandidate]{Object: u.object, Timeout: u.rules.CallTimeout, Stream: u.stream}
	if u.stopBy != 0 {
		step.Timeout = max(time.Millisecond, min(step.Timeout, u.stopBy-now.Mono))
	}
	desired, at := u.desired(now)
	switch {
	case u.ended:
	case a.due(now.Mono, u.nextRead(u.known && !u.polling)):
		step.Op = Read
	case u.want.inquiry != "":
		step.Op, step.Object = Inquire, &coordinationv1beta1.LeaseCandidate{ObjectMeta: metav1.ObjectMeta{Name: u.want.inquiry}}
	case !a.due(now.Mono, u.retryAt):
	case !u.want.present && u.object != nil:
		step.Op = Delete
	case !u.want.present, u.want.waits, !a.due(now.Mono, at):
	case u.object == nil:
		step.Op, step.Object = Create, desired
	default:
		step.Op, step.Object = Update, desired
	}
	step.Wake = a.at
	step.Watch = u.follower.watch(u.known && !u.polling && u.stopBy == 0)
	if u.object != nil {
		step.Version = u.from(u.object.ResourceVersion)
	}
	return step
}

// desired returns the object as it should be, and the time at which to write it.
func (u *Upkeep) desired(now Instant) (*coordinationv1beta1.LeaseCandidate, time.Duration) {
	o := &coordinationv1beta1.LeaseCandidate{ObjectMeta: metav1.ObjectMeta{Namespace: u.rules.Lease.Namespace, Name: u.rules.ID}}
	due := time.Duration(0)
	if u.object != nil {
		o = u.object.DeepCopy()
		due = u.renewAt
	}
	o.Spec.LeaseName = u.rules.Lease.Name
	if u.describe(o) && u.object != nil {
		due = min(due, u.changedAt+changeGap)
	}
	ping, before := o.Spec.PingTime, o.Spec.RenewTime
	if ping != nil && (before == nil || before.Before(ping)) {
		due = 0 // a coordinator waits for the answer
	}
	// A ping comes from another clock. An answer must not be earlier.
	t := metav1.NewMicroTime(now.Wall.Truncate(time.Microsecond))
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

// describe writes the description of the candidate into its LeaseCandidate. It reports
// whether that changed the object.
func (u *Upkeep) describe(lc *coordinationv1beta1.LeaseCandidate) (changed bool) {
	before, p := lc.Spec, u.want.self
	peer, had := lc.Annotations[spec.PeerAnnotation]
	lc.Spec.BinaryVersion, lc.Spec.EmulationVersion = p.BinaryVersion, p.Emulated()
	lc.Spec.Strategy = coordinationv1.CoordinatedLeaseStrategy(u.rules.Strategy.Name())
	delete(lc.Annotations, spec.PeerAnnotation)
	if p.Priority != 0 || len(p.Attributes) > 0 {
		raw, _ := json.Marshal(spec.Peer{Priority: p.Priority, Attributes: p.Attributes}) // never fails
		metav1.SetMetaDataAnnotation(&lc.ObjectMeta, spec.PeerAnnotation, string(raw))
	}
	want, has := lc.Annotations[spec.PeerAnnotation]
	return peer != want || had != has || before.Strategy != lc.Spec.Strategy ||
		before.BinaryVersion != lc.Spec.BinaryVersion || before.EmulationVersion != lc.Spec.EmulationVersion
}

// observe updates u from the stored object, or from the object as it was deleted.
func (u *Upkeep) observe(o *coordinationv1beta1.LeaseCandidate, deleted bool) {
	if u.object != nil && o != nil && spec.Older(o.ResourceVersion, u.object.ResourceVersion) {
		return
	}
	if deleted && o != nil {
		o, u.buried = nil, o.UID
	}
	u.known, u.object = true, o
}

// done updates u after a request.
func (u *Upkeep) done(now time.Duration, e Answered[*coordinationv1beta1.LeaseCandidate]) {
	o := e.Object
	gone := e.Answer == Missing && e.Op != Create || e.Answer == OK && e.Op == Delete
	failures := &u.denials
	if e.Op == Read {
		failures = &u.failures
	}
	if e.Answer != OK && !gone {
		*failures++
		n := *failures
		if e.Answer == Conflict {
			n-- // the first repetition need not wait, because the object is read again
		}
		if e.Answer == Conflict || e.Unsure {
			u.sure = uncertain
		}
		u.retryAt = now + spec.Retry(n, HintRetry, u.rules.Random(), e.RetryAfter)
		return
	}
	*failures, u.readAt = 0, now+u.poll
	if e.Op == Read {
		u.sure = certain
	}
	switch {
	case gone:
		o = nil
	case e.Op != Read && u.isBuried(o.UID):
		u.written = now // and deleted, which the watch has delivered before this answer
		return
	case e.Op != Read:
		u.written = now
		u.renewAt = now + time.Duration((0.9+0.2*u.rules.Random())*float64(recordInterval))
		if u.object == nil || u.describe(u.object.DeepCopy()) {
			u.changedAt = now
		}
	case !u.known:
		// An earlier process wrote it. It must describe this one at once.
		u.renewAt, u.changedAt = now, now-changeGap
	case u.object != nil && spec.Older(o.ResourceVersion, u.object.ResourceVersion):
		// Nothing newer was observed since the read was sent, so versions have gone
		// back: the API server was restored from a backup.
		u.object = nil
		u.stream++
	}
	u.observe(o, gone)
}

// Check returns an error that names a broken invariant, or nil.
func (u *Upkeep) Check() error {
	switch {
	case !u.known && u.object != nil:
		return errors.New("election: broken invariant: there is no object before one was observed")
	case u.ended && !u.want.stopping:
		return errors.New("election: broken invariant: an upkeep ends only after Run")
	}
	return nil
}
