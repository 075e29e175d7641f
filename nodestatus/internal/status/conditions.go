// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The reasons of conditions; package nodestatus documents them.
const (
	ReasonReady              = "NodeReady"
	ReasonHealthCheckFailed  = "HealthCheckFailed"
	ReasonHealthCheckTimeout = "HealthCheckTimeout"
	ReasonSetterFailed       = "StatusSetterFailed"
	ReasonSetterTimeout      = "StatusSetterTimeout"
	ReasonNoPressure         = "NoPressureReported"
)

// maxMessage is the length at which messages of conditions are cut.
const maxMessage = 1024

// A Failure is a setter or health check that failed.
type Failure struct {
	Field   string // as Config spells it
	Check   bool   // a health check, or SetNotReady
	Late    bool   // it did not return in time
	Reason  string // of the Ready condition, if a check has chosen one
	Message string // of the Ready condition
}

// FindCondition returns the condition of the type, or nil.
func FindCondition(conditions []corev1.NodeCondition, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range conditions {
		if conditions[i].Type == kind {
			return &conditions[i]
		}
	}
	return nil
}

// complementConditions adds the conditions that no setter has set: the three
// pressures, and Ready in the last place. Times become zero: they are not part of the
// status that is compared.
func complementConditions(status *corev1.NodeStatus, failures []Failure, complete bool) {
	addPressures(status)
	ready := readiness(FindCondition(status.Conditions, corev1.NodeReady), failures, complete)
	conditions := slices.DeleteFunc(status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	// Consumers of old took the last condition for Ready; the place costs nothing.
	status.Conditions = append(conditions, ready)
	for i := range status.Conditions {
		c := &status.Conditions[i]
		c.LastHeartbeatTime, c.LastTransitionTime = metav1.Time{}, metav1.Time{}
		c.Reason, c.Message = text(c.Reason), cut(text(c.Message))
	}
}

// addPressures adds those pressure conditions that are missing, as False. They
// are the conditions other than Ready that kube-controller-manager takes for the
// kubelet's: it writes them after an outage, adding those that are missing,
// and only the node ever corrects them.
func addPressures(status *corev1.NodeStatus) {
	for _, p := range [...]struct {
		kind    corev1.NodeConditionType
		message string
	}{
		{corev1.NodeMemoryPressure, "nothing has reported memory pressure"},
		{corev1.NodeDiskPressure, "nothing has reported disk pressure"},
		{corev1.NodePIDPressure, "nothing has reported PID pressure"},
	} {
		if FindCondition(status.Conditions, p.kind) == nil {
			status.Conditions = append(status.Conditions, corev1.NodeCondition{
				Type: p.kind, Status: corev1.ConditionFalse, Reason: ReasonNoPressure, Message: p.message,
			})
		}
	}
}

// readiness returns the Ready condition. set is the one that a setter set, or
// nil. A failed check outweighs it; so does a failed or late setter until all
// setters have succeeded once.
func readiness(set *corev1.NodeCondition, failures []Failure, complete bool) corev1.NodeCondition {
	reason := ""
	var messages []string
	// Checks go first: their messages are the program's.
	for _, checks := range []bool{true, false} {
		for _, f := range failures {
			if f.Check != checks || !f.Check && complete {
				continue
			}
			why, message := explain(f)
			if reason == "" {
				reason = why
			}
			messages = append(messages, message)
		}
	}
	switch {
	case reason != "":
		return corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: reason, Message: strings.Join(messages, "; ")}
	case set != nil:
		return *set
	}
	return corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: ReasonReady, Message: "all health checks passed"}
}

// explain returns the reason and message of the Ready condition for a failure.
func explain(f Failure) (reason, message string) {
	switch {
	case f.Late && f.Check:
		// The same text as long as it lasts: another one would be a write.
		return ReasonHealthCheckTimeout, f.Field + " did not return in time"
	case f.Late:
		return ReasonSetterTimeout, f.Field + " did not return in time"
	case f.Check:
		return cmp.Or(f.Reason, ReasonHealthCheckFailed), f.Message
	}
	return ReasonSetterFailed, f.Field + ": " + f.Message
}

// text returns s as the API stores it, in UTF-8. A value that is stored differently
// would count as another client's.
func text(s string) string { return strings.ToValidUTF8(s, string(utf8.RuneError)) }

// cut shortens a message to maxMessage bytes without splitting a character.
func cut(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	const mark = " ..."
	end := maxMessage - len(mark)
	for end > 0 && !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + mark
}

// SetCondition sets a condition of node, in the place of the one of the same type.
func SetCondition(node *corev1.Node, condition corev1.NodeCondition) {
	if old := FindCondition(node.Status.Conditions, condition.Type); old != nil {
		*old = condition
		return
	}
	node.Status.Conditions = append(node.Status.Conditions, condition)
}

// CheckConditions returns the problems of the conditions that a setter has set.
// An empty status, which the API server would store, is none of the three that
// consumers know.
func CheckConditions(conditions []corev1.NodeCondition) error {
	seen := make(map[corev1.NodeConditionType]bool, len(conditions))
	for _, c := range conditions {
		switch {
		case c.Type == "":
			return errors.New("a condition has no type")
		case seen[c.Type]:
			return fmt.Errorf("condition %s is there twice", c.Type)
		case c.Status != corev1.ConditionTrue && c.Status != corev1.ConditionFalse && c.Status != corev1.ConditionUnknown:
			return fmt.Errorf("condition %s has status %q, want True, False or Unknown", c.Type, c.Status)
		}
		seen[c.Type] = true
	}
	return nil
}

// stamp returns conditions with their times. The heartbeat is now. The transition is
// the server's if its condition has the same status, and else now. Times of the setters
// are ignored: setters have not seen the writes of other clients.
func stamp(conditions, shown []corev1.NodeCondition, now metav1.Time) []corev1.NodeCondition {
	stamped := slices.Clone(conditions)
	for i := range stamped {
		c := &stamped[i]
		c.LastHeartbeatTime, c.LastTransitionTime = now, now
		if old := FindCondition(shown, c.Type); old != nil && old.Status == c.Status && !old.LastTransitionTime.IsZero() {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	return stamped
}
