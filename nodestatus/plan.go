// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"errors"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
)

// A step is the call that a round asks for.
type step int

const (
	stepNone     step = iota
	stepRegister      // create the Node, or adopt the one that is there
	stepLook          // read the Node, then write it whole
	stepWrite         // write the status
	stepTaints        // add taints that the Node lacks
)

// A situation is the input of the choice of a step. Times are durations
// since the same epoch; 0 is never.
type situation struct {
	now   time.Duration
	phase Phase

	closed       bool          // Gate does not let the Node be written
	look         bool          // a read and a full write were asked for
	waits        bool          // a setter has not succeeded yet, but may soon
	force        bool          // a full write is owed since the last read
	adopted      bool          // the object was never written
	failingSince time.Duration // since when calls fail
	changed      bool          // the setters' values differ from the accepted ones
	drifted      bool          // the server's values differ from the accepted ones
	taints       bool          // the Node lacks a taint that it must have

	notBefore  time.Duration // backoff
	nextReport time.Duration
	nextDrift  time.Duration

	grace, interval time.Duration // Config.GracePeriod and SyncInterval
}

// decide returns the next step, and its cause.
func decide(s situation) (step, Cause) {
	whole := CauseResync
	if s.adopted {
		whole = CauseAdopt
	}
	switch {
	case (s.phase == PhaseDeleted || s.phase == PhaseReplaced) && !s.look:
		return stepNone, ""
	case s.now < s.notBefore:
		return stepNone, ""
	case s.phase == PhaseRegistering:
		return stepRegister, ""
	case s.look:
		return stepLook, whole
	case s.closed:
		return stepNone, ""
	case s.waits:
		// The whole status from before a restart is better than half of a new one.
		return stepNone, ""
	case s.taints:
		return stepTaints, ""
	case s.failingSince != 0 && s.now-s.failingSince >= s.grace:
		// The node was silent for so long that it may have been set to Unknown: the
		// server's present view decides about the transition time.
		return stepLook, whole
	case s.force:
		return stepWrite, whole
	case s.changed:
		return stepWrite, CauseChange
	case s.drifted && s.now >= s.nextDrift:
		return stepWrite, CauseDrift
	case s.now+s.interval/2 >= s.nextReport:
		// Half an interval early rather than late: otherwise a report that is
		// due a moment after a round waits a whole one, and five minutes
		// become ten seconds more each time.
		return stepWrite, CauseReport
	}
	return stepNone, ""
}

// nextReportAfter returns when to report next. The first report after a change
// comes after between half and one and a half of the interval, by the draw r in
// [0,1), so that nodes that changed together do not report together from then on.
func nextReportAfter(now, interval time.Duration, cause Cause, r float64) time.Duration {
	if cause == CauseReport {
		return now + interval
	}
	return now + time.Duration((0.5+r)*float64(interval))
}

// A verdict is the meaning of the answer to a call.
type verdict int

const (
	accepted verdict = iota
	away             // no answer, or one that is not about us: try again
	refused          // the same call will fail again
	gone             // there is no such Node
	present          // there is one already
	other            // the Node may be another object
)

// judge returns the meaning of the error of a call about the Node.
func judge(err error, nodeName string) verdict {
	switch apierr.Classify(err) {
	case apierr.None:
		return accepted
	case apierr.NotFound:
		// Too much follows from a deleted Node to take the 404 of a proxy for one.
		if apierr.IsMissing(err, "nodes", nodeName) {
			return gone
		}
		return refused
	case apierr.AlreadyExists:
		return present
	case apierr.Conflict:
		return other
	case apierr.Invalid:
		if mentionsUID(err) {
			return other
		}
		return refused
	case apierr.Unauthorized, apierr.Forbidden:
		return refused
	default:
		return away
	}
}

// mentionsUID reports whether a 422 is about metadata.uid, which can't change:
// the patch was made for another object.
func mentionsUID(err error) bool {
	details := detailsOf(err)
	return details != nil && slices.ContainsFunc(details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

func detailsOf(err error) *metav1.StatusDetails {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return nil
	}
	return status.Status().Details
}

// pause returns the wait after the given number of failures in a row. A server that
// is away is tried again soon. One that refuses will do so again, so it is asked
// rarely. Retry-After is honored.
func pause(v verdict, err error, failures int) time.Duration {
	policy := backoff.Policy{Base: 200 * time.Millisecond, Cap: 7 * time.Second}
	if v == refused {
		policy = backoff.Policy{Base: 7 * time.Second, Cap: 30 * time.Second}
	}
	return max(policy.Delay(failures), apierr.RetryAfter(err))
}
