// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstore

import (
	"errors"
	"fmt"

	"github.com/kubewright/kubewright/resourceslice/claimstore/internal/journal"
)

var (
	// ErrAlreadyRun is returned by the second call of Run.
	ErrAlreadyRun = errors.New("claimstore: Run was called before")
	// ErrDriver is wrapped by the error of Open for a directory of another driver.
	ErrDriver = journal.ErrDriver
	// ErrVersion is wrapped by errors about a directory that a newer version of this
	// package has written in a format that this version does not know.
	ErrVersion = journal.ErrVersion
	// ErrIncomplete is wrapped by the error of Sweep if the store does not know whether a
	// claim uses the device.
	ErrIncomplete = journal.ErrIncomplete
	// ErrNotAllocated is wrapped by the error of Prepare for a claim that has no
	// device of the driver.
	ErrNotAllocated = errors.New("no device of the driver is allocated to the claim")
	// ErrNotInUse is wrapped by the error of Prepare for a claim that was unprepared, or
	// prepared for another allocation. According to the API server, no Pod uses it now
	// with the allocation of the call: the call is older than the record.
	ErrNotInUse = errors.New("no Pod uses the claim with this allocation any longer")
	// ErrNotUndone is wrapped by the error of Prepare if Config.Unprepare could not
	// undo what an earlier attempt, an earlier allocation or an earlier boot left.
	ErrNotUndone = errors.New("what was done for the claim before can't be undone")
)

// A DeviceHeldError is the error of Prepare for a device that another claim holds, and of
// Sweep for one that a claim uses.
type DeviceHeldError struct {
	// Device is the device that was asked for.
	Device Device
	// Holder is the other claim.
	Holder Claim
}

// Error implements error.
func (e *DeviceHeldError) Error() string {
	return fmt.Sprintf("device %s of pool %s is held by ResourceClaim %s", e.Device.Name, e.Device.Pool, e.Holder)
}

// An UnreadableError is about the record of one claim that is damaged, or that
// this version of the driver can't read.
type UnreadableError struct {
	// Claim is what could be read of it.
	Claim Claim
	// Err says why the rest can't be read.
	Err error
}

// Error implements error.
func (e *UnreadableError) Error() string {
	return fmt.Sprintf("the record of ResourceClaim %s can't be read: %v", e.Claim, e.Err)
}

// Unwrap returns Err.
func (e *UnreadableError) Unwrap() error { return e.Err }
