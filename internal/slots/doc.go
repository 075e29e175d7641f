// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package slots runs one function for each of many names, again and again: for
// one node or for ten thousand in the same process, without a goroutine or a
// timer for a name that waits.
//
// # Pace
//
// Each name owns a place within the interval, and a run that goes well is
// followed by the next one at that place. Places follow an additive recurrence
// by the golden ratio, which keeps any number of them spread evenly; a
// hash would leave gaps and clusters, and jitter needs dozens of rounds to
// disperse a herd. After an outage names therefore fall back into their own
// places within two intervals.
//
// Starts are paced by a token bucket at half as much again as the steady rate,
// so that neither a start of ten thousand nodes nor the end of an outage is a
// storm. A run that sends no request, because it must wait for an answer, is not paced.
//
// # Order
//
// Names run in the order in which they are due. If more are due than can run, those whose deadline is within an interval go first, the nearest before
// the others; then those that are lost already; and those last whose deadline
// is further away. So an overload saves as many names as it can, and does not
// run some of them more often than necessary while others never run.
//
// # Room for others
//
// A run at its place can wait. For a fortieth of the interval it waits for one of a few
// workers, as many as a place has names, and takes any of them later. So a server that is
// held up for a moment does not find all workers' requests before those of other clients
// when it goes on. New names, retries and triggered names take any worker at once.
//
// # Removal
//
// Remove drops a name. Leave drops it after its farewell, which a run of the name
// calls with Part, and End calls for the names that are left when Run has returned.
// A name that is added again in the meantime begins after the farewell, with its new
// value.
//
// # Concurrency
//
// A name has at most one run at a time, also when it is removed and added
// again during a run. At most Workers runs are under way at once. Add, Remove,
// Trigger, Get and Names may be called at any time and from any goroutine, also
// from a run; they never block on one.
package slots
