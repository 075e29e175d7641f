// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestReadiness(t *testing.T) {
	check := func(i int, reason, message string) Failure {
		return Failure{Field: fmt.Sprintf("HealthChecks[%d]", i), Check: true, Reason: reason, Message: message}
	}
	setter := func(i int, late bool) Failure {
		return Failure{Field: fmt.Sprintf("Setters[%d]", i), Late: late, Message: "no disk"}
	}
	ready := func(status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: corev1.NodeReady, Status: status, Reason: reason, Message: message}
	}
	own := ready(corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status")
	for _, tc := range []struct {
		name       string
		set        *corev1.NodeCondition
		failures   []Failure
		incomplete bool
		want       corev1.NodeCondition
	}{
		{name: "all is well", want: ready(corev1.ConditionTrue, ReasonReady, "all health checks passed")},
		{name: "a setter's own", set: &own, want: own},
		{name: "a failed check outweighs it", set: &own, failures: []Failure{check(0, "", "runtime is down")}, want: ready(corev1.ConditionFalse, ReasonHealthCheckFailed, "runtime is down")},
		{name: "two checks", failures: []Failure{check(0, "", "a"), check(3, "B", "b")}, want: ready(corev1.ConditionFalse, ReasonHealthCheckFailed, "a; b")},
		{name: "reason of the check", failures: []Failure{check(0, "RuntimeDown", "since noon")}, want: ready(corev1.ConditionFalse, "RuntimeDown", "since noon")},
		{name: "late check", failures: []Failure{{Field: "HealthChecks[1]", Check: true, Late: true}}, want: ready(corev1.ConditionFalse, ReasonHealthCheckTimeout, "HealthChecks[1] did not return in time")},
		{name: "late setter that worked before", failures: []Failure{setter(2, true)}, want: ready(corev1.ConditionTrue, ReasonReady, "all health checks passed")},
		{name: "late setter that never worked", failures: []Failure{setter(2, true)}, incomplete: true, want: ready(corev1.ConditionFalse, ReasonSetterTimeout, "Setters[2] did not return in time")},
		{name: "failed setter that worked before", failures: []Failure{setter(2, false)}, want: ready(corev1.ConditionTrue, ReasonReady, "all health checks passed")},
		{name: "failed setter that never worked", failures: []Failure{setter(2, false)}, incomplete: true, want: ready(corev1.ConditionFalse, ReasonSetterFailed, "Setters[2]: no disk")},
		{name: "check before setter", failures: []Failure{setter(0, true), check(0, "", "down")}, incomplete: true, want: ready(corev1.ConditionFalse, ReasonHealthCheckFailed, "down; Setters[0] did not return in time")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, readiness(tc.set, tc.failures, !tc.incomplete)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestComplementConditionsPutsReadyLast(t *testing.T) {
	status := corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Own", LastHeartbeatTime: metav1.Now()},
		{Type: corev1.NodePIDPressure, Status: corev1.ConditionTrue, Reason: "TooMany"},
		{Type: "Extra", Status: corev1.ConditionUnknown, Message: strings.Repeat("é", 2000)},
	}}
	complementConditions(&status, nil, true)
	var kinds []string
	for _, c := range status.Conditions {
		kinds = append(kinds, string(c.Type)+"="+string(c.Status))
		if !c.LastHeartbeatTime.IsZero() {
			t.Errorf("%s has a time", c.Type)
		}
		if len(c.Message) > maxMessage || !utf8.ValidString(c.Message) {
			t.Errorf("%s has a message of %d bytes, valid UTF-8: %v", c.Type, len(c.Message), utf8.ValidString(c.Message))
		}
	}
	want := []string{"PIDPressure=True", "Extra=Unknown", "MemoryPressure=False", "DiskPressure=False", "Ready=True"}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A message that is no text is cut too.
func TestCutOfBytesThatAreNoText(t *testing.T) {
	if got := cut(strings.Repeat("\x80", maxMessage+1)); got != " ..." {
		t.Errorf("%q", got)
	}
}

func TestStamp(t *testing.T) {
	now := metav1.NewTime(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	before := metav1.NewTime(now.Add(-time.Hour))
	condition := func(status corev1.ConditionStatus, transition metav1.Time) []corev1.NodeCondition {
		return []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: transition}}
	}
	for _, tc := range []struct {
		name  string
		said  []corev1.NodeCondition
		shown []corev1.NodeCondition
		want  metav1.Time
	}{
		{"new", condition(corev1.ConditionTrue, metav1.Time{}), nil, now},
		{"unchanged", condition(corev1.ConditionTrue, metav1.Time{}), condition(corev1.ConditionTrue, before), before},
		{"unchanged, whatever the setter thinks", condition(corev1.ConditionTrue, metav1.NewTime(time.Unix(1, 0))), condition(corev1.ConditionTrue, before), before},
		{"changed", condition(corev1.ConditionFalse, metav1.Time{}), condition(corev1.ConditionTrue, before), now},
		{"after Unknown of somebody else", condition(corev1.ConditionTrue, before), condition(corev1.ConditionUnknown, before), now},
		{"shown without time", condition(corev1.ConditionTrue, metav1.Time{}), condition(corev1.ConditionTrue, metav1.Time{}), now},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := stamp(tc.said, tc.shown, now)[0]
			if got.LastTransitionTime != tc.want || got.LastHeartbeatTime != now {
				t.Errorf("transition %v, heartbeat %v, want %v and %v", got.LastTransitionTime, got.LastHeartbeatTime, tc.want, now)
			}
		})
	}
}

func TestCheckConditions(t *testing.T) {
	ok := corev1.NodeCondition{Type: "A", Status: corev1.ConditionTrue}
	for _, tc := range []struct {
		name       string
		conditions []corev1.NodeCondition
		want       string
	}{
		{"none", nil, ""},
		{"good", []corev1.NodeCondition{ok, {Type: "B", Status: corev1.ConditionUnknown}}, ""},
		{"twice", []corev1.NodeCondition{ok, ok}, "condition A is there twice"},
		{"no type", []corev1.NodeCondition{{Status: corev1.ConditionTrue}}, "a condition has no type"},
		{"no status", []corev1.NodeCondition{{Type: "B"}}, `condition B has status "", want True, False or Unknown`},
		{"another status", []corev1.NodeCondition{{Type: "B", Status: "Yes"}}, `condition B has status "Yes", want True, False or Unknown`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := CheckConditions(tc.conditions)
			if got := fmt.Sprint(err); err == nil && tc.want != "" || err != nil && got != tc.want {
				t.Errorf("CheckConditions = %v, want %q", err, tc.want)
			}
		})
	}
}
