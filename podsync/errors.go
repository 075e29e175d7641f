// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/kubewright/kubewright/internal/apierr"
)

var (
	// ErrAlreadyRun is returned by Run when it was called before.
	ErrAlreadyRun = errors.New("podsync: already run: a Controller runs once")
	// ErrNotFound is wrapped by the error of an [Inspector] if the provider does not
	// hold the pod. Evict returns it for a pod that is unknown or has ended.
	ErrNotFound = errors.New("podsync: no such pod")
	// ErrGateClosed is returned by Evict while [Config.Gate] does not let this
	// process act for the pod's node.
	ErrGateClosed = errors.New("podsync: the gate of the node is closed")
	// ErrNoUID is the error of a pod without metadata.uid, which is ignored. API
	// servers and package apitest set the UID; client-go's fake clientset does not.
	ErrNoUID = errors.New("podsync: the pod has no UID: in tests use package apitest, not a fake clientset")
)

// A RejectError is a decision that a pod can never run here. [Reject] makes it.
type RejectError struct {
	// Reason becomes status.reason of the pod. It is in CamelCase.
	Reason string
	// Message becomes the note of the event. As with the kubelet, status.message of the
	// pod is "Pod was rejected: " and Message.
	Message string
}

// Reject returns the error with which Start or Admit refuses a pod for good. The pod's
// phase becomes Failed with this reason and message, and its controller may create
// another pod elsewhere. From Update it refuses a change of the spec, and the pod runs
// on: see [Updater]. Every other error is taken to be temporary.
func Reject(reason, message string) error { return &RejectError{Reason: reason, Message: message} }

// Error implements error.
func (e *RejectError) Error() string { return e.Reason + ": " + e.Message }

// A RetryError asks for a delay before the next try. Make it with [RetryAfter].
type RetryError struct {
	// Err is the wrapped error.
	Err error
	// After is the delay.
	After time.Duration
}

// RetryAfter wraps an error of a provider's method to say when the call should
// be repeated, instead of the exponential backoff. A delay of zero or less
// means after a second.
func RetryAfter(err error, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &RetryError{Err: err, After: after}
}

// Error implements error with the text of the wrapped error.
func (e *RetryError) Error() string { return e.Err.Error() }

// Unwrap returns the wrapped error.
func (e *RetryError) Unwrap() error { return e.Err }

// A PanicError is a panic in a method of the provider or another function of
// [Config]. The call counts as failed with it, and is retried with backoff. It does not wrap
// the argument of panic: an error there is no answer of the provider, such as [ErrNotFound].
type PanicError struct {
	// Callback names the function.
	Callback string
	// Value is the argument of panic.
	Value any
	// Stack is the stack of the goroutine that panicked.
	Stack []byte
}

// Error implements error, without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic in %s: %v", e.Callback, e.Value) }

// contain calls f, which calls a function of [Config], and returns a panic in it
// as a *PanicError.
func contain(callback string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Callback: callback, Value: p, Stack: debug.Stack()}
		}
	}()
	return f()
}

// panicValues adds the stack of a panic to the values of a log line.
func panicValues(err error, keysAndValues ...any) []any {
	if p, ok := errors.AsType[*PanicError](err); ok {
		return append(keysAndValues, "stack", string(p.Stack))
	}
	return keysAndValues
}

// explain adds the operation and the pod to an error of the provider or the API.
func explain(op Op, ref Ref, err error) error {
	return fmt.Errorf("podsync: %s pod %s/%s: %w", op, ref.Namespace, ref.Name, apierr.Permission(err, "podsync.yaml"))
}

// explainPods adds the likely cause to an error of the API server about the pods of a node.
func explainPods(nodeName string, err error) error {
	switch identity, wrong := apierr.WrongNode(err, nodeName); {
	case nodeName == "" || !wrong:
		return apierr.Permission(err, "podsync.yaml")
	case identity == "":
		return fmt.Errorf("the client may not read the pods of node %q: it has the credentials of another node: %w", nodeName, err)
	default:
		return fmt.Errorf("the client is %q, but the node served is %q: the node name or the credentials are wrong: %w", identity, nodeName, err)
	}
}

// The reasons of the status of pods that this package ends, or can't start, and
// of the events about that.
const (
	// ReasonFailedStart: Start returned an error. The pod is Pending.
	ReasonFailedStart = "FailedStart"
	// ReasonLost: the pod had started, and the provider no longer holds it.
	ReasonLost = "Lost"
	// ReasonEvicted is the reason of an [Eviction] without one.
	ReasonEvicted = "Evicted"
	// ReasonDeadlineExceeded: spec.activeDeadlineSeconds is over. It is the
	// kubelet's word, which the Job controller knows.
	ReasonDeadlineExceeded = "DeadlineExceeded"
)

// The reasons of other events; see docs/operations.md.
const (
	reasonFailedUpdate  = "FailedUpdate"
	reasonFailedStop    = "FailedStop"
	reasonFailedAdmit   = "FailedAdmit"
	reasonFailedRelease = "FailedRelease"
	reasonSlowCall      = "SlowCall"

	reasonFailedCheckpoint = "FailedCheckpoint"
	reasonInvalidStatus    = "InvalidStatus"
	reasonOrphanRemoved    = "OrphanRemoved"
	reasonOrphanKept       = "OrphanKept"
	reasonNameTaken        = "NameTaken"
)

// The actions of events: the controller's next step.
const (
	actionStart   = "Starting"
	actionUpdate  = "Updating"
	actionStop    = "Stopping"
	actionAdmit   = "Admitting"
	actionRelease = "Releasing"
	actionSync    = "SyncingStatus"
)

const (
	messageOrphanRemoved      = "the API server has no such pod; its instance is being stopped"
	messageInstanceWithoutUID = "stopping an instance of this name that was started before the pod; the provider reports no UID for it"
)
