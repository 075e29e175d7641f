// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"errors"
	"fmt"
	"syscall"
)

// A Reason says in one CamelCase word why the configuration that runs is the
// one that runs. It is the reason of the condition, and stable: alerts may be
// written against it.
type Reason string

// The reasons of a condition that is True: what runs is what is assigned.
const (
	// ReasonGood: the assigned configuration runs and has passed its trial.
	ReasonGood Reason = "Good"
	// ReasonTrial: the assigned configuration runs and is on trial.
	ReasonTrial Reason = "Trial"
	// ReasonDefault: nothing is assigned; the built-in default runs.
	ReasonDefault Reason = "Default"
)

// The reasons that leave the status of the condition as it is: another
// configuration may be on its way, and what ran before still runs.
const (
	// ReasonStaged: a new configuration is stored and runs after the restart
	// that Run asks for.
	ReasonStaged Reason = "Staged"
	// ReasonWaiting: Admit holds a new configuration back for now.
	ReasonWaiting Reason = "Waiting"
	// ReasonSourceFailed: the source can't say what to run.
	ReasonSourceFailed Reason = "SourceFailed"
)

// The reasons of a condition that is False: what runs is not what the source
// asks for, or the store can't protect it.
const (
	// ReasonTooLarge: the payload is larger than MaxPayloadSize.
	ReasonTooLarge Reason = "TooLarge"
	// ReasonDecodeFailed: Codec.Decode returned an error or panicked.
	ReasonDecodeFailed Reason = "DecodeFailed"
	// ReasonValidationFailed: Codec.Validate returned an error or panicked.
	ReasonValidationFailed Reason = "ValidationFailed"
	// ReasonNotAdmitted: Admit returned an error.
	ReasonNotAdmitted Reason = "NotAdmitted"
	// ReasonApplyFailed: Apply returned an error, panicked or did not return.
	ReasonApplyFailed Reason = "ApplyFailed"
	// ReasonUnhealthy: the configuration was on trial when Trial.Health failed
	// for longer than Trial.Grace, or when Verdict was given an error.
	ReasonUnhealthy Reason = "Unhealthy"
	// ReasonCrashLoop: the process started Trial.Attempts times with the
	// configuration and never passed its trial.
	ReasonCrashLoop Reason = "CrashLoop"
	// ReasonCheckpointCorrupt: the stored payload is missing or damaged. The
	// next delivery of the same content repairs it.
	ReasonCheckpointCorrupt Reason = "CheckpointCorrupt"
	// ReasonNoDefault: the source asks for the built-in default, and
	// Codec.Default is not set.
	ReasonNoDefault Reason = "NoDefault"
	// ReasonStoreFull: the disk of the store is full (ENOSPC, EDQUOT).
	ReasonStoreFull Reason = "StoreFull"
	// ReasonStoreReadOnly: the store can't be written (EROFS).
	ReasonStoreReadOnly Reason = "StoreReadOnly"
	// ReasonStoreFailed: the store returned another error, for example EIO.
	ReasonStoreFailed Reason = "StoreFailed"
	// ReasonStoreCorrupt: neither copy of the record could be read. They are
	// kept as slot.a.bad and slot.b.bad.
	ReasonStoreCorrupt Reason = "StoreCorrupt"
	// ReasonStoreTooNew: a newer program wrote the store in a format that this
	// one must not touch.
	ReasonStoreTooNew Reason = "StoreTooNew"
)

// ReasonNotBooted is the reason of the condition, which is Unknown, before
// Boot has returned.
const ReasonNotBooted Reason = "NotBooted"

// A ReasonError is an error with the reason under which it is reported.
type ReasonError struct {
	// Reason is never empty.
	Reason Reason
	// Ref is the configuration concerned, where there is one.
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

// storeReason returns the reason for an error of the store.
func storeReason(err error) Reason {
	switch {
	case errors.Is(err, errTooNew):
		return ReasonStoreTooNew
	case errors.Is(err, errCorrupt):
		return ReasonCheckpointCorrupt
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return ReasonStoreFull
	case errors.Is(err, syscall.EROFS):
		return ReasonStoreReadOnly
	}
	return ReasonStoreFailed
}

// atTheDoor reports whether a reason is one for which a configuration is turned
// away before it has run.
func atTheDoor(reason Reason) bool {
	switch reason {
	case ReasonDecodeFailed, ReasonValidationFailed, ReasonNotAdmitted:
		return true
	}
	return false
}

// transientStore reports whether a reason names a fault of the store that may
// pass while the process runs, so that what it prevented is worth another try.
func transientStore(reason Reason) bool {
	switch reason {
	case ReasonStoreFull, ReasonStoreReadOnly, ReasonStoreFailed:
		return true
	}
	return false
}
