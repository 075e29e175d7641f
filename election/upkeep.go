// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"time"

	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
)

// candidacy is what the LeaseCandidate of a candidate should say.
type candidacy struct {
	self     Peer
	present  bool // it should exist at all
	stopping bool // and its keeper should end when it does not
}

// candidacy returns what the LeaseCandidate should say now. A candidate that
// does not want to lead withdraws it: whoever chooses can't know better.
func (m *machine) candidacy(now time.Duration) candidacy {
	return candidacy{self: m.self, present: !m.stopping && !m.self.LastResort && now >= m.standBackTo, stopping: m.stopping}
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

// upkeepRetries are slower than those for the Lease: preference depends on it,
// and nothing else.
func upkeepRetries() backoff.Policy { return backoff.Policy{Base: time.Second, Cap: 30 * time.Second} }

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
	if u.object != nil && o != nil && older(u.object.ResourceVersion, o.ResourceVersion) {
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
		} else if u.object != nil && older(u.object.ResourceVersion, o.ResourceVersion) {
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
	delay := upkeepRetries().Delay(u.failures)
	if class == apierr.Conflict && u.failures == 1 {
		delay = 0
	}
	u.retryAt = now.mono + max(delay, apierr.RetryAfter(err))
}
