// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apierr

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

func status(code int32, reason metav1.StatusReason) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason}}
}

func transport(err error) error { return &url.Error{Op: "Put", URL: "https://api", Err: err} }

func TestClassify(t *testing.T) {
	for _, tc := range []struct {
		name         string
		err          error
		want         Class
		mayHaveMoved bool
	}{
		{"nil", nil, None, false},
		{"cancelled", fmt.Errorf("lease: %w", context.Canceled), Canceled, true},
		{"deadline", transport(context.DeadlineExceeded), Timeout, true},
		{"i/o timeout", transport(os.ErrDeadlineExceeded), Timeout, true},
		{"refused", transport(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}), Unreachable, true},
		{"reset", transport(&net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}), Unreachable, true},
		{"bare reset", syscall.ECONNRESET, Unreachable, true},
		{"401", apierrors.NewUnauthorized("who"), Unauthorized, false},
		{"403", apierrors.NewForbidden(leases, "n", errors.New("no")), Forbidden, false},
		{"404", fmt.Errorf("lease: %w", apierrors.NewNotFound(leases, "n")), NotFound, false},
		{"409 create", apierrors.NewAlreadyExists(leases, "n"), AlreadyExists, false},
		{"409 update", apierrors.NewConflict(leases, "n", errors.New("rv")), Conflict, false},
		{"410", apierrors.NewResourceExpired("old"), Gone, false},
		{"400", apierrors.NewBadRequest("x"), Invalid, false},
		{"413", status(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge), Invalid, false},
		{"422", apierrors.NewInvalid(schema.GroupKind{Kind: "Lease"}, "n", nil), Invalid, false},
		{"429", apierrors.NewTooManyRequests("x", 3), Throttled, false},
		{"500", apierrors.NewInternalError(errors.New("x")), Server, true},
		{"503", apierrors.NewServiceUnavailable("x"), Server, true},
		{"504", apierrors.NewTimeoutError("x", 0), Timeout, true},
		{"418", status(http.StatusTeapot, ""), Other, true},
		{"unknown", errors.New("x"), Other, true},
	} {
		if got := Classify(tc.err); got != tc.want {
			t.Errorf("%s: Classify = %v, want %v", tc.name, got, tc.want)
		}
		if got := MayHaveCommitted(tc.err); got != tc.mayHaveMoved {
			t.Errorf("%s: MayHaveCommitted = %v, want %v", tc.name, got, tc.mayHaveMoved)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		want time.Duration
	}{
		{"nil", nil, 0},
		{"no hint", apierrors.NewTooManyRequests("x", 0), 0},
		{"429 with a hint", apierrors.NewTooManyRequests("x", 7), 7 * time.Second},
		{"wrapped", fmt.Errorf("lease: %w", apierrors.NewServerTimeout(leases, "update", 2)), 2 * time.Second},
		{"not of the API", errors.New("x"), 0},
	} {
		if got := RetryAfter(tc.err); got != tc.want {
			t.Errorf("%s: RetryAfter = %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestClassNames(t *testing.T) {
	if len(names) != int(Other)+1 {
		t.Fatalf("%d names for %d classes", len(names), Other+1)
	}
	if got := Class(-1).String(); got != "Other" {
		t.Errorf("Class(-1) = %q, want Other", got)
	}
}

func TestIsMissing(t *testing.T) {
	proxy := apierrors.NewGenericServerResponse(http.StatusNotFound, "put", leases, "n", "default backend", 0, true)
	for _, tc := range []struct {
		name string
		err  error
		want bool
	}{
		{"the object", apierrors.NewNotFound(leases, "n"), true},
		{"wrapped", fmt.Errorf("read: %w", apierrors.NewNotFound(leases, "n")), true},
		{"another object", apierrors.NewNotFound(leases, "m"), false},
		{"its namespace", apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "n"), false},
		{"a proxy", proxy, false},
		{"no details", &apierrors.StatusError{ErrStatus: metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound}}, false},
		{"a conflict", apierrors.NewConflict(leases, "n", nil), false},
		{"another error", errors.New("refused"), false},
		{"none", nil, false},
	} {
		if got := IsMissing(tc.err, "leases", "n"); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

func TestAnswer(t *testing.T) {
	refused := errors.New("refused")
	for _, tc := range []struct {
		name      string
		err, want error
	}{{"n", nil, nil}, {"", nil, ErrAnswer}, {"m", nil, ErrAnswer}, {"", refused, refused}} {
		answer := &metav1.ObjectMeta{Name: tc.name}
		got, err := Answer(answer, tc.err, "n")
		if err != tc.want || (got == nil) != (tc.want == ErrAnswer) {
			t.Errorf("Answer of %q, %v = %v, %v, want %v", tc.name, tc.err, got, err, tc.want)
		}
	}
}
