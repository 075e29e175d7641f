// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
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

	"github.com/kubewright/kubewright/election/internal/machine"
	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/lifecycle"
)

// The defaults of Config. Those of Timing are with [Timing].
const (
	// DefaultCallTimeout is the longest default deadline of one API call.
	DefaultCallTimeout = 5 * time.Second
	// DefaultShutdownTimeout is the time to release the lease after the work has
	// returned.
	DefaultShutdownTimeout = 5 * time.Second
	// DefaultName is the name of the Candidate in logs and health checks.
	DefaultName = "election"
)

// A LeadFunc is the work that only the leader does. It is called in its own
// goroutine when a term begins, and not again before it has returned.
//
// The context is cancelled as soon as it is not certain that the candidate leads.
// [context.Cause] returns the reason: [ErrLost], [ErrExpired], [ErrSuperseded],
// [ErrResigned], or the cause of the context of Run. The work then must return
// within Timing.Drain. The lease is released or handed over only after the work has
// returned. If it does not return, the candidate keeps the lease, and Check fails.
//
// If a LeadFunc returns before its context is done, the work is finished: the lease is
// released, and Run returns the error. If it returns later, the candidate stands for
// election again. Its error is passed to ErrorHandler, unless it is the error of the
// context.
//
// A panic in a LeadFunc is not recovered. It ends the process, because nothing else can
// end what the work has begun, such as its goroutines.
type LeadFunc func(ctx context.Context, term Term) error

// An OverrunFunc is called if the work still runs when another candidate may lead: the
// lease can't be renewed any more, and Timing.Drain has passed since the term ended with
// [ErrExpired] or [ErrLost]. Only the end of the process prevents that two do the work,
// so the function usually ends it, for example with os.Exit. err wraps the cause.
//
// It is called at most once in a term, by a timer, in its own goroutine: also while a hook
// or the API server hangs, and while Run and other hooks go on. It is not called while the
// lease is renewed, however long the work takes to return, because no other candidate
// leads then. It has no deadline, and Run does not return before it has returned. A panic
// in it is not recovered.
type OverrunFunc func(err error)

// Config configures a Candidate. The zero value of every optional field means
// the default that its comment states.
type Config struct {
	// Required. Client reads, watches and writes the Lease.
	// clientset.CoordinationV1() is one. It should have no rate limit (QPS -1), or a
	// rate limit of its own, because a renewal must not wait for other requests.
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
	// Watch is a watch of all Leases of the namespace of Lease. Candidates of one process
	// that stand in many elections share it. Default: the candidate watches its own Lease.
	Watch *SharedWatch
	// Registry selects the place of the records of candidates. Default: OnLease.
	Registry Registry
	// ExclusiveIdentity promises that two processes never use Self.Identity at the same
	// time. Then the identity has no random suffix, and a restarted process continues the
	// term of its predecessor without waiting for the lease to expire. It does so only if
	// it has claimed the lease itself or the previous holder has handed it over. If
	// another client has replaced the holder by it, it waits.
	//
	// Set it if there is a single replica, for example if client-go's leader election had
	// a fixed identity, such as kube-vip's node name, and restarts must stay fast. Choose an
	// identity that keeps the promise.
	// The UID of the Pod does, because the kubelet starts a container only after the
	// previous one has ended. The name of a host does, if the process locks a file on it.
	// The name of a Pod does not, because a StatefulSet may reuse it while a node that
	// does not answer still runs the old Pod. If the promise is broken, for example by a
	// cloned virtual machine, both processes lead until one of them observes a renewal that
	// it did not send. Its term then ends with [ErrLost]. Default: false.
	ExclusiveIdentity bool

	// OnOverrun is called if the work still runs when another candidate may lead. A program
	// whose work may ignore its context should end the process in it. Default: none; the
	// overrun is logged, and Check fails.
	OnOverrun OverrunFunc

	// CallTimeout is the deadline of one API call. A leader uses half of the time that
	// is left in its term, if that is less. 1.1 Timing.RenewInterval + CallTimeout must be
	// less than Timing.RenewDeadline. Default: half of Timing.RenewDeadline - 1.1
	// Timing.RenewInterval, so that there is time for two calls, but at most
	// DefaultCallTimeout.
	CallTimeout time.Duration
	// ShutdownTimeout limits the time for the requests that release the lease and remove
	// the record when Run ends. It does not limit Lead. Default: DefaultShutdownTimeout.
	ShutdownTimeout time.Duration

	// Labels and OwnerReferences are set on the Lease if this candidate creates it. An
	// existing Lease is not changed. An owner lets the Lease go with an operator that is
	// uninstalled (operator-sdk issue 6677). With LeaseCandidates the coordinator usually creates
	// the Lease, without them. Default: none.
	Labels          map[string]string
	OwnerReferences []metav1.OwnerReference

	// Name is the name in logs and health checks. Default: DefaultName.
	Name string
	// ErrorHandler is called with errors that the candidate recovers from. Repeats of
	// the same class are suppressed until a request succeeds. [Hooks.Failed] is called for
	// each error that is about the Lease. The error of a panic in a function of Config,
	// except for Lead, has a method Stack() []byte, which errors.As finds. ErrorHandler is
	// called synchronously by the goroutine of Run and must not block. Default: the errors
	// are logged with the logger of Run's context.
	ErrorHandler func(ctx context.Context, err error, msg string)
	// EventRecorder records the events that docs/operations.md lists.
	// Default: none.
	EventRecorder events.EventRecorder
	// Hooks report events. Default: none.
	Hooks Hooks
}

