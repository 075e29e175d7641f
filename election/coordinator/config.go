// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coordinationv1beta1client "k8s.io/client-go/kubernetes/typed/coordination/v1beta1"
	"k8s.io/client-go/util/workqueue"

	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/lifecycle"
)

// The defaults of Config, besides those of Timing and Config.
const (
	// DefaultCandidateTTL is how long after it was last renewed a
	// LeaseCandidate counts, and exists. It is that of the API server's
	// controller.
	DefaultCandidateTTL = 30 * time.Minute
	// DefaultWorkers is how many Leases are worked on at once.
	DefaultWorkers = 8
	// DefaultName is the name of a Controller in logs, metrics and
	// health checks.
	DefaultName = "election-controller"
)

// BuiltInLease is the name of the Lease, in the namespace kube-system,
// that the leader election controllers of all API servers of a cluster compete
// for. An [election.Candidate] that holds it displaces them, see the package
// comment.
const BuiltInLease = "leader-election-controller"

// Config configures a Controller. The zero value of every optional
// field means the default that its comment states.
type Config struct {
	// Required. Client reads, watches and writes Leases.
	// clientset.CoordinationV1() is one. Its rate limit should be off (QPS -1):
	// that of client-go, 5 a second, is used up when some Leases lose their
	// holders at once.
	Client coordinationv1client.LeasesGetter
	// Required. Candidates reads, watches and writes LeaseCandidates.
	// clientset.CoordinationV1beta1() is one.
	Candidates coordinationv1beta1client.LeaseCandidatesGetter

	// Namespaces are those to work in, with a list and a watch for each, for a
	// client that has its permissions by Role. Default: all but
	// kube-node-lease, with one list and watch together.
	Namespaces []string
	// Strategies are those that the controller carries out besides
	// election.OldestEmulationVersion, First and NewestVersion. Of a strategy that
	// is not among them it takes no decision: somebody else has to. A
	// LeaseCandidate tells nothing but its versions, so a strategy can go by
	// those, and by the name. Default: none.
	Strategies []election.Strategy
	// LeaseDuration is written to a Lease with a new holder, who replaces it by
	// its own. It is how long the candidate has to notice, and what a Lease
	// without a duration is taken to have. Whole seconds, at least two. Default:
	// [election.DefaultLeaseDuration].
	LeaseDuration time.Duration
	// AckTimeout is how long a candidate has to answer a ping, and how long the
	// answer holds. Default: [election.DefaultAckTimeout].
	AckTimeout time.Duration
	// MinTenure is how long a holder is left alone before it is asked to give
	// way to a better candidate. Default: [election.DefaultMinTenure].
	MinTenure time.Duration
	// CandidateTTL is how long a LeaseCandidate counts after it was last seen to
	// be renewed. Then it is deleted. At least a quarter of an hour, since
	// candidates renew theirs every five minutes or ten. Default:
	// DefaultCandidateTTL.
	CandidateTTL time.Duration
	// CallTimeout is the deadline of one API call; a list, which may be long,
	// has ten times as much. Default: [election.DefaultCallTimeout].
	CallTimeout time.Duration
	// Workers is the largest number of Leases worked on, and so of requests under
	// way, at once. Default: DefaultWorkers.
	Workers int

	// Name is the name in logs, metrics and health checks. Default:
	// DefaultName.
	Name string
	// ErrorHandler is called with errors that the controller recovers from: with the
	// first of each class while requests fail with it, with a
	// *CandidateInvalidError for each LeaseCandidate that can't be considered,
	// and with ErrNoCandidateAPI and ErrOffersDropped once. It is called
	// synchronously and must not block. Default: the logger of Run's context.
	ErrorHandler func(ctx context.Context, err error, msg string)
	// Hooks are called on what happens. Default: none.
	Hooks Hooks
	// QueueMetrics provides the metrics of the queue of Leases. Default: none.
	QueueMetrics workqueue.MetricsProvider
}

// minCandidateTTL is more than the time in which candidates renew theirs.
const minCandidateTTL = 15 * time.Minute

