// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"sync"
	"testing"
	"testing/synctest"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// Bubble runs f in a testing/synctest bubble with a new server. Time in the
// bubble is virtual: it stands still while a goroutine can run, and jumps ahead
// when all of them wait. When f returns, every goroutine that it started must
// end, or the test fails with their stacks; contexts that come from t are done
// by then.
//
// Bubble also removes the rate limit of apimachinery's error handlers for the
// rest of the process. That limiter compares virtual time with the real time at
// which the process started, so in a bubble it sleeps for decades, and
// reflectors call it when a watch fails.
func Bubble(t *testing.T, opts Options, f func(t *testing.T, s *Server)) {
	t.Helper()
	withoutLimiter()
	synctest.Test(t, func(t *testing.T) { f(t, New(opts)) })
}

// withoutLimiter keeps the first of apimachinery's error handlers, which logs.
var withoutLimiter = sync.OnceFunc(func() {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:min(1, len(utilruntime.ErrorHandlers))]
})