// The limits of a record.
const (
	maxIdentity  = 200                          // with the suffix below the 253 of an object's name
	maxPeerBytes = machine.MaxRecordBytes - 224 // the rest is for the suffix, the times and the ack
)

// complete sets the defaults and returns all problems.
func (cfg *Config) complete() error {
	var problems []error
	at := func(name string) *field.Path { return field.NewPath(name) }
	problems = append(problems, lifecycle.Required("Client", !lifecycle.IsNil(cfg.Client), "for example clientset.CoordinationV1()")...)
	problems = append(problems, lifecycle.Required("Lead", cfg.Lead != nil, "what to do while leading")...)
	problems = append(problems, lifecycle.Required("Registry", !cfg.Registry.native || !lifecycle.IsNil(cfg.Registry.candidates),
		"LeaseCandidates needs a client, for example clientset.CoordinationV1beta1()")...)
	if lifecycle.IsNil(cfg.Strategy) {
		cfg.Strategy = First()
		if cfg.Registry.native {
			cfg.Strategy = OldestEmulationVersion()
		}
	}
	problems = append(problems, spec.CheckStrategyName(at("Strategy"), cfg.Strategy.Name())...)
	problems = append(problems, spec.CheckLease(at("Lease"), cfg.Lease)...)
	if cfg.Watch != nil && cfg.Watch.namespace != cfg.Lease.Namespace {
		problems = append(problems, field.Invalid(at("Watch"), cfg.Watch.namespace, fmt.Sprintf("must watch the namespace of Lease, %q", cfg.Lease.Namespace)))
	}
	problems = append(problems, checkPeer(at("Self"), cfg.Self, cfg.Registry.native, cfg.Strategy)...)
	problems = append(problems, cfg.completeTimes()...)
	problems = append(problems, lifecycle.Problems(metav1validation.ValidateLabels(cfg.Labels, at("Labels")))...)
	cfg.Labels, cfg.OwnerReferences = maps.Clone(cfg.Labels), slices.Clone(cfg.OwnerReferences)
	cfg.Name = cmp.Or(cfg.Name, DefaultName)
	cfg.Self = cfg.Self.clone()
	return lifecycle.InvalidConfig("election", problems)
}

// rules returns the part of the configuration that decisions need.
func (cfg *Config) rules(id string, strategy spec.Strategy) machine.Rules {
	return machine.Rules{
		ID: id, Lease: cfg.Lease, Strategy: strategy, Exclusive: cfg.ExclusiveIdentity, Coordinated: cfg.Registry.native,
		LeaseDuration: cfg.Timing.LeaseDuration, RenewDeadline: cfg.Timing.RenewDeadline, RenewInterval: cfg.Timing.RenewInterval,
		AckTimeout: ackTimeout, MinTenure: cfg.Timing.MinTenure,
		CallTimeout: cfg.CallTimeout, ShutdownTimeout: cfg.ShutdownTimeout,
		Labels: cfg.Labels, OwnerReferences: cfg.OwnerReferences, Random: rand.Float64,
	}
}

