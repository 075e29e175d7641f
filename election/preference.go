// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"encoding/json"
	"maps"
	"time"

	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"

	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/apierr"
)

// verdictFor is the time for which the verdict about a preferred candidate holds.
const verdictFor = 30 * time.Second

// verdict is the judgment of a leader about the candidate that a coordinator prefers.
// The controller in the API server breaks ties at random, in every step again. A leader
// that obeyed would lead for less than a second.
type verdict struct {
	better bool
	until  time.Duration
}

// weighPreference gives way to the candidate that a coordinator prefers, after MinTenure
// and if the strategy prefers it too. A preference that the strategy does not support is
// withdrawn by the next renewal. If the Lease names another strategy than this
// candidate's, only the coordinator can judge.
func (m *machine) weighPreference(now time.Duration) {
	m.inquiry = ""
	to := spec.PreferredOf(m.lease)
	if to == "" || to == m.id || !m.due(now, m.term.began+m.Timing.MinTenure) {
		return
	}
	named := m.lease.Spec.Strategy
	if named == nil || string(*named) == m.Strategy.Name() {
		v, judged := m.verdicts[to]
		if !judged || m.due(now, v.until) {
			m.inquiry = to
			return
		}
		if !v.better {
			return
		}
	}
	m.term.target = to
	m.drain(now, ErrSuperseded)
}

// refuses reports whether a preference is to be withdrawn.
func (m *machine) refuses(preferred string, now time.Duration) bool {
	v, judged := m.verdicts[preferred]
	return judged && !v.better && now < v.until
}

// judge updates m after the LeaseCandidate of a preferred candidate was read. If that
// failed, the word of the coordinator stands; MinTenure limits what it can cost.
func (m *machine) judge(now time.Duration, name string, lc *coordinationv1beta1.LeaseCandidate, err error) {
	maps.DeleteFunc(m.verdicts, func(_ string, v verdict) bool { return now >= v.until })
	better := true
	switch {
	case apierr.Classify(err) == apierr.NotFound:
		better = false
	case err == nil:
		better = lc.DeletionTimestamp == nil && lc.Spec.LeaseName == m.Lease.Name &&
			(m.self.LastResort || Preempts(m.Strategy, described(lc), m.asPeer()))
	}
	if m.inquiry == name {
		m.inquiry = ""
	}
	m.verdicts[name] = verdict{better: better, until: now + verdictFor}
}

// described returns the Peer that a LeaseCandidate describes.
func described(lc *coordinationv1beta1.LeaseCandidate) (p Peer) {
	_ = json.Unmarshal([]byte(lc.Annotations[spec.PeerAnnotation]), &p) // without Priority and Attributes if it is none
	p.Identity, p.Created = lc.Name, lc.CreationTimestamp.Time
	p.BinaryVersion, p.EmulationVersion = lc.Spec.BinaryVersion, lc.Spec.EmulationVersion
	return p
}
