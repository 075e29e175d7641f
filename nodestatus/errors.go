// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"errors"
	"fmt"

	"github.com/kubewright/kubewright/internal/apierr"
)

var (
	// ErrAlreadyRun is returned by Run when it was called before.
	ErrAlreadyRun = errors.New("nodestatus: already run: a Controller runs once")
	// ErrStopped is returned by Add after Run has returned.
	ErrStopped = errors.New("nodestatus: stopped: Run has returned")
	// ErrNodeDeleted is what Run's error wraps when somebody has deleted the
	// Node of Config.NodeName and OnDeleted is DeletedExit.
	ErrNodeDeleted = errors.New("nodestatus: the Node was deleted")
	// ErrNodeReplaced is what Run's error wraps when the Node of
	// Config.NodeName has become another object and OnReplaced is ReplacedExit.
	ErrNodeReplaced = errors.New("nodestatus: the Node was replaced by another object of the same name")
)

// A NotReadyError is an error of a [HealthCheck] that chooses the reason of the
// Ready condition.
type NotReadyError struct {
	// Reason is the reason of the Ready condition, in CamelCase.
	// Empty: ReasonHealthCheckFailed.
	Reason string
	// Message is the message of the Ready condition.
	Message string
}

// Error implements error.
func (e *NotReadyError) Error() string {
	if e.Reason == "" {
		return e.Message
	}
	return e.Reason + ": " + e.Message
}

// An IdentityError is reported when the API server refuses a request because
// the client has the credentials of another node: the Node authorizer lets
// system:node:NAME write the Node NAME and no other.
type IdentityError struct {
	// NodeName is the node that the Controller was told to serve.
	NodeName string
	// Identity is who the client is to the API server, for example
	// system:node:other.
	Identity string
	// Err is the answer of the API server.
	Err error
}

// Error implements error.
func (e *IdentityError) Error() string {
	return fmt.Sprintf("nodestatus: the client is %q, but the node served is %q: the node name or the credentials are wrong: %v", e.Identity, e.NodeName, e.Err)
}

// Unwrap returns the answer of the API server.
func (e *IdentityError) Unwrap() error { return e.Err }

// explainCall gives an error of the API server the context that its text lacks.
func explainCall(nodeName, verb string, err error) error {
	if identity, ok := apierr.NodeIdentity(err); ok && identity != apierr.NodeUserPrefix+nodeName {
		return &IdentityError{NodeName: nodeName, Identity: identity, Err: err}
	}
	return fmt.Errorf("nodestatus: %s node %q: %w", verb, nodeName, err)
}
