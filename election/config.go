// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coordinationv1beta1client "k8s.io/client-go/kubernetes/typed/coordination/v1beta1"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/lifecycle"
)

// The defaults of Config. Those of Timing are with [Timing].
const (
	// DefaultCallTimeout is the default deadline of one API call if RenewDeadline is
	// at least twice as long.
	DefaultCallTimeout = 5 * time.Second
	// DefaultShutdownTimeout is the time to give the lease away after the work has
	// returned.
	DefaultShutdownTimeout = 5 * time.Second
	// DefaultName is the name of the Candidate in logs and health checks.
	DefaultName = "election"
)

// A LeadFunc is the work that only the leader does. It is called in its own
// goroutine when a term begins, and not again before it has returned.
//
// The context is cancelled at the moment from which leadership is not certain.
// [context.Cause] returns the reason: [ErrLost], [ErrExpired], [ErrSuperseded],
// [ErrResigned], or the cause of the context of Run. The work then must return
// within Timing.Drain. The lease is given away only after the work has returned. If
// it does not return, the candidate keeps the lease, and Check fails.
//
// If a LeadFunc returns while its context is not done, the work is finished: the
// lease is released, and Run returns the error. If it returns later, the candidate
// stands for election again, and an error other than the one of the context is
// passed to ErrorHandler.
type LeadFunc func(ctx context.Context, term Term) error

// Config configures a Candidate. The zero value of every optional field means
// the default that its comment states.
type Config struct {
	// Required. Client reads, watches and writes the Lease.
	// clientset.CoordinationV1() is one. It should have no rate limit (QPS -1), or
	// one that it does not share, because a renewal must not wait for other requests.
	Client coordinationv1client.LeasesGetter
	// Required. Lease is the namespace and name of the Lease. The Lease need not
	// exist. The namespace must not be kube-node-lease.
	Lease types.NamespacedName
	// Required. Self describes this candidate. It must have an Identity. With the
	// registry LeaseCandidates it must also have a BinaryVersion, and the Identity
	// may only contain letters, digits, '-', '_' and '.'.
	Self Peer
	// Required. Lead is the work of the leader.
	Lead LeadFunc

	// Strategy decides which candidate is the best leader. Default: [First]; with
	// the registry LeaseCandidates [OldestEmulationVersion].
	Strategy Strategy
	// Timing holds the durations of the election. Default: LeaseDuration 15 s,
	// RenewDeadline 10 s, RenewInterval 3 s.
	Timing Timing
	// Registry selects the place of the records of candidates. Default: OnLease.
	Registry Registry
	// ExclusiveIdentity is the caller's promise that no two processes use
	// Self.Identity at the same time, for example because of a lock on the host or a
	// StatefulSet. The identity then has no random suffix, and a restarted process
	// continues the term of its predecessor at once, without waiting for the lease
	// to expire. If the promise is broken, there can be two leaders. Default: false.
	ExclusiveIdentity bool
	// FallbackAfter is the time after which candidates with the registry
	// LeaseCandidates claim a free lease themselves, because no coordinator has
	// assigned it. Default: Timing.LeaseDuration.
	FallbackAfter time.Duration

	// CallTimeout is the deadline of one API call; a leader gives a call half of
	// the time that is left, if that is less. 1.1 Timing.RenewInterval +
	// CallTimeout < Timing.RenewDeadline must hold. Default: half of
	// Timing.RenewDeadline, at most DefaultCallTimeout.
	CallTimeout time.Duration
	// ShutdownTimeout bounds the requests that give the lease away and withdraw
	// the record when Run ends. It does not bound Lead. Default:
	// DefaultShutdownTimeout.
	ShutdownTimeout time.Duration

	// Labels and OwnerReferences are those of the Lease if this candidate creates
	// it. An existing Lease keeps its own. With LeaseCandidates the Lease is
	// usually created by the coordinator, without them. Default: none.
	Labels          map[string]string
	OwnerReferences []metav1.OwnerReference

	// Name is the name in logs and health checks. Default: DefaultName.
	Name string
	// ErrorHandler is called with errors that the candidate recovers from. Repeats of
	// a class are suppressed until a request succeeds; [Hooks.Failed] is called for
	// each that is about the Lease. ErrorHandler is called synchronously by the goroutine of Run
	// and must not block. Default: the logger of Run's context.
	ErrorHandler func(ctx context.Context, err error, msg string)
	// EventRecorder records the events that docs/operations.md lists.
	// Default: none.
	EventRecorder events.EventRecorder
	// Hooks report events. Default: none.
	Hooks Hooks
}

