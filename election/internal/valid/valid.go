// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package valid checks the configurations of candidates and coordinators by the rules of
// the API.
package valid

import (
	"fmt"
	"math"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/lifecycle"
)

const (
	// OutsideNodeLeases is the field selector of all namespaces except the one of
	// node heartbeats. Its watchers take every Lease in it for a heartbeat.
	OutsideNodeLeases = "metadata.namespace!=" + nodeLeases
	nodeLeases        = "kube-node-lease"
	// MaxDuration is the bound of durations that are added to others.
	MaxDuration = math.MaxInt32 * time.Second
	// MinCallTimeout is the shortest valid deadline of an API call.
	MinCallTimeout = time.Millisecond
)

// Invalid returns one problem for each message about a value.
func Invalid(path *field.Path, value string, messages ...string) (problems []error) {
	for _, msg := range messages {
		problems = append(problems, field.Invalid(path, value, msg))
	}
	return problems
}

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
	if _, ok := spec.ParseVersion(value); ok || value == "" {
		return nil
	}
	return Invalid(path, value, "must be a semantic version without v, for example 1.37.1")
}

// DefaultLeaseDuration is lifecycle.DefaultDuration for a duration that is written
// to a Lease.
func DefaultLeaseDuration(path *field.Path, d *time.Duration, def time.Duration) []error {
	problems := lifecycle.DefaultDuration(path.String(), d, def, 2*time.Second)
	if *d%time.Second != 0 {
		problems = append(problems, field.Invalid(path, d.String(), "must be whole seconds: the API has no others"))
	}
	if *d > spec.MaxLeaseDuration {
		problems = append(problems, field.Invalid(path, d.String(), fmt.Sprintf("must be at most %v: other candidates do not wait longer", spec.MaxLeaseDuration)))
	}
	return problems
}

// DefaultDuration is lifecycle.DefaultDuration for a duration that is added to
// others. It reduces d to MaxDuration, because a sum must not overflow.
func DefaultDuration(name string, d *time.Duration, def, minimum time.Duration) []error {
	problems := lifecycle.DefaultDuration(name, d, def, minimum)
	*d = min(*d, MaxDuration)
	return problems
}
