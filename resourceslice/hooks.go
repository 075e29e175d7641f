// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import "time"

// Hooks are optional functions that the Controller calls after writes, publishes and
// failures. Goroutines of Run call them synchronously and without locks, several at a
// time. They must not block, because writes wait for them, so they must not call Wait or
// Withdraw. A panic in a hook is reported and has no other effect.
type Hooks struct {
	// APICall is called after each request that writes a slice; dry runs
	// don't count.
	APICall func(APICall)
	// Published is called each time a pool is published as Set, and each time a
	// removed pool is gone, before Wait returns.
	Published func(Published)
	// WatchFailed is called after each list, and each start of a watch, that failed.
	WatchFailed func(WatchFailed)
}

// WatchFailed is the argument of Hooks.WatchFailed.
type WatchFailed struct {
	// Err is the error. An answer from which the Controller recovers at once, such as an
	// expired resourceVersion, is none.
	Err error
}

// APICall is the argument of Hooks.APICall.
type APICall struct {
	// Pool is the pool of the slice.
	Pool PoolID
	// Slice is the name of the object.
	Slice string
	// Verb is create, update or delete.
	Verb string
	// Devices is the number of devices of the slice; 0 for a delete.
	Devices int
	// Latency is the duration of the call.
	Latency time.Duration
	// Err is the error of the call, nil for a success.
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
	// Writes is the number of requests, including retries, without dry runs.
	Writes int
	// Latency is the time since Set or, for a repair, since another writer's
	// change was noticed.
	Latency time.Duration
	// Window is the part of Latency in which the pool was incomplete, so that
	// the scheduler allocated none of its devices. It is 0 unless the generation
	// changed or slices were missing. If the first write of a generation had no answer,
	// the time until the controller knew counts too.
	Window time.Duration
	// Repair reports whether another writer's change was undone; otherwise the
	// reason was Set or Remove.
	Repair bool
}
