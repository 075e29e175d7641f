// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"testing"
	"time"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/resourceslice"
)

// The numbers in these tests are the budget of the package: how many requests
// a change takes, exactly.

func TestBudget(t *testing.T) {
	if testing.Short() {
		t.Skip("ten thousand devices")
	}
	bubble(t, func(r *rig) {
		all := devices(10_000)
		r.start()
		r.publish(resourceslice.Pool{Devices: all})
		r.expect("first publish", 157, 0, 0)

		r.settle(time.Hour)
		r.expect("an hour in which nothing happens", 0, 0, 0)

		r.publish(resourceslice.Pool{Devices: all})
		r.expect("the same again", 0, 0, 0)

		for i, j := 0, len(all)-1; i < j; i, j = i+1, j-1 {
			all[i], all[j] = all[j], all[i]
		}
		r.publish(resourceslice.Pool{Devices: all})
		r.expect("another order", 0, 0, 0)

		all = devices(10_000)
		all[5000] = device(5000, "b")
		r.publish(resourceslice.Pool{Devices: all})
		r.expect("one device changed", 0, 1, 0)

		r.settle(time.Minute)
		for i := range 10 {
			all[i*640] = device(i*640, "c")
		}
		r.change("ten devices in ten slices changed", all, 10)

		r.publish(resourceslice.Pool{Devices: all[1:]})
		r.expect("one device removed", 0, 1, 0)
		r.settle(time.Minute)
		r.publish(resourceslice.Pool{Devices: all})
		r.expect("one device added", 0, 1, 0)

		r.settle(time.Minute)
		r.foreign(func() { apitest.Remove[sliceType](r.s, "", r.slices()[70].Name) })
		r.settle(1500 * time.Millisecond)
		r.expect("one slice deleted by another client", 1, 0, 0)

		r.halt()
		r.s.ResetJournal()
		begin := time.Now()
		r.start()
		r.publish(resourceslice.Pool{Devices: all})
		if took := time.Since(begin); took != 0 {
			t.Errorf("a restart took %v beyond the round trips", took)
		}
		for _, m := range []apitest.Match{{Verb: "watch", Resource: "resourceslices"}, {Verb: "get", Resource: "nodes"}} {
			if n := len(r.s.Requests(m)); n != 1 {
				t.Errorf("restart: %d requests of %s %s, want 1", n, m.Verb, m.Resource)
			}
		}
		if n := len(r.s.Requests(apitest.Match{})); n != 2 {
			t.Errorf("restart: %d requests, want 2: %v", n, r.s.Requests(apitest.Match{}))
		}
		r.expect("restart", 0, 0, 0)
	})
}

// TestSevenOfAHundredThousandDevices: as many writes as devices, at one generation, so that
// the pool is always complete.
func TestSevenOfAHundredThousandDevices(t *testing.T) {
	if testing.Short() {
		t.Skip("a hundred thousand devices")
	}
	bubble(t, func(r *rig) {
		all := devices(100_000)
		r.start()
		r.publish(resourceslice.Pool{Devices: all})
		r.expect("first publish", 1563, 0, 0)
		r.settle(time.Minute)
		for i := range 7 {
			all[i*10_007] = device(i*10_007, "b")
		}
		r.change("seven devices changed", all, 7)
		for _, slice := range r.slices() {
			if slice.Spec.Pool.Generation != 1 { // so each event left the pool complete
				t.Fatalf("%s has generation %d", slice.Name, slice.Spec.Pool.Generation)
			}
		}
	})
}
