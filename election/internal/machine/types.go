// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// Rules are the part of a candidate that does not change: its identity, and the fields
// of election.Config and election.Timing that decisions need.
type Rules struct {
	ID        string               // the holder identity of this candidate
	Lease     types.NamespacedName // Config.Lease
	Strategy  spec.Strategy        // Config.Strategy
	Exclusive bool                 // Config.ExclusiveIdentity
	// Coordinated selects the registry LeaseCandidates instead of OnLease.
	Coordinated bool

	LeaseDuration   time.Duration // Timing.LeaseDuration
	RenewDeadline   time.Duration // Timing.RenewDeadline
	RenewInterval   time.Duration // Timing.RenewInterval
	AckTimeout      time.Duration // to accept an offer of the lease
	MinTenure       time.Duration // Timing.MinTenure
	CallTimeout     time.Duration // Config.CallTimeout
	ShutdownTimeout time.Duration // Config.ShutdownTimeout

	Labels          map[string]string       // Config.Labels
	OwnerReferences []metav1.OwnerReference // Config.OwnerReferences

	// Random returns a number in [0,1).
	Random func() float64
}

// The times that can't be configured.
const (
	// Stagger is the time between the claims of candidates of consecutive ranks
	// when the lease is free.
	Stagger = 500 * time.Millisecond
	// MaxRank is the rank from which all candidates claim at the same time.
	MaxRank = 5
	// RenewJitter is the share of RenewInterval by which a renewal is early or
	// late.
	RenewJitter = 0.1
	// LeaderRetry, StandbyRetry and HintRetry are the longest waits after failures:
	// of a leader, of the others, and of writes on which only preference depends.
	LeaderRetry, StandbyRetry, HintRetry = time.Second, 5 * time.Second, 30 * time.Second
	// MaxDrift is the largest difference between the advances of the wall clock and the
	// monotonic clock since a renewal. A larger one means that the machine was
	// suspended, because the monotonic clock stands still then.
	MaxDrift = time.Second
	// IdleWake bounds the time between two decisions, for liveness.
	IdleWake = 10 * time.Second
	// SuffixLength is the number of random digits in a holder identity.
	SuffixLength = 8
	// Never is later than any time that a candidate reaches.
	Never = 1<<63 - 1

	// publishSpread is the time within which candidates that start together
	// publish their records.
	publishSpread = 250 * time.Millisecond
	// publishGap is the least time between two writes of a record, except for an ack.
	publishGap = time.Second
	// changeGap is the least time between two records with different content.
	changeGap = 10 * time.Second
	// minCall is the least time that a leader gives to a call.
	minCall = 500 * time.Millisecond
	// minRetry is the shortest wait of a leader whose time runs out.
	minRetry = 100 * time.Millisecond
	// watchDriftEvery is the time between two comparisons of a leader's clocks.
	watchDriftEvery = time.Second
)

// An Op names a request.
type Op string

// The requests about the Lease are those of package election. The others are about
// LeaseCandidates.
const (
	Read     Op = "read"
	Claim    Op = "claim"
	Renew    Op = "renew"
	HandOver Op = "handover"
	Publish  Op = "publish"
	Withdraw Op = "withdraw"

	Inquire Op = "inquire" // the GET of another candidate's LeaseCandidate
	Create  Op = "create"
	Update  Op = "update"
	Delete  Op = "delete"
)

// An Event is a fact: one of the types below.
type Event interface{ isEvent() }

type (
	// Tick says only what time it is. It precedes each decision.
	Tick struct{}

	// Sent says that a request about the Lease was sent.
	Sent struct {
		Action Step // as Next returned it
	}
	// Answered is the answer to a request.
	Answered[T any] struct {
		Op      Op      // the request
		At      Instant // when it was sent
		Object  T       // as it was stored or read; none after a failure
		Outcome         // of the request
	}
	// Seen is an event of the watch.
	Seen[T any] struct {
		Object  T    // as it is stored, or as it was when it was deleted
		Deleted bool // it does not exist any more
	}
	// WatchBegan says that a watch began without a version, so that its first event is
	// the state at its beginning.
	WatchBegan struct{}
	// WatchWorks says that the watch has delivered something.
	WatchWorks struct{}
	// WatchLost says that the watch has lost its place, or was refused.
	WatchLost struct {
		Gone bool // it has lost its place
	}

	// Described is a new description of this candidate.
	Described struct {
		Self spec.Peer // without the identity on the Lease
	}
	// Expired says that the timer of the term fired before a renewal was processed, or
	// that the work could not begin in time.
	Expired struct{}
	// WorkReturned says that the work has returned.
	WorkReturned struct{}
	// Stopped says that Run ends.
	Stopped struct{}
	// Resigned says that the program wants to lead no longer.
	Resigned struct{}
	// HolderGone says that the process of a holder has ended for certain.
	HolderGone struct {
		Identity string // election.Candidate.HolderGone
	}
	// Inquired is the answer to Inquire.
	Inquired struct {
		Name      string                              // of the LeaseCandidate
		Candidate *coordinationv1beta1.LeaseCandidate // none after a failure
		Outcome                                       // of the request
	}
	// Wanted says how the LeaseCandidate should be.
	Wanted struct {
		Candidacy Candidacy // of Machine.Candidacy
	}
)