// The limits of a record.
const (
	maxIdentity       = 200 // with the suffix below the 253 of an object's name
	maxAttributes     = 8
	maxAttributeBytes = 256
	recordSlack       = 200 // for the suffix, the times and the ack
)

// complete sets the defaults and returns all problems.
func (cfg *Config) complete() error {
	var problems field.ErrorList
	at := func(name string) *field.Path { return field.NewPath(name) }
	if cfg.Client == nil {
		problems = append(problems, field.Required(at("Client"), "for example clientset.CoordinationV1()"))
	}
	if cfg.Lead == nil {
		problems = append(problems, field.Required(at("Lead"), "what to do while leading"))
	}
	if cfg.Registry.native && cfg.Registry.candidates == nil {
		problems = append(problems, field.Required(at("Registry"), "LeaseCandidates needs a client, for example clientset.CoordinationV1beta1()"))
	}
	if cfg.Strategy == nil {
		cfg.Strategy = First()
		if cfg.Registry.native {
			cfg.Strategy = OldestEmulationVersion()
		}
	}
	problems = append(problems, spec.CheckStrategyName(at("Strategy"), cfg.Strategy.Name())...)
	problems = append(problems, spec.CheckLease(at("Lease"), cfg.Lease)...)
	problems = append(problems, checkPeer(at("Self"), cfg.Self, cfg.Registry.native, cfg.Strategy)...)
	problems = append(problems, cfg.completeTimes()...)
	problems = append(problems, metav1validation.ValidateLabels(cfg.Labels, at("Labels"))...)
	cfg.Labels, cfg.OwnerReferences = maps.Clone(cfg.Labels), slices.Clone(cfg.OwnerReferences)
	if cfg.Name == "" {
		cfg.Name = DefaultName
	}
	cfg.Self = cfg.Self.clone()
	return lifecycle.InvalidConfig("election", problems)
}

func (cfg *Config) completeTimes() field.ErrorList {
	problems := cfg.Timing.complete()
	timing := cfg.Timing
	if len(problems) > 0 {
		timing = Timing{}.WithDefaults() // do not report their consequences
	}
	problems = append(problems, spec.DefaultDuration("FallbackAfter", &cfg.FallbackAfter, timing.LeaseDuration, time.Nanosecond)...)
	problems = append(problems, spec.DefaultDuration("ShutdownTimeout", &cfg.ShutdownTimeout, DefaultShutdownTimeout, spec.MinCallTimeout)...)
	problems = append(problems, spec.DefaultDuration("CallTimeout", &cfg.CallTimeout, timing.callTimeout(), spec.MinCallTimeout)...)
	if first := timing.longestInterval(); len(problems) == 0 && first+cfg.CallTimeout >= timing.RenewDeadline {
		problems = append(problems, field.Invalid(field.NewPath("CallTimeout"), cfg.CallTimeout.String(),
			fmt.Sprintf("1.1 RenewInterval + CallTimeout < RenewDeadline must hold, but %v + %v >= %v", first, cfg.CallTimeout, timing.RenewDeadline)))
	}
	return problems
}

