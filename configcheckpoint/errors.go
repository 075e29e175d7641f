// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"errors"
	"fmt"
)

var (
	// ErrAlreadyRun is returned by Run when it was called before.
	ErrAlreadyRun = errors.New("configcheckpoint: already run: a Controller runs once")
	// ErrAlreadyBooted is returned by Boot when it was called before.
	ErrAlreadyBooted = errors.New("configcheckpoint: already booted: a Controller boots once")
	// ErrNotBooted is returned by what needs a Boot that succeeded.
	ErrNotBooted = errors.New("configcheckpoint: Boot has not succeeded")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("configcheckpoint: closed")
	// ErrNoTrial is returned by Verdict when what runs is not on trial.
	ErrNoTrial = errors.New("configcheckpoint: the running configuration is not on trial")
	// ErrRestart is returned by Run when another configuration is to run and
	// Config.Apply is not set, or failed. The process should stop its work,
	// call Close and end with an exit status other than 0, so that its
	// supervisor starts it again.
	ErrRestart = errors.New("configcheckpoint: restart to run another configuration")
	// ErrLocked is returned by Boot when another process has the store open.
	ErrLocked = errors.New("configcheckpoint: another process uses the store")
	// ErrPermissions is returned by Boot when somebody else could write the
	// store, and so decide what this node runs.
	ErrPermissions = errors.New("configcheckpoint: the store is not protected")
	// ErrNoConfig is returned by Boot when no configuration can be run and
	// Codec.Default is not set or fails too. The error says why for each.
	ErrNoConfig = errors.New("configcheckpoint: no configuration can be run")
)

// A NoConfigError says why no configuration can be run. [ErrNoConfig] is
// what it wraps.
type NoConfigError struct {
	// Causes has one error for each configuration that was tried, in order.
	Causes []error
}

// Error implements error.
func (e *NoConfigError) Error() string {
	return fmt.Sprintf("%v: %v", ErrNoConfig, errors.Join(e.Causes...))
}

// Unwrap returns ErrNoConfig and the causes.
func (e *NoConfigError) Unwrap() []error { return append([]error{ErrNoConfig}, e.Causes...) }
