// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import "time"

// Hooks observe the controller; nil fields are not called. They are called
// synchronously and without locks, by several goroutines at once, and must not
// block: a write waits for them.
type Hooks struct {
	// Write is called after each request that writes a slice.
	Write func(Write)
	// Publish is called each time a pool has become what Set asked for.
	Publish func(Publish)
}

// Write is one create, update or delete of a slice.
type Write struct {
	Pool PoolID
	// Slice is the name of the object.
	Slice string
	// Verb is create, update or delete.
	Verb string
	// Devices is how many devices the slice has; 0 for a delete.
	Devices int
	// Duration is how long the request took.
	Duration time.Duration
	// Err is what it failed with.
	Err error
}

// Publish is a pool that has become complete on the API server.
type Publish struct {
	Pool PoolID
	// Revision counts the Sets of the pool that changed it.
	Revision int64
	// Generation is spec.pool.generation and Slices the number of slices.
	Generation int64
	Slices     int
	Devices    int
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
