// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/requests"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/resourceslice"
)

// Each of these was a fault of this package, found by reading it.

// TestDevicesAreCheckedForTheirPool: devices that were valid in a pool of the
// node were not looked at again when each had to say where it is.
func TestDevicesAreCheckedForTheirPool(t *testing.T) {
	bubble(t, func(r *rig) {
		r.user = admin
		r.start()
		d := device(1, "a")
		r.publish(pools(d))
		perDevice := resourceslice.NodeSelection{PerDevice: true}
		if err := r.c.Set(pool, resourceslice.Pool{Devices: []resourcev1.Device{d}, Nodes: perDevice}); err == nil {
			t.Error("a device that doesn't say where it is was accepted")
		}
		d.AllNodes = new(true)
		if err := r.c.Set(pool, resourceslice.Pool{Devices: []resourcev1.Device{d}, Nodes: perDevice}); err != nil {
			t.Error(err)
		}
		if err := r.c.Set(pool, pools(d)); err == nil {
			t.Error("a device that says where it is was accepted in a pool of the node")
		}
	})
}

// TestSetLeavesDevicesAlone: a quantity behind a pointer remembered its text
// when it was encoded, which is a race where two pools share a device.
func TestSetLeavesDevicesAlone(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		d := device(1, "a")
		d.AllowMultipleAllocations = new(true)
		d.Capacity["memory"] = resourcev1.DeviceCapacity{Value: quantity("40Gi"), RequestPolicy: &resourcev1.CapacityRequestPolicy{
			Default: new(*resource.NewScaledQuantity(1, resource.Giga)), ValidValues: []resource.Quantity{*resource.NewScaledQuantity(1, resource.Giga)},
		}}
		d.NodeAllocatableResources = map[corev1.ResourceName]resourcev1.NodeAllocatableResource{
			"cpu": {Mapping: &resourcev1.NodeAllocatableMapping{DeviceMultiplier: resource.NewQuantity(2, resource.DecimalSI)}},
		}
		before := d.DeepCopy()
		r.set(pools(d))
		if !reflect.DeepEqual(&d, before) {
			t.Error("Set changed the device")
		}
	})
}

// TestClusterPoolOfANodeIsRepaired: a cluster pool has another watch than the
// node's slices. An earlier version compared its slices with the resource version
// of the node's watch, and never noticed that another client deleted one.
func TestClusterPoolOfANodeIsRepaired(t *testing.T) {
	bubble(t, func(r *rig) {
		r.user = admin
		r.start()
		r.publish(resourceslice.Pool{Devices: tainted(200), Nodes: resourceslice.NodeSelection{AllNodes: true}})
		r.settle(5 * time.Second)
		r.s.ResetJournal()
		r.foreign(func() { apitest.Remove[sliceType](r.s, "", r.slices()[1].Name) })
		r.settle(2 * time.Second)
		r.expect("one slice deleted", 1, 0, 0)
	})
}

// TestDeleteThatLandsLate: a pool is removed and Set again, and then the API server
// carries out the delete, whose answer was lost. The slice is created again
// although the delete was an own one.
func TestDeleteThatLandsLate(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(pools(device(1, "a")))
		r.settle(time.Minute)
		r.consumer.remove()
		r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "delete", Resource: "resourceslices"}, Times: 1, CommitAfter: 15 * time.Second})
		r.c.Remove(pool)
		r.settle(9 * time.Second)
		r.set(pools(device(1, "a")))
		r.settle(time.Minute)
		if len(r.slices()) != 1 {
			t.Errorf("%d slices", len(r.slices()))
		}
	})
}

// TestANewPoolWaitsAloneForItsOwner: the Node is read again before a pool is created, and
// the answer does not come. Other pools have slices, and need no answer.
func TestANewPoolWaitsAloneForItsOwner(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(pools(device(1, "a")))
		r.expect("the first publish", 1, 0, 0)
		r.settle(2 * time.Minute)
		restore := r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "get", Resource: "nodes"}, Hang: true})
		other := resourceslice.PoolID{Driver: driver, Name: "new"}
		if err := r.c.Set(other, pools(device(2, "a"))); err != nil {
			t.Fatal(err)
		}
		r.settle(100 * time.Millisecond)
		r.set(pools(device(1, "b")))
		r.settle(time.Second)
		r.expect("a change of a pool that is there", 0, 1, 0)
		restore()
		r.settle(time.Minute)
		r.expect("the new pool", 1, 0, 0)
	})
}

