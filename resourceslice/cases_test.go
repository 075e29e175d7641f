// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/resourceslice"
)

// live makes a slice that exists before the controller starts, with a name that
// another publisher chose.
func live(name string, generation, count int64, devices ...resourcev1.Device) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: driver, NodeName: new(node),
			Pool:    resourcev1.ResourcePool{Name: node, Generation: generation, ResourceSliceCount: count},
			Devices: devices,
		},
	}
}

// there puts slices on the API server, owned by the node.
func (r *rig) there(all ...*resourcev1.ResourceSlice) {
	r.foreign(func() {
		owner := apitest.Get[*corev1.Node](r.s, "", node)
		for _, s := range all {
			s = s.DeepCopy()
			s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: owner.UID, Controller: new(true)}}
			r.s.Put(s)
		}
	})
}

// generations returns the generations and counts of all slices, by name.
func (r *rig) generations() (all []string) {
	for _, s := range r.slices() {
		all = append(all, fmt.Sprintf("%d/%d", s.Spec.Pool.Generation, s.Spec.Pool.ResourceSliceCount))
	}
	return all
}

// TestCases are the cases of the upstream helper's own tests, by their names.
// If this package behaves differently, diff describes the helper's behavior.
func TestCases(t *testing.T) {
	a, b, c, d := device(1, "a"), device(2, "a"), device(3, "a"), device(4, "a")
	other := func(i int) resourcev1.Device { return device(i, "other") }
	three := func(generation int64) []*resourcev1.ResourceSlice {
		return []*resourcev1.ResourceSlice{live("s1", generation, 3, a), live("s2", generation, 3, b), live("s3", generation, 3, c)}
	}
	for _, tc := range []struct {
		name                      string
		live                      []*resourcev1.ResourceSlice
		pool                      resourceslice.Pool
		creates, updates, deletes int
		generation                int64
		diff                      string
	}{
		{name: "create-slice", creates: 1, generation: 1},
		{name: "keep-slice-unchanged", live: []*resourcev1.ResourceSlice{live("s1", 1, 1, a)}, pool: pools(a), generation: 1},
		{name: "multiple-resourceslices-existing-no-changes", live: three(1), pool: pools(a, b, c), generation: 1},
		{name: "one-existing-and-one-desired-inplace", live: []*resourcev1.ResourceSlice{live("s1", 1, 1, a)}, pool: pools(b), updates: 1, generation: 1},
		{name: "update-slice", live: []*resourcev1.ResourceSlice{live("s1", 1, 1, a)}, pool: pools(other(1)), updates: 1, generation: 1},
		{name: "update-slice-many-devices", live: []*resourcev1.ResourceSlice{live("s1", 1, 1, a, b, c)}, pool: pools(a, other(2), c), updates: 1, generation: 1},
		{name: "multiple-resourceslices-existing-one-changed", live: three(1), pool: pools(a, other(2), c), updates: 1, generation: 1},
		{name: "multiple-resourceslices-existing-two-changed", live: three(1), pool: pools(a, other(2), other(3)), updates: 2, generation: 1,
			diff: "three updates and a new generation"},
		{name: "multiple-resourceslices-existing-one-removed", live: three(1), pool: pools(a, b), updates: 1, generation: 1,
			diff: "two updates, a delete and a new generation"},
		{name: "multiple-resourceslices-existing-one-added", live: three(1), pool: pools(a, b, c, d), updates: 1, generation: 1,
			diff: "three updates, a create and a new generation"},
		{name: "delete-redundant-slice", live: []*resourcev1.ResourceSlice{live("s1", 1, 1, a), live("s2", 1, 1, a)}, pool: pools(a), updates: 1, deletes: 1, generation: 2,
			diff: "a delete, which wakes no Pod up"},
		{name: "multiple-resourceslices-existing-different-resource-pool-generations",
			live: []*resourcev1.ResourceSlice{live("s1", 1, 1, b), live("s2", 2, 1, a), live("s3", 1, 1, c)}, pool: pools(a), deletes: 2, generation: 2,
			diff: "a create and three deletes"},
		{name: "migration-from-random-naming", live: []*resourcev1.ResourceSlice{live("n1-gpu.example.com-x7k2p", 1, 2, a), live("n1-gpu.example.com-b2c4d", 1, 2, b)}, pool: pools(a, b), generation: 1,
			diff: "everything is created again"},
		{name: "migration-mixed-naming", live: []*resourcev1.ResourceSlice{live("00000-gpu.example.com-x7k2p", 3, 2, a), live("b2c4d", 3, 2, b)}, pool: pools(b, a), generation: 3,
			diff: "what has another name is created again"},
		{name: "an unfinished bump of another publisher", live: []*resourcev1.ResourceSlice{live("s1", 2, 4, a), live("s2", 2, 4, b), live("s3", 1, 3, c)}, pool: pools(a, b, c), creates: 1, updates: 3, generation: 3,
			diff: "what is behind is deleted and created again"},
		{name: "an unfinished first publish of another publisher", live: []*resourcev1.ResourceSlice{live("s1", 1, 2, a)}, pool: pools(a, b), creates: 1, updates: 1, generation: 2,
			diff: "one create"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.there(tc.live...)
				r.consumer.tolerate(tc.name == "delete-redundant-slice") // the live state is broken
				r.start()
				r.publish(tc.pool)
				r.expect("publish", tc.creates, tc.updates, tc.deletes)
				got := r.devices()
				for _, want := range tc.pool.Devices {
					if d, ok := got[want.Name]; !ok || *d.Attributes["model"].StringValue != *want.Attributes["model"].StringValue {
						t.Errorf("device %s is %v", want.Name, d)
					}
				}
				if len(got) != len(tc.pool.Devices) {
					t.Errorf("%d devices, want %d", len(got), len(tc.pool.Devices))
				}
				for _, s := range r.slices() {
					if s.Spec.Pool.Generation != tc.generation {
						t.Errorf("generations %v, want %d", r.generations(), tc.generation)
						break
					}
				}
				r.settle(time.Hour)
				r.expect("an hour later", 0, 0, 0)
			})
		})
	}
}

