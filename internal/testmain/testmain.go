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

// Run runs the tests and ends the process. It keeps only the first of
// client-go's error handlers, which logs. The second limits its rate by a clock
// that starts with the process. In a bubble, where time starts in the year
// 2000, it sleeps for decades, and reflectors call it whenever a watch fails.
func Run(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}