// TestWatchesEndWithTheirPools: each pool of a cluster that a controller of a
// node has published left a watch behind, and a status. The watch lasts for ten minutes
// after the pool is removed, because an older instance may create it again.
func TestWatchesEndWithTheirPools(t *testing.T) {
	for _, byNode := range []bool{true, false} {
		bubble(t, func(r *rig) {
			r.user = admin
			r.start(func(cfg *resourceslice.Config) {
				if !byNode {
					cfg.NodeName, cfg.Owner = "", nil
				}
			})
			r.settle(time.Second)
			match := apitest.Match{User: r.user.Name, Resource: "resourceslices"}
			before := requests.OpenWatches(r.s, match)
			r.consumer.remove()
			for range 2 {
				for _, name := range []string{"p1", "p2", "p3"} {
					id := resourceslice.PoolID{Driver: name + ".example.com", Name: name}
					if err := r.c.Set(id, resourceslice.Pool{Devices: devices(1), Nodes: resourceslice.NodeSelection{AllNodes: true}}); err != nil {
						t.Fatal(err)
					}
					if err := r.c.Wait(r.Context(), id); err != nil {
						t.Fatal(err)
					}
					r.settle(time.Second)
					if n := requests.OpenWatches(r.s, match); n != before+1 {
						t.Errorf("%d watches with a pool, %d before", n, before)
					}
					r.c.Remove(id)
					if err := r.c.Wait(r.Context(), id); err != nil {
						t.Fatal(err)
					}
					r.settle(time.Second)
					r.s.ResetJournal()
					r.c.Remove(id)
					if err := r.c.Wait(r.Context(), id); err != nil {
						t.Fatal(err)
					}
					r.settle(time.Second)
					if n := len(r.s.Requests(apitest.Match{Func: func(q apitest.Request) bool { return strings.Contains(q.FieldSelector, id.Driver) }})); n > 0 {
						t.Errorf("%d requests to remove what is gone", n)
					}
					r.settle(11 * time.Minute)
					if n := requests.OpenWatches(r.s, match); n != before {
						t.Errorf("%d watches after a pool, %d before", n, before)
					}
					if s, ok := r.c.Status(id); ok {
						t.Errorf("the status of a pool that is gone: %+v", s)
					}
				}
			}
		})
	}
}

// TestOneTaintTwice: a device with the same taint at two times was written
// again and again.
func TestOneTaintTwice(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		d := device(1, "a")
		taint := func(year int) resourcev1.DeviceTaint {
			at := metav1.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
			return resourcev1.DeviceTaint{Key: "example.com/x", Effect: resourcev1.DeviceTaintEffectNoSchedule, TimeAdded: &at}
		}
		d.Taints = []resourcev1.DeviceTaint{taint(1999), taint(2001)}
		r.publish(pools(d))
		r.settle(10 * time.Minute)
		r.expect("two taints", 1, 0, 0)
	})
}

// TestReadyBeforeTheFirstPool: a controller of a driver's pools in the cluster is
// ready before the first Set, so a caller can wait for Ready first.
func TestReadyBeforeTheFirstPool(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start(func(cfg *resourceslice.Config) {
			cfg.NodeName, cfg.Owner, cfg.Driver, cfg.Client = "", nil, driver, r.s.Client(apitest.User{}).ResourceV1()
		})
		<-r.c.Ready().Done()
	})
}

// TestLastGeneration: the generation after the last one is negative. The API
// server refused it, and devices were left out for that.
func TestLastGeneration(t *testing.T) {
	bubble(t, func(r *rig) {
		r.there(live("s1", math.MaxInt64, 1, device(1, "a")))
		r.consumer.remove()
		r.start()
		r.publish(resourceslice.Pool{Devices: tainted(200)})
		if got := r.generations(); len(got) != 4 || got[0] != "1/4" || got[3] != "1/4" {
			t.Errorf("generations and counts %v", got)
		}
		r.expect("all anew", 4, 0, 1)
	})
}