func pools(devices ...resourcev1.Device) resourceslice.Pool {
	return resourceslice.Pool{Devices: devices}
}

// TestRemoveWithLeftovers: slices of an older generation that an earlier publisher
// left must not become the pool while it is removed.
func TestRemoveWithLeftovers(t *testing.T) {
	bubble(t, func(r *rig) {
		r.there(live("a", 1, 1, device(1, "a")), live("b", 2, 2, device(1, "a")), live("c", 2, 2, device(2, "a")))
		r.start()
		r.consumer.remove()
		r.c.Remove(pool)
		r.wait()
		r.expect("Remove", 0, 0, 3)
	})
}

// TestFirstWriteIsRefused: the first write of a new generation goes alone, so
// that nothing has changed when it is refused.
func TestFirstWriteIsRefused(t *testing.T) {
	bubble(t, func(r *rig) {
		r.s.SetGate(apitest.DRAOptionalNodeOperations, true)
		r.start()
		r.publish(resourceslice.Pool{Devices: devices(640)})
		r.expect("first publish", 10, 0, 0)
		r.settle(time.Minute)
		window := r.window()
		r.s.Inject(apitest.Fault{
			Match:  sending("update", func(s sliceType) bool { return hasDevice(s, "dev-00000") }),
			Status: statuserr.New(422, metav1.StatusReasonInvalid, "no"),
		})
		all := devices(640)
		all[0], all[639] = device(0, "b"), device(639, "b")
		r.set(resourceslice.Pool{Devices: all, SkipNodeOperations: []resourcev1.SkipNodeOperation{"*"}})
		r.settle(time.Minute)
		r.expect("refused with and without its changed device", 0, 2, 0)
		if g := r.slices()[0].Spec.Pool.Generation; g != 1 || r.window() != window {
			t.Errorf("generation %d, incomplete for %v", g, r.window()-window)
		}
	})
}

func TestPoolThatIsNotSetIsNotTouched(t *testing.T) {
	bubble(t, func(r *rig) {
		r.there(live("s1", 1, 1, device(1, "a")))
		r.start()
		r.settle(time.Hour)
		r.expect("an hour", 0, 0, 0)
		r.consumer.remove()
		r.c.Remove(pool) // of an earlier process
		r.wait()
		r.expect("Remove", 0, 0, 1)
	})
}

func TestTaints(t *testing.T) {
	bubble(t, func(r *rig) {
		old := metav1.NewTime(time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC))
		withTaints := func(taints ...resourcev1.DeviceTaint) resourceslice.Pool {
			d := device(1, "a")
			d.Taints = taints
			return pools(d)
		}
		taint := func(key string, at *metav1.Time) resourcev1.DeviceTaint {
			return resourcev1.DeviceTaint{Key: key, Effect: resourcev1.DeviceTaintEffectNoSchedule, TimeAdded: at}
		}
		r.there(live("s1", 1, 1, withTaints(taint("old", &old)).Devices...))
		r.start()
		r.publish(withTaints(taint("old", nil)))
		r.expect("keep-taint-unchanged", 0, 0, 0)

		r.settle(time.Minute)
		now := time.Now()
		precise := metav1.NewTime(now.Add(-time.Hour).Add(123 * time.Millisecond))
		r.publish(withTaints(taint("old", nil), taint("new", nil), taint("precise", &precise)))
		r.expect("add-taints", 0, 1, 0)
		got := r.devices()["dev-00001"].Taints
		for i, want := range []time.Time{old.Time, now, precise.Truncate(time.Second)} {
			if !got[i].TimeAdded.Time.Equal(want) {
				t.Errorf("taint %s has the time %v, want %v", got[i].Key, got[i].TimeAdded, want)
			}
		}
		r.settle(time.Hour)
		r.publish(withTaints(taint("old", nil), taint("new", nil), taint("precise", &precise)))
		r.expect("the same", 0, 0, 0)

		earlier := metav1.NewTime(old.Add(-time.Hour))
		r.publish(withTaints(taint("old", &earlier), taint("new", nil), taint("precise", &precise)))
		r.expect("another time", 0, 1, 0)
		if at := r.devices()["dev-00001"].Taints[0].TimeAdded; !at.Time.Equal(earlier.Time) {
			t.Errorf("the time is %v, want %v", at, earlier)
		}

		r.settle(time.Minute)
		other := taint("new", nil)
		other.Value = "x"
		now = time.Now()
		r.publish(withTaints(taint("old", &earlier), other, taint("precise", &precise)))
		if at := r.devices()["dev-00001"].Taints[1].TimeAdded; !at.Time.Equal(now) {
			t.Errorf("another value has the time %v, want %v", at, now)
		}
	})
}

