// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package contest

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// Rules are the same for all contests of a controller.
type Rules struct {
	LeaseDuration time.Duration            // of a Lease that states none
	AckTimeout    time.Duration            // to answer a ping, and for which the answer is valid
	MinTenure     time.Duration            // before a holder is asked to give way
	CandidateTTL  time.Duration            // for which a candidate counts after its last renewal
	Strategies    map[string]spec.Strategy // that the controller carries out, by name
	// Random returns a number in [0,1).
	Random func() float64
}

// A Do is the next action about a Lease.
type Do string

// The actions.
const (
	// Wait: nothing, until something changes or Decision.WakeAt.
	Wait Do = ""
	// Look: read the Lease, because the watch may be silent and not the holder.
	Look Do = "look"
	// Ping: ask a candidate for a sign of life.
	Ping Do = "ping"
	// Unping: remove a ping that its candidate answers repeatedly.
	Unping Do = "unping"
	// Assign: make a candidate the holder of a vacant Lease.
	Assign Do = "assign"
	// Announce: create a Lease without holder, with the name of a strategy that
	// another component carries out.
	Announce Do = "announce"
	// Offer: ask the holder to give way to a candidate.
	Offer Do = "offer"
	// Retract: remove an offer.
	Retract Do = "retract"
	// Collect: delete a LeaseCandidate that is no longer renewed.
	Collect Do = "collect"
)

// OfCandidate reports whether the action is about a LeaseCandidate.
func (d Do) OfCandidate() bool { return d == Ping || d == Unping || d == Collect }

// A Decision is an action and its arguments.
type Decision struct {
	Do Do // Wait for nothing
	// Name, UID and Version are those of the candidate, if any.
	Name    string
	UID     types.UID
	Version string
	// PingTime is the time to write as a ping, in microseconds.
	PingTime int64
	// Strategy is what Assign, Announce and Offer write to the Lease.
	Strategy string
	// Lease is the Lease as it was observed; nil for none.
	Lease *coordinationv1.Lease
	// Silence is the time since a renewal, a claim or an assignment was observed; 0 for
	// none and without a holder.
	Silence time.Duration
	// WakeAt is the time to decide again without a change: the earliest of all
	// deadlines. It is zero if and only if there are no candidates.
	WakeAt time.Time
	// Why is the reason, for the log.
	Why string

	// first says that the candidate was not pinged before in this round.
	first bool
}

// A Candidate is what a LeaseCandidate object states.
type Candidate struct {
	Name        string    // of the object, and the holder identity
	UID         types.UID // of the object
	Version     string    // its resourceVersion
	Peer        spec.Peer // as strategies see it
	Strategy    string    // the one that it wants
	Invalid     error     // why it can't be considered; nil if it can
	Terminating bool      // it is being deleted
	RenewTime   int64     // microseconds of the candidate's clock, 0 for none
	PingTime    int64     // of the last ping, 0 for none
}

// An Event is a fact about one Lease: one of the types below.
type Event interface{ isEvent() }

type (
	// Tick precedes each decision.
	Tick struct {
		// OffersFrom is the time of the next try of an offer. It is in the future if the
		// API server dropped one.
		OffersFrom time.Time
	}
	// Idle says that the decision was to wait.
	Idle struct{}

	// LeaseSeen is a Lease that is new or has changed, by the watch.
	LeaseSeen struct {
		Lease *coordinationv1.Lease // as it is stored
	}
	// LeaseGone says that a Lease was deleted.
	LeaseGone struct {
		UID types.UID // of the Lease
	}
	// CandidateSeen is a LeaseCandidate that is new or has changed, by the watch.
	CandidateSeen struct {
		Candidate Candidate // as it is stored
		Fresh     bool      // it was created just now
	}
	// CandidateGone says that a LeaseCandidate was deleted, or is for another Lease.
	CandidateGone struct {
		Name string    // of the LeaseCandidate
		UID  types.UID // of the LeaseCandidate
	}

	// Sent says that a request was sent.
	Sent struct {
		Decision Decision // as Next returned it
	}
	// Answered is the object in the answer to a request.
	Answered struct {
		To        Decision              // the request
		Lease     *coordinationv1.Lease // as it is stored; nil for none
		Candidate *Candidate            // as it is stored; nil for none
		Gone      bool                  // the object of the request does not exist
		Read      bool                  // the answer is that of a GET, which has the object or says that it is gone
	}
	// Concluded is the result of a request.
	Concluded struct {
		To         Decision      // the request
		Result     Result        // its kind
		RetryAfter time.Duration // the wait that the API server asked for
	}
)

func (Tick) isEvent()          {}
func (Idle) isEvent()          {}
func (LeaseSeen) isEvent()     {}
func (LeaseGone) isEvent()     {}
func (CandidateSeen) isEvent() {}
func (CandidateGone) isEvent() {}
func (Sent) isEvent()          {}
func (Answered) isEvent()      {}
func (Concluded) isEvent()     {}

// A Result is a kind of result of a request.
type Result uint8

// The results that lead to different decisions.
const (
	// OK is a success, or an offer that the API server dropped.
	OK Result = iota
	// Conflict means that the object is not as it was known.
	Conflict
	// Refused means that the request will fail until an operator acts.
	Refused
	// Unauthorized means that the credentials are wrong.
	Unauthorized
	// Failed is anything else.
	Failed
)

// Effects are what follows from a fact.
type Effects struct {
	// Decide says that a decision is needed now.
	Decide bool
	// Silent has the candidates with a late ping, each once for a ping.
	Silent []string
	// Invalid is why the candidate can't be considered, if that was not reported.
	Invalid error
}

// The longest waits after failures, and after those that last until an operator acts.
const (
	// FailedRetry is the longest wait after a failure.
	FailedRetry = 30 * time.Second
	// RefusedRetry is the longest wait after a failure that lasts until an operator acts.
	RefusedRetry = 5 * time.Minute
)

// The pace of requests about one Lease, except for the first ping of a candidate in a
// round. An election needs two or three. More requests mean that another client undoes
// the writes.
const (
	requestBurst = 12
	requestRate  = 1 // a second
)
