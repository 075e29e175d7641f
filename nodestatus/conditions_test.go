// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"errors"
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
	check := func(i int, err error) failure {
		return failure{field: fmt.Sprintf("HealthChecks[%d]", i), check: true, err: err}
	}
	setter := func(i int, late bool) failure {
		return failure{field: fmt.Sprintf("Setters[%d]", i), late: late, err: errors.New("no disk")}
	}
	ready := func(status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: corev1.NodeReady, Status: status, Reason: reason, Message: message}
	}
	own := ready(corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status")
	for _, tc := range []struct {
		name       string
		set        *corev1.NodeCondition
		failures   []failure
		incomplete bool
		want       corev1.NodeCondition
	}{
		{name: "all is well", want: ready(corev1.ConditionTrue, ReasonReady, "all health checks passed")},
		{name: "a setter's own", set: &own, want: own},
		{name: "a failed check outweighs it", set: &own, failures: []failure{check(0, errors.New("runtime is down"))}, want: ready(corev1.ConditionFalse, ReasonHealthCheckFailed, "runtime is down")},
		{name: "two checks", failures: []failure{check(0, errors.New("a")), check(3, &NotReadyError{Reason: "B", Message: "b"})}, want: ready(corev1.ConditionFalse, ReasonHealthCheckFailed, "a; b")},
		{name: "reason of the check", failures: []failure{check(0, fmt.Errorf("probe: %w", &NotReadyError{Reason: "RuntimeDown", Message: "since noon"}))}, want: ready(corev1.ConditionFalse, "RuntimeDown", "since noon")},
		{name: "no reason of the check", failures: []failure{check(0, &NotReadyError{Message: "since noon"})}, want: ready(corev1.ConditionFalse, ReasonHealthCheckFailed, "since noon")},
		{name: "late check", failures: []failure{{field: "HealthChecks[1]", check: true, late: true, err: errLate}}, want: ready(corev1.ConditionFalse, ReasonHealthCheckTimeout, "HealthChecks[1] did not return in time")},
		{name: "late setter that worked before", failures: []failure{setter(2, true)}, want: ready(corev1.ConditionTrue, ReasonReady, "all health checks passed")},
		{name: "late setter that never worked", failures: []failure{setter(2, true)}, incomplete: true, want: ready(corev1.ConditionFalse, ReasonSetterTimeout, "Setters[2] did not return in time")},
		{name: "failed setter that worked before", failures: []failure{setter(2, false)}, want: ready(corev1.ConditionTrue, ReasonReady, "all health checks passed")},
		{name: "failed setter that never worked", failures: []failure{setter(2, false)}, incomplete: true, want: ready(corev1.ConditionFalse, ReasonSetterFailed, "Setters[2]: no disk")},
		{name: "check before setter", failures: []failure{setter(0, true), check(0, errors.New("down"))}, incomplete: true, want: ready(corev1.ConditionFalse, ReasonHealthCheckFailed, "down; Setters[0] did not return in time")},
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
	complementConditions(&status, nil, true, false)
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

	bare := corev1.NodeStatus{}
	complementConditions(&bare, nil, true, true)
	if len(bare.Conditions) != 1 || bare.Conditions[0].Type != corev1.NodeReady {
		t.Errorf("OmitPressure: %v, want Ready alone", bare.Conditions)
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
			err := checkConditions(tc.conditions)
			if got := fmt.Sprint(err); err == nil && tc.want != "" || err != nil && got != tc.want {
				t.Errorf("checkConditions = %v, want %q", err, tc.want)
			}
		})
	}
}
