// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"fmt"
	"slices"
	"time"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coordinationv1beta1client "k8s.io/client-go/kubernetes/typed/coordination/v1beta1"
	"k8s.io/client-go/util/workqueue"

	"github.com/kubewright/kubewright/internal/lifecycle"
)

// The defaults of ControllerConfig, besides those of Timing and Config.
const (
	// DefaultCandidateTTL is how long after it was last renewed a
	// LeaseCandidate counts, and exists. It is that of the API server's
	// controller.
	DefaultCandidateTTL = 30 * time.Minute
	// DefaultControllerWorkers is how many Leases are worked on at once.
	DefaultControllerWorkers = 8
	// DefaultControllerName is the name of a Controller in logs, metrics and
	// health checks.
	DefaultControllerName = "election-controller"
)

// BuiltInControllerLease is the name of the Lease, in the namespace kube-system,
// that the leader election controllers of all API servers of a cluster compete
// for. A [Candidate] that holds it displaces them, see [Controller].
const BuiltInControllerLease = "leader-election-controller"

// ControllerConfig configures a Controller. The zero value of every optional
// field means the default that its comment states.
type ControllerConfig struct {
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
	// [OldestEmulationVersion], [First] and [NewestVersion]. Of a strategy that
	// is not among them it takes no decision: somebody else has to. A
	// LeaseCandidate tells nothing but its versions, so a strategy can go by
	// those, and by the name. Default: none.
	Strategies []Strategy
	// LeaseDuration is written to a Lease with a new holder, who replaces it by
	// its own. It is how long the candidate has to notice, and what a Lease
	// without a duration is taken to have. Whole seconds, at least two. Default:
	// DefaultLeaseDuration.
	LeaseDuration time.Duration
	// AckTimeout is how long a candidate has to answer a ping, and how long the
	// answer holds. Default: DefaultAckTimeout.
	AckTimeout time.Duration
	// MinTenure is how long a holder is left alone before it is asked to give
	// way to a better candidate. Default: DefaultMinTenure.
	MinTenure time.Duration
	// CandidateTTL is how long a LeaseCandidate counts after it was last seen to
	// be renewed. Then it is deleted. At least a quarter of an hour, since
	// candidates renew theirs every five minutes or ten. Default:
	// DefaultCandidateTTL.
	CandidateTTL time.Duration
	// CallTimeout is the deadline of one API call; a list, which may be long,
	// has ten times as much. Default: DefaultCallTimeout.
	CallTimeout time.Duration
	// Workers is the largest number of Leases worked on, and so of requests under
	// way, at once. Default: DefaultControllerWorkers.
	Workers int

	// Name is the name in logs, metrics and health checks. Default:
	// DefaultControllerName.
	Name string
	// ErrorHandler is told of errors that the controller goes on from: of the
	// first of each class while requests fail with it, of a
	// *CandidateInvalidError for each LeaseCandidate that can't be considered,
	// and of ErrNoCandidateAPI and ErrOffersDropped once. It is called
	// synchronously and must not block. Default: the logger of Run's context.
	ErrorHandler func(ctx context.Context, err error, msg string)
	// Hooks are called on what happens. Default: none.
	Hooks ControllerHooks
	// QueueMetrics provides the metrics of the queue of Leases. Default: none.
	QueueMetrics workqueue.MetricsProvider
}

// minCandidateTTL is more than the time in which candidates renew theirs.
const minCandidateTTL = 15 * time.Minute

// complete fills in the defaults and returns all that is wrong.
func (cfg *ControllerConfig) complete() error {
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
	problems = append(problems, lifecycle.DefaultInt("Workers", &cfg.Workers, DefaultControllerWorkers, 1)...)
	if cfg.Name == "" {
		cfg.Name = DefaultControllerName
	}
	return lifecycle.InvalidConfig("election", problems)
}

func (cfg *ControllerConfig) completeNamespaces() (problems field.ErrorList) {
	seen := map[string]bool{}
	for i, ns := range cfg.Namespaces {
		path := field.NewPath("Namespaces").Index(i)
		for _, msg := range apivalidation.ValidateNamespaceName(ns, false) {
			problems = append(problems, field.Invalid(path, ns, msg))
		}
		switch {
		case ns == nodeLeases:
			problems = append(problems, field.Invalid(path, ns, "is for the heartbeats of nodes"))
		case seen[ns]:
			problems = append(problems, field.Duplicate(path, ns))
		}
		seen[ns] = true
	}
	cfg.Namespaces = slices.Clone(cfg.Namespaces)
	return problems
}

func (cfg *ControllerConfig) completeStrategies() (problems field.ErrorList) {
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
		for _, msg := range checkStrategyName(s.Name()) {
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

func (cfg *ControllerConfig) completeControllerTimes() (problems field.ErrorList) {
	duration := lifecycle.DefaultDuration("LeaseDuration", &cfg.LeaseDuration, DefaultLeaseDuration, minAssigned)
	if len(duration) == 0 && cfg.LeaseDuration%time.Second != 0 {
		duration = append(duration, field.Invalid(field.NewPath("LeaseDuration"), cfg.LeaseDuration.String(), "must be whole seconds: the API has no others"))
	}
	if cfg.LeaseDuration > maxLeaseDuration {
		duration = append(duration, field.Invalid(field.NewPath("LeaseDuration"), cfg.LeaseDuration.String(), fmt.Sprintf("must be at most %v", maxLeaseDuration)))
	}
	problems = append(problems, duration...)
	for _, d := range []struct {
		name         string
		value        *time.Duration
		def, minimum time.Duration
	}{
		{"AckTimeout", &cfg.AckTimeout, DefaultAckTimeout, time.Millisecond},
		{"MinTenure", &cfg.MinTenure, DefaultMinTenure, time.Millisecond},
		{"CandidateTTL", &cfg.CandidateTTL, DefaultCandidateTTL, minCandidateTTL},
		{"CallTimeout", &cfg.CallTimeout, DefaultCallTimeout, minCallTimeout},
	} {
		problems = append(problems, defaultDuration(d.name, d.value, d.def, d.minimum)...)
	}
	cfg.CallTimeout = min(cfg.CallTimeout, maxLeaseDuration/listFactor)
	return problems
}

// minAssigned is the shortest Lease that can be assigned.
const minAssigned = 2 * time.Second

// builtInStrategies are those that every Controller carries out.
func builtInStrategies() []Strategy {
	return []Strategy{OldestEmulationVersion(), First(), NewestVersion()}
}

// rules returns what decide goes by.
func (cfg *ControllerConfig) rules() *rules {
	r := &rules{
		strategies: map[string]Strategy{},
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