// complete fills in the defaults and returns all that is wrong.
func (cfg *Config) complete() error {
	var problems field.ErrorList
	at := func(name string) *field.Path { return field.NewPath(name) }
	if cfg.Client == nil {
		problems = append(problems, field.Required(at("Client"), "for example clientset.CoordinationV1()"))
	}
	if cfg.Candidates == nil {
		problems = append(problems, field.Required(at("Candidates"), "for example clientset.CoordinationV1beta1()"))
	}
	problems = append(problems, cfg.completeNamespaces()...)
	problems = append(problems, cfg.completeStrategies()...)
	problems = append(problems, cfg.completeControllerTimes()...)
	problems = append(problems, lifecycle.DefaultInt("Workers", &cfg.Workers, DefaultWorkers, 1)...)
	if cfg.Name == "" {
		cfg.Name = DefaultName
	}
	return lifecycle.InvalidConfig("coordinator", problems)
}

func (cfg *Config) completeNamespaces() (problems field.ErrorList) {
	seen := map[string]bool{}
	for i, ns := range cfg.Namespaces {
		path := field.NewPath("Namespaces").Index(i)
		for _, msg := range apivalidation.ValidateNamespaceName(ns, false) {
			problems = append(problems, field.Invalid(path, ns, msg))
		}
		switch {
		case ns == spec.NodeLeases:
			problems = append(problems, field.Invalid(path, ns, "is for the heartbeats of nodes"))
		case seen[ns]:
			problems = append(problems, field.Duplicate(path, ns))
		}
		seen[ns] = true
	}
	cfg.Namespaces = slices.Clone(cfg.Namespaces)
	return problems
}

func (cfg *Config) completeStrategies() (problems field.ErrorList) {
	seen := map[string]bool{}
	for _, s := range builtInStrategies() {
		seen[s.Name()] = true
	}
	for i, s := range cfg.Strategies {
		path := field.NewPath("Strategies").Index(i)
		if s == nil {
			problems = append(problems, field.Required(path, ""))
			continue
		}
		for _, msg := range spec.CheckStrategyName(s.Name()) {
			problems = append(problems, field.Invalid(path, s.Name(), msg))
		}
		if seen[s.Name()] {
			problems = append(problems, field.Duplicate(path, s.Name()))
		}
		seen[s.Name()] = true
	}
	cfg.Strategies = slices.Clone(cfg.Strategies)
	return problems
}

func (cfg *Config) completeControllerTimes() (problems field.ErrorList) {
	duration := lifecycle.DefaultDuration("LeaseDuration", &cfg.LeaseDuration, election.DefaultLeaseDuration, minAssigned)
	if len(duration) == 0 && cfg.LeaseDuration%time.Second != 0 {
		duration = append(duration, field.Invalid(field.NewPath("LeaseDuration"), cfg.LeaseDuration.String(), "must be whole seconds: the API has no others"))
	}
	if cfg.LeaseDuration > spec.MaxLeaseDuration {
		duration = append(duration, field.Invalid(field.NewPath("LeaseDuration"), cfg.LeaseDuration.String(), fmt.Sprintf("must be at most %v", spec.MaxLeaseDuration)))
	}
	problems = append(problems, duration...)
	for _, d := range []struct {
		name         string
		value        *time.Duration
		def, minimum time.Duration
	}{
		{"AckTimeout", &cfg.AckTimeout, election.DefaultAckTimeout, time.Millisecond},
		{"MinTenure", &cfg.MinTenure, election.DefaultMinTenure, time.Millisecond},
		{"CandidateTTL", &cfg.CandidateTTL, DefaultCandidateTTL, minCandidateTTL},
		{"CallTimeout", &cfg.CallTimeout, election.DefaultCallTimeout, spec.MinCallTimeout},
	} {
		problems = append(problems, spec.DefaultDuration(d.name, d.value, d.def, d.minimum)...)
	}
	cfg.CallTimeout = min(cfg.CallTimeout, spec.MaxLeaseDuration/listFactor)
	return problems
}

// minAssigned is the shortest Lease that can be assigned.
const minAssigned = 2 * time.Second

// builtInStrategies are those that every Controller carries out.
func builtInStrategies() []election.Strategy {
	return []election.Strategy{election.OldestEmulationVersion(), election.First(), election.NewestVersion()}
}

// rules returns what decide goes by.
func (cfg *Config) rules() *rules {
	r := &rules{
		strategies: map[string]election.Strategy{},
		ackTimeout: cfg.AckTimeout,
		minTenure:  cfg.MinTenure,
		ttl:        cfg.CandidateTTL,
		duration:   cfg.LeaseDuration,
	}
	for _, s := range append(builtInStrategies(), cfg.Strategies...) {
		r.strategies[s.Name()] = s
	}
	return r
}