func (cfg *Config) completeTimes() []error {
	problems := cfg.Timing.complete(cfg.CallTimeout)
	timing := cfg.Timing
	if len(problems) > 0 {
		timing = Timing{}.WithDefaults() // do not report their consequences
	}
	problems = append(problems, defaultDuration("ShutdownTimeout", &cfg.ShutdownTimeout, DefaultShutdownTimeout, minCallTimeout)...)
	return append(problems, defaultDuration("CallTimeout", &cfg.CallTimeout, timing.callTimeout(), minCallTimeout)...)
}

// checkPeer returns the problems of the Peer of a candidate.
func checkPeer(path *field.Path, p Peer, native bool, s Strategy) (problems []error) {
	switch {
	case p.Identity == "":
		problems = append(problems, field.Required(path.Child("Identity"), "for example the name of the Pod"))
	case len(p.Identity) > maxIdentity:
		problems = append(problems, field.TooLong(path.Child("Identity"), "", maxIdentity))
	case native:
		problems = append(problems, spec.Invalid(path.Child("Identity"), p.Identity, validation.IsConfigMapKey(p.Identity)...)...)
	}
	problems = append(problems, checkVersions(path, p, native)...)
	if !utf8.ValidString(fmt.Sprint(p.Identity, p.Attributes)) {
		problems = append(problems, field.Invalid(path, "", "Identity and Attributes must be valid UTF-8"))
	} else if machine.RecordSize(spec.Peer(p), s.Name()) > maxPeerBytes {
		problems = append(problems, field.TooLong(path, "", maxPeerBytes))
	}
	switch {
	case len(problems) > 0 || Eligible(s, p):
	case p.BinaryVersion == "" && eligibleWith(s, p, "1.0.0"):
		problems = append(problems, field.Required(path.Child("BinaryVersion"), fmt.Sprintf("the strategy %s compares it", s.Name())))
	default:
		problems = append(problems, field.Invalid(path, p.Identity, fmt.Sprintf("is not eligible under the strategy %s", s.Name())))
	}
	return problems
}

// eligibleWith reports whether p would be eligible with a BinaryVersion.
func eligibleWith(s Strategy, p Peer, version string) bool {
	p.BinaryVersion = version
	return Eligible(s, p)
}

