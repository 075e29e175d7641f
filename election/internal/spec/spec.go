// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package spec holds the rules that candidates and coordinators share: the parts of
// a Lease, versions, names, the choice among strategies, and the order of candidates. It is
// pure: it has no clock and sends nothing.
package spec

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/internal/backoff"
)

const (
	// Domain is the domain of annotations and of strategy names that are not the
	// API's.
	Domain = "kubewright.dev"
	// PeerAnnotation is the key of the LeaseCandidate annotation that holds Priority
	// and Attributes of an election.Peer.
	PeerAnnotation = "election." + Domain + "/peer"
	// FieldManager is the writer of Leases and LeaseCandidates in managedFields.
	// All candidates and coordinators share it, so a Lease has one entry for all
	// of them.
	FieldManager = "kubewright-election"
)

// Call calls a hook, if there is one.
func Call[T any](hook func(T), arg T) {
	if hook != nil {
		hook(arg)
	}
}

// A Ballot is the vote of a candidate for a strategy.
type Ballot struct {
	// BinaryVersion gives the ballot its weight; Strategy is the name voted for.
	BinaryVersion, Strategy string
}

// ChosenStrategy returns the strategy by which to choose among candidates: the
// one of the highest BinaryVersion, as in the API server. If candidates of that
// version disagree, agreed is false and name is the first of their strategies: known
// ones before unknown ones, in alphabetical order. It can fill a vacant lease, but
// must not cost a leader its term. name is "" without ballots.
func ChosenStrategy(ballots []Ballot, known func(strategy string) bool) (name string, agreed bool) {
	highest := ""
	for _, b := range ballots {
		c := CompareVersions(b.BinaryVersion, highest)
		switch {
		case b.Strategy == "":
		case name == "" || c > 0:
			highest, name, agreed = b.BinaryVersion, b.Strategy, true
		case c == 0 && b.Strategy != name:
			agreed = false
			if cmp.Or(trueFirst(known(b.Strategy), known(name)), cmp.Compare(b.Strategy, name)) < 0 {
				name = b.Strategy
			}
		}
	}
	return name, agreed
}

// ParseVersion parses a semantic version as the API server does for a
// LeaseCandidate: with all three numbers, and without "v" or spaces.
func ParseVersion(s string) (*version.Version, bool) {
	if s == "" || s[0] < '0' || s[0] > '9' || strings.TrimSpace(s) != s {
		return nil, false
	}
	v, err := version.ParseSemantic(s)
	return v, err == nil
}

// CompareVersions orders versions. An invalid version is lower than all others.
func CompareVersions(a, b string) int {
	if a == b {
		return 0 // the usual case, and parsing is slow
	}
	v, ok := ParseVersion(a)
	w, ok2 := ParseVersion(b)
	if !ok || !ok2 {
		return trueFirst(ok2, ok)
	}
	return trueFirst(v.LessThan(w), w.LessThan(v))
}

// trueFirst orders true before false.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// Retries returns the backoff of all requests: it doubles from a quarter of a second
// up to limit.
func Retries(limit time.Duration) backoff.Policy {
	return backoff.Policy{Base: 250 * time.Millisecond, Cap: limit}
}

// Retry returns the wait after n failures in a row, for a random number in [0,1). It is at
// least asked, the time that the API server asks for, which is 0 for none.
func Retry(n int, limit time.Duration, random float64, asked time.Duration) time.Duration {
	return max(Retries(limit).DelayAt(n, random), asked)
}

// Doubt returns the time for which a candidate comes last after it did not take a
// lease n times in a row: a minute, doubled with each time, up to sixteen.
func Doubt(n int) time.Duration {
	return time.Minute << min(max(n-1, 0), 4)
}

// Pulse is the part of a Lease whose changes show that the holder is alive. The
// resourceVersion is not part of it, because other clients write the Lease too.
type Pulse struct {
	// UID, Holder and Transitions identify a term.
	UID         types.UID
	Holder      string
	Transitions int32
	// Renewed is renewTime in microseconds, 0 for none.
	Renewed int64
}

// PulseOf returns the Pulse of a Lease; nil has the zero Pulse.
func PulseOf(l *coordinationv1.Lease) Pulse {
	if l == nil {
		return Pulse{}
	}
	return Pulse{
		UID: l.UID, Holder: HolderOf(l), Transitions: TransitionsOf(l), Renewed: Micros(l.Spec.RenewTime),
	}
}

// SameTerm reports whether p and q belong to one term.
func (p Pulse) SameTerm(q Pulse) bool {
	return p.UID == q.UID && p.Holder == q.Holder && p.Transitions == q.Transitions
}

// of returns the spec of a Lease; nil has the zero spec.
func of(l *coordinationv1.Lease) coordinationv1.LeaseSpec {
	return ptr.Deref(l, coordinationv1.Lease{}).Spec
}

