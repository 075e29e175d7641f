// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const (
	restart    = corev1.ContainerRestartRuleActionRestart
	restartAll = corev1.ContainerRestartRuleActionRestartAllContainers
	in         = corev1.ContainerRestartRuleOnExitCodesOpIn
	notIn      = corev1.ContainerRestartRuleOnExitCodesOpNotIn
)

func rule(action corev1.ContainerRestartRuleAction, op corev1.ContainerRestartRuleOnExitCodesOperator, codes ...int32) corev1.ContainerRestartRule {
	return corev1.ContainerRestartRule{Action: action, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: op, Values: codes}}
}

func TestShouldRestart(t *testing.T) {
	for _, tc := range []struct {
		pod   corev1.RestartPolicy
		own   corev1.ContainerRestartPolicy // "" = none
		rules []corev1.ContainerRestartRule
		want  map[int32]bool // by exit code
	}{
		{pod: "Always", want: map[int32]bool{0: true, 1: true}},
		{pod: "OnFailure", want: map[int32]bool{0: false, 1: true, 137: true}},
		{pod: "Never", want: map[int32]bool{0: false, 1: false}},
		{pod: "", want: map[int32]bool{0: true, 1: true}},

		// The container's own policy overrides the pod's.
		{pod: "Never", own: "Always", want: map[int32]bool{0: true, 1: true}},
		{pod: "Always", own: "Never", want: map[int32]bool{0: false, 1: false}},
		{pod: "Always", own: "OnFailure", want: map[int32]bool{0: false, 1: true}},

		// Rules come before the container's policy.
		{pod: "Never", own: "Never", rules: []corev1.ContainerRestartRule{rule(restart, in, 42, 43)}, want: map[int32]bool{0: false, 1: false, 42: true, 43: true}},
		{pod: "Never", own: "Never", rules: []corev1.ContainerRestartRule{rule(restart, notIn, 0, 1)}, want: map[int32]bool{0: false, 1: false, 2: true}},
		{pod: "Never", own: "OnFailure", rules: []corev1.ContainerRestartRule{rule(restart, in, 0)}, want: map[int32]bool{0: true, 1: true}},
		{pod: "Never", own: "Never", rules: []corev1.ContainerRestartRule{rule(restartAll, in, 9)}, want: map[int32]bool{9: true, 1: false}},
		// The first match decides, even if its action is unknown here.
		{pod: "Never", own: "Never", rules: []corev1.ContainerRestartRule{rule("Explode", in, 7), rule(restart, in, 7)}, want: map[int32]bool{7: false}},
		// Rules without the container's own policy don't count.
		{pod: "Never", rules: []corev1.ContainerRestartRule{rule(restart, in, 42)}, want: map[int32]bool{42: false}},
		// A rule without a condition, or with an unknown operator, matches nothing.
		{pod: "Never", own: "Never", rules: []corev1.ContainerRestartRule{{Action: restart}, rule(restart, "Like", 42)}, want: map[int32]bool{42: false}},
	} {
		c := corev1.Container{Name: "c", RestartPolicyRules: tc.rules}
		if tc.own != "" {
			c.RestartPolicy = &tc.own
		}
		for code, want := range tc.want {
			name := fmt.Sprintf("%s/%s/%d rules/exit %d", tc.pod, tc.own, len(tc.rules), code)
			if got := ShouldRestart(&corev1.PodSpec{RestartPolicy: tc.pod}, &c, code); got != want {
				t.Errorf("%s: ShouldRestart = %v, want %v", name, got, want)
			}
		}
	}
}

func TestRestartsPod(t *testing.T) {
	never := corev1.ContainerRestartPolicyNever
	c := corev1.Container{RestartPolicy: &never, RestartPolicyRules: []corev1.ContainerRestartRule{rule(restart, in, 1), rule(restartAll, notIn, 0)}}
	for code, want := range map[int32]bool{0: false, 1: false, 2: true} {
		if got := RestartsPod(&c, code); got != want {
			t.Errorf("exit %d: RestartsPod = %v, want %v", code, got, want)
		}
	}
}
