// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import "slices"

// A Candidate is one configuration to try to run.
type Candidate struct {
	// Role is the part it would play, and Ref names it; zero for Default.
	Role Role
	Ref  Ref
	// Unproven means that a start must be recorded before it is made.
	Unproven bool
}

// candidates returns what build may run according to the record, best first. The
// last one is always the built-in default.
func candidates(r Record, build string) []Candidate {
	var chain []Candidate
	add := func(role Role, ref *Ref, unproven bool) {
		if ref == nil || slices.ContainsFunc(chain, func(c Candidate) bool { return c.Ref.Digest == ref.Digest }) {
			return
		}
		chain = append(chain, Candidate{role, *ref, unproven})
	}
	if r.Assigned != nil {
		if _, rejected := r.rejection(r.Assigned.Digest, build); !rejected || r.proven() {
			add(Assigned, r.Assigned, !r.proven())
		}
	}
	add(LastKnownGood, r.LKG, false)
	if r.Previous != nil {
		// It was good once, and may have been tried again and found bad.
		if _, rejected := r.rejection(r.Previous.Digest, build); !rejected {
			add(Previous, r.Previous, false)
		}
	}
	return append(chain, Candidate{Role: Default})
}

// An Action is the decision about a payload.
type Action int

const (
	// Nothing: the payload runs, or it is assigned and known not to run.
	Nothing Action = iota
	// ReportRejection: this build rejected the same content before.
	ReportRejection
	// Repair: it is assigned and its stored copy is unusable.
	Repair
	// AwaitStore: it is assigned, and the store failed. The store is retried
	// without another delivery.
	AwaitStore
	// Stage: it is not assigned.
	Stage
	// Unassign: the source wants the built-in default.
	Unassign
)

// String returns the name of the action.
func (a Action) String() string {
	return [...]string{"Nothing", "ReportRejection", "Repair", "AwaitStore", "Stage", "Unassign"}[a]
}

// decideDelivery decides about a payload with digest d; the zero Digest
// unassigns. The running configuration has the digest running, and skipped is
// why that is not the assigned one, or "".
func decideDelivery(r Record, build string, running Digest, skipped Reason, d Digest) Action {
	if d.IsZero() {
		if r.Assigned == nil {
			return Nothing
		}
		return Unassign
	}
	if !r.isGood(d) { // a proven configuration is never rejected
		if _, rejected := r.rejection(d, build); rejected {
			return ReportRejection
		}
	}
	switch {
	case !r.isAssigned(d):
		return Stage
	case running == d:
		return Nothing
	case skipped == CheckpointCorrupt:
		return Repair
	case skipped.Transient():
		return AwaitStore
	}
	return Nothing
}
