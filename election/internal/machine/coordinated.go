// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"encoding/json"
	"maps"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// coordinated is the registry in LeaseCandidates. A coordinator chooses, and the leader
// weighs its preferences.
type coordinated struct {
	*Machine
	mixed    bool // other candidates use the other registry
	verdicts map[string]verdict
	asks     string // the candidate about which the leader needs a verdict; "" for none
}

// verdictFor is the time for which the verdict about a preferred candidate holds.
const verdictFor = 30 * time.Second

// verdict is the judgment of a leader about the candidate that a coordinator prefers.
// The controller in the API server breaks ties at random, in every step again. A leader
// that obeyed would lead for less than a second.
type verdict struct {
	better bool
	until  time.Duration
}

func (r *coordinated) observed(time.Duration) {
	if r.lease != nil && !r.mixed && len(records(r.lease.Annotations)) > 0 {
		r.mixed = true
		r.tell(MixedRegistries{})
	}
}

func (r *coordinated) observer() bool { return false }

// turn leaves a free Lease to the coordinator for another duration.
func (r *coordinated) turn() time.Duration {
	return r.LeaseDuration + time.Duration(r.draw*float64(MaxRank*Stagger))
}

// weigh gives way to the candidate that a coordinator prefers, after MinTenure
// and if the strategy prefers it too. A preference that the strategy does not support is
// withdrawn by the next renewal. If the Lease names another strategy than this
// candidate's, only the coordinator can judge.
func (r *coordinated) weigh(now time.Duration) {
	r.asks = ""
	to := spec.PreferredOf(r.lease)
	if to == "" || to == r.ID || !r.alarm.due(now, r.term.began+r.MinTenure) {
		return
	}
	named := r.lease.Spec.Strategy
	if named == nil || string(*named) == r.strategy {
		v, judged := r.verdicts[to]
		if !judged || r.alarm.due(now, v.until) {
			r.asks = to
			return
		}
		if !v.better {
			return
		}
	}
	r.term.target = to
	r.becomeDraining(now, Superseded)
}

func (r *coordinated) inquiry() string {
	if r.phase != Leading {
		return ""
	}
	return r.asks
}

// inquired judges the candidate that a coordinator prefers. If its LeaseCandidate could
// not be read, the word of the coordinator stands; MinTenure limits what it can cost.
func (r *coordinated) inquired(now time.Duration, e Inquired) {
	maps.DeleteFunc(r.verdicts, func(_ string, v verdict) bool { return now >= v.until })
	better := true
	switch lc := e.Candidate; e.Answer {
	case Missing:
		better = false
	case OK:
		better = lc.DeletionTimestamp == nil && lc.Spec.LeaseName == r.Lease.Name &&
			(r.self.LastResort || spec.Preempts(r.Strategy, described(lc), r.asPeer()))
	}
	if r.asks == e.Name {
		r.asks = ""
	}
	r.verdicts[e.Name] = verdict{better: better, until: now + verdictFor}
}

// described returns the Peer that a LeaseCandidate describes.
func described(lc *coordinationv1beta1.LeaseCandidate) (p spec.Peer) {
	_ = json.Unmarshal([]byte(lc.Annotations[spec.PeerAnnotation]), &p) // without Priority and Attributes if it is none
	p.Identity, p.Created = lc.Name, lc.CreationTimestamp.Time
	p.BinaryVersion, p.EmulationVersion = lc.Spec.BinaryVersion, lc.Spec.EmulationVersion
	return p
}

func (r *coordinated) write(now time.Duration, op Op, l *coordinationv1.Lease) {
	switch op {
	case Claim:
	case Renew: // withdraws a preference that was judged
		if v, judged := r.verdicts[spec.PreferredOf(l)]; judged && !v.better && now < v.until {
			l.Spec.PreferredHolder = nil
		}
	default:
		delete(l.Annotations, recordKey(r.ID)) // of an earlier process with the other registry
	}
}

func (r *coordinated) ended(time.Duration, bool)                        {}
func (r *coordinated) heir(to string) string                            { return to }
func (r *coordinated) urgent() bool                                     { return false }
func (r *coordinated) published() bool                                  { return false }
func (r *coordinated) publishAt(time.Duration) (at time.Duration, _ Op) { return Never, "" }
func (r *coordinated) stored(time.Duration, Op)                         {}
func (r *coordinated) postpone(time.Duration)                           {}

func (r *coordinated) check() error { return nil }
