// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/resourceslice"
)

// oracle runs the scheduler's allocator on every state that the controller's
// writes go through.
type oracle struct {
	t      *testing.T
	slices map[string]*resourcev1.ResourceSlice
	cache  *cel.Cache

	states, incomplete int
}

// classes is a lister with a single class, which selects all devices.
type classes struct{}

func (classes) List() ([]*resourcev1.DeviceClass, error) {
	return []*resourcev1.DeviceClass{{ObjectMeta: metav1.ObjectMeta{Name: "any"}}}, nil
}

func (c classes) Get(string) (*resourcev1.DeviceClass, error) {
	all, err := c.List()
	return all[0], err
}

var features = structured.Features{
	AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true,
}

// allocate requests devices from the current pool.
func (o *oracle) allocate(mode resourcev1.DeviceAllocationMode) ([]resourcev1.AllocationResult, error) {
	var all []*resourcev1.ResourceSlice
	for _, s := range o.slices {
		all = append(all, s)
	}
	allocator, err := structured.NewAllocator(context.Background(), features, structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}, classes{}, all, o.cache)
	if err != nil {
		o.t.Fatal(err)
	}
	request := resourcev1.ExactDeviceRequest{DeviceClassName: "any", AllocationMode: mode}
	if mode == resourcev1.DeviceAllocationModeExactCount {
		request.Count = 1
	} else {
		// Request as many as fit into a claim: the devices with a low index.
		request.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.attributes["gpu.example.com"].index < 8`}}}
	}
	return allocator.Allocate(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, []*resourcev1.ResourceClaim{{
		ObjectMeta: metav1.ObjectMeta{Name: "claim", Namespace: "default"},
		Spec:       resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &request}}}},
	}})
}

// see handles an event of the watch.
func (o *oracle) see(event watch.EventType, s *resourcev1.ResourceSlice) {
	if event == watch.Deleted {
		delete(o.slices, s.Name)
	} else {
		o.slices[s.Name] = s
	}
	top, n, count, free := int64(-1), int64(0), int64(0), 0
	for _, other := range o.slices {
		if g := other.Spec.Pool.Generation; g > top {
			top, n, count, free = g, 0, other.Spec.Pool.ResourceSliceCount, 0
		}
		if other.Spec.Pool.Generation == top {
			n++
			for _, d := range other.Spec.Devices {
				if len(d.Taints) == 0 {
					free++
				}
			}
		}
	}
	o.states++
	got, err := o.allocate(resourcev1.DeviceAllocationModeExactCount)
	if n != count {
		// The pool is being replaced: no device is available, and that is the
		// only effect.
		o.incomplete++
		if err == nil && len(got) > 0 {
			o.t.Errorf("the allocator takes devices from %d of %d slices", n, count)
		}
		return
	}
	if err != nil && !(errors.Is(err, structured.ErrFailedAllocationOnNode) && free == 0) {
		o.t.Errorf("state %d, generation %d: %v", o.states, top, err)
	}
	if free > 0 && len(got) != 1 {
		o.t.Errorf("state %d, generation %d: none of %d devices was allocated", o.states, top, free)
	}
	// If the allocator considers the pool invalid or incomplete, this call
	// returns another error.
	if _, err := o.allocate(resourcev1.DeviceAllocationModeAll); err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
		o.t.Errorf("state %d, generation %d, all devices: %v", o.states, top, err)
	}
}

// TestAllocator applies random edits to random pools, with failing writes, restarts,
// rolling updates and slices that others delete, and runs the allocator after every write.
func TestAllocator(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { allocator(t, rand.New(rand.NewPCG(seed, 5))) })
		})
	}
}

// TestAllocatorPrefersTheFirstDevice lists partitions before the whole device, whose
// name sorts first: a small claim must get the first partition.
func TestAllocatorPrefersTheFirstDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		p := &ours{}
		p.start(t, s.Client(apitest.NodeUser(node)))
		defer p.stop()
		o := &oracle{t: t, slices: map[string]*resourcev1.ResourceSlice{}, cache: cel.NewCache(10, cel.Features{})}
		var all []resourcev1.Device
		for i := range 150 {
			all = append(all, resourcev1.Device{Name: fmt.Sprintf("partition-%d", 150-i)})
		}
		all = append(all, resourcev1.Device{Name: "full"})
		if err := errors.Join(p.c.Set(poolID, resourceslice.Pool{Devices: all}), p.c.Wait(t.Context(), poolID)); err != nil {
			t.Fatal(err)
		}
		for _, slice := range apitest.List[*resourcev1.ResourceSlice](s, "") {
			o.slices[slice.Name] = slice
		}
		got, err := o.allocate(resourcev1.DeviceAllocationModeExactCount)
		if err != nil || len(got) != 1 || got[0].Devices.Results[0].Device != "partition-150" {
			t.Errorf("allocated %v, %v, want the first partition", got, err)
		}
	})
}

func allocator(t *testing.T, rng *rand.Rand) {
	s := newServer()
	o := &oracle{t: t, slices: map[string]*resourcev1.ResourceSlice{}, cache: cel.NewCache(10, cel.Features{})}
	w, err := s.Client(apitest.User{}).ResourceV1().ResourceSlices().Watch(t.Context(), metav1.ListOptions{TimeoutSeconds: new(int64(1000 * 3600))})
	if err != nil {
		t.Fatal(err)
	}
	done, ended, updates := make(chan struct{}), make(chan struct{}, 25), 0
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			if slice, ok := event.Object.(*resourcev1.ResourceSlice); ok {
				o.see(event.Type, slice)
			}
		}
	}()
	start := func() *ours {
		p := &ours{}
		if rng.IntN(2) == 0 {
			p.shutdown = time.Millisecond // it leaves a pool half published, as a crash does
		}
		p.start(t, s.Client(apitest.NodeUser(node)))
		return p
	}
	p := start()
	pool := resourceslice.Pool{Ordered: rng.IntN(3) == 0}
	gpus, next := 1+rng.IntN(4), 0
	var whole resourceslice.Pool
	for range 25 {
		pool.SharedCounters, pool.Devices = nil, edit(rng, pool.Devices, &next)
		if rng.IntN(4) == 0 {
			gpus = rng.IntN(12)
		}
		whole = pool
		whole.Devices = slices.Clone(pool.Devices)
		partition(&whole, gpus)
		switch rng.IntN(8) {
		case 0: // a restart
			p.stop()
			p = start()
		case 1: // a rolling update: both publish for a while
			older, overlap := p, time.Duration(1+rng.IntN(100))*100*time.Millisecond
			p = start()
			go func() {
				time.Sleep(overlap)
				older.stop()
				ended <- struct{}{}
			}()
			updates++
		}
		if err := p.c.Set(poolID, whole); err != nil {
			t.Fatal(err)
		}
		if rng.IntN(3) == 0 {
			s.Inject(apitest.Fault{
				Match: apitest.Match{Verb: "create,update,delete", Resource: "resourceslices"}, Skip: rng.IntN(5), Times: 1,
				Status: statuserr.InternalError("etcd"), LoseResponse: rng.IntN(2) == 0,
			})
		}
		if rng.IntN(4) == 0 { // others delete some of the slices
			for _, slice := range apitest.List[*resourcev1.ResourceSlice](s, "") {
				if rng.IntN(3) == 0 {
					apitest.Remove[*resourcev1.ResourceSlice](s, "", slice.Name)
				}
			}
		}
		time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
	}
	time.Sleep(time.Hour)
	p.stop()
	for range updates {
		<-ended
	}
	w.Stop()
	<-done
	if o.states < 25 {
		t.Errorf("only %d states", o.states)
	}
	if free, devices := o.count(), len(whole.Devices); free != devices {
		t.Errorf("%d devices are published at the end, want %d", free, devices)
	}
	t.Logf("%d states, of which %d incomplete, %d rolling updates", o.states, o.incomplete, updates)
}

// count returns the number of devices in all slices.
func (o *oracle) count() (n int) {
	for _, s := range o.slices {
		n += len(s.Spec.Devices)
	}
	return n
}

// partition adds partitionable devices with their counters.
func partition(p *resourceslice.Pool, gpus int) {
	for g := range gpus {
		set := fmt.Sprintf("card-%d", g)
		counters := func(size string) map[string]resourcev1.Counter {
			return map[string]resourcev1.Counter{"memory": {Value: resource.MustParse(size)}}
		}
		p.SharedCounters = append(p.SharedCounters, resourcev1.CounterSet{Name: set, Counters: counters("80Gi")})
		for i, size := range []string{"80Gi", "40Gi", "40Gi"} {
			d := device(1000+g*10+i, "partition")
			d.ConsumesCounters = []resourcev1.DeviceCounterConsumption{{CounterSet: set, Counters: counters(size)}}
			p.Devices = append(p.Devices, d)
		}
	}
}

func edit(rng *rand.Rand, all []resourcev1.Device, next *int) []resourcev1.Device {
	all = slices.Clone(all)
	switch rng.IntN(5) {
	case 0:
		for range 1 + rng.IntN(150) {
			all = append(all, device(10_000+*next, "a"))
			*next++
		}
	case 1:
		all = all[:rng.IntN(len(all)+1)]
	case 2:
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	default:
		for range min(len(all), 1+rng.IntN(4)) {
			i := rng.IntN(len(all))
			all[i].Taints = []resourcev1.DeviceTaint{{Key: "t", Value: fmt.Sprint(rng.IntN(5)), Effect: resourcev1.DeviceTaintEffectNoSchedule}}
		}
	}
	return all
}
