// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/election/coordinator/internal/contest"
	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/apierr"
)

// index has the contests by their Lease. The cost of a change depends on the number of
// candidates of its Lease, and not on the number of Leases. A change of a Lease without
// candidates costs one map access.
type index map[types.NamespacedName]*entry

// entry is one Lease for which there are candidates.
type entry struct {
	key types.NamespacedName
	*contest.Contest
	streak apierr.Member
	spread time.Duration // of offers after one was dropped
}

// entry returns the entry of a Lease, and creates it if there is none.
func (x index) entry(key types.NamespacedName, rules *contest.Rules) (e *entry, created bool) {
	e = x[key]
	if e == nil {
		e, created = &entry{key: key, Contest: contest.New(rules), spread: rand.N(droppedSpread)}, true
		x[key] = e
	}
	return e, created
}

// After an offer was dropped, the Controller tries again after an hour, with one Lease
// after the other within most of another hour. The result of the first one holds for
// all.
const (
	droppedFor    = time.Hour
	droppedSpread = 50 * time.Minute
)

// leaseKey returns the Lease of a candidate.
func leaseKey(obj *coordinationv1beta1.LeaseCandidate) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.Namespace, Name: obj.Spec.LeaseName}
}

// candidateOf returns what a LeaseCandidate states.
func candidateOf(obj *coordinationv1beta1.LeaseCandidate) contest.Candidate {
	c := contest.Candidate{
		Name: obj.Name, UID: obj.UID, Version: obj.ResourceVersion, Strategy: string(obj.Spec.Strategy),
		Terminating: obj.DeletionTimestamp != nil, RenewTime: spec.Micros(obj.Spec.RenewTime), PingTime: spec.Micros(obj.Spec.PingTime),
	}
	c.Peer, c.Invalid = peerOf(obj)
	return c
}

// peerOf returns the Peer that a LeaseCandidate describes, and the problems that the
// API server did not reject.
func peerOf(obj *coordinationv1beta1.LeaseCandidate) (spec.Peer, error) {
	var p spec.Peer
	extras := cmp.Or(obj.Annotations[spec.PeerAnnotation], "{}")
	if err := json.Unmarshal([]byte(extras), &p); err != nil {
		return p, fmt.Errorf("annotation %s of LeaseCandidate %s/%s: %w", spec.PeerAnnotation, obj.Namespace, obj.Name, err)
	}
	p.Identity, p.BinaryVersion, p.EmulationVersion, p.Created = obj.Name, obj.Spec.BinaryVersion, obj.Spec.EmulationVersion, obj.CreationTimestamp.Time
	path := field.NewPath("spec")
	problems := spec.CheckLease(path.Child("leaseName"), leaseKey(obj))
	problems = append(problems, spec.CheckStrategyName(path.Child("strategy"), string(obj.Spec.Strategy))...)
	problems = append(problems, spec.CheckVersion(path.Child("binaryVersion"), p.BinaryVersion)...)
	problems = append(problems, spec.CheckVersion(path.Child("emulationVersion"), p.EmulationVersion)...)
	if p.BinaryVersion == "" {
		problems = append(problems, field.Required(path.Child("binaryVersion"), ""))
	}
	return p, utilerrors.NewAggregate(problems)
}
