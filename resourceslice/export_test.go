// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

// OnCheck calls f with the result of Check after each event of a pool's state.
func OnCheck(c *Controller, f func(error)) { c.checked = f }
