// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package apierr classifies the errors of API calls by how a controller handles
// them, and reports one error of each class.
package apierr

import (
	"context"
	"errors"
	"net"
	"net/http"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Class is a group of failures that controllers handle in the same way.
type Class int

const (
	// None is no error.
	None Class = iota
	// Canceled means that the caller's context was cancelled. It is not
	// reported.
	Canceled
	// Timeout means that no answer came within the deadline. A write may have
	// been stored.
	Timeout
	// Unreachable means that the connection was refused, reset or never made. A
	// write may have been stored.
	Unreachable
	// Unauthorized is 401: the server does not accept the credentials.
	Unauthorized
	// Forbidden is 403: the server knows the user and refuses the request.
	Forbidden
	// NotFound is 404.
	NotFound
	// AlreadyExists is 409 to a create.
	AlreadyExists
	// Conflict is 409 to an update or delete: another resourceVersion or UID.
	Conflict
	// Gone is 410: the server no longer keeps the requested resourceVersion.
	Gone
	// Invalid is 400, 413, 415 or 422: the same request will fail again.
	Invalid
	// Throttled is 429: the server asks for fewer requests.
	Throttled
	// Server is 5xx: the server or a component behind it failed.
	Server
	// Other is everything else.
	Other
)

var names = [...]string{
	"None", "Canceled", "Timeout", "Unreachable", "Unauthorized", "Forbidden", "NotFound",
	"AlreadyExists", "Conflict", "Gone", "Invalid", "Throttled", "Server", "Other",
}

// String returns the name of the class, suitable as a metric label.
func (c Class) String() string {
	if c < 0 || int(c) >= len(names) {
		return "Other"
	}
	return names[c]
}

// Classify returns the class of err, or None for nil. The call that returned
// err must have had its own context.
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

// MayHaveCommitted reports whether a write that failed with err may still have
// been stored. The caller must then read the object before it repeats the write
// or counts it as lost.
func MayHaveCommitted(err error) bool {
	switch Classify(err) {
	case None, Unauthorized, Forbidden, NotFound, AlreadyExists, Conflict, Gone, Invalid, Throttled:
		return false
	}
	return true
}

// RetryAfter returns the delay that the server requested before the next
// request, or 0 if it requested none.
func RetryAfter(err error) time.Duration {
	seconds, ok := apierrors.SuggestsClientDelay(err)
	if !ok || seconds <= 0 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// IsMissing reports whether err says that an object does not exist. It does not for
// the 404 of a proxy or of a wrong address, which does not know the path.
func IsMissing(err error, resource, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	_, unexpected := apierrors.StatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
	return details != nil && details.Kind == resource && details.Name == name && !unexpected
}

// ErrAnswer is the error of a successful answer that is not about the requested
// object, such as an empty object that a proxy makes up.
var ErrAnswer = errors.New("the API server's answer is not about the requested object")

// Answer returns the result of a call about the object called name, with ErrAnswer if
// the answer has another name. It does not check the UID, because the clientset that
// programs test with assigns none.
func Answer[T metav1.Object](answer T, err error, name string) (T, error) {
	if err == nil && answer.GetName() != name {
		var none T
		return none, ErrAnswer
	}
	return answer, err
}
