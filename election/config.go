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
	// DefaultCallTimeout is the longest default deadline of one API call.
	DefaultCallTimeout = 5 * time.Second
	// DefaultShutdownTimeout is the time for giving the lease away, after the
	// work has returned.
	DefaultShutdownTimeout = 5 * time.Second
	// DefaultName is the name of the Candidate in logs and health checks.
	DefaultName = "election"
)

// A LeadFunc is the work that only the leader does. It is called when a term
// begins, in a goroutine of its own, and never a second time before it has
// returned.
//
// The context is cancelled the moment leadership can't be assured any more;
// [context.Cause] tells why: [ErrLost], [ErrExpired], [ErrSuperseded],
// [ErrResigned], or the cause of the context of Run. From then on the work has
// Timing.Drain to return. The lease is not given to anybody before it has
// returned, and is kept, and Check fails, where it does not.
//
// A LeadFunc that returns while its context is not done has finished: the
// lease is released and Run returns what it returned. After its context is done
// what it returns does not matter: an error that is not that of the context is
// reported to ErrorHandler, and the candidate stands for election again.
type LeadFunc func(ctx context.Context, term Term) error

// Config configures a Candidate. The zero value of every optional field means
// the default that its comment states.
type Config struct {
	// Required. Client reads, watches and writes the Lease.
	// clientset.CoordinationV1() is one. Its rate limit should be off (QPS -1),
	// or its own: a renewal that waits behind other requests is a late one.
	Client coordinationv1client.LeasesGetter
	// Required. Lease is the namespace and name of the Lease for which the
	// candidates stand. It need not exist. Not in kube-node-lease.
	Lease types.NamespacedName
	// Required is its Identity. Self is what this candidate says about itself.
	// With the registry LeaseCandidates its BinaryVersion is required too, and
	// its Identity may consist of letters, digits, '-', '_' and '.' only.
	Self Peer
	// Required. Lead is the work of the leader.
	Lead LeadFunc

	// Strategy says who is the best leader. Default: [First]; with the registry
	// LeaseCandidates [OldestEmulationVersion].
	Strategy Strategy
	// Timing is how fast the election is and what it endures. Default: that of
	// kube-controller-manager, 15 s, 10 s and 3 s.
	Timing Timing
	// Registry selects where candidates are recorded. Default: OnLease.
	Registry Registry
	// ExclusiveIdentity says that the embedder guarantees that at no time two
	// processes use Self.Identity, for example by a lock on the host or as a
	// StatefulSet does. Then the identity is written as it is, without a random
	// suffix, and a process that is started anew continues the term of its
	// predecessor at once instead of waiting for the lease to expire. Where the
	// guarantee is broken there are two leaders. Default: false.
	ExclusiveIdentity bool
	// FallbackAfter is how long a lease must have been free, with the registry
	// LeaseCandidates, before candidates claim it by themselves, because no
	// controller does its work. Default: Timing.LeaseDuration.
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
	// Hooks are called on what happens. Default: none.
	Hooks Hooks
}

// The limits of what a record may hold.
const (
	maxIdentity       = 200 // with the suffix below the 253 of an object's name
	maxAttributes     = 8
	maxAttributeBytes = 256
	recordSlack       = 200 // for what is not known beforehand: suffix, times, ack
)

// complete fills in the defaults and returns all that is wrong.
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
	for _, msg := range spec.CheckStrategyName(cfg.Strategy.Name()) {
		problems = append(problems, field.Invalid(at("Strategy"), cfg.Strategy.Name(), msg))
	}
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
		timing = Timing{}.WithDefaults() // not to report what follows from it
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

// checkPeer returns what is wrong with what a candidate says about itself.
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
	if raw := recordOf(p, s.Name()).encode(); !utf8.ValidString(p.Identity) || !validText(p.Attributes) {
		problems = append(problems, field.Invalid(path, "", "Identity and Attributes must be valid UTF-8"))
	} else if len(raw) > maxRecordBytes-recordSlack {
		problems = append(problems, field.TooLong(path, "", maxRecordBytes-recordSlack))
	}
	if len(problems) == 0 && !Eligible(s, p) {
		problems = append(problems, field.Invalid(path, p.Identity, fmt.Sprintf("is not eligible under the strategy %s", s.Name())))
	}
	return problems
}

// validText reports whether attributes are the same after JSON.
func validText(attributes map[string]string) bool {
	for k, v := range attributes {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return false
		}
	}
	return true
}

func checkVersions(path *field.Path, p Peer, native bool) (problems field.ErrorList) {
	valid := true
	for _, v := range []struct{ name, value string }{{"BinaryVersion", p.BinaryVersion}, {"EmulationVersion", p.EmulationVersion}} {
		if _, ok := spec.ParseVersion(v.value); !ok && v.value != "" {
			problems = append(problems, field.Invalid(path.Child(v.name), v.value, spec.NotAVersion))
			valid = false
		}
	}
	if native && p.BinaryVersion == "" {
		problems = append(problems, field.Required(path.Child("BinaryVersion"), "a LeaseCandidate must have one"))
	}
	if valid && p.EmulationVersion != "" && spec.CompareVersions(p.BinaryVersion, p.EmulationVersion) < 0 {
		problems = append(problems, field.Invalid(path.Child("EmulationVersion"), p.EmulationVersion, fmt.Sprintf("must be at most BinaryVersion, %q; a pre-release is lower than its release", p.BinaryVersion)))
	}
	return problems
}

// Registry says where candidates make themselves known, and so who chooses
// among them. All replicas must use the same one: with two of them in one
// fleet there is still never more than one leader, but neither half knows the
// other. It is never detected, because a fleet that is half upgraded would come
// to different answers. The zero value is [OnLease].
type Registry struct {
	candidates coordinationv1beta1client.LeaseCandidatesGetter
	native     bool
}

// OnLease keeps the records of candidates in annotations of the Lease itself,
// on every cluster and with no other object. The leader chooses: it offers the
// lease to a better candidate, and hands it over when that has accepted.
//
// Sixteen candidates have a record, the best ones where there are more; the
// others are observers. They watch nothing, send one GET every two
// LeaseDurations, and claim the lease only where none of the sixteen does.
func OnLease() Registry { return Registry{} }

// LeaseCandidates keeps a LeaseCandidate object (coordination.k8s.io/v1beta1)
// for each candidate, and leaves the choice to a controller: the one in the API
// server where the feature gate CoordinatedLeaderElection is on, or a
// coordinator.Controller. The API is off by default and v1beta1 ends with Kubernetes
// 1.38. Where no controller does anything about a Lease that is free,
// candidates claim it after [Config.FallbackAfter].
//
// A LeaseCandidate has fields for versions and the name of a strategy; Priority
// and Attributes of a [Peer] are in an annotation, which a coordinator.Controller reads and
// the API server does not. clientset.CoordinationV1beta1() is a client.
func LeaseCandidates(client coordinationv1beta1client.LeaseCandidatesGetter) Registry {
	return Registry{candidates: client, native: true}
}
