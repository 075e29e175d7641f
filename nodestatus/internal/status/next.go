// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Do is a request to the API server.
type Do int

const (
	// Nothing: no request follows now.
	Nothing Do = iota
	// Create creates the Node, or reads the one that is there.
	Create
	// Read reads the Node.
	Read
	// Patch writes the status.
	Patch
	// Taint adds taints that the Node lacks.
	Taint
)

// String returns the name of the request.
func (d Do) String() string { return [...]string{"Nothing", "Create", "Read", "Patch", "Taint"}[d] }

// A Cause says why a status is written.
type Cause string

// The causes of writes; package nodestatus documents them.
const (
	Adopt  Cause = "Adopt"
	Change Cause = "Change"
	Drift  Cause = "Drift"
	Report Cause = "Report"
	Resync Cause = "Resync"
)

// Next returns the request that follows, and its cause.
func (s *State) Next(now time.Duration) (Do, Cause) {
	whole := Resync
	if s.accepted == 0 {
		whole = Adopt
	}
	switch {
	case s.sent != nil || s.want == nil || now < s.notBefore || s.Resting():
		return Nothing, ""
	case s.phase == Absent && s.waits(now):
		return Read, "" // only a creation waits: a Node that is there is registered at once
	case s.phase == Missing && s.waits(now):
		return Nothing, ""
	case s.phase == Absent || s.phase == Missing || s.phase == Unsure:
		return Create, ""
	case s.sight == doubted:
		return Read, whole
	case s.closed:
		return Nothing, ""
	case s.waits(now):
		// The whole status from before a restart is better than half of a new one.
		return Nothing, ""
	case s.view.lacks && now >= s.nextTaints:
		return Taint, ""
	case s.sight == owed:
		return Patch, whole
	case s.want.hash != s.accepted:
		return Patch, Change
	case s.stuck():
		// The lease runs out, and the node becomes Unknown. Each write has a heartbeat,
		// which would make kube-controller-manager take the node for alive for 50 s.
		return Nothing, ""
	case s.sight == foreign && now >= s.nextDrift && s.differs():
		return Patch, Drift
	case now+s.rules.Interval/2 >= s.nextReport:
		// Half an interval early rather than late: otherwise a report that is
		// due a moment after a round waits a whole one, and five minutes
		// become ten seconds more each time.
		return Patch, Report
	}
	return Nothing, ""
}

// waits reports whether the first write waits, because a setter that has not succeeded
// may do so soon. What it sets of the spec takes effect only in the creation.
func (s *State) waits(now time.Duration) bool {
	return !s.want.complete && now-s.firstRound < s.rules.Grace
}

// differs reports whether the view differs from the status that should be written.
func (s *State) differs() bool {
	return len(compare(s.want.node, s.view.node(), s.removable())) > 0
}

// removable returns the fields that must be removed if no setter sets them. It is empty
// before every setter has succeeded: one that has failed sets nothing.
func (s *State) removable() ownership {
	if !s.want.complete {
		return nil
	}
	return decodeOwnership(s.owned)
}

// Resting reports whether there is nothing to do before a Resync or an event.
func (s *State) Resting() bool { return s.phase == Deleted && s.sight != doubted }

// Wants reports whether a read was asked for that needs a round.
func (s *State) Wants() bool { return s.sight == doubted }

// Wait returns the time until the next request is allowed, or 0. Rounds go on in the
// meantime, because Live depends on them.
func (s *State) Wait(now time.Duration) time.Duration {
	switch {
	case s.Resting():
		return 0
	case s.notBefore > now:
		return s.notBefore - now
	case s.sight == foreign && s.nextDrift > now:
		return s.nextDrift - now
	}
	return 0
}

// maxConflicts is the number of writes of a status that may conflict with another
// client's. The next one carries no resourceVersion.
const maxConflicts = 2

// version returns the resourceVersion for a write, empty for any.
func (s *State) version() string {
	if (s.sight == owed || s.watched) && s.want.conflicts < maxConflicts {
		// The view is the present state, as far as we know. If it is not the write
		// must conflict, because transition times are computed from the view.
		return s.view.resourceVersion
	}
	return ""
}

