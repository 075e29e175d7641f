// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package callback

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestCalls(t *testing.T) {
	no := errors.New("no")
	for name, test := range map[string]struct {
		takes   time.Duration
		ignores bool // the end of its context
		panics  bool
		within  bool          // patience
		ends    time.Duration // of the call
	}{
		"prompt":                {takes: time.Millisecond, within: true, ends: time.Millisecond},
		"panics":                {panics: true, within: true},
		"slow":                  {takes: time.Second, ends: time.Second},
		"ends with its context": {takes: time.Minute, ends: patience + 2*time.Second},
		"does not end":          {takes: time.Minute, ignores: true, ends: time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			var calls Calls
			begun := time.Now()
			returned := make(chan error, 1)
			call := calls.Begin(t.Context(), "Check", func(ctx context.Context) error {
				if test.panics {
					panic("boom")
				}
				end := ctx.Done()
				if test.ignores {
					end = nil
				}
				select {
				case <-time.After(test.takes):
				case <-end:
				}
				return no
			}, func(err error) { returned <- err })
			err, ok := call.Wait(t.Context(), patience)
			if ok != test.within {
				t.Errorf("%s: returned %v, %v", name, err, ok)
			}
			call.Leave(2 * time.Second)
			if err := call.Err(); err != <-returned || (err != no) != test.panics || Failed(err) != test.panics {
				t.Errorf("%s: %v", name, err)
			}
			calls.Wait()
			if took := time.Since(begun); took != test.ends {
				t.Errorf("%s: it took %v, want %v", name, took, test.ends)
			}
		})
	}
}

// A caller whose context ends waits no longer.
func TestACallerOfCallsLeavesWhenItsContextIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls Calls
		ctx, cancel := context.WithCancel(t.Context())
		call := calls.Begin(t.Context(), "Check", func(context.Context) error { time.Sleep(time.Second); return nil }, func(error) {})
		cancel()
		if _, ok := call.Wait(ctx, time.Minute); ok {
			t.Error("it has returned")
		}
		calls.Wait()
	})
}
