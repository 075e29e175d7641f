// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/resourceslice"
)

// Each of these is a mistake of the kubelet's former controller for node
// resources. A goroutine that is left behind fails every test here:
// the bubble ends with it.

// TestStartAndAnHour: at the start the slices of all drivers are deleted, since none has
// registered yet. A resync every ten minutes compares everything.
func TestStartAndAnHour(t *testing.T) {
	bubble(t, func(r *rig) {
		r.there(live("s1", 1, 1, device(1, "a")))
		r.start()
		r.settle(time.Minute)
		r.expect("before the driver has spoken", 0, 0, 0)
		r.publish(pools(device(1, "a")))
		r.s.ResetJournal()
		r.settle(time.Hour)
		if n := len(r.s.Requests(apitest.Match{Func: func(q apitest.Request) bool { return q.Verb != "watch" }})); n != 0 {
			t.Errorf("%d requests beside watches in an hour", n)
		}
	})
}

// TestEqualSlices: two equal models of a driver make one more slice with every event. A
// slice that is there twice stays. Obsolete slices are used again in any
// order.
func TestEqualSlices(t *testing.T) {
	bubble(t, func(r *rig) {
		r.there(live("s1", 1, 3, device(1, "a")), live("s2", 1, 3, device(1, "a")), live("s3", 1, 3, device(2, "a")))
		r.consumer.tolerate(true)
		r.start()
		for _, name := range []string{"p1", "p2"} {
			if err := r.c.Set(resourceslice.PoolID{Driver: driver, Name: name}, pools(device(1, "a"))); err != nil {
				t.Fatal(err)
			}
		}
		r.publish(pools(device(1, "a"), device(2, "a")))
		r.expect("one slice for each of two equal pools; one of three goes empty; the others stay", 2, 1, 0)
		r.settle(time.Hour)
		r.expect("an hour later", 0, 0, 0)
	})
}

// TestOneErrorDoesNotBlockOthers: the first error ends the sync, and is never reported.
func TestOneErrorDoesNotBlockOthers(t *testing.T) {
	bubble(t, func(r *rig) {
		r.there(live("old", 1, 1, device(9, "a")))
		r.s.Inject(apitest.Fault{Match: sending("create", func(s sliceType) bool { return s.Spec.Pool.Name == "bad" }), Status: statuserr.New(422, metav1.StatusReasonInvalid, "no")})
		r.start()
		r.consumer.remove()
		for _, name := range []string{"bad", "good"} {
			if err := r.c.Set(resourceslice.PoolID{Driver: driver, Name: name}, pools(device(1, "a"))); err != nil {
				t.Fatal(err)
			}
		}
		r.c.Remove(pool)
		r.settle(time.Minute)
		// The pool that is refused as it is becomes one without devices, which
		// is refused as well.
		r.expect("one bad, one good, one to remove", 3, 0, 1)
		if _, n := has[*resourceslice.InvalidError](r); n == 0 {
			t.Error("nothing was reported")
		}
	})
}
