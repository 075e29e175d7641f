// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"errors"
	"fmt"

	"github.com/kubewright/kubewright/internal/durable"
)

var (
	// ErrAlreadyRun is returned by Run if it was called before.
	ErrAlreadyRun = errors.New("configcheckpoint: already run: a Controller runs once")
	// ErrAlreadyBooted is returned by Boot if it was called before.
	ErrAlreadyBooted = errors.New("configcheckpoint: already booted: a Controller boots once")
	// ErrNotBooted is returned by methods that need a successful Boot.
	ErrNotBooted = errors.New("configcheckpoint: Boot has not succeeded")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("configcheckpoint: closed")
	// ErrNoTrial is returned by Verdict if the running configuration is not on
	// trial.
	ErrNoTrial = errors.New("configcheckpoint: the running configuration is not on trial")
	// ErrRestart is returned by Run when another configuration must run and
	// Config.Apply is not set or failed, or a call of Trial.Health hangs. The
	// process should stop its work, call Close and end with an exit status other
	// than 0, so that its supervisor starts it again.
	ErrRestart = errors.New("configcheckpoint: restart to run another configuration")
	// ErrRefused is for Config.Admit: an error that wraps it rejects the
	// configuration. After any other error Admit is called again.
	ErrRefused = errors.New("configcheckpoint: refused")
	// ErrLocked is returned by Boot if another process has the store open.
	ErrLocked = durable.ErrLocked
	// ErrPermissions is returned by Boot if another user could write the store,
	// and so choose the configuration that this node runs.
	ErrPermissions = durable.ErrPermissions
	// ErrNoConfig is returned by Boot if no configuration can be run and
	// Codec.Default is not set or fails too. The error has a cause for each.
	ErrNoConfig = errors.New("configcheckpoint: no configuration can be run")
)

// A NoConfigError lists why no configuration can be run. It wraps
// [ErrNoConfig].
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

// A Reason is one CamelCase word that says why the running configuration is the
// one that runs. It is the reason of the condition, and stable: alerts may be
// written against it.
type Reason string

// The reasons of a condition that is True: the assigned configuration runs.
const (
	// ReasonGood: the assigned configuration runs and has passed its trial.
	ReasonGood Reason = "Good"
	// ReasonTrial: the assigned configuration runs and is on trial.
	ReasonTrial Reason = "Trial"
	// ReasonDefault: nothing is assigned; the built-in default runs.
	ReasonDefault Reason = "Default"
)

// The reasons that leave the status of the condition as it is: another
// configuration may be on its way, and the running one still runs.
const (
	// ReasonStaged: a new configuration is stored and runs after the restart
	// that Run asks for.
	ReasonStaged Reason = "Staged"
	// ReasonWaiting: Admit holds a new configuration back for now, or could not
	// answer.
	ReasonWaiting Reason = "Waiting"
	// ReasonSourceFailed: the source yielded an error.
	ReasonSourceFailed Reason = "SourceFailed"
)

// The reasons of a condition that is False: the running configuration is not the
// one that the source wants, or the store can't protect it.
const (
	// ReasonTooLarge: the payload is larger than MaxPayloadSize.
	ReasonTooLarge Reason = "TooLarge"
	// ReasonDecodeFailed: Codec.Decode returned an error, panicked or did not
	// return, or Validate did not return.
	ReasonDecodeFailed Reason = "DecodeFailed"
	// ReasonValidationFailed: Codec.Validate returned an error or panicked.
	ReasonValidationFailed Reason = "ValidationFailed"
	// ReasonNotAdmitted: Admit returned an error that wraps ErrRefused.
	ReasonNotAdmitted Reason = "NotAdmitted"
	// ReasonApplyFailed: Apply returned an error, panicked or did not return.
	ReasonApplyFailed Reason = "ApplyFailed"
	// ReasonUnhealthy: the configuration was on trial when Trial.Health failed
	// for longer than Trial.Grace, or when Verdict was given an error.
	ReasonUnhealthy Reason = "Unhealthy"
	// ReasonCrashLoop: Trial.Attempts processes were started with the configuration
	// and none passed its trial, or that many ended while they decoded and validated
	// it. The message says how many starts ended with a reboot of the machine.
	ReasonCrashLoop Reason = "CrashLoop"
	// ReasonCheckpointCorrupt: the stored payload is missing or damaged. The
	// next delivery of the same content repairs it.
	ReasonCheckpointCorrupt Reason = "CheckpointCorrupt"
	// ReasonNoDefault: the source wants the built-in default, and Codec.Default
	// is not set.
	ReasonNoDefault Reason = "NoDefault"
	// ReasonStoreFull: the disk of the store is full (ENOSPC, EDQUOT).
	ReasonStoreFull Reason = "StoreFull"
	// ReasonStoreReadOnly: the store can't be written (EROFS).
	ReasonStoreReadOnly Reason = "StoreReadOnly"
	// ReasonStoreFailed: the store returned another error, for example EIO. If that
	// was for a copy of the record, nothing is written until the copy can be read.
	ReasonStoreFailed Reason = "StoreFailed"
	// ReasonStoreCorrupt: neither copy of the record is valid. They are kept as
	// slot.a.bad and slot.b.bad.
	ReasonStoreCorrupt Reason = "StoreCorrupt"
	// ReasonStoreTooNew: a newer program wrote the store in a format that this
	// one must not write.
	ReasonStoreTooNew Reason = "StoreTooNew"
)

// ReasonNotBooted is the reason of the condition, which is Unknown, before
// Boot has returned.
const ReasonNotBooted Reason = "NotBooted"

// A ReasonError is an error with the reason under which it is reported.
type ReasonError struct {
	// Reason is never empty.
	Reason Reason
	// Ref is the configuration concerned, if there is one.
	Ref Ref
	// Err is the cause.
	Err error
}

// Error implements error.
func (e *ReasonError) Error() string {
	if e.Ref.Digest.IsZero() {
		return fmt.Sprintf("%s: %v", e.Reason, e.Err)
	}
	return fmt.Sprintf("%s: %s: %v", e.Ref, e.Reason, e.Err)
}

// Unwrap returns the cause.
func (e *ReasonError) Unwrap() error { return e.Err }
