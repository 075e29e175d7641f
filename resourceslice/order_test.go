// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/resourceslice"
)

// order returns the names of all devices in the order in which the scheduler tries
// them: slices by name, devices as listed.
func (r *rig) order() (names []string) {
	for _, s := range r.slices() {
		for _, d := range s.Spec.Devices {
			names = append(names, d.Name)
		}
	}
	return names
}

func namesOf(devices []resourcev1.Device) (names []string) {
	for _, d := range devices {
		names = append(names, d.Name)
	}
	return names
}

// downwards makes devices whose order is the opposite of that of their names.
func downwards(n int) []resourcev1.Device {
	all := devices(n)
	slices.Reverse(all)
	return all
}

func (r *rig) expectOrder(what string, want []resourcev1.Device) {
	r.Helper()
	if got := r.order(); !slices.Equal(got, namesOf(want)) {
		r.Errorf("%s: the scheduler tries %s\nwant %s", what, strings.Join(got, " "), strings.Join(namesOf(want), " "))
	}
}

// TestTheSchedulerTriesDevicesInTheOrderOfThePool: the scheduler takes the first
// device that matches. A driver that lists small partitions before the whole GPU must
// not see a small claim get the whole GPU.
func TestTheSchedulerTriesDevicesInTheOrderOfThePool(t *testing.T) {
	t.Run("one slice", func(t *testing.T) {
		bubble(t, func(r *rig) {
			r.start()
			all := downwards(5)
			r.publish(resourceslice.Pool{Devices: all})
			r.expectOrder("publish", all)
			all = append([]resourcev1.Device{device(9, "a"), device(0, "first")}, all[:4]...)
			r.publish(resourceslice.Pool{Devices: all})
			r.expectOrder("a device is inserted", all)
		})
	})
	t.Run("several slices", func(t *testing.T) {
		bubble(t, func(r *rig) {
			r.start()
			all := downwards(300)
			r.publish(resourceslice.Pool{Devices: all})
			r.expectOrder("publish", all)
			// A device that is dearer than all of its slice.
			all[10] = device(289, "dear")
			all[10].Taints = []resourcev1.DeviceTaint{{Key: "k", Effect: resourcev1.DeviceTaintEffectNoExecute}}
			r.publish(resourceslice.Pool{Devices: all})
			r.expectOrder("a device changes", all)
		})
	})
	t.Run("limit of a slice", func(t *testing.T) {
		bubble(t, func(r *rig) {
			r.start()
			all := downwards(100)
			r.publish(resourceslice.Pool{Devices: all})
			all[50].Taints = []resourcev1.DeviceTaint{{Key: "k", Effect: resourcev1.DeviceTaintEffectNone}}
			r.publish(resourceslice.Pool{Devices: all})
			r.expectOrder("the last devices move", all)
		})
	})
}

// TestAnotherOrderAloneIsNoChange: drivers that build the list from a map pass it in
// another order each time.
func TestAnotherOrderAloneIsNoChange(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(resourceslice.Pool{Devices: devices(200)})
		r.s.ResetJournal()
		r.publish(resourceslice.Pool{Devices: downwards(200)})
		r.expect("another order", 0, 0, 0)
		// What is written later is in the order of the last Set.
		r.foreign(func() {
			err := r.s.Client(admin).ResourceV1().ResourceSlices().DeleteCollection(r.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
			if err != nil {
				r.Fatal(err)
			}
		})
		r.settle(2 * time.Second)
		r.expectOrder("repair", downwards(200))
	})
}

// TestAnOrderedPoolFollowsTheOrderOfEachSet: with Pool.Ordered the order is content,
// also across slices.
func TestAnOrderedPoolFollowsTheOrderOfEachSet(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		set := func(what string, all []resourcev1.Device, creates, updates, deletes int) {
			r.Helper()
			r.s.ResetJournal()
			r.publish(resourceslice.Pool{Devices: all, Ordered: true})
			r.expect(what, creates, updates, deletes)
			r.expectOrder(what, all)
		}
		all := downwards(200)
		set("publish", all, 4, 0, 0)
		all[3], all[4] = all[4], all[3]
		set("two neighbors are exchanged", all, 0, 1, 0)
		set("the same again", all, 0, 0, 0)
		all = slices.Delete(all, 70, 71)
		set("a device is removed", all, 0, 1, 0)
		all = slices.Insert(all, 80, device(300, "a"))
		set("a device is inserted", all, 0, 1, 0)
		all = append(all, device(301, "a"))
		set("a device is appended", all, 0, 1, 0)
		slices.Reverse(all)
		set("all in the opposite order", all, 0, 4, 0)
		all = slices.Insert(all, 1, tainted(164)[100:]...)
		for i := range all[1:65] {
			all[1+i].Name = "new-" + all[1+i].Name
		}
		r.publish(resourceslice.Pool{Devices: all, Ordered: true})
		r.expectOrder("a slice overflows", all)
		all = tainted(192)
		r.publish(resourceslice.Pool{Devices: all, Ordered: true})
		all = slices.Delete(slices.Delete(all, 70, 71), 10, 11)
		set("two devices with taints are removed", all, 0, 2, 0)
		all = slices.Insert(all, 80, tainted(301)[300])
		set("one takes the last place of a slice", all, 0, 1, 0)
	})
}

// TestAPoolThatBecomesOrderedIsWrittenInOrder: also one that another publisher wrote.
func TestAPoolThatBecomesOrderedIsWrittenInOrder(t *testing.T) {
	bubble(t, func(r *rig) {
		r.foreign(func() {
			r.there(live("zz", 1, 2, device(1, "a"), device(2, "a")), live("aa", 1, 2, device(3, "a"), device(4, "a")))
		})
		r.start()
		all := []resourcev1.Device{device(2, "a"), device(3, "a"), device(1, "a"), device(4, "a")}
		r.publish(resourceslice.Pool{Devices: all})
		r.expect("adopted", 0, 0, 0)
		r.publish(resourceslice.Pool{Devices: all, Ordered: true})
		r.expectOrder("ordered", all)
	})
}
