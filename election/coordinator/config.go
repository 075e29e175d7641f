// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coordinationv1beta1client "k8s.io/client-go/kubernetes/typed/coordination/v1beta1"

	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/coordinator/internal/contest"
	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/lifecycle"
)

// DefaultName is the name of a Controller in logs and health checks.
const DefaultName = "election-controller"

// The times of all contests. Candidates of package election and of client-go have
// defaults that go with them.
const (
	// leaseDuration is the duration of a Lease that the controller assigns: the time in
	// which the candidate must claim it, with its own duration. It is also assumed for a
	// Lease without a duration.
	leaseDuration = election.DefaultLeaseDuration
	// ackTimeout is the time that a candidate has to answer a ping, and the time for
	// which the answer is valid.
	ackTimeout = 5 * time.Second
	// minTenure is the time that a holder leads before the controller asks it to give
	// way to a better candidate.
	minTenure = election.DefaultMinTenure
	// candidateTTL is the time after its last observed renewal for which a
	// LeaseCandidate counts, the same as in the API server's controller. Then it is
	// deleted. Candidates renew every five or ten minutes.
	candidateTTL = 30 * time.Minute
	// callTimeout is the deadline of one API call, and listTimeout that of a list, which
	// may be long.
	callTimeout = election.DefaultCallTimeout
	listTimeout = 10 * callTimeout
	// workers is the largest number of Leases that are reconciled concurrently, and so
	// of concurrent requests.
	workers = 8
)

// BuiltInLease is the name of the Lease in kube-system for which the leader election
// controllers of all API servers of a cluster compete. An [election.Candidate] that
// holds it displaces them, see the package comment.
const BuiltInLease = "leader-election-controller"

// Config configures a Controller. The zero value of every optional field means the
// default that its comment states.
type Config struct {
	// Required. Client reads, watches and writes Leases.
	// clientset.CoordinationV1() is one. It should have no rate limit (QPS -1),
	// because the default of client-go is 5 requests a second, and several Leases may
	// lose their holders at once.
	Client coordinationv1client.LeasesGetter
	// Required. Candidates reads, watches and writes LeaseCandidates.
	// clientset.CoordinationV1beta1() is one.
	Candidates coordinationv1beta1client.LeaseCandidatesGetter

	// Namespace restricts the controller to one namespace, for a client that has its
	// permissions from a Role. Default: all namespaces except kube-node-lease.
	Namespace string
	// Strategies are supported in addition to election.OldestEmulationVersion, First and
	// NewestVersion. Leases with other strategies are ignored, because other components
	// may handle them. A strategy gets the versions and the creation time of a
	// LeaseCandidate. It gets Priority and Attributes only for candidates of package
	// election, because only these store them, in an annotation. If a strategy panics, the
	// controller reports this and tries again for that Lease. Candidates need it whose
	// election has a strategy of the program, such as election.HighestPriority: Kubernetes
	// leaves the Leases of such third-party strategies to a controller of their own
	// (kubernetes#129973). Default: none.
	Strategies []election.Strategy

	// Name is the name in logs and health checks. Default:
	// DefaultName.
	Name string
	// ErrorHandler is called with errors that the controller recovers from. While
	// requests fail with errors of one class, it is called for the first error only. It is
	// called with a *CandidateInvalidError for each LeaseCandidate that is ignored, and
	// once with ErrNoCandidateAPI and ErrOffersDropped. It is called synchronously, maybe
	// by several goroutines at once, and must not block. Default: the errors are logged
	// with the logger of Run's context.
	ErrorHandler func(ctx context.Context, err error, msg string)
	// Hooks report events. Default: none.
	Hooks Hooks
}

// complete sets the defaults and returns all problems.
func (cfg *Config) complete() error {
	var problems []error
	problems = append(problems, lifecycle.Required("Client", !lifecycle.IsNil(cfg.Client), "for example clientset.CoordinationV1()")...)
	problems = append(problems, lifecycle.Required("Candidates", !lifecycle.IsNil(cfg.Candidates), "for example clientset.CoordinationV1beta1()")...)
	if cfg.Namespace != metav1.NamespaceAll {
		problems = append(problems, spec.CheckNamespace(field.NewPath("Namespace"), cfg.Namespace)...)
	}
	_, wrong := cfg.strategies()
	problems = append(problems, wrong...)
	cfg.Name = cmp.Or(cfg.Name, DefaultName)
	return lifecycle.InvalidConfig("coordinator", problems)
}

// strategies returns the strategies that the Controller carries out by name, and the
// problems of Config.Strategies.
func (cfg *Config) strategies() (strategies map[string]election.Strategy, problems []error) {
	strategies = map[string]election.Strategy{}
	for _, s := range []election.Strategy{election.OldestEmulationVersion(), election.First(), election.NewestVersion()} {
		strategies[s.Name()] = s
	}
	for i, s := range cfg.Strategies {
		path := field.NewPath("Strategies").Index(i)
		if s == nil {
			problems = append(problems, field.Required(path, ""))
			continue
		}
		problems = append(problems, spec.CheckStrategyName(path, s.Name())...)
		if strategies[s.Name()] != nil {
			problems = append(problems, field.Duplicate(path, s.Name()))
		}
		strategies[s.Name()] = s
	}
	return strategies, problems
}