// checkPeer returns the problems of the Peer of a candidate.
func checkPeer(path *field.Path, p Peer, native bool, s Strategy) (problems field.ErrorList) {
	switch {
	case p.Identity == "":
		problems = append(problems, field.Required(path.Child("Identity"), "for example the name of the Pod"))
	case len(p.Identity) > maxIdentity:
		problems = append(problems, field.TooLong(path.Child("Identity"), "", maxIdentity))
	case native:
		for _, msg := range validation.IsConfigMapKey(p.Identity) {
			problems = append(problems, field.Invalid(path.Child("Identity"), p.Identity, msg))
		}
	}
	problems = append(problems, checkVersions(path, p, native)...)
	if n := len(p.Attributes); n > maxAttributes {
		problems = append(problems, field.TooMany(path.Child("Attributes"), n, maxAttributes))
	}
	bytes := 0
	for k, v := range p.Attributes {
		bytes += len(k) + len(v)
	}
	if bytes > maxAttributeBytes {
		problems = append(problems, field.TooLong(path.Child("Attributes"), "", maxAttributeBytes))
	}
	if !utf8.ValidString(fmt.Sprint(p.Identity, p.Attributes)) {
		problems = append(problems, field.Invalid(path, "", "Identity and Attributes must be valid UTF-8"))
	} else if len(record{Peer: p, Strategy: s.Name()}.encode()) > maxRecordBytes-recordSlack {
		problems = append(problems, field.TooLong(path, "", maxRecordBytes-recordSlack))
	}
	if len(problems) == 0 && !Eligible(s, p) {
		problems = append(problems, field.Invalid(path, p.Identity, fmt.Sprintf("is not eligible under the strategy %s", s.Name())))
	}
	return problems
}

func checkVersions(path *field.Path, p Peer, native bool) field.ErrorList {
	problems := spec.CheckVersion(path.Child("BinaryVersion"), p.BinaryVersion)
	problems = append(problems, spec.CheckVersion(path.Child("EmulationVersion"), p.EmulationVersion)...)
	if len(problems) == 0 && p.EmulationVersion != "" && spec.CompareVersions(p.BinaryVersion, p.EmulationVersion) < 0 {
		problems = append(problems, field.Invalid(path.Child("EmulationVersion"), p.EmulationVersion, fmt.Sprintf("must be at most BinaryVersion, %q; a pre-release is lower than its release", p.BinaryVersion)))
	}
	if native && p.BinaryVersion == "" {
		problems = append(problems, field.Required(path.Child("BinaryVersion"), "a LeaseCandidate must have one"))
	}
	return problems
}

// Registry selects the place of the records of candidates, and so the component that
// chooses among them. All replicas must use the same one. With two registries in one
// fleet there is still at most one leader, but neither half knows the other. The
// registry is never detected, because the replicas of a fleet that is being upgraded
// would detect different ones. The zero value is [OnLease].
type Registry struct {
	candidates coordinationv1beta1client.LeaseCandidatesGetter
	native     bool
}

// OnLease stores the records of candidates in annotations of the Lease. It works on
// every cluster and needs no other object. The leader chooses: it offers the lease
// to a better candidate, and hands it over when that candidate has accepted.
//
// At most sixteen candidates, the best ones, have a record. The other candidates are
// observers: they do not watch the Lease, send one GET every two LeaseDurations, and
// claim the lease only if no candidate with a record does.
func OnLease() Registry { return Registry{} }

// LeaseCandidates stores a LeaseCandidate object (coordination.k8s.io/v1beta1) for
// each candidate. A coordinator chooses: the controller in the API server, if the
// feature gate CoordinatedLeaderElection is on, or a coordinator.Controller. The API
// is off by default, and v1beta1 ends with Kubernetes 1.38. If no coordinator
// assigns a free Lease, candidates claim it after [Config.FallbackAfter].
//
// A LeaseCandidate has fields for versions and for the name of the strategy. Priority
// and Attributes of a [Peer] are in an annotation that only coordinator.Controller
// reads. clientset.CoordinationV1beta1() is a client.
func LeaseCandidates(client coordinationv1beta1client.LeaseCandidatesGetter) Registry {
	return Registry{candidates: client, native: true}
}
