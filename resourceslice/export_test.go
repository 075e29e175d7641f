// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

// OnCheck calls f with the result of Check after each event of a pool's state.
func OnCheck(c *Controller, f func(error)) { c.checked = f }

// SetConcurrency limits the writes under way at once.
func SetConcurrency(c *Controller, n int) { c.tokens = make(chan struct{}, n) }

// CallTimeout is the deadline of one API call.
const CallTimeout = callTimeout
