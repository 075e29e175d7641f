// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestDecide(t *testing.T) {
	// A registered node at 100 s that has nothing to do before 200 s.
	quiet := situation{now: 100 * time.Second, phase: PhaseRegistered, nextReport: 200 * time.Second, grace: 40 * time.Second, interval: 10 * time.Second}
	for _, tc := range []struct {
		name  string
		edit  func(*situation)
		step  step
		cause Cause
	}{
		{"quiet", func(*situation) {}, stepNone, ""},
		{"registering", func(s *situation) { s.phase = PhaseRegistering }, stepRegister, ""},
		{"registering after a failure", func(s *situation) { s.phase, s.notBefore = PhaseRegistering, 101*time.Second }, stepNone, ""},
		{"registering does not look", func(s *situation) { s.phase, s.look = PhaseRegistering, true }, stepRegister, ""},
		{"deleted", func(s *situation) { s.phase, s.changed = PhaseDeleted, true }, stepNone, ""},
		{"deleted, asked to look", func(s *situation) { s.phase, s.look = PhaseDeleted, true }, stepLook, CauseResync},
		{"replaced", func(s *situation) { s.phase, s.changed = PhaseReplaced, true }, stepNone, ""},
		{"replaced, asked to look", func(s *situation) { s.phase, s.look = PhaseReplaced, true }, stepLook, CauseResync},
		{"changed", func(s *situation) { s.changed = true }, stepWrite, CauseChange},
		{"changed, in backoff", func(s *situation) { s.changed, s.notBefore = true, 101*time.Second }, stepNone, ""},
		{"changed, backoff over", func(s *situation) { s.changed, s.notBefore = true, 100*time.Second }, stepWrite, CauseChange},
		{"drifted", func(s *situation) { s.drifted = true }, stepWrite, CauseDrift},
		{"drifted again too soon", func(s *situation) { s.drifted, s.nextDrift = true, 101*time.Second }, stepNone, ""},
		{"changed outweighs drifted", func(s *situation) { s.drifted, s.changed, s.nextDrift = true, true, 101*time.Second }, stepWrite, CauseChange},
		{"report due", func(s *situation) { s.nextReport = s.now }, stepWrite, CauseReport},
		{"report due before the next round is over", func(s *situation) { s.nextReport = s.now + 5*time.Second }, stepWrite, CauseReport},
		{"report due at the next round", func(s *situation) { s.nextReport = s.now + 6*time.Second }, stepNone, ""},
		{"asked to look", func(s *situation) { s.look = true }, stepLook, CauseResync},
		{"asked to look, in backoff", func(s *situation) { s.look, s.notBefore = true, 101*time.Second }, stepNone, ""},
		{"write owed", func(s *situation) { s.force = true }, stepWrite, CauseResync},
		{"write owed to an object that was never written", func(s *situation) { s.force, s.adopted = true, true }, stepWrite, CauseAdopt},
		{"asked to look at an object that was never written", func(s *situation) { s.look, s.adopted = true, true }, stepLook, CauseAdopt},
		{"gate closed, registering", func(s *situation) { s.closed, s.phase = true, PhaseRegistering }, stepRegister, ""},
		{"gate closed, asked to look", func(s *situation) { s.closed, s.look = true, true }, stepLook, CauseResync},
		{"gate closed, write owed", func(s *situation) { s.closed, s.force, s.changed = true, true, true }, stepNone, ""},
		{"waiting for a setter", func(s *situation) { s.waits, s.force, s.adopted, s.changed = true, true, true, true }, stepNone, ""},
		{"waiting for a setter, asked to look", func(s *situation) { s.waits, s.look = true, true }, stepLook, CauseResync},
		{"a taint is missing", func(s *situation) { s.taints, s.changed, s.force = true, true, true }, stepTaints, ""},
		{"a taint is missing, gate closed", func(s *situation) { s.taints, s.closed = true, true }, stepNone, ""},
		{"a taint is missing, waiting for a setter", func(s *situation) { s.taints, s.waits = true, true }, stepNone, ""},
		{"a taint is missing, asked to look", func(s *situation) { s.taints, s.look = true, true }, stepLook, CauseResync},
		{"failing for less than the grace period", func(s *situation) { s.changed, s.failingSince = true, 61*time.Second }, stepWrite, CauseChange},
		{"failing for the grace period", func(s *situation) { s.changed, s.failingSince = true, 60*time.Second }, stepLook, CauseResync},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := quiet
			tc.edit(&s)
			if step, cause := decide(s); step != tc.step || cause != tc.cause {
				t.Errorf("decide = %v, %q, want %v, %q", step, cause, tc.step, tc.cause)
			}
		})
	}
}

