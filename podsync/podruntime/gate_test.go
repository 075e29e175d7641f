// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
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
