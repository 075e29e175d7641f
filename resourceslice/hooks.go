// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import "time"

// Hooks are told what happens. Each is optional. They are called synchronously
// and without locks by goroutines of Run, several at a time, and must not block:
// a write waits for them. They may call every method of the Controller but Wait
// and Withdraw, which wait.
type Hooks struct {
	// APICall is called after each request that writes a slice.
	APICall func(APICall)
	// Published is called each time a pool has become what Set asked for, or has
	// gone as Remove asked for.
	Published func(Published)
}

// APICall is the argument of Hooks.APICall.
type APICall struct {
	// Pool is the pool whose slice it is.
	Pool PoolID
	// Slice is the name of the object.
	Slice string
	// Verb is create, update or delete.
	Verb string
	// Devices is how many devices the slice has; 0 for a delete.
	Devices int
	// Latency is how long the call took.
	Latency time.Duration
	// Err is what it failed with, nil for a success.
	Err error
}

// Published is the argument of Hooks.Published.
type Published struct {
	// Pool is the pool, complete on the API server.
	Pool PoolID
	// Revision counts the Sets of the pool that changed it.
	Revision int64
	// Generation is spec.pool.generation.
	Generation int64
	// Slices is the number of slices; 0 for a pool that was removed.
	Slices int
	// Devices is the number of devices in them.
	Devices int
	// Writes is how many requests it took, retries included.
	Writes int
	// Latency is the time since Set or, for a repair, since the change by
	// somebody else was noticed.
	Latency time.Duration
	// Window is how much of it the pool was incomplete, so that the scheduler
	// could allocate none of its devices: 0 unless the generation changed or
	// slices were missing.
	Window time.Duration
	// Repair is set where it was not Set but somebody else who changed what
	// there was.
	Repair bool
}