var (
	// ErrAlreadyRun is returned by Run when it was called before.
	ErrAlreadyRun = errors.New("coordinator: already run: a Controller runs once")

	// ErrOffersDropped is reported by a [Controller] when the API server does
	// not keep the field preferredHolder of a Lease, because the feature gate
	// CoordinatedLeaderElection is off. A better candidate then takes over only
	// when the term of the holder ends by itself. It is tried again every hour
	// or two.
	ErrOffersDropped = errors.New("coordinator: the API server drops preferredHolder (feature gate CoordinatedLeaderElection): better candidates wait until the term of the holder ends")

	// errAltered is the failure of a write that went well and did not have its
	// effect, as an admission webhook may bring about.
	errAltered = errors.New("the API server has stored something else than it was sent")
)

// CandidateInvalidError is reported by a [Controller] for a LeaseCandidate that
// can't be considered, once for each. The others are not affected.
type CandidateInvalidError struct {
	// Candidate is the LeaseCandidate.
	Candidate types.NamespacedName
	// Err is a utilerrors.Aggregate of *field.Error with all that is wrong.
	Err error
}

// Error implements error.
func (e *CandidateInvalidError) Error() string {
	return fmt.Sprintf("coordinator: LeaseCandidate %s is ignored: %v", e.Candidate, e.Err)
}

// Unwrap returns what is wrong.
func (e *CandidateInvalidError) Unwrap() error { return e.Err }

// PermissionError is reported by a [Controller] that may not do what it must.
// It tries again, more and more rarely.
type PermissionError struct {
	// Verb is get, list, create, patch or delete. What is listed is watched,
	// too.
	Verb string
	// Resource is leases or leasecandidates.
	Resource string
	// Namespace is where; "" for everywhere.
	Namespace string
	// Err is the answer of the API server.
	Err error
}

// Error implements error.
func (e *PermissionError) Error() string {
	where := "all namespaces"
	if e.Namespace != "" {
		where = "namespace " + e.Namespace
	}
	return fmt.Sprintf("coordinator: not allowed to %s %s in %s: %v", e.Verb, e.Resource, where, e.Err)
}

// Unwrap returns the answer of the API server.
func (e *PermissionError) Unwrap() error { return e.Err }

// Hooks report the actions of a [Controller]. Each is optional. They are
// called synchronously and without locks by a goroutine of Run, one at a time for
// each Lease, and must not block. They may call every method of the Controller.
type Hooks struct {
	// Elected is called after a candidate was made the holder of a Lease.
	Elected func(Elected)
	// Preferred is called after the holder of a Lease was asked to give way to
	// a better candidate, by the field preferredHolder.
	Preferred func(Preferred)
	// Silent is called when a candidate has left a ping unanswered. It is not
	// considered again before it renews its LeaseCandidate.
	Silent func(Silent)
	// Collected is called after a LeaseCandidate was deleted because it had not
	// been renewed for CandidateTTL.
	Collected func(Collected)
	// RequestFailed is called after each request about a Lease that failed.
	RequestFailed func(RequestFailed)
}

// Elected is the argument of Hooks.Elected.
type Elected struct {
	// Lease is what the candidate was elected for.
	Lease types.NamespacedName
	// Holder is the candidate.
	Holder string
	// Previous is the holder before; "" for none.
	Previous string
	// Strategy is by what the candidate is the best.
	Strategy string
	// Unrenewed is the time since the last renewal that was observed; 0 if the Lease
	// did not exist or had no holder.
	Unrenewed time.Duration
}

// Preferred is the argument of Hooks.Preferred.
type Preferred struct {
	// Lease is what it is about.
	Lease types.NamespacedName
	// Holder is who is asked to give way, and PreferredHolder to whom.
	Holder, PreferredHolder string
}

// Silent is the argument of Hooks.Silent.
type Silent struct {
	// Lease is what the candidate stands for.
	Lease types.NamespacedName
	// Candidate is the name of the LeaseCandidate.
	Candidate string
}

// Collected is the argument of Hooks.Collected.
type Collected struct {
	// Lease is what the candidate stood for.
	Lease types.NamespacedName
	// Candidate is the name of the LeaseCandidate.
	Candidate string
}

// RequestFailed is the argument of Hooks.RequestFailed.
type RequestFailed struct {
	// Lease is what the request was about.
	Lease types.NamespacedName
	// Action is what was to be done: look, ping, unping, assign, announce, offer,
	// retract or collect. It is fit for a label of a metric, and so is Class, the
	// kind of failure: Timeout, Conflict, Forbidden, Throttled, Server …
	Action, Class string
	// Err is the error.
	Err error
}
