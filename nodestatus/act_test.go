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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

func TestJudge(t *testing.T) {
	nodes := corev1.Resource("nodes")
	invalid := func(path string) error {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, node1, field.ErrorList{field.Invalid(field.NewPath(path), "x", "field is immutable")})
	}
	for _, tc := range []struct {
		name string
		err  error
		want status.Verdict
	}{
		{"404 of this node", apierrors.NewNotFound(nodes, node1), status.Gone},
		{"404 of this node, wrapped", fmt.Errorf("patch: %w", apierrors.NewNotFound(nodes, node1)), status.Gone},
		{"404 of another node", apierrors.NewNotFound(nodes, "n2"), status.Refused},
		{"404 of another kind", apierrors.NewNotFound(corev1.Resource("namespaces"), node1), status.Refused},
		{"404 of a proxy", apierrors.NewGenericServerResponse(http.StatusNotFound, "patch", nodes, node1, "404 page not found", 0, true), status.Refused},
		{"404 without details", &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound}}, status.Refused},
		{"exists", apierrors.NewAlreadyExists(nodes, node1), status.Refused},
		{"conflict", apierrors.NewConflict(nodes, node1, errors.New("uid mismatch")), status.Other},
		{"422 of the uid", invalid("metadata.uid"), status.Other},
		{"422 of a label", invalid("metadata.labels"), status.Refused},
		{"403", apierrors.NewForbidden(nodes, node1, errors.New("no")), status.Refused},
		{"401", apierrors.NewUnauthorized("who?"), status.Refused},
		{"429", apierrors.NewTooManyRequests("slowly", 3), status.Away},
		{"500", apierrors.NewInternalError(errors.New("oops")), status.Away},
		{"timeout", context.DeadlineExceeded, status.Away},
		{"refused connection", syscall.ECONNREFUSED, status.Away},
		{"unknown", errors.New("something"), status.Away},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := judge(tc.err, node1); got != tc.want {
				t.Errorf("judge(%v) = %v, want %v", tc.err, got, tc.want)
			}
		})
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