// rules returns the part of the configuration that decisions need.
func (cfg *Config) rules() *contest.Rules {
	strategies, _ := cfg.strategies()
	r := &contest.Rules{
		LeaseDuration: leaseDuration, AckTimeout: ackTimeout, MinTenure: minTenure, CandidateTTL: candidateTTL,
		Strategies: make(map[string]spec.Strategy, len(strategies)), Random: rand.Float64,
	}
	for name, s := range strategies {
		r.Strategies[name] = ranking{s}
	}
	return r
}

// ranking is a strategy as decisions need it.
type ranking struct{ election.Strategy }

func (s ranking) Compare(a, b spec.Peer) int {
	return s.Strategy.Compare(election.Peer(a), election.Peer(b))
}

func (s ranking) Eligible(p spec.Peer) bool { return election.Eligible(s.Strategy, election.Peer(p)) }

func (s ranking) Preempts(challenger, incumbent spec.Peer) bool {
	p, ok := s.Strategy.(election.Preempter)
	return !ok || p.Preempts(election.Peer(challenger), election.Peer(incumbent))
}

var (
	// ErrAlreadyRun is returned by Run when it was called before.
	ErrAlreadyRun = errors.New("coordinator: already run: a Controller runs once")

	// ErrOffersDropped is reported by a [Controller] if the API server does not
	// store the field preferredHolder of a Lease, because the feature gate
	// CoordinatedLeaderElection is off. A better candidate then takes over when the
	// term of the holder ends. The controller tries again every one to two hours.
	ErrOffersDropped = errors.New("coordinator: the API server drops preferredHolder (feature gate CoordinatedLeaderElection): better candidates wait until the term of the holder ends")

	// errAltered is the error of a successful write without effect. The cause may be
	// an admission webhook.
	errAltered = errors.New("the API server has stored something else than it was sent")
)

// CandidateInvalidError is reported by a [Controller] once for each LeaseCandidate
// that it ignores. Other candidates are not affected.
type CandidateInvalidError struct {
	// Candidate is the LeaseCandidate.
	Candidate types.NamespacedName
	// Err is a utilerrors.Aggregate of *field.Error with all problems.
	Err error
}

// Error implements error.
func (e *CandidateInvalidError) Error() string {
	return fmt.Sprintf("coordinator: LeaseCandidate %s is ignored: %v", e.Candidate, e.Err)
}

// Unwrap returns the problems.
func (e *CandidateInvalidError) Unwrap() error { return e.Err }

// Hooks report the actions of a [Controller]. Each is optional. They are
// called synchronously and without locks by a goroutine of Run, one at a time for
// each Lease, and must not block. They may call every method of the Controller. A panic
// in a hook is reported and has no other effect.
type Hooks struct {
	// Elected is called after a candidate was made the holder of a Lease.
	Elected func(Elected)
	// Preferred is called after the field preferredHolder asked the holder of a Lease
	// to give way to a better candidate.
	Preferred func(Preferred)
	// Silent is called when a candidate did not answer a ping within five seconds. The
	// candidate is ignored until it renews its LeaseCandidate.
	Silent func(Silent)
	// Collected is called after a LeaseCandidate was deleted because its candidate
	// did not renew it for half an hour.
	Collected func(Collected)
	// RequestFailed is called after each request about a Lease that failed.
	RequestFailed func(RequestFailed)
}

// Elected is the argument of Hooks.Elected.
type Elected struct {
	// Lease is the Lease of the election.
	Lease types.NamespacedName
	// Holder is the candidate.
	Holder string
	// Previous is the previous holder, "" for none.
	Previous string
	// Strategy is the name of the strategy that prefers the candidate.
	Strategy string
	// Unrenewed is the time since the Lease was last observed to be renewed, claimed or
	// assigned. It is 0 if the Controller has not observed that, because it started later,
	// and if the Lease did not exist or had no holder.
	Unrenewed time.Duration
}

// Preferred is the argument of Hooks.Preferred.
type Preferred struct {
	// Lease is the Lease with the field preferredHolder.
	Lease types.NamespacedName
	// Holder must give way to PreferredHolder.
	Holder, PreferredHolder string
}

// Silent is the argument of Hooks.Silent.
type Silent struct {
	// Lease is the Lease for which the candidate stands.
	Lease types.NamespacedName
	// Candidate is the name of the LeaseCandidate.
	Candidate string
}

// Collected is the argument of Hooks.Collected.
type Collected struct {
	// Lease is the Lease for which the candidate stood.
	Lease types.NamespacedName
	// Candidate is the name of the LeaseCandidate.
	Candidate string
}

// ActionWatch is RequestFailed.Action of a list or watch.
const ActionWatch = "watch"

// RequestFailed is the argument of Hooks.RequestFailed.
type RequestFailed struct {
	// Lease is the Lease of the request, or of its LeaseCandidate; zero for a watch.
	Lease types.NamespacedName
	// Action is look, ping, unping, assign, announce, offer, retract, collect or
	// [ActionWatch].
	// Class is the kind of failure: Timeout, Conflict, Forbidden, Throttled,
	// Server … Both are suitable for metric labels.
	Action, Class string
	// Err is the error.
	Err error
}
