// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestAPodThatHasASandboxGoesFirstAndThenTheOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gate{free: 1}
		if err := g.enter(t.Context(), ticket{}); err != nil {
			t.Fatal(err)
		}
		var order []string
		for _, w := range []struct {
			name string
			ticket
		}{
			{"young", ticket{created: time.Unix(20, 0)}},
			{"old", ticket{created: time.Unix(10, 0)}},
			{"as old, but later", ticket{created: time.Unix(10, 0)}},
			{"begun", ticket{created: time.Unix(30, 0), begun: true}},
			{"begun and older", ticket{created: time.Unix(25, 0), begun: true}},
		} {
			go func() {
				if err := g.enter(t.Context(), w.ticket); err != nil {
					t.Error(err)
				}
				order = append(order, w.name)
				g.leave()
			}()
			synctest.Wait()
		}
		g.leave()
		synctest.Wait()
		if want := []string{"begun and older", "begun", "old", "as old, but later", "young"}; !slices.Equal(order, want) {
			t.Errorf("%q, want %q", order, want)
		}
		if g.free != 1 {
			t.Errorf("%d places are free, want 1", g.free)
		}
	})
}

// TestAPlaceIsNeverLost cancels a caller that waits, before and while it gets its place.
func TestAPlaceIsNeverLost(t *testing.T) {
	for _, free := range []bool{false, true} {
		for range 20 { // which of the two the caller sees is chance
			synctest.Test(t, func(t *testing.T) {
				g := gate{free: 1}
				if err := g.enter(t.Context(), ticket{}); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- g.enter(ctx, ticket{}) }()
				synctest.Wait()
				cancel()
				if free {
					g.leave()
				}
				err := <-done
				if err == nil {
					g.leave()
				}
				if !free {
					if !errors.Is(err, context.Canceled) || len(g.waiting) > 0 {
						t.Errorf("%v, %d wait", err, len(g.waiting))
					}
					g.leave()
				}
				if g.free != 1 {
					t.Errorf("%d places are free, want 1", g.free)
				}
			})
		}
	}
}

// TestACallerThatGivesUpLetsNoOtherIn: the place that it did not get is not free.
func TestACallerThatGivesUpLetsNoOtherIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gate{free: 1}
		if err := g.enter(t.Context(), ticket{}); err != nil {
			t.Fatal(err)
		}
		entered := false
		go func() {
			if err := g.enter(t.Context(), ticket{created: time.Unix(10, 0)}); err != nil {
				t.Error(err)
			}
			entered = true
			g.leave()
		}()
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = g.enter(ctx, ticket{created: time.Unix(20, 0)}) }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		if entered || len(g.waiting) != 1 {
			t.Errorf("the other one has entered: %v, %d wait", entered, len(g.waiting))
		}
		g.leave()
		synctest.Wait()
		if !entered || g.free != 1 {
			t.Errorf("it has entered: %v, %d places are free", entered, g.free)
		}
	})
}

func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if !sleep(ctx, time.Second) || time.Since(began) != time.Second {
			t.Errorf("a second took %v", time.Since(began))
		}
		if sleep(ctx, time.Hour) || time.Since(began) != time.Minute {
			t.Errorf("it ended after %v", time.Since(began))
		}
	})
}