func checkVersions(path *field.Path, p Peer, native bool) []error {
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

// Registry selects where candidates store their records, and so which component chooses
// among them. All replicas must use the same Registry. Otherwise there is still at most one
// leader, but candidates with different registries do not know each other. The Registry is
// not detected automatically, because replicas could detect different ones during an
// upgrade. The zero value is [OnLease].
type Registry struct {
	candidates coordinationv1beta1client.LeaseCandidatesGetter
	native     bool
}

// OnLease stores the records of candidates in annotations of the Lease. It works on
// every cluster and needs no other object. The leader chooses: it offers the lease
// to a better candidate, and hands it over when that candidate has accepted.
//
// At most sixteen candidates, the best ones, have a record. The other candidates are
// observers: they do not watch the Lease, send one GET about every two LeaseDurations,
// and claim the lease only if no candidate with a record does.
func OnLease() Registry { return Registry{} }

// LeaseCandidates stores a LeaseCandidate object (coordination.k8s.io/v1beta1) for
// each candidate. A coordinator chooses: the controller in the API server, if the
// feature gate CoordinatedLeaderElection is on, or a coordinator.Controller. The API
// is off by default, and v1beta1 ends with Kubernetes 1.38. If no coordinator
// assigns a free Lease, candidates claim it after Timing.LeaseDuration.
//
// A LeaseCandidate has fields for versions and for the name of the strategy. Priority
// and Attributes of a [Peer] are in an annotation that only coordinator.Controller
// reads. clientset.CoordinationV1beta1() is a client.
func LeaseCandidates(client coordinationv1beta1client.LeaseCandidatesGetter) Registry {
	return Registry{candidates: client, native: true}
}

// The defaults of Timing.
const (
	// DefaultLeaseDuration is also the default of kube-controller-manager and
	// kube-scheduler.
	DefaultLeaseDuration = 15 * time.Second
	// DefaultRenewDeadline is the default if LeaseDuration is DefaultLeaseDuration.
	DefaultRenewDeadline = 10 * time.Second
	// DefaultRenewInterval is the default if LeaseDuration is DefaultLeaseDuration.
	DefaultRenewInterval = 3 * time.Second
	// DefaultDrain is the default if LeaseDuration is DefaultLeaseDuration or longer.
	DefaultDrain = 3 * time.Second
	// DefaultMinTenure is the time that a leader leads before it offers the lease to
	// a better candidate.
	DefaultMinTenure = 30 * time.Second
)

// ackTimeout is the time that a candidate has to accept an offer of the lease. The API
// server's controller of LeaseCandidates waits as long (electionDuration).
const ackTimeout = 5 * time.Second

const (
	// minRenewInterval is the shortest valid RenewInterval.
	minRenewInterval = 100 * time.Millisecond
	// minCallTimeout is the shortest valid deadline of an API call.
	minCallTimeout = time.Millisecond
	// maxDuration is the bound of durations that are added to others.
	maxDuration = math.MaxInt32 * time.Second
)

// Timing holds the durations of an election. They determine how long a fail-over takes,
// and how long an outage may last without ending the term. The defaults of the fields
// derive from LeaseDuration. The replicas may have different Timings, because
// [Timing.Validate] ensures that each of them is safe.
type Timing struct {
	// LeaseDuration is the time that other candidates wait after the last observed
	// renewal, by their own clocks, before they take over. It must be whole seconds,
	// because the API has no fractions, at least two and at most an hour: a Lease that
	// states a longer one counts as one of an hour. Default: DefaultLeaseDuration.
	LeaseDuration time.Duration
	// RenewDeadline is the time that a leader leads after it sent its last
	// successful renewal. Then the context of its work is cancelled. Default: two
	// thirds of LeaseDuration.
	RenewDeadline time.Duration
	// RenewInterval is the mean time between renewals; each is early or late by up
	// to a tenth. Default: three tenths of RenewDeadline.
	RenewInterval time.Duration
	// Drain is the longest time from the cancellation of the context of the work
	// until the work returns. If the work takes longer, there can be two leaders. If Lead
	// starts a manager of controller-runtime, the GracefulShutdownTimeout of that manager
	// must not be longer; package elected has another rule, because there the manager
	// starts Lead.
	// Default: a fifth of LeaseDuration, at most DefaultDrain.
	Drain time.Duration
	// MinTenure is the time that a leader leads before it offers the lease to a
	// better candidate, so that the lease does not change hands too often while a fleet
	// restarts. Default: DefaultMinTenure.
	MinTenure time.Duration
}

// LongOutageTiming returns a Timing for long API server outages. An outage of more than a
// minute does not end the term, but a fail-over after a crash takes up to two minutes.
// LeaseDuration is 120 s, RenewDeadline 90 s, and RenewInterval 15 s.
func LongOutageTiming() Timing {
	return Timing{LeaseDuration: 120 * time.Second, RenewDeadline: 90 * time.Second, RenewInterval: 15 * time.Second}.WithDefaults()
}

// WithDefaults returns t with defaults in its zero fields.
func (t Timing) WithDefaults() Timing {
	t.complete(0)
	return t
}

// Validate returns an error that names every invalid field, with the inequality
// that it violates:
//
//	RenewDeadline + Drain < LeaseDuration
//	1.1 RenewInterval + a fifth of RenewDeadline < RenewDeadline
//
// The first inequality prevents two leaders at once, even if the rates of clocks differ by
// [Timing.RateTolerance]. The second one leaves time for another renewal after one has
// failed. If [Config.CallTimeout] is set, [New] uses it instead of a fifth of RenewDeadline.
func (t Timing) Validate() error {
	return lifecycle.InvalidConfig("election", t.complete(0))
}

// MaxOutage returns the longest API server outage of any kind that does not end the term.
// In the worst case a renewal is due when the outage begins, and the last failed
// renewal is repeated a second after it ends.
func (t Timing) MaxOutage() time.Duration {
	t.complete(0)
	return max(0, t.RenewDeadline-t.longestInterval()-machine.LeaderRetry)
}

// CrashFailover returns the longest time from the crash of a leader to the next
// term, if a candidate with a record is alive (see [OnLease]). It is LeaseDuration plus
// 2.5 s, because candidates claim the lease in the order of their rank. The latencies of a
// watch event and of a request are not included. With [LeaseCandidates] a coordinator must be
// alive too; if it has crashed with the leader, it can take another LeaseDuration. A leader
// that exits gracefully is replaced at once.
func (t Timing) CrashFailover() time.Duration {
	t.complete(0)
	return t.LeaseDuration + machine.MaxRank*machine.Stagger
}

// RateTolerance returns the largest error in the rate of clocks with which there
// are never two leaders. 0.07 means that one clock may run 7 % fast and another 7 %
// slow. It is r in
//
//	(RenewDeadline + Drain) / (1 - r) = LeaseDuration / (1 + r)
//
// A constant difference between clocks has no effect.
func (t Timing) RateTolerance() float64 {
	t.complete(0)
	held := t.RenewDeadline + t.Drain
	return float64(t.LeaseDuration-held) / float64(t.LeaseDuration+held)
}

// longestInterval returns RenewInterval with all of its jitter.
func (t Timing) longestInterval() time.Duration {
	return t.RenewInterval + time.Duration(machine.RenewJitter*float64(t.RenewInterval))
}

// callTimeout returns the default of Config.CallTimeout.
func (t Timing) callTimeout() time.Duration {
	return min((t.RenewDeadline-t.longestInterval())/2, DefaultCallTimeout)
}

// complete sets the defaults and returns all problems. call is the deadline of an API
// call, 0 for the default.
func (t *Timing) complete(call time.Duration) (problems []error) {
	path := field.NewPath("Timing")
	def := func(name string, d *time.Duration, def, minimum time.Duration) {
		problems = append(problems, defaultDuration(path.Child(name).String(), d, def, minimum)...)
	}
	problems = append(problems, defaultLeaseDuration(path.Child("LeaseDuration"), &t.LeaseDuration, DefaultLeaseDuration)...)
	base := t.LeaseDuration
	if len(problems) > 0 {
		base = DefaultLeaseDuration // not to report the defaults of others
	}
	def("RenewDeadline", &t.RenewDeadline, base*2/3, time.Millisecond)
	deadline := t.RenewDeadline
	if len(problems) > 0 {
		deadline = base * 2 / 3
	}
	def("RenewInterval", &t.RenewInterval, deadline*3/10, minRenewInterval)
	def("Drain", &t.Drain, min(base/5, DefaultDrain), time.Nanosecond)
	def("MinTenure", &t.MinTenure, DefaultMinTenure, time.Nanosecond)
	if len(problems) > 0 {
		return problems
	}
	if sum := t.RenewDeadline + t.Drain; sum >= t.LeaseDuration {
		msg := fmt.Sprintf("RenewDeadline + Drain < LeaseDuration must hold, but %v + %v >= %v: there would be two leaders", t.RenewDeadline, t.Drain, t.LeaseDuration)
		if left := t.LeaseDuration - t.RenewDeadline; left > 0 {
			msg += fmt.Sprintf("; less than %v is left for Drain", left)
		}
		problems = append(problems, field.Invalid(path.Child("RenewDeadline"), t.RenewDeadline.String(), msg))
	}
	name, value, term, call := path.Child("RenewInterval"), t.RenewInterval, "a fifth of RenewDeadline", min(call, maxDuration)
	if call > 0 {
		name, value, term = field.NewPath("CallTimeout"), call, "CallTimeout"
	} else {
		call = t.RenewDeadline / 5
	}
	if interval := t.longestInterval(); interval+call >= t.RenewDeadline {
		msg := fmt.Sprintf("1.1 RenewInterval + %s < RenewDeadline must hold, but %v + %v >= %v: one renewal that fails would end the term", term, interval, call, t.RenewDeadline)
		problems = append(problems, field.Invalid(name, value.String(), msg))
	}
	return problems
}

// defaultLeaseDuration is lifecycle.DefaultDuration for a duration that is written
// to a Lease.
func defaultLeaseDuration(path *field.Path, d *time.Duration, def time.Duration) []error {
	problems := lifecycle.DefaultDuration(path.String(), d, def, 2*time.Second)
	if *d%time.Second != 0 {
		problems = append(problems, field.Invalid(path, d.String(), "must be whole seconds: the API has no others"))
	}
	if *d > spec.MaxLeaseDuration {
		problems = append(problems, field.Invalid(path, d.String(), fmt.Sprintf("must be at most %v: other candidates do not wait longer", spec.MaxLeaseDuration)))
	}
	return problems
}

// defaultDuration is lifecycle.DefaultDuration for a duration that is added to
// others. It reduces d to maxDuration, because a sum must not overflow.
func defaultDuration(name string, d *time.Duration, def, minimum time.Duration) []error {
	problems := lifecycle.DefaultDuration(name, d, def, minimum)
	*d = min(*d, maxDuration)
	return problems
}
