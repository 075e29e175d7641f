// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/configcheckpoint"
)

func TestCondition(t *testing.T) {
	since := time.Unix(1e9, 0)
	status := configcheckpoint.Status{}
	var set func(context.Context, *corev1.Node) error = NodeCondition(func() configcheckpoint.Status { return status }, "ConfigOK")
	node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready"}}}}
	for _, test := range []struct {
		configcheckpoint.Status
		want         corev1.ConditionStatus
		reason, text string
	}{
		{configcheckpoint.Status{}, corev1.ConditionUnknown, "NotBooted", "not been chosen"},
		{configcheckpoint.Status{Phase: configcheckpoint.PhaseGood, OK: true, Reason: configcheckpoint.ReasonGood, Message: "fine", Since: since}, corev1.ConditionTrue, "Good", "fine"},
		{configcheckpoint.Status{Phase: configcheckpoint.PhaseGood, Reason: configcheckpoint.ReasonDecodeFailed, Message: "no", Since: since}, corev1.ConditionFalse, "DecodeFailed", "no"},
	} {
		status = test.Status
		if err := set(t.Context(), node); err != nil || len(node.Status.Conditions) != 2 {
			t.Fatalf("%v, %+v", err, node.Status.Conditions)
		}
		c := node.Status.Conditions[1]
		if c.Type != "ConfigOK" || c.Status != test.want || c.Reason != test.reason || !strings.Contains(c.Message, test.text) || !c.LastTransitionTime.Time.Equal(test.Since) {
			t.Errorf("%+v, want %s %s", c, test.want, test.reason)
		}
	}
}

func TestEvents(t *testing.T) {
	called := 0
	count := func() { called++ }
	recorder := events.NewFakeRecorder(10)
	hooks := WithEvents(configcheckpoint.Hooks{
		Staged:        func(configcheckpoint.Staged) { count() },
		Promoted:      func(configcheckpoint.Promoted) { count() },
		Rejected:      func(configcheckpoint.Rejected) { count() },
		Delivered:     func(configcheckpoint.Delivered) { count() },
		StatusChanged: func(configcheckpoint.Status) { count() },
	}, recorder, &corev1.Node{})
	alone := WithEvents(configcheckpoint.Hooks{}, recorder, &corev1.Node{})
	ref := configcheckpoint.Ref{Digest: configcheckpoint.DigestOf(nil), Name: "test"}
	hooks.Delivered(configcheckpoint.Delivered{})
	hooks.StatusChanged(configcheckpoint.Status{})
	for _, h := range []configcheckpoint.Hooks{hooks, alone} {
		h.Staged(configcheckpoint.Staged{Ref: ref})
		h.Promoted(configcheckpoint.Promoted{Ref: ref})
		h.Rejected(configcheckpoint.Rejected{Ref: ref, Reason: configcheckpoint.ReasonDecodeFailed, Message: "100% ill"})
		h.Rejected(configcheckpoint.Rejected{Ref: ref, Reason: configcheckpoint.ReasonUnhealthy, RolledBack: true})
		for _, want := range []string{
			"Normal ConfigStaged Assigned test (sha256:", "Normal ConfigPromoted test (sha256:",
			"Warning ConfigRejected test (sha256:e3b0c44298fc): DecodeFailed: 100% ill", "Warning ConfigRolledBack test (sha256:",
		} {
			if got := <-recorder.Events; !strings.HasPrefix(got, want) {
				t.Errorf("the event is %q, want %q", got, want)
			}
		}
	}
	if called != 6 {
		t.Errorf("%d hooks were called, want 6", called)
	}
	if WithEvents(configcheckpoint.Hooks{}, nil, nil).Staged != nil {
		t.Error("hooks without a recorder")
	}
}
