// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"encoding/json"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
)

// peerAnnotation on a LeaseCandidate holds what it has no field for.
const peerAnnotation = "election." + domain + "/peer"

// peerExtras is the value of peerAnnotation.
type peerExtras struct {
	Priority   int32             `json:"priority,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
}

// peerFromCandidate returns what a LeaseCandidate says. The name of its
// strategy is spec.strategy.
func peerFromCandidate(lc *coordinationv1beta1.LeaseCandidate) (Peer, error) {
	p := Peer{
		Identity:         lc.Name,
		BinaryVersion:    lc.Spec.BinaryVersion,
		EmulationVersion: lc.Spec.EmulationVersion,
		Created:          lc.CreationTimestamp.Time,
	}
	value, ok := lc.Annotations[peerAnnotation]
	if !ok {
		return p, nil
	}
	var extras peerExtras
	if err := json.Unmarshal([]byte(value), &extras); err != nil {
		return Peer{}, fmt.Errorf("election: annotation %s of LeaseCandidate %s/%s: %w", peerAnnotation, lc.Namespace, lc.Name, err)
	}
	p.Priority, p.Attributes = extras.Priority, extras.Attributes
	return p, nil
}

// describe writes what p says into a LeaseCandidate, and reports whether that
// changed it.
func describe(lc *coordinationv1beta1.LeaseCandidate, p Peer, strategy string) (changed bool) {
	set := func(field *string, value string) {
		if *field != value {
			*field, changed = value, true
		}
	}
	set(&lc.Spec.BinaryVersion, p.BinaryVersion)
	set(&lc.Spec.EmulationVersion, p.emulated())
	set((*string)(&lc.Spec.Strategy), strategy)
	extras := ""
	if p.Priority != 0 || len(p.Attributes) > 0 {
		raw, err := json.Marshal(peerExtras{Priority: p.Priority, Attributes: p.Attributes})
		if err == nil { // always: strings and a number
			extras = string(raw)
		}
	}
	if lc.Annotations[peerAnnotation] == extras {
		return changed
	}
	if extras == "" {
		delete(lc.Annotations, peerAnnotation)
		return true
	}
	if lc.Annotations == nil {
		lc.Annotations = make(map[string]string, 1)
	}
	lc.Annotations[peerAnnotation] = extras
	return true
}

// holderOf returns the holder of a Lease: nil and "" are the same.
func holderOf(l *coordinationv1.Lease) string {
	if l == nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}
