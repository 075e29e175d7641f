// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package spec holds the rules that candidates and coordinators share: the
// limits of the API, versions, and the choice among strategies.
package spec

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/lifecycle"
)

const (
	// Domain is the domain of annotations and of strategy names that are not the
	// API's.
	Domain = "kubewright.dev"
	// PeerAnnotation is the key of the LeaseCandidate annotation that holds
	// PeerExtras.
	PeerAnnotation = "election." + Domain + "/peer"
	// FieldManager is the writer of Leases and LeaseCandidates in managedFields.
	// All candidates and coordinators share it, so a Lease has one entry for all
	// of them.
	FieldManager = "kubewright-election"
	// NodeLeases is the namespace of node heartbeats. Its watchers take every
	// Lease in it for a heartbeat.
	NodeLeases = "kube-node-lease"
	// MaxLeaseDuration is the longest duration that the API can hold.
	MaxLeaseDuration = math.MaxInt32 * time.Second
	// MinCallTimeout is the shortest valid deadline of an API call.
	MinCallTimeout = time.Millisecond
	// NotAVersion is the message about an invalid version.
	NotAVersion = "must be a semantic version without v, for example 1.37.1"
)

// PeerExtras holds the fields of an election.Peer that a LeaseCandidate lacks.
type PeerExtras struct {
	// Priority is election.Peer.Priority.
	Priority int32 `json:"priority,omitempty"`
	// Attributes is election.Peer.Attributes.
	Attributes map[string]string `json:"attributes,omitempty"`
}

// ExtrasOf decodes PeerAnnotation of a LeaseCandidate. A LeaseCandidate without
// it has no extras.
func ExtrasOf(lc *coordinationv1beta1.LeaseCandidate) (extras PeerExtras, err error) {
	value, ok := lc.Annotations[PeerAnnotation]
	if !ok {
		return extras, nil
	}
	if err := json.Unmarshal([]byte(value), &extras); err != nil {
		return PeerExtras{}, fmt.Errorf("annotation %s of LeaseCandidate %s/%s: %w", PeerAnnotation, lc.Namespace, lc.Name, err)
	}
	return extras, nil
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
			if better := known(b.Strategy); better != known(name) && better || better == known(name) && b.Strategy < name {
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
	switch {
	case !ok && !ok2:
		return 0
	case !ok:
		return -1
	case !ok2:
		return 1
	case v.LessThan(w):
		return -1
	case w.LessThan(v):
		return 1
	}
	return 0
}

// Retries returns the backoff of all requests: it doubles from a quarter of a second
// up to limit.
func Retries(limit time.Duration) backoff.Policy {
	return backoff.Policy{Base: 250 * time.Millisecond, Cap: limit}
}

// Retry returns the wait after n failures in a row, the last of which was err. It is
// at least the time that the API server asks for.
func Retry(n int, limit time.Duration, err error) time.Duration {
	return max(Retries(limit).Delay(n), apierr.RetryAfter(err))
}

// Doubt returns the time for which a candidate comes last after it did not take a
// lease n times in a row: a minute, doubled with each time, up to sixteen.
func Doubt(n int) time.Duration {
	return time.Minute << min(max(n-1, 0), 4)
}

// Older reports whether resourceVersion a is known to be older than b.
func Older(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && c < 0
}

// NextTransition returns the leaseTransitions of the next term. The API rejects
// negative numbers, and the largest number has no successor; 0 follows both,
// because any other number tells two terms apart.
func NextTransition(transitions int32) int32 {
	if transitions < 0 || transitions == math.MaxInt32 {
		return 0
	}
	return transitions + 1
}

// CheckLease returns the problems of a Lease's namespace and name.
func CheckLease(path *field.Path, name types.NamespacedName) (problems field.ErrorList) {
	for _, msg := range apivalidation.ValidateNamespaceName(name.Namespace, false) {
		problems = append(problems, field.Invalid(path.Child("Namespace"), name.Namespace, msg))
	}
	if name.Namespace == NodeLeases {
		problems = append(problems, field.Invalid(path.Child("Namespace"), name.Namespace, "is for the heartbeats of nodes"))
	}
	for _, msg := range apivalidation.NameIsDNSSubdomain(name.Name, false) {
		problems = append(problems, field.Invalid(path.Child("Name"), name.Name, msg))
	}
	return problems
}

// CheckStrategyName returns the problems of a strategy name, by the rules that
// the API has for Lease and LeaseCandidate.
func CheckStrategyName(name string) []string {
	if name == string(coordinationv1.OldestEmulationVersion) {
		return nil
	}
	if !strings.Contains(name, "/") {
		return []string{fmt.Sprintf("must be %s or a name with a domain, for example example.com/least-loaded", coordinationv1.OldestEmulationVersion)}
	}
	return validation.IsQualifiedName(name)
}

// DefaultDuration is lifecycle.DefaultDuration for a duration that is added to
// others. It reduces d to MaxLeaseDuration, because a sum must not overflow.
func DefaultDuration(name string, d *time.Duration, def, minimum time.Duration) field.ErrorList {
	problems := lifecycle.DefaultDuration(name, d, def, minimum)
	*d = min(*d, MaxLeaseDuration)
	return problems
}
