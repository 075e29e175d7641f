// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package lifecycletest tests the contract that all controllers of this library
// share:
//
//   - New does no I/O and starts nothing.
//   - Run blocks, runs once, and returns nil when its context is done: before
//     Run began, in normal operation, and while the API hangs or fails. It
//     returns in bounded time. After it returns, none of its goroutines is left
//     and it sends no request.
//   - No class of error ends Run or causes a hot loop, and the controller is
//     ready soon after the API recovers.
//   - Check reports progress, not the health of the API.
//   - Two controllers in one process share nothing.
//
// Every case runs in a synctest bubble. It therefore also tests for leaks: a
// bubble fails if a goroutine is left.
package lifecycletest
