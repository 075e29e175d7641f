// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package statuserr makes the error answers of an API server that the tests of
// this module inject with apitest.Fault.Status.
//
// The functions of k8s.io/apimachinery/pkg/api/errors do the same with more
// arguments. Tests outside of this module use those.
package statuserr

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// New returns an error answer with an HTTP code, a reason and a message.
func New(code int, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	}}
}

// Unauthorized returns 401, the answer to a client without valid credentials.
func Unauthorized() *apierrors.StatusError { return apierrors.NewUnauthorized("Unauthorized") }

// Forbidden returns 403, the refusal of the authorizer.
func Forbidden(resource, name, why string) *apierrors.StatusError {
	return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, name, errors.New(why))
}

// Gone returns 410, the answer to a list or watch from a resourceVersion that
// the server has forgotten.
func Gone() *apierrors.StatusError {
	return apierrors.NewResourceExpired("too old resource version: 1 (2)")
}

// TooManyRequests returns 429 with a Retry-After in seconds. The header is left
// out if retryAfterSeconds is 0.
func TooManyRequests(retryAfterSeconds int) *apierrors.StatusError {
	return apierrors.NewTooManyRequests("too many requests, please try again later", retryAfterSeconds)
}

// InternalError returns 500.
func InternalError(message string) *apierrors.StatusError {
	return apierrors.NewInternalError(errors.New(message))
}

// Unavailable returns 503 with a Retry-After in seconds. The header is left out
// if retryAfterSeconds is 0.
func Unavailable(retryAfterSeconds int) *apierrors.StatusError {
	e := apierrors.NewServiceUnavailable("the server is currently unable to handle the request")
	if retryAfterSeconds > 0 {
		e.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(retryAfterSeconds)}
	}
	return e
}

// ServerTimeout returns 504, the answer to a request that took the server too
// long.
func ServerTimeout() *apierrors.StatusError {
	return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
}
