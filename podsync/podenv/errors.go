// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/klog/v2"
)

// ErrMissing is wrapped by a [SourceError] if the API has no such object or the
// object has no such key.
var ErrMissing = errors.New("missing")

// SourceError says that one thing a pod asks for can't be had. Calls that look for
// several join theirs, so that one message names all that is missing.
type SourceError struct {
	// Container is the name of the container that asks; empty for a volume.
	Container string
	// Field is what in the container or the pod asks, such as "env DB_PASSWORD",
	// "envFrom[1]" or "volume config".
	Field string
	// Kind, Namespace and Name are the object that was looked for, such as a
	// ConfigMap or a Secret. They are empty when the pod itself is at fault.
	Kind, Namespace, Name string
	// Key is the key of the object, empty for the whole object.
	Key string
	// Wait says whether it may come right without a change of the pod: a missing
	// object may be created. It is false for an error in the pod itself, such as a
	// field path that doesn't exist.
	Wait bool
	// Err is the cause: [ErrMissing], an error of the API, or a description.
	Err error
}

// Error names the user of the object, the object and the key.
func (e *SourceError) Error() string {
	var b strings.Builder
	b.WriteString("podenv: ")
	if e.Container != "" {
		fmt.Fprintf(&b, "container %s: ", e.Container)
	}
	fmt.Fprintf(&b, "%s: ", e.Field)
	if e.Key != "" {
		fmt.Fprintf(&b, "key %q of ", e.Key)
	}
	if e.Kind != "" {
		fmt.Fprintf(&b, "%s %s: ", e.Kind, klog.KRef(e.Namespace, e.Name))
	}
	fmt.Fprintf(&b, "%v", e.Err)
	return b.String()
}

// Unwrap returns Err.
func (e *SourceError) Unwrap() error { return e.Err }

// ReasonConfigError is the kubelet's reason of a container that waits because its
// configuration is missing.
const ReasonConfigError = "CreateContainerConfigError"

// WaitingReason returns the reason with which the container of this name waits:
// [ReasonConfigError] if e is about the container, else "". Package podsync calls it on
// an error of Start.
func (e *SourceError) WaitingReason(container string) string {
	if e.Container == "" || e.Container != container {
		return ""
	}
	return ReasonConfigError
}

// CanWait reports whether to try again without a change of the pod can help: all
// that is wrong may come right on its own. Errors that aren't a [SourceError], such
// as an API server that doesn't answer, may; nil has nothing to wait for.
func CanWait(err error) bool {
	if err == nil {
		return false
	}
	switch e := err.(type) {
	case *SourceError:
		return e.Wait
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if !CanWait(err) {
				return false
			}
		}
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return CanWait(inner)
		}
	}
	return true
}
