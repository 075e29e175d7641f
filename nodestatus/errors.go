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
	// ErrNodeDeleted is wrapped by Run's error if another client has deleted the
	// Node of Config.NodeName and OnDeleted is DeletedExit.
	ErrNodeDeleted = errors.New("nodestatus: the Node was deleted")
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
	// NodeName is the node that the Controller manages.
	NodeName string
	// Identity is the user name of the client, for example system:node:other.
	// Empty if the answer does not name it.
	Identity string
	// Err is the answer of the API server.
	Err error
}

// Error implements error.
func (e *IdentityError) Error() string {
	if e.Identity == "" {
		return fmt.Sprintf("nodestatus: the client may not write node %q: it has the credentials of another node: %v", e.NodeName, e.Err)
	}
	return fmt.Sprintf("nodestatus: the client is %q, but the node served is %q: the node name or the credentials are wrong: %v", e.Identity, e.NodeName, e.Err)
}

// Unwrap returns the answer of the API server.
func (e *IdentityError) Unwrap() error { return e.Err }

// explainCall adds the node name and the likely cause to an API server error.
func explainCall(nodeName, verb string, err error) error {
	if identity, wrong := apierr.WrongNode(err, nodeName); wrong {
		return &IdentityError{NodeName: nodeName, Identity: identity, Err: err}
	}
	return fmt.Errorf("nodestatus: %s node %q: %w", verb, nodeName, apierr.Permission(err, "nodestatus.yaml"))
}
