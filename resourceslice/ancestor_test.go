// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/resourceslice"
)

// Each of these is a mistake of the kubelet's former controller for node
// resources. Its S9, goroutines that are left behind, fails every test here:
// the bubble ends with it.

// S1: at the start the slices of all drivers are deleted, since none has
// registered yet. S11: a resync every ten minutes compares everything.
func TestS1S11StartAndAnHour(t *testing.T) {
	bubble(t, func(r *rig) {
		r.there(live("s1", 1, 1, device(1, "a")))
		r.start()
		r.settle(time.Minute)
		r.expect("S1: before the driver has spoken", 0, 0, 0)
		r.publish(pools(device(1, "a")))
		r.s.ResetJournal()
		r.settle(time.Hour)
		if n := len(r.s.Requests(apitest.Match{Func: func(q apitest.Request) bool { return q.Verb != "watch" }})); n != 0 {
			t.Errorf("S11: %d requests beside watches in an hour", n)
		}
	})
}

// S3: two equal models of a driver make one more slice with every event. S4: a
// slice that is there twice stays. S7: obsolete slices are used again in any
// order.
func TestS3S4S7EqualSlices(t *testing.T) {
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
		r.expect("S3: one slice for each of two equal pools; S4: one of three goes empty; S7: the others stay", 2, 1, 0)
		r.settle(time.Hour)
		r.expect("an hour later", 0, 0, 0)
	})
}

// S5: a message between a create and its event makes everything twice.
func TestS5MessageBeforeTheEvent(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.settle(time.Second)
		defer r.s.LagWatches(apitest.Match{User: r.user.Name}, time.Minute)()
		r.publish(pools(device(1, "a")))
		r.publish(pools(device(1, "b")))
		r.publish(pools(device(1, "c"), device(2, "a")))
		r.expect("three messages", 1, 2, 0)
		r.settle(time.Hour)
		r.expect("an hour later", 0, 0, 0)
	})
}

// S6: the first error ends the sync, and is never told.
func TestS6OneErrorDoesNotBlockOthers(t *testing.T) {
	bubble(t, func(r *rig) {
		r.there(live("old", 1, 1, device(9, "a")))
		r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "create", Resource: "resourceslices", Func: func(q apitest.Request) bool {
			obj, err := q.Object()
			s, ok := obj.(*resourcev1.ResourceSlice)
			return err == nil && ok && s.Spec.Pool.Name == "bad"
		}}, Status: statuserr.New(422, metav1.StatusReasonInvalid, "no")})
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

// S8: slices have no generation and no count. S12: the owner of slices that
// are there is not corrected; see TestU17LabelsAndOwners.
func TestS8GenerationAndCount(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(resourceslice.Pool{Devices: devices(300)})
		for _, s := range r.slices() {
			if s.Spec.Pool.Generation != 1 || s.Spec.Pool.ResourceSliceCount != 5 {
				t.Errorf("%s: %+v", s.Name, s.Spec.Pool)
			}
		}
	})
}
