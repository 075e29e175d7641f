// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lineartest

import (
	"slices"
	"testing"
)

// A recorder records that a test has failed.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Errorf(string, ...any) { r.failed = true }

func TestCheck(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector, which runs with -short, changes what a call costs")
	}
	for name, c := range map[string]struct {
		prepare func(n int) func()
		fails   bool
	}{
		"one lookup in a map for each": {func(n int) func() {
			return func() {
				seen := map[int]bool{}
				for i := range n {
					seen[i] = true
				}
			}
		}, false},
		"one scan for each": {func(n int) func() {
			list := make([]int, n)
			return func() {
				for i := range n {
					if slices.Contains(list, i+1) {
						list[i]++
					}
				}
			}
		}, true},
	} {
		r := recorder{TB: t}
		Check(&r, 2000, c.prepare)
		if r.failed != c.fails {
			t.Errorf("%s: failed %t", name, r.failed)
		}
	}
}
