// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
	"github.com/kubewright/kubewright/internal/enum"
)

// A Phase is the state of the rollout.
type Phase int

const (
	// PhasePending: Boot has not returned.
	PhasePending Phase = iota
	// PhaseDefault: nothing is assigned; the built-in default runs.
	PhaseDefault
	// PhaseStaged: the assigned configuration is stored, and runs after the
	// restart that Run asks for.
	PhaseStaged
	// PhaseTrial: the assigned configuration runs and is not proven.
	PhaseTrial
	// PhaseGood: the assigned configuration runs and is proven.
	PhaseGood
	// PhaseRolledBack: the assigned configuration is rejected; another one runs.
	PhaseRolledBack
	// PhaseDegraded: the assigned configuration could not be started, through no
	// fault of its own; another one runs.
	PhaseDegraded
)

// String returns the name of the phase, fit for a label of a metric.
func (p Phase) String() string {
	return enum.Name(p, "Pending", "Default", "Staged", "Trial", "Good", "RolledBack", "Degraded")
}

// MarshalText implements encoding.TextMarshaler, so that a Status in JSON has the name.
func (p Phase) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Status is the running configuration and the reason why it runs. The zero Status
// is that of a controller before Boot. Its JSON is what an agent reports to whatever watches a
// fleet: each field is a word, a number or a text.
type Status struct {
	// Phase is the state of the rollout.
	Phase Phase `json:"phase"`
	// Active is the running configuration, and Role the part it plays.
	Active Ref  `json:"active,omitzero"`
	Role   Role `json:"role"`
	// Assigned is the last configuration that was accepted from the source.
	Assigned Ref `json:"assigned,omitzero"`
	// LastKnownGood is the configuration that a failed trial falls back to.
	LastKnownGood Ref `json:"lastKnownGood,omitzero"`
	// Attempt is the number of the current start during a trial, from 1 to
	// Attempts; 0 otherwise.
	Attempt  int `json:"attempt,omitempty"`
	Attempts int `json:"attempts,omitempty"`
	// OK means that the configuration that the source wants runs. It is false before Boot.
	OK bool `json:"ok"`
	// Reason and Message explain OK. The message is for people.
	Reason  Reason `json:"reason"`
	Message string `json:"message"`
	// Since is the time of the last change of OK, by the wall clock.
	Since time.Time `json:"since"`
}

// A Role is the part a configuration plays.
type Role string

const (
	// RoleAssigned is the configuration that the source wants.
	RoleAssigned Role = "Assigned"
	// RoleLastKnownGood is the last configuration that passed its trial.
	RoleLastKnownGood Role = "LastKnownGood"
	// RolePrevious is the configuration that was last known good before it.
	RolePrevious Role = "Previous"
	// RoleDefault is the configuration that Codec.Default returns.
	RoleDefault Role = "Default"
)

// A situation is what a Status says: the state of the rollout, and the faults around it.
//
// Invariant: skipped is set only while the assigned configuration does not run.
// Invariant: refused and waiting are about the last payload.
type situation struct {
	core     *rollout.State
	attempts int // the limit

	skipped *ReasonError // why the assigned configuration was not started
	passed  *ReasonError // why a proven one was not, that is better than the running one
	store   *ReasonError // the current fault of the store
	refused *ReasonError // why the last payload was not accepted
	source  error        // why the source has no payload
	waiting string       // why the last payload is held back
	restart bool         // Run asks for a restart
	before  Status       // the current one
	health  error        // of the configuration on trial
}

// running returns the configuration that runs.
func (s situation) running() Ref {
	ref, _ := s.core.Running()
	return refOf(&ref)
}

// status explains the situation. Since is left zero.
func (s situation) status() Status {
	rec := s.core.Record()
	_, role := s.core.Running()
	st := Status{
		Active: s.running(), Role: Role(role), Assigned: refOf(rec.Assigned), LastKnownGood: refOf(rec.LKG),
		Attempt: s.core.OnTrial(), Attempts: s.attempts,
	}
	s.explain(&st)
	s.overlay(&st)
	st.Message = rollout.Tidy(st.Message, maxStatusMessage)
	return st
}

// maxStatusMessage keeps messages within the limit of an event's note (1024
// bytes), with room for a name.
const maxStatusMessage = 900

