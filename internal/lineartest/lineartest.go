// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package lineartest tests that the cost of a decision grows no faster than what a stranger sends.
package lineartest

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

const (
	// growth is how many times as much the second size is, and most how many times as much
	// time it may take: halfway, in ratios, to the sixteen times of what is quadratic. What is
	// linear takes six times as much if other programs fill the caches of the processor.
	growth, most = 4, 8
	// noise is the time that a measurement may be wrong by.
	noise = 2 * time.Millisecond
	// A call is measured at least as often as fewest, and until it is cheap enough or as often
	// as rounds. Whatever else the machine does makes a call dearer, and never cheaper.
	fewest, rounds = 4, 40
)

// Check fails t if a call takes much more than four times the CPU time for four times the size.
// prepare returns the call for a size n, which is repeated: the cheapest counts. The time of the
// process counts, so that other programs on the machine do not. Where there is no such clock, the
// test is skipped.
func Check(t testing.TB, n int, prepare func(n int) func()) {
	t.Helper()
	if _, ok := processTime(); !ok {
		t.Skip("the system has no clock for the CPU time of a process")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // its work is not that of one call
	small, large := prepare(n), prepare(growth*n)
	few, many := cost(small), cost(large)
	for i := 1; i < fewest || i < rounds && many > most*few+noise; i++ {
		few, many = min(few, cost(small)), min(many, cost(large))
	}
	if many > most*few+noise {
		t.Errorf("size %d takes %v, and size %d takes %v: more than linear", n, few, growth*n, many)
	}
}

// cost returns the CPU time of a call.
func cost(f func()) time.Duration {
	runtime.GC()
	begin, _ := processTime()
	f()
	end, _ := processTime()
	return end - begin
}