// HolderOf returns the holder of a Lease, "" if there is no Lease or no holder.
func HolderOf(l *coordinationv1.Lease) string { return ptr.Deref(of(l).HolderIdentity, "") }

// PreferredOf returns the candidate that a coordinator prefers, "" for none.
func PreferredOf(l *coordinationv1.Lease) string { return ptr.Deref(of(l).PreferredHolder, "") }

// TransitionsOf returns the number of the term of a Lease.
func TransitionsOf(l *coordinationv1.Lease) int32 { return ptr.Deref(of(l).LeaseTransitions, 0) }

// MaxLeaseDuration is the longest valid LeaseDuration of a candidate. A Lease may state a
// longer one, because the API has no limit, but no candidate believes in it.
const MaxLeaseDuration = time.Hour

// DurationOf returns for how long a Lease is held after a renewal: def if the Lease
// does not state it, and at most MaxLeaseDuration.
func DurationOf(l *coordinationv1.Lease, def time.Duration) time.Duration {
	if seconds := of(l).LeaseDurationSeconds; seconds != nil {
		return min(max(time.Duration(*seconds)*time.Second, time.Second), MaxLeaseDuration)
	}
	return def
}

// A Duration is the duration of a Lease as its holder states it, with each renewal. An
// edit between two renewals is that of another client, and the holder does not believe in
// it. The zero value is that before the first observation.
type Duration struct {
	last, longest time.Duration
}

// See updates d from the Lease after its Pulse has changed; def is the duration of a Lease
// that states none. Another client may have shortened the duration after the renewal, and
// before that was observed. So what the holder stated before counts too.
func (d *Duration) See(before, after *coordinationv1.Lease, def time.Duration) {
	if HolderOf(before) != HolderOf(after) {
		d.last = 0
	}
	now := DurationOf(after, def)
	d.last, d.longest = now, max(d.last, now)
}

// Longest returns the longest duration in which the holder may believe.
func (d Duration) Longest() time.Duration { return d.longest }

// Micros returns a time in microseconds, 0 for none.
func Micros(t *metav1.MicroTime) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// Older reports whether resourceVersion a is known to be older than b.
func Older(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && c < 0
}

// NextTransition returns the leaseTransitions of the next term. The API rejects
// negative numbers, and the largest number has no successor; 0 follows both,
// because any other number distinguishes two terms.
func NextTransition(transitions int32) int32 {
	if transitions < 0 || transitions == math.MaxInt32 {
		return 0
	}
	return transitions + 1
}

const (
	// OutsideNodeLeases is the field selector of all namespaces except the one of
	// node heartbeats. Its watchers take every Lease in it for a heartbeat.
	OutsideNodeLeases = "metadata.namespace!=" + nodeLeases
	nodeLeases        = "kube-node-lease"
)

// CheckNamespace returns the problems of the namespace of an election.
func CheckNamespace(path *field.Path, name string) []error {
	switch name {
	case "":
		return []error{field.Required(path, "for example the namespace of the replicas")}
	case nodeLeases:
		return Invalid(path, name, "is for the heartbeats of nodes")
	}
	return Invalid(path, name, apivalidation.ValidateNamespaceName(name, false)...)
}

// CheckLease returns the problems of a Lease's namespace and name.
func CheckLease(path *field.Path, name types.NamespacedName) []error {
	problems := CheckNamespace(path.Child("Namespace"), name.Namespace)
	if name.Name == "" {
		return append(problems, field.Required(path.Child("Name"), "for example the name of the program"))
	}
	return append(problems, Invalid(path.Child("Name"), name.Name, apivalidation.NameIsDNSSubdomain(name.Name, false)...)...)
}

// CheckStrategyName returns the problems of a strategy name, by the rules that
// the API has for Lease and LeaseCandidate.
func CheckStrategyName(path *field.Path, name string) []error {
	switch {
	case name == string(coordinationv1.OldestEmulationVersion):
		return nil
	case !strings.Contains(name, "/"):
		return Invalid(path, name, fmt.Sprintf("must be %s or a name with a domain, for example example.com/least-loaded", coordinationv1.OldestEmulationVersion))
	}
	return Invalid(path, name, validation.IsQualifiedName(name)...)
}

// CheckVersion returns the problem of a version. An empty one has none.
func CheckVersion(path *field.Path, value string) []error {
	if _, ok := ParseVersion(value); ok || value == "" {
		return nil
	}
	return Invalid(path, value, "must be a semantic version without v, for example 1.37.1")
}

// Invalid returns one problem for each message about a value.
func Invalid(path *field.Path, value string, messages ...string) (problems []error) {
	for _, msg := range messages {
		problems = append(problems, field.Invalid(path, value, msg))
	}
	return problems
}