// gpus is a pool of partitionable devices.
func gpus(n int) resourceslice.Pool {
	var p resourceslice.Pool
	for g := range n {
		set := fmt.Sprintf("gpu-%d", g)
		counters := map[string]resourcev1.Counter{"memory": {Value: resource.MustParse("80Gi")}}
		p.SharedCounters = append(p.SharedCounters, resourcev1.CounterSet{Name: set, Counters: counters})
		for i, size := range []string{"80Gi", "40Gi", "40Gi"} {
			d := device(g*10+i, "a")
			d.ConsumesCounters = []resourcev1.DeviceCounterConsumption{{CounterSet: set, Counters: map[string]resourcev1.Counter{"memory": {Value: resource.MustParse(size)}}}}
			p.Devices = append(p.Devices, d)
		}
	}
	return p
}

func TestPartitionableDevices(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(gpus(2))
		r.expect("create-partitionable-devices", 2, 0, 0)
		for _, s := range r.slices() {
			if len(s.Spec.Devices) > 0 && len(s.Spec.SharedCounters) > 0 {
				t.Errorf("slice %s has devices and counters", s.Name)
			}
			if s.Spec.Pool.ResourceSliceCount != 2 || s.Spec.Pool.Generation != 1 {
				t.Errorf("slice %s: %+v", s.Name, s.Spec.Pool)
			}
		}
		r.settle(time.Minute)
		r.publish(gpus(8))
		r.expect("more sets and more devices", 0, 2, 0)
		r.settle(time.Minute)
		r.publish(gpus(9))
		r.expect("a ninth set", 1, 2, 0)
		r.settle(time.Minute)
		r.publish(resourceslice.Pool{})
		r.expect("none", 0, 3, 0)
		r.settle(time.Hour)
		r.expect("later", 0, 0, 0)
	})
}

func TestInvalidPools(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(pools(device(1, "a")))
		r.s.ResetJournal()
		twice, unknownSet, unknownCounter, sets := gpus(1), gpus(1), gpus(1), gpus(1)
		twice.Devices = append(twice.Devices, twice.Devices[0])
		unknownSet.SharedCounters[0].Name = "other"
		unknownCounter.SharedCounters[0].Counters = map[string]resourcev1.Counter{"other": {}}
		sets.SharedCounters = append(sets.SharedCounters, sets.SharedCounters[0])
		for name, tc := range map[string]struct {
			pool resourceslice.Pool
			want string
		}{
			"detect-duplicate-devices":      {twice, `devices[3].name: Duplicate value: "dev-00000"`},
			"detect-unknown-counter-set":    {unknownSet, `devices[0].consumesCounters[0].counterSet: Not found: "gpu-0"`},
			"detect-unknown-counter":        {unknownCounter, `devices[0].consumesCounters[0].counters[memory]: Not found: "memory"`},
			"detect-duplicate-counter-sets": {sets, `sharedCounters[1].name: Duplicate value: "gpu-0"`},
		} {
			err := r.c.Set(pool, tc.pool)
			invalid, ok := errors.AsType[*resourceslice.InvalidError](err)
			if !ok || invalid.Pool != pool {
				t.Errorf("%s: Set = %v, want an InvalidError", name, err)
				continue
			}
			if !contains(err, tc.want) {
				t.Errorf("%s: %v, want it to say %s", name, err, tc.want)
			}
		}
		other := resourceslice.PoolID{Driver: driver, Name: "other"}
		if err := r.c.Set(other, pools(device(1, "a"))); err != nil {
			t.Error(err)
		}
		r.settle(time.Hour)
		r.expect("integration create→invalid: only the other pool is written", 1, 0, 0)
		if len(r.devices()) != 1 {
			t.Errorf("devices: %v", r.devices())
		}
	})
}