func (Tick) isEvent()         {}
func (Sent) isEvent()         {}
func (Answered[T]) isEvent()  {}
func (Seen[T]) isEvent()      {}
func (WatchBegan) isEvent()   {}
func (WatchWorks) isEvent()   {}
func (WatchLost) isEvent()    {}
func (Described) isEvent()    {}
func (Expired) isEvent()      {}
func (WorkReturned) isEvent() {}
func (Stopped) isEvent()      {}
func (Resigned) isEvent()     {}
func (HolderGone) isEvent()   {}
func (Inquired) isEvent()     {}
func (Wanted) isEvent()       {}

// An Answer is a kind of answer to a request.
type Answer uint8

// The answers that lead to different decisions.
const (
	// OK is a success.
	OK Answer = iota
	// Missing is a 404.
	Missing
	// Conflict means that another client has written, or that the object exists.
	Conflict
	// Cancelled means that the request was cancelled.
	Cancelled
	// Failed is anything else.
	Failed
)

// An Outcome is the result of a request.
type Outcome struct {
	Answer Answer // the kind of answer
	// Unsure says that a write may have been stored although it failed.
	Unsure bool
	// RetryAfter is the wait that the API server asked for; 0 for none.
	RetryAfter time.Duration
}

// An Effect is what the driver must carry out or report: one of the types below.
type Effect interface{ isEffect() }

type (
	// TermStarted: a term began. The work must start.
	TermStarted struct {
		Token       uint64        // election.TermStarted.Token
		Transitions int32         // election.TermStarted.Transitions
		Vacant      time.Duration // election.TermStarted.Vacant
		Sent        Instant       // when the claim was sent
		Deadline    time.Duration // when the work must be cancelled
	}
	// TermExtended: a renewal was stored.
	TermExtended struct {
		Sent     Instant       // when the renewal was sent
		Deadline time.Duration // when the work must be cancelled
	}
	// WorkCancelled: the context of the work must be cancelled.
	WorkCancelled struct {
		Cause Cause // not NoCause
	}
	// TermEnded: the work has returned.
	TermEnded struct {
		Token    uint64        // election.TermEnded.Token
		Cause    Cause         // why the work was cancelled
		Duration time.Duration // election.TermEnded.Duration
		Drained  time.Duration // election.TermEnded.Drained
	}
	// LeaderChanged: another holder was observed.
	LeaderChanged struct {
		From, To string // election.LeaderChanged.From and To
	}
	// Offered: an offer of the lease to a candidate was stored.
	Offered struct {
		To string // election.Offered.To
	}
	// OfferEnded: the offer was accepted or withdrawn.
	OfferEnded struct {
		To       string        // election.OfferEnded.To
		Accepted bool          // election.OfferEnded.Accepted
		Elapsed  time.Duration // election.OfferEnded.Elapsed
	}
	// MixedRegistries: other candidates use the other registry.
	MixedRegistries struct{}
	// Broken: an invariant did not hold, or a change of state was refused.
	Broken struct {
		Err error // which invariant is broken
	}
)

func (TermStarted) isEffect()     {}
func (TermExtended) isEffect()    {}
func (WorkCancelled) isEffect()   {}
func (TermEnded) isEffect()       {}
func (LeaderChanged) isEffect()   {}
func (Offered) isEffect()         {}
func (OfferEnded) isEffect()      {}
func (MixedRegistries) isEffect() {}
func (Broken) isEffect()          {}

// A Cause is why the context of the work was cancelled.
type Cause uint8

// The causes. Those except for NoCause and Stopping are errors of package election.
const (
	NoCause    Cause = iota // it was not cancelled
	Lost                    // ErrLost
	TimeOut                 // ErrExpired
	Superseded              // ErrSuperseded
	Resigning               // ErrResigned
	Stopping                // Run ends
)

// String returns the name of the cause.
func (c Cause) String() string {
	return [...]string{"no cause", "lost", "expired", "superseded", "resigned", "stopped"}[c]
}

// A Watch says what to do about the watch of an object.
type Watch uint8

const (
	// Unwatched: there should be no stream.
	Unwatched Watch = iota
	// Keep: a stream goes on, and none begins.
	Keep
	// Watched: there should be a stream.
	Watched
)

// An Action is what to do next about an object.
type Action[T any] struct {
	Op Op // of a request, "" for none
	// Object is the object to write: by PUT if it has a resourceVersion, else by POST.
	// Inquire has the name of the object to read.
	Object  T
	Timeout time.Duration // of the request
	Abort   bool          // cancel the request under way
	Wake    time.Duration // when to decide again if no event comes earlier

	Watch Watch // what to do about the watch
	// Stream is another number if a stream that goes on must end, because it waits for
	// versions that will not come.
	Stream int
	// Version is the version from which a stream begins, "" for the present state.
	Version string
}

// Step is an action about the Lease.
type Step = Action[*coordinationv1.Lease]

// A Candidacy is the state that a LeaseCandidate should have.
type Candidacy struct {
	self     spec.Peer
	present  bool   // it should exist
	waits    bool   // it should not be written, because a coordinator would choose the candidate
	stopping bool   // it should not, and Run waits for its deletion
	inquiry  string // the name of another candidate's to read; "" for none
}

// Stopping reports whether Run waits for the deletion.
func (c Candidacy) Stopping() bool { return c.stopping }
