// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import "github.com/kubewright/kubewright/internal/enum"

// A ForeignPolicy says what to do about a lease that somebody else holds.
type ForeignPolicy int

const (
	// ForeignWaitExpired waits until the holder has not renewed the lease for
	// the duration that the lease itself states, and then takes it over. The
	// time is measured on the monotonic clock of this process from when it saw
	// the last renewal; the holder's clock does not matter.
	ForeignWaitExpired ForeignPolicy = iota
	// ForeignTakeOver takes the lease over at once, as the kubelet does. Two
	// processes that do so with the same node take it from each other for ever,
	// once each RenewInterval.
	ForeignTakeOver
	// ForeignFail ends Run with a [*HeldByOtherError] where the node is
	// Config.NodeName. A node that came with Add waits until the lease is given
	// up or deleted, so that one of ten thousand does not end the others.
	ForeignFail
)

// String returns the name of the policy.
func (p ForeignPolicy) String() string {
	return enum.Name(p, "WaitExpired", "TakeOver", "Fail")
}

// A ShutdownPolicy says what becomes of a lease that is no longer renewed.
type ShutdownPolicy int

const (
	// ShutdownLeave leaves it as it is. A restart within Duration goes
	// unnoticed, and the garbage collector deletes it with the Node.
	ShutdownLeave ShutdownPolicy = iota
	// ShutdownDelete deletes it.
	ShutdownDelete
	// ShutdownExpire writes it once more, without holder and with a duration of
	// one second, so that who waits for it to expire need not wait. The renew
	// time stays: a new one would report the node as alive.
	ShutdownExpire
)

// String returns the name of the policy.
func (p ShutdownPolicy) String() string {
	return enum.Name(p, "Leave", "Delete", "Expire")
}
