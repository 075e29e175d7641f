// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A provider dates the change of its condition before the last one that is
// stored: it can't have been then.
func TestTransitionTimeDoesNotGoBack(t *testing.T) {
	pod := testPod("Always c1 | Running c1=ready")
	pod.Status.Conditions = []corev1.PodCondition{{Type: "example.com/x", Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(t0)}}
	for name, tc := range map[string]struct{ says, want time.Time }{
		"after the last one":  {t0.Add(time.Second), t0.Add(time.Second)},
		"with the last one":   {t0, t0},
		"before the last one": {t0.Add(-time.Second), t1},
	} {
		next, problems := Next(pod, Update{Now: t1, Observed: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: "example.com/x", Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(tc.says)},
		}}})
		if got := next.Conditions[indexOf(next.Conditions, "example.com/x")].LastTransitionTime; !got.Time.Equal(tc.want) || len(problems) > 0 {
			t.Errorf("%s: %v, %v; want %v", name, got, problems, tc.want)
		}
	}
}

// A condition that is stored twice, which API servers let pass, was written
// again and again.
func TestConditionThatIsStoredTwice(t *testing.T) {
	pod := testPod("Always c1 | Running c1=ready")
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: "example.com/x", Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(t0)},
		{Type: "example.com/x", Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(t0)},
	}
	next, _ := Next(pod, Update{Now: t1})
	pod.Status = next
	again, _ := Next(pod, Update{Now: t1})
	if patch := Patch(pod, &again); patch != nil {
		t.Errorf("written again: %s", patch)
	}
	if !Equal(&next, &again) {
		t.Error("not equal to itself")
	}
}
