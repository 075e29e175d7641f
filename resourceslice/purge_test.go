// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kubewright/kubewright/resourceslice"
)

// TestRemoveWorksAgain: another client has created the pool again.
func TestRemoveWorksAgain(t *testing.T) {
	bubble(t, func(r *rig) {
		r.consumer.remove()
		r.start()
		r.publish(pools(device(1, "a")))
		for range 3 {
			r.remove(node)
			if n := len(r.slices()); n > 0 {
				t.Errorf("%d slices after Remove", n)
			}
			r.settle(time.Minute)
			r.there(live("s1", 1, 1, device(1, "a")))
			r.settle(time.Minute)
			if n := len(r.slices()); n != 1 {
				t.Errorf("%d slices after another client has created one", n)
			}
		}
	})
}

// TestRemovedPoolsAreForgotten: Wait knows a removed pool for ten minutes. After
// that the controller keeps nothing of it, and a pool of that name is a new one.
func TestRemovedPoolsAreForgotten(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.consumer.remove()
		var ids []resourceslice.PoolID
		for i := range 50 {
			id := resourceslice.PoolID{Driver: driver, Name: fmt.Sprint("pool-", i)}
			ids = append(ids, id)
			if err := r.c.Set(id, pools(device(1, "a"))); err != nil {
				t.Fatal(err)
			}
		}
		r.publish(pools(device(1, "a")))
		for _, id := range ids {
			if err := r.c.Remove(id); err != nil {
				t.Fatal(err)
			}
		}
		known := func() (n int) {
			for _, id := range ids {
				switch err := r.c.Wait(r.Context(), id); {
				case err == nil:
					n++
				case !errors.Is(err, resourceslice.ErrUnknownPool):
					t.Errorf("%s: %v", id, err)
				}
				if s, ok := r.c.Status(id); ok {
					t.Errorf("%s has the status %+v", id, s)
				}
			}
			return n
		}
		if n := known(); n != len(ids) {
			t.Errorf("%d removed pools are known at once, want %d", n, len(ids))
		}
		r.settle(9 * time.Minute)
		if n := known(); n != len(ids) {
			t.Errorf("%d removed pools are known after nine minutes, want %d", n, len(ids))
		}
		r.settle(2 * time.Minute)
		if n := known(); n != 0 {
			t.Errorf("%d removed pools are known after eleven minutes", n)
		}
		if s, ok := r.c.Status(pool); !ok || s.Devices != 1 {
			t.Errorf("status of the pool that stays: %+v", s)
		}
		if err := r.c.Set(ids[0], pools(device(1, "a"))); err != nil {
			t.Fatal(err)
		}
		if err := r.c.Wait(r.Context(), ids[0]); err != nil {
			t.Error(err)
		}
		if s, _ := r.c.Status(ids[0]); s.Revision != 1 || s.Slices != 1 {
			t.Errorf("status of a new pool with an old name: %+v", s)
		}
	})
}