// Creation returns the Node to create.
func (s *State) Creation(wall metav1.Time) *corev1.Node {
	node := s.want.node.DeepCopy()
	node.UID, node.ResourceVersion, node.CreationTimestamp = "", "", metav1.Time{}
	node.Spec.Taints = withTaints(node.Spec.Taints, MissingTaints(s.rules.KeepTaints, node.Spec.Taints))
	node.Status.Conditions = stamp(node.Status.Conditions, nil, wall)
	return node
}

// StatusPatch returns the strategic merge patch of the status subresource.
func (s *State) StatusPatch(wall metav1.Time) []byte {
	said, shown := s.want.node, s.view.node()
	return encodePatch(s.view.uid, s.version(), compare(said, shown, s.removable()), stamp(said.Status.Conditions, shown.Status.Conditions, wall))
}

// TaintPatch returns the merge patch of the Node that adds the taints it lacks. The
// list is replaced as a whole, so it must be the present one.
func (s *State) TaintPatch() []byte {
	shown := s.view.node()
	patch, _ := json.Marshal(map[string]any{ // of taints that were decoded
		"metadata": map[string]any{"uid": shown.UID, "resourceVersion": shown.ResourceVersion},
		"spec":     map[string]any{"taints": withTaints(shown.Spec.Taints, MissingTaints(s.rules.KeepTaints, shown.Spec.Taints))},
	})
	return patch
}

// NotReadyPatch returns the patch that makes the Ready condition of shown False, and
// that change.
func NotReadyPatch(shown *corev1.Node, reason, message string, wall metav1.Time) ([]byte, []ConditionChange) {
	said := &corev1.Node{}
	said.Status.Conditions = stamp([]corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: reason, Message: message,
	}}, shown.Status.Conditions, wall)
	return encodePatch(shown.UID, "", nil, said.Status.Conditions), conditionChanges(said, said, shown)
}

// Phase returns the phase.
func (s *State) Phase() Phase { return s.phase }

// UID returns the UID of the registered Node, or nothing.
func (s *State) UID() types.UID {
	if s.view == nil {
		return ""
	}
	return s.view.uid
}

// Node returns the Node as the server showed it last, or nil if none is registered.
func (s *State) Node() *corev1.Node { return s.view.node() }

// Figures are what a program may know of a node.
type Figures struct {
	LastRound, LastWrite time.Duration // 0: never
	Closed               bool          // Gate's last answer
	Failures             int           // of requests since the last success
	Err                  error         // of the last of them
	LateRounds           int           // in a row
}

// Figures returns the present figures.
func (s *State) Figures() Figures {
	f := Figures{LastRound: s.lastRound, LastWrite: s.lastWrite, Closed: s.closed, LateRounds: int(s.lateRounds)}
	if s.trouble != nil {
		f.Failures, f.Err = s.trouble.failures, s.trouble.err
	}
	return f
}

// lateRoundsLimit is the number of rounds in a row with a late health check after
// which the node counts as stuck.
const lateRoundsLimit = 3

// stuck reports whether a health check hangs, so that the lease should run out.
func (s *State) stuck() bool { return s.lateRounds >= lateRoundsLimit }

// Live returns why the lease of the node should not be renewed, or nil. A node is
// neglected if its last round is longer ago than patience.
func (s *State) Live(now, patience time.Duration) error {
	switch age := now - s.lastRound; {
	case s.phase != Registered:
		return fmt.Errorf("it is not registered (%v)", s.phase)
	case age > patience:
		return fmt.Errorf("setters and health checks ran last %v ago", age.Round(time.Second))
	case s.stuck():
		return fmt.Errorf("a health check did not return in time for %d rounds", s.lateRounds)
	}
	return nil
}

// startPatience is the time that a program may take to become ready.
const startPatience = 15 * time.Second

// Starting reports whether the first round began so recently that a health check may
// fail because the program is starting.
func (s *State) Starting(now time.Duration) bool { return now-s.firstRound < startPatience }

// Rounds returns the number of rounds that have begun, and Agreed the last of them whose
// status the API server has and in which every setter has succeeded.
func (s *State) Rounds() uint32 { return s.rounds }

// Agreed: see Rounds.
func (s *State) Agreed() uint32 { return s.agreed }
