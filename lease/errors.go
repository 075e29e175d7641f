// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/lease/internal/plan"
)

var (
	// ErrAlreadyRun is returned by Run when it was called before.
	ErrAlreadyRun = errors.New("lease: already run: a Controller runs once")
	// ErrNoOwner is returned by Run if nothing says which Node owns a lease.
	ErrNoOwner = errors.New("lease: no owner: set nodestatus.Config.Lease to this Controller, or Config.Owner to a function such as NodeOwner returns, or to NoOwner for leases that are never garbage collected")
	// ErrStopped is returned by Add after Run has returned.
	ErrStopped = errors.New("lease: stopped: Run has returned")
	// ErrNotHeld is wrapped by [*NotHeldError].
	ErrNotHeld = errors.New("lease: not held")
	// ErrNoNamespace is reported when the namespace kube-node-lease does not
	// exist. kube-apiserver creates it within a minute of its start.
	ErrNoNamespace = errors.New("lease: namespace " + corev1.NamespaceNodeLease + " does not exist")
)

// A NotHeldError is returned by [Controller.Holds]. It wraps [ErrNotHeld] and
// its cause.
type NotHeldError struct {
	// NodeName is the node whose lease it is.
	NodeName string
	// Holder is the holder identity of the lease, which may be ours, and Process
	// the Config.Process of the process that holds it. Both are empty unless
	// another process holds it.
	Holder, Process string
	// Err says why it is not held.
	Err error
}

// errNotServed is the cause of a NotHeldError that the lease's own state has not.
var errNotServed = errors.New("the node is not managed: Add was not called for it")

// Error implements error. The text stays the same as long as the cause does.
func (e *NotHeldError) Error() string {
	if e.Holder != "" {
		return fmt.Sprintf("lease: lease of node %q is not held: %v: %v", e.NodeName, e.Err, plan.Party{Holder: e.Holder, Process: e.Process})
	}
	return fmt.Sprintf("lease: lease of node %q is not held: %v", e.NodeName, e.Err)
}

// Unwrap returns ErrNotHeld and Err.
func (e *NotHeldError) Unwrap() []error { return []error{ErrNotHeld, e.Err} }

// An IdentityError is reported when the API server refuses a request because the
// client has the credentials of another node: the Node authorizer lets
// system:node:NAME touch the lease NAME and no other.
type IdentityError struct {
	// NodeName is the node that the Controller manages.
	NodeName string
	// Identity is the user name of the client, for example system:node:other. It is
	// empty if the answer does not name it.
	Identity string
	// Err is the answer of the API server.
	Err error
}

// Error implements error.
func (e *IdentityError) Error() string {
	if e.Identity == "" {
		return fmt.Sprintf("lease: the client may not write the lease of node %q: it has the credentials of another node: %v", e.NodeName, e.Err)
	}
	return fmt.Sprintf("lease: the client is %q and may write the lease of node %q only, but the node served is %q: the node name or the credentials are wrong: %v",
		e.Identity, strings.TrimPrefix(e.Identity, apierr.NodeUserPrefix), e.NodeName, e.Err)
}

// Unwrap returns the answer of the API server.
func (e *IdentityError) Unwrap() error { return e.Err }

// explain adds the node name and the likely cause to an API server error.
func explain(nodeName string, err error) error {
	if identity, wrong := apierr.WrongNode(err, nodeName); wrong {
		return &IdentityError{NodeName: nodeName, Identity: identity, Err: err}
	}
	if isNamespaceMissing(err) {
		return fmt.Errorf("%w: %w", ErrNoNamespace, err)
	}
	return fmt.Errorf("lease: node %q: %w", nodeName, apierr.Permission(err, "lease.yaml"))
}

// isNamespaceMissing reports whether a create was refused for want of its
// namespace.
func isNamespaceMissing(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Kind == "namespaces"
}
