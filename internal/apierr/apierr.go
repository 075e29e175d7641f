// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package apierr sorts the errors of API calls by what a controller does about
// them.
package apierr

import (
	"context"
	"errors"
	"net"
	"net/http"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A Class is a kind of failure that controllers answer in one way.
type Class int

const (
	// None is no error.
	None Class = iota
	// Canceled: the caller's context was cancelled; there is nothing to report.
	Canceled
	// Timeout: no answer within the deadline. A write may have been stored.
	Timeout
	// Unreachable: the connection was refused, reset or never made. A write
	// may have been stored.
	Unreachable
	// Unauthorized is 401: the server does not know who we are.
	Unauthorized
	// Forbidden is 403: it knows and refuses.
	Forbidden
	// NotFound is 404.
	NotFound
	// AlreadyExists is 409 to a create.
	AlreadyExists
	// Conflict is 409 to an update or delete: another resourceVersion or UID.
	Conflict
	// Gone is 410: the resourceVersion asked for is no longer kept.
	Gone
	// Invalid is 400, 413, 415 or 422: the same request will fail again.
	Invalid
	// Throttled is 429: the server asks to be called less often.
	Throttled
	// Server is 5xx: the server or what stands behind it is at fault.
	Server
	// Other is everything else.
	Other
)

var names = [...]string{
	"None", "Canceled", "Timeout", "Unreachable", "Unauthorized", "Forbidden", "NotFound",
	"AlreadyExists", "Conflict", "Gone", "Invalid", "Throttled", "Server", "Other",
}

// String returns the name of the class, fit for a metric's label.
func (c Class) String() string {
	if c < 0 || int(c) >= len(names) {
		return "Other"
	}
	return names[c]
}

// Classify returns the class of the error of an API call that ran under a
// context of its own, or None for nil.
func Classify(err error) Class {
	if err == nil {
		return None
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return classifyStatus(err, int(status.Status().Code))
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout
	case errors.Is(err, context.Canceled):
		return Canceled
	}
	if netErr, ok := errors.AsType[net.Error](err); ok {
		if netErr.Timeout() {
			return Timeout
		}
		return Unreachable
	}
	for _, errno := range []error{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, net.ErrClosed} {
		if errors.Is(err, errno) {
			return Unreachable
		}
	}
	return Other
}

func classifyStatus(err error, code int) Class {
	switch code {
	case http.StatusUnauthorized:
		return Unauthorized
	case http.StatusForbidden:
		return Forbidden
	case http.StatusNotFound:
		return NotFound
	case http.StatusConflict:
		if apierrors.IsAlreadyExists(err) {
			return AlreadyExists
		}
		return Conflict
	case http.StatusGone:
		return Gone
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return Invalid
	case http.StatusTooManyRequests:
		return Throttled
	case http.StatusGatewayTimeout:
		return Timeout
	}
	if code >= http.StatusInternalServerError {
		return Server
	}
	return Other
}

// MayHaveCommitted reports whether a write that failed with err may have been
// stored all the same, so that its effect must be read before it is repeated
// or counted as lost.
func MayHaveCommitted(err error) bool {
	switch Classify(err) {
	case None, Unauthorized, Forbidden, NotFound, AlreadyExists, Conflict, Gone, Invalid, Throttled:
		return false
	}
	return true
}

// RetryAfter returns how long the server asked to wait before the next
// request, or 0 where it did not.
func RetryAfter(err error) time.Duration {
	seconds, ok := apierrors.SuggestsClientDelay(err)
	if !ok || seconds <= 0 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}