// explain sets the phase and OK from the assigned and the running configuration.
func (s situation) explain(st *Status) {
	assigned, running, proven := st.Assigned, st.Active, s.core.Proven()
	x, rejected := s.core.Rejection(rollout.Digest(assigned.Digest))
	switch {
	case s.store != nil && s.store.Reason == ReasonStoreTooNew:
		st.set(PhaseDegraded, false, ReasonStoreTooNew, fmt.Sprintf("%v; running %s", s.store.Err, running))
	case running.Digest == assigned.Digest && assigned.Digest.IsZero():
		st.set(PhaseDefault, true, ReasonDefault, "nothing is assigned; running the built-in default")
	case running.Digest == assigned.Digest && proven:
		st.set(PhaseGood, true, ReasonGood, fmt.Sprintf("running %s", running))
	case st.Attempt > 0:
		message := fmt.Sprintf("running %s on trial, start %d of %d", running, st.Attempt, s.attempts)
		if s.health != nil {
			message += "; unhealthy: " + s.health.Error()
		}
		st.set(PhaseTrial, true, ReasonTrial, message)
	case rejected && !proven:
		st.set(PhaseRolledBack, false, Reason(x.Reason), fmt.Sprintf("%s was rejected: %s; running %s", assigned, x.Message, running))
	case s.skipped != nil:
		st.set(PhaseDegraded, false, s.skipped.Reason, fmt.Sprintf("%s could not be started: %v; running %s", assigned, s.skipped.Err, running))
	default:
		// Assigned a moment ago: the earlier configuration runs until the restart,
		// and is as right or wrong as it was.
		ok := s.before.OK || s.before.Phase == PhasePending
		st.set(PhaseStaged, ok, ReasonStaged, fmt.Sprintf("%s is staged; running %s", assigned, running))
	}
}

// overlay adds faults and payloads that wait. If OK is False already, its reason
// stays, because it is the one to act on first.
func (s situation) overlay(st *Status) {
	blame := func(e *ReasonError) {
		if e == nil {
			return
		}
		if !st.OK {
			if e.Reason != st.Reason {
				st.Message += "; " + e.Error()
			}
			return
		}
		st.OK, st.Reason = false, e.Reason
		st.Message = e.Error() + "; " + st.Message
	}
	note := func(reason Reason, message string) {
		if st.OK && st.Phase != PhaseStaged {
			st.Reason = reason
		}
		st.Message += "; " + message
	}
	blame(s.refused)
	blame(s.passed)
	blame(s.store)
	if s.waiting != "" {
		note(ReasonWaiting, s.waiting)
	}
	if s.source != nil {
		note(ReasonSourceFailed, "the source failed: "+s.source.Error())
	}
	if s.restart {
		st.Message += "; waiting for the restart"
	}
}

// set sets the fields that explain decides.
func (st *Status) set(phase Phase, ok bool, reason Reason, message string) {
	st.Phase, st.OK, st.Reason, st.Message = phase, ok, reason, message
}

// A Digest is the SHA-256 of a payload, and its identity: two payloads with
// the same bytes are the same configuration, from whichever object, version or
// file they came. The zero Digest stands for the built-in default.
type Digest [sha256.Size]byte

// DigestOf returns the digest of a payload.
func DigestOf(data []byte) Digest { return sha256.Sum256(data) }

// IsZero reports whether d stands for the built-in default.
func (d Digest) IsZero() bool { return d == Digest{} }

// String returns d in 64 hexadecimal digits, which is also the name of its
// file in the store.
func (d Digest) String() string { return rollout.Digest(d).String() }

// MarshalText implements encoding.TextMarshaler.
func (d Digest) MarshalText() ([]byte, error) { return rollout.Digest(d).MarshalText() }

// UnmarshalText implements encoding.TextUnmarshaler, so that a Digest can be a
// flag (flag.TextVar). It accepts exactly 64 hexadecimal digits.
func (d *Digest) UnmarshalText(text []byte) error { return (*rollout.Digest)(d).UnmarshalText(text) }

// A Ref names one configuration. The zero Ref is the built-in default.
type Ref struct {
	// Digest identifies the payload.
	Digest Digest `json:"digest"`
	// Name is the origin of the payload, for people.
	Name string `json:"name,omitempty"`
	// Version is the source's version of it, for people.
	Version string `json:"version,omitempty"`
	// Size is the length of the payload in bytes.
	Size int `json:"size,omitempty"`
	// Time is the time of its staging, by the wall clock, for people.
	Time time.Time `json:"time,omitzero"`
}

// String returns the name and the first digits of the digest.
func (r Ref) String() string {
	if r.Digest.IsZero() {
		return "the built-in default"
	}
	short := r.Digest.String()[:12]
	if r.Name == "" {
		return "sha256:" + short
	}
	return r.Name + " (sha256:" + short + ")"
}

// refOf returns the Ref that package rollout knows as r, the zero Ref for nil.
func refOf(r *rollout.Ref) Ref {
	if r == nil {
		return Ref{}
	}
	return Ref{Digest: Digest(r.Digest), Name: r.Name, Version: r.Version, Size: r.Size, Time: r.Time}
}

// core returns r as package rollout knows it.
func (r Ref) core() rollout.Ref {
	return rollout.Ref{Digest: rollout.Digest(r.Digest), Name: r.Name, Version: r.Version, Size: r.Size, Time: r.Time}
}
