// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package lifecycletest is the contract that every controller of this library
// keeps, as one test that all of them run:
//
//   - New does no I/O and starts nothing.
//   - Run blocks, runs once, and returns nil when its context is done: before
//     it began, while all is well, while the API hangs and while it fails. It
//     returns in bounded time, and when it has returned there is no goroutine
//     of it left and no request is sent.
//   - No class of error ends Run or makes a hot loop, and the controller is
//     ready soon after the API is well again.
//   - Check reports progress, not the health of the API.
//   - Two controllers in one process share nothing.
//
// Every case is a synctest bubble, so each is a leak test as well: a bubble
// fails when a goroutine is left behind.
package lifecycletest