func TestNextReportAfter(t *testing.T) {
	const interval = 5 * time.Minute
	for _, tc := range []struct {
		cause Cause
		r     float64
		want  time.Duration
	}{
		{CauseReport, 0.9, time.Hour + interval},
		{CauseChange, 0, time.Hour + interval/2},
		{CauseChange, 0.5, time.Hour + interval},
		{"", 1, time.Hour + 3*interval/2},
	} {
		if got := nextReportAfter(time.Hour, interval, tc.cause, tc.r); got != tc.want {
			t.Errorf("nextReportAfter(%q, %v) = %v, want %v", tc.cause, tc.r, got, tc.want)
		}
	}
}

func TestJudge(t *testing.T) {
	nodes := corev1.Resource("nodes")
	invalid := func(path string) error {
		return apierrors.NewInvalid(schemaNode, node1, field.ErrorList{field.Invalid(field.NewPath(path), "x", "field is immutable")})
	}
	for _, tc := range []struct {
		name string
		err  error
		want verdict
	}{
		{"success", nil, accepted},
		{"404 of this node", apierrors.NewNotFound(nodes, node1), gone},
		{"404 of this node, wrapped", fmt.Errorf("patch: %w", apierrors.NewNotFound(nodes, node1)), gone},
		{"404 of another node", apierrors.NewNotFound(nodes, "n2"), refused},
		{"404 of another kind", apierrors.NewNotFound(corev1.Resource("namespaces"), node1), refused},
		{"404 of a proxy", apierrors.NewGenericServerResponse(http.StatusNotFound, "patch", nodes, node1, "404 page not found", 0, true), refused},
		{"404 without details", &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound}}, refused},
		{"exists", apierrors.NewAlreadyExists(nodes, node1), present},
		{"conflict", apierrors.NewConflict(nodes, node1, errors.New("uid mismatch")), other},
		{"422 of the uid", invalid("metadata.uid"), other},
		{"422 of a label", invalid("metadata.labels"), refused},
		{"403", apierrors.NewForbidden(nodes, node1, errors.New("no")), refused},
		{"401", apierrors.NewUnauthorized("who?"), refused},
		{"429", apierrors.NewTooManyRequests("slowly", 3), away},
		{"500", apierrors.NewInternalError(errors.New("oops")), away},
		{"timeout", context.DeadlineExceeded, away},
		{"refused connection", syscall.ECONNREFUSED, away},
		{"unknown", errors.New("something"), away},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := judge(tc.err, node1); got != tc.want {
				t.Errorf("judge(%v) = %v, want %v", tc.err, got, tc.want)
			}
		})
	}
}

func TestPause(t *testing.T) {
	between := func(what string, got, low, high time.Duration) {
		t.Helper()
		if got < low || got > high {
			t.Errorf("%s: %v, want between %v and %v", what, got, low, high)
		}
	}
	outage := errors.New("away")
	for range 100 {
		between("first failure", pause(away, outage, 1), 100*time.Millisecond, 200*time.Millisecond)
		between("tenth failure", pause(away, outage, 10), 3500*time.Millisecond, 7*time.Second)
		between("first refusal", pause(refused, outage, 1), 3500*time.Millisecond, 7*time.Second)
		between("tenth refusal", pause(refused, outage, 10), 15*time.Second, 30*time.Second)
		between("the server's wish", pause(away, apierrors.NewTooManyRequests("slowly", 60), 1), time.Minute, time.Minute)
	}
}

func TestSleepWatch(t *testing.T) {
	w := sleepWatch{limit: 40 * time.Second}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		after time.Duration
		want  uint32
	}{{time.Hour, 0}, {40 * time.Second, 0}, {41 * time.Second, 1}, {time.Second, 1}, {-time.Hour, 1}, {2 * time.Hour, 2}} {
		now = now.Add(tc.after)
		if got := w.tick(now); got != tc.want {
			t.Errorf("%v later: %d sleeps, want %d", tc.after, got, tc.want)
		}
	}
}