// TestErrorsGoWithTheirDevices: of two devices that were not taken as they are,
// the one that had been corrected stayed in Status.Err until both were.
func TestErrorsGoWithTheirDevices(t *testing.T) {
	bubble(t, func(r *rig) {
		r.s.SetGate(apitest.DRADeviceTaints, false)
		r.s.SetGate(apitest.DRAConsumableCapacity, false)
		r.start()
		plain, tainted, shared := device(1, "a"), tainted(3)[2], device(3, "a")
		shared.AllowMultipleAllocations = new(true)
		fields := func(want ...string) {
			t.Helper()
			r.settle(10 * time.Second)
			var got []string
			s, _ := r.c.Status(pool)
			if dropped, ok := errors.AsType[*resourceslice.DroppedFieldsError](s.Err); ok {
				got = dropped.Fields
			}
			if !slices.Equal(got, want) {
				t.Errorf("dropped %v, want %v", got, want)
			}
		}
		r.set(pools(plain, tainted, shared))
		fields("devices.allowMultipleAllocations", "devices.taints")
		tainted.Taints = nil
		r.set(pools(plain, tainted, shared))
		fields("devices.allowMultipleAllocations")
		shared.AllowMultipleAllocations = nil
		r.set(pools(plain, tainted, shared))
		fields()
	})
}

// TestRefusalsGoWithTheirDevices is that for devices that the API server refused.
func TestRefusalsGoWithTheirDevices(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(pools(device(1, "a")))
		r.settle(time.Minute)
		refuse := func(name string) {
			t.Helper()
			err := statuserr.New(422, metav1.StatusReasonInvalid, name+" is not liked")
			err.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Field: "spec.devices[1]"}}}
			r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "update", Resource: "resourceslices"}, Times: 1, Status: err})
		}
		err := func() error { s, _ := r.c.Status(pool); return s.Err }
		refuse("dev-00002")
		r.set(pools(device(1, "a"), device(2, "a")))
		r.settle(10 * time.Second)
		refuse("dev-00003")
		r.set(pools(device(1, "a"), device(2, "a"), device(3, "a")))
		r.settle(10 * time.Second)
		if err := err(); !contains(err, "is not liked") {
			t.Errorf("Err = %v", err)
		}
		r.set(pools(device(1, "a"), device(2, "a"), device(3, "b")))
		r.settle(10 * time.Second)
		if err := err(); !contains(err, "dev-00002 is not liked") {
			t.Errorf("Err = %v", err)
		}
		r.set(pools(device(1, "a"), device(2, "b"), device(3, "b")))
		r.settle(10 * time.Second)
		if err := err(); err != nil {
			t.Errorf("Err = %v", err)
		}
	})
}

// TestAnUpgradeWritesNothing, whatever form the driver's quantities have in memory: testdata has
// the slices that the first version with another hash has written for this pool. It wrote two
// of them again at each restart.
func TestAnUpgradeWritesNothing(t *testing.T) {
	data, err := os.ReadFile("testdata/upgrade.json")
	if err != nil {
		t.Fatal(err)
	}
	decimal, nano := resource.MustParse("1000"), resource.MustParse("1n")
	decimal.ToDec()
	nano.ToDec()
	forms := map[resourcev1.QualifiedName]resource.Quantity{
		"decimal": decimal, "nano": nano, "large": resource.MustParse("100E"), "text": resource.MustParse("1.5Gi"),
		"thousandths": *resource.NewMilliQuantity(1_000_000, resource.BinarySI), "binary": *resource.NewQuantity(1000, resource.BinarySI),
	}
	set := resourcev1.CounterSet{Name: "set", Counters: map[string]resourcev1.Counter{}}
	for name, q := range forms {
		set.Counters[string(name)] = resourcev1.Counter{Value: q}
	}
	all := devices(70)
	for i := range all {
		all[i] = device(i, "a")
		all[i].Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{}
		for name, q := range forms {
			all[i].Capacity[name] = resourcev1.DeviceCapacity{Value: q}
		}
		if i%7 == 0 {
			all[i].ConsumesCounters = []resourcev1.DeviceCounterConsumption{{CounterSet: "set", Counters: map[string]resourcev1.Counter{
				"decimal": {Value: decimal}, "binary": {Value: *resource.NewQuantity(1, resource.BinarySI)},
			}}}
		}
	}
	bubble(t, func(r *rig) {
		var before []*resourcev1.ResourceSlice
		if err := json.Unmarshal(data, &before); err != nil {
			t.Fatal(err)
		}
		r.there(before...)
		r.s.ResetJournal()
		for range 2 {
			r.start()
			r.publish(resourceslice.Pool{Devices: all, SharedCounters: []resourcev1.CounterSet{set}})
			r.settle(time.Minute)
			r.halt()
		}
		r.expect("an upgrade and a restart", 0, 0, 0)
		if n := len(r.devices()); n != len(all) {
			t.Errorf("%d devices", n)
		}
	})
}
