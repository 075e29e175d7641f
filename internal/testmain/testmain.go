// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package testmain is TestMain for packages that use client-go in bubbles of
// testing/synctest:
//
//	func TestMain(m *testing.M) { testmain.Run(m) }
package testmain

import (
	"os"
	"testing"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// Run runs the tests and ends the process. Of client-go's handlers of errors it
// keeps the first, which logs. The one after it limits a rate by the clock that
// the process began with: in a bubble, whose time begins in the year 2000, it
// sleeps for decades, and reflectors call it whenever a watch fails.
func Run(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}
