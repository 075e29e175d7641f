// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/resourceslice/claimstore/internal/journal"
)

const nothing = "[] []"

func TestALife(t *testing.T) {
	r := newRig(t)
	a := testClaim("a", "gpu-0", "gpu-1")
	r.disk.ResetCounts()
	r.mustPrepare(a, "mig-1")
	r.expect("prepare a mig-1", "[a-uid] [a-uid]")

	// The second call, and one of the next process, cost nothing.
	changes := r.disk.Changes()
	r.mustPrepare(a, "mig-2")
	r.open("boot-1")
	r.mustPrepare(a, "mig-3")
	r.expect("", "[a-uid] [a-uid]")
	if n := r.disk.Changes() - changes; n != 0 {
		t.Errorf("calls for a claim that is prepared changed the disk %d times", n)
	}
	all, err := r.List(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	if one := all[0]; one.Claim.String() != "ns/a (UID a-uid)" || len(one.Claim.Devices) != 2 || one.State != (partition{ID: "mig-1", Extra: "done"}) {
		t.Errorf("%+v", one)
	}

	if err := r.unprepare(a); err != nil {
		t.Fatal(err)
	}
	r.expect("unprepare a Prepared mig-1", nothing)
	if err := r.unprepare(a); err != nil {
		t.Fatal(err)
	}
	r.expect("", nothing)
}

// TestFlushes counts the writes that wait for the disk: they are what a call costs.
func TestFlushes(t *testing.T) {
	r := newRig(t)
	r.mustPrepare(testClaim("first", "gpu-9"), "mig-9") // makes the file
	flushes := func(f func() error) int {
		t.Helper()
		r.disk.ResetCounts()
		if err := f(); err != nil {
			t.Fatal(err)
		}
		return r.disk.Count("flush")
	}
	a, b := testClaim("a", "gpu-0"), testClaim("b", "gpu-1")
	if n := flushes(func() error { _, err := r.prepare(a, "mig-1"); return err }); n != 2 {
		t.Errorf("Prepare with begin flushed %d times, want 2", n)
	}
	plain := func(context.Context, func(partition) error) (partition, error) { return partition{}, nil }
	if n := flushes(func() error { _, err := r.Prepare(t.Context(), b, plain); return err }); n != 1 {
		t.Errorf("Prepare without begin flushed %d times, want 1", n)
	}
	if n := flushes(func() error { return r.unprepare(a) }); n != 1 {
		t.Errorf("Unprepare flushed %d times, want 1", n)
	}
}

func TestAnAttemptThatFailedIsUndoneFirst(t *testing.T) {
	r := newRig(t)
	a := testClaim("a", "gpu-0")
	broken := errors.New("no such GPU")
	half := func(_ context.Context, begin func(partition) error) (partition, error) {
		if err := begin(partition{ID: "mig-1"}); err != nil {
			return partition{}, err
		}
		r.hw.partitions[a.UID] = "mig-1"
		return partition{ID: "never seen"}, broken
	}
	if state, err := r.Prepare(t.Context(), a, half); !errors.Is(err, broken) || state != (partition{}) {
		t.Fatalf("%+v, %v", state, err)
	}
	r.open("boot-1")
	r.hw.failing = errors.New("busy")
	if _, err := r.prepare(a, "mig-2"); !errors.Is(err, ErrNotUndone) || !errors.Is(err, r.hw.failing) {
		t.Fatalf("%v, want ErrNotUndone", err)
	}
	r.hw.failing = nil
	r.mustPrepare(a, "mig-3")
	r.expect("unprepare a Preparing mig-1, unprepare a Preparing mig-1, prepare a mig-3", "[a-uid] [a-uid]")

	// A function that fails before it calls begin leaves no record.
	b := testClaim("b", "gpu-1")
	if _, err := r.Prepare(t.Context(), b, func(context.Context, func(partition) error) (partition, error) { return partition{}, broken }); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	r.mustPrepare(b, "mig-4")
	r.expect("prepare b mig-4", "[a-uid b-uid] [a-uid b-uid]")
}

// TestWhatIsUndoneInPartIsPreparedAgain: Config.Unprepare failed in the middle, and a
// Pod uses the claim before the kubelet has called Unprepare again.
func TestWhatIsUndoneInPartIsPreparedAgain(t *testing.T) {
	r := newRig(t)
	a := testClaim("a", "gpu-0")
	r.mustPrepare(a, "mig-1")
	r.hw.failing = errors.New("busy")
	if err := r.unprepare(a); !errors.Is(err, r.hw.failing) || !strings.Contains(err.Error(), "unprepare ResourceClaim ns/a (UID a-uid)") {
		t.Fatal(err)
	}
	r.hw.failing = nil
	r.open("boot-1")
	if got, want := r.list(), "a Preparing undoing mig-1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	r.mustPrepare(a, "mig-2")
	r.expect("prepare a mig-1, unprepare a Prepared mig-1, unprepare a Preparing mig-1, prepare a mig-2", "[a-uid] [a-uid]")
}

func TestAnotherAllocationOfAClaimIsUndoneFirst(t *testing.T) {
	r := newRig(t)
	r.mustPrepare(testClaim("a", "gpu-0"), "mig-1")
	r.api.put(testClaim("a", "gpu-1"))
	r.mustPrepare(testClaim("a", "gpu-1"), "mig-2")
	r.expect("prepare a mig-1, unprepare a Prepared mig-1, prepare a mig-2", "[a-uid] [a-uid]")
	r.mustPrepare(testClaim("b", "gpu-0"), "mig-3") // free again
}

// TestWhatAnAllocationIs: all that the driver reads of it.
func TestWhatAnAllocationIs(t *testing.T) {
	claim := func(change func(*resourcev1.DeviceAllocationResult)) *resourcev1.ResourceClaim {
		c := testClaim("a", "gpu-0", "gpu-1", "gpu-2")
		all := &c.Status.Allocation.Devices
		all.Results[0].Request, all.Results[1].Request = "compute", "display"
		all.Results[2].AdminAccess = new(true)
		all.Results = append(all.Results, resourcev1.DeviceRequestAllocationResult{Driver: "net.example.com", Pool: "n1", Device: "nic-0"})
		for _, of := range []string{driver, "net.example.com"} {
			all.Config = append(all.Config, resourcev1.DeviceAllocationConfiguration{
				Source: resourcev1.AllocationConfigSourceClass, Requests: []string{"compute"},
				DeviceConfiguration: resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{
					Driver: of, Parameters: runtime.RawExtension{Raw: []byte(`{"mode": "fast", "size": 12345678901234567890}`)},
				}},
			})
		}
		change(all)
		return c
	}
	type allocation = resourcev1.DeviceAllocationResult
	set := func(i int, text string) func(*allocation) {
		return func(a *allocation) { a.Config[i].Opaque.Parameters.Raw = []byte(text) }
	}
	for name, tc := range map[string]struct {
		change  func(*allocation)
		another bool
	}{
		"the same":                         {func(*allocation) {}, false},
		"another device with admin access": {func(a *allocation) { a.Results[2].Device = "gpu-3" }, true},
		"no admin access any longer":       {func(a *allocation) { a.Results[2].AdminAccess = nil }, true},
		"the requests swap their devices": {func(a *allocation) {
			a.Results[0].Request, a.Results[1].Request = a.Results[1].Request, a.Results[0].Request
		}, true},
		"a share":                        {func(a *allocation) { a.Results[2].ShareID = new(types.UID("s")) }, true},
		"another pool":                   {func(a *allocation) { a.Results[2].Pool = "n2" }, true},
		"another value":                  {set(0, `{"mode": "slow", "size": 12345678901234567890}`), true},
		"another large number":           {set(0, `{"mode": "fast", "size": 12345678901234567891}`), true},
		"no JSON":                        {set(0, `mode`), true},
		"the value for others":           {func(a *allocation) { a.Config[0].Requests = nil }, true},
		"the value of the claim":         {func(a *allocation) { a.Config[0].Source = resourcev1.AllocationConfigSourceClaim }, true},
		"no value":                       {func(a *allocation) { a.Config = nil }, true},
		"other spaces and another order": {set(0, `{"size":12345678901234567890,"mode":"fast"}`), false},
		"a value of another driver":      {set(1, `{}`), false},
		"a device of another driver":     {func(a *allocation) { a.Results[3].Device = "nic-1" }, false},
		"a condition":                    {func(a *allocation) { a.Results[0].BindingConditions = []string{"example.com/ready"} }, false},
		"a configuration of a kind that is not known": {func(a *allocation) {
			a.Config = append(a.Config, resourcev1.DeviceAllocationConfiguration{})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, start := range []string{"Prepare", "Run"} {
				r := newRig(t)
				r.mustPrepare(claim(func(*allocation) {}), "mig-1")
				now := claim(tc.change)
				r.api.put(now)
				want, devices := "prepare a mig-1", "[a-uid] [a-uid]"
				if start == "Prepare" {
					if tc.another {
						want += ", unprepare a Prepared mig-1, prepare a mig-2"
					}
					r.mustPrepare(now, "mig-2")
				} else {
					if tc.another {
						want, devices = want+", unprepare a Prepared mig-1", nothing
					}
					for _, at := range []time.Duration{0, r.cfg.Interval} {
						at := time.Unix(0, 0).Add(at)
						r.mustPass(&at)
					}
				}
				r.expect(want, devices)
			}
		})
	}
}

// TestARecordWithoutAnAllocation is of an older version. The devices are compared.
func TestARecordWithoutAnAllocation(t *testing.T) {
	r := newRig(t)
	a := testClaim("a", "gpu-0")
	c := r.claimOf(a)
	c.allocation = ""
	r.hw.partitions[a.UID], r.hw.files[a.UID] = "mig-1", "mig-1"
	if err := r.record(t.Context(), c, journal.Prepared, partition{ID: "mig-1", Extra: "done"}); err != nil {
		t.Fatal(err)
	}
	a.Status.Allocation.Devices.Results[0].Request = "compute"
	r.mustPrepare(a, "mig-2")
	r.expect("", "[a-uid] [a-uid]")
	r.api.put(testClaim("a", "gpu-1"))
	r.mustPrepare(testClaim("a", "gpu-1"), "mig-2")
	r.expect("unprepare a Prepared mig-1, prepare a mig-2", "[a-uid] [a-uid]")
}

func TestADeviceBelongsToOneClaim(t *testing.T) {
	r := newRig(t)
	a, b := testClaim("a", "gpu-0"), testClaim("b", "gpu-1", "gpu-0")
	r.mustPrepare(a, "mig-1")
	_, err := r.prepare(b, "mig-2")
	held, ok := errors.AsType[*DeviceHeldError](err)
	if !ok || held.Holder.Name != "a" || held.Device != (Device{Pool: "n1", Name: "gpu-0"}) {
		t.Fatalf("%v, want a DeviceHeldError that names a", err)
	}
	if want := "claimstore: prepare ResourceClaim ns/b (UID b-uid): device gpu-0 of pool n1 is held by ResourceClaim ns/a (UID a-uid)"; err.Error() != want {
		t.Errorf("%v", err)
	}
	select {
	case <-r.wake:
	default:
		t.Error("Run is not asked to look whether the holder still exists")
	}

	// Shares, admin access, other drivers and other pools are no conflict.
	share, yes := types.UID("share-1"), true
	for name, change := range map[string]func(*resourcev1.DeviceRequestAllocationResult){
		"share": func(r *resourcev1.DeviceRequestAllocationResult) { r.ShareID = &share },
		"admin": func(r *resourcev1.DeviceRequestAllocationResult) { r.AdminAccess = &yes },
		"pool":  func(r *resourcev1.DeviceRequestAllocationResult) { r.Pool = "n2" },
		"other": func(r *resourcev1.DeviceRequestAllocationResult) { r.Driver = "nic.example.com" },
	} {
		claim := testClaim(name, "gpu-0", "of-"+name)
		change(&claim.Status.Allocation.Devices.Results[0])
		r.mustPrepare(claim, "x")
	}
	// Of several devices that are held the error names the first.
	if _, err := r.prepare(testClaim("c", "of-share", "gpu-0"), "mig-3"); !errors.As(err, &held) || held.Device.Name != "gpu-0" {
		t.Errorf("%v, want a DeviceHeldError about gpu-0", err)
	}
	r.cfg.Shared = func(d Device) bool { return d.Name == "gpu-0" }
	r.mustPrepare(b, "mig-2")
}

// TestSharesOfADeviceChooseApart: a driver of CPUs gives each share of a NUMA node some of its
// CPUs. Two processes do so at once, as during a rolling update.
func TestSharesOfADeviceChooseApart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "claims")
	var claims []*resourcev1.ResourceClaim
	for i := range 8 {
		claim, share := testClaim(fmt.Sprint("c", i), "numa-0"), types.UID(fmt.Sprint("share-", i))
		claim.Status.Allocation.Devices.Results[0].ShareID = &share
		claims = append(claims, claim)
	}
	var stores []*Store[partition]
	for range 2 {
		cfg := testConfig(newHardware(), &cluster{})
		cfg.Dir = dir
		s, err := Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		stores = append(stores, s)
	}
	chosen := make([]string, len(claims))
	var calls sync.WaitGroup
	for i, claim := range claims {
		calls.Go(func() {
			s := stores[i%2]
			state, err := s.Prepare(t.Context(), claim, func(ctx context.Context, begin func(partition) error) (partition, error) {
				all, err := s.List(ctx)
				if err != nil {
					return partition{}, err
				}
				state := partition{ID: "cpu-0"}
				for n := 1; slices.ContainsFunc(all, func(r Record[partition]) bool { return r.State.ID == state.ID }); n++ {
					state.ID = fmt.Sprint("cpu-", n)
				}
				if i%4 < 2 {
					err = begin(state)
				}
				return state, err
			})
			if err != nil {
				t.Error(err)
			}
			chosen[i] = state.ID
		})
	}
	calls.Wait()
	slices.Sort(chosen)
	if apart := slices.Compact(slices.Clone(chosen)); len(apart) != len(claims) {
		t.Errorf("chosen %v", chosen)
	}
}

func TestAClaimWithoutDevicesIsRefused(t *testing.T) {
	r := newRig(t)
	other := testClaim("a", "gpu-0")
	other.Status.Allocation.Devices.Results[0].Driver = "nic.example.com"
	unallocated := testClaim("a")
	unallocated.Status.Allocation = nil
	noUID := testClaim("a", "gpu-0")
	noUID.UID = ""
	for _, claim := range []*resourcev1.ResourceClaim{other, unallocated, noUID, testClaim("a")} {
		if _, err := r.prepare(claim, "x"); !errors.Is(err, ErrNotAllocated) {
			t.Errorf("%v, want ErrNotAllocated", err)
		}
	}
	if err := r.Unprepare(t.Context(), types.NamespacedName{Namespace: "ns", Name: "a"}, ""); err == nil {
		t.Error("Unprepare without a UID succeeded")
	}
	r.expect("", nothing)
}

// TestALateCallOfPrepareChangesNothing: the kubelet gave the call up, unprepared
// the claim, and the call comes to its turn after that.
func TestALateCallOfPrepareChangesNothing(t *testing.T) {
	r := newRig(t)
	a := testClaim("a", "gpu-0")
	r.mustPrepare(a, "mig-1")
	if err := r.unprepare(a); err != nil {
		t.Fatal(err)
	}
	r.hw.did()
	late := func(what string, want error) {
		t.Helper()
		r.open("boot-1")
		if _, err := r.prepare(a, "mig-2"); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	late("the claim is gone", ErrNotInUse)
	again := testClaim("a", "gpu-0")
	again.UID = "another"
	r.api.put(again)
	late("another claim has the name", ErrNotInUse)
	unused := testClaim("a", "gpu-0")
	unused.Status.ReservedFor = nil
	r.api.put(unused)
	late("no Pod uses it", ErrNotInUse)
	r.api.put(testClaim("a", "gpu-1"))
	late("it has another device", ErrNotInUse)
	away := errors.New("connection refused")
	r.api.fail(away)
	late("the API server is away", away)
	r.expect("", nothing)

	// The next Pod uses the claim.
	r.api.fail(nil)
	r.api.put(a)
	r.mustPrepare(a, "mig-2")
	r.expect("prepare a mig-2", "[a-uid] [a-uid]")

	// The same for a claim that was unknown when it was unprepared.
	b := testClaim("b", "gpu-1")
	if err := r.unprepare(b); err != nil {
		t.Fatal(err)
	}
	r.expect("unprepare b Absent", "[a-uid] [a-uid]")
	if _, err := r.prepare(b, "mig-3"); !errors.Is(err, ErrNotInUse) {
		t.Errorf("%v, want ErrNotInUse", err)
	}
}

// TestALateCallForAFormerAllocationChangesNothing: the claim was prepared for the next
// allocation in the meantime, and a Pod uses it.
func TestALateCallForAFormerAllocationChangesNothing(t *testing.T) {
	r := newRig(t)
	former, a := testClaim("a", "gpu-0"), testClaim("a", "gpu-1")
	r.mustPrepare(former, "mig-1")
	if err := r.unprepare(former); err != nil {
		t.Fatal(err)
	}
	r.api.put(a)
	r.mustPrepare(a, "mig-2")
	r.hw.did()
	if _, err := r.prepare(former, "mig-3"); !errors.Is(err, ErrNotInUse) {
		t.Errorf("%v, want ErrNotInUse", err)
	}
	away := errors.New("connection refused")
	r.api.fail(away)
	if _, err := r.prepare(former, "mig-3"); !errors.Is(err, away) {
		t.Errorf("%v, want %v", err, away)
	}
	r.expect("", "[a-uid] [a-uid]")
	r.mustPrepare(a, "mig-4") // without the API server
	r.expect("", "[a-uid] [a-uid]")
}

func TestACallThatWasGivenUpChangesNothing(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := testClaim("a", "gpu-0")
	if _, err := r.Prepare(ctx, a, r.hw.prepare(a, "mig-1")); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	r.expect("", nothing)
}

// TestWorkThatIsDoneIsRecorded: the kubelet gives the call up while the driver works.
func TestWorkThatIsDoneIsRecorded(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	a := testClaim("a", "gpu-0")
	_, err := r.Prepare(ctx, a, func(ctx context.Context, begin func(partition) error) (partition, error) {
		defer cancel()
		return r.hw.prepare(a, "mig-1")(ctx, begin)
	})
	if err != nil {
		t.Fatal(err)
	}
	r.open("boot-1")
	r.mustPrepare(a, "mig-2")
	r.expect("prepare a mig-1", "[a-uid] [a-uid]")
}

func TestAPanicConcernsOneCall(t *testing.T) {
	r := newRig(t)
	a := testClaim("a", "gpu-0")
	_, err := r.Prepare(t.Context(), a, func(_ context.Context, begin func(partition) error) (partition, error) {
		if err := begin(partition{ID: "mig-1"}); err != nil {
			return partition{}, err
		}
		panic("boom")
	})
	if err == nil || !strings.Contains(err.Error(), "boom") {
		t.Fatal(err)
	}
	shared := r.cfg.Shared
	r.cfg.Shared = func(Device) bool { panic("crash") }
	if _, err := r.prepare(testClaim("b", "gpu-1"), "mig-2"); err == nil || !strings.Contains(err.Error(), "crash") {
		t.Fatal(err)
	}
	r.cfg.Shared = shared
	unprepare := r.cfg.Unprepare
	r.cfg.Unprepare = func(context.Context, Claim, partition, Phase) error { panic("bang") }
	if err := r.unprepare(a); err == nil || !strings.Contains(err.Error(), "bang") {
		t.Fatal(err)
	}
	r.cfg.Unprepare = unprepare
	if err := r.unprepare(a); err != nil {
		t.Fatal(err)
	}
	r.expect("unprepare a Preparing mig-1", nothing)
}

func TestBeginAfterTheFunctionReturnedIsRefused(t *testing.T) {
	r := newRig(t)
	a := testClaim("a", "gpu-0")
	var late func(partition) error
	_, err := r.Prepare(t.Context(), a, func(_ context.Context, begin func(partition) error) (partition, error) {
		late = begin
		return partition{ID: "mig-1"}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := late(partition{}); err == nil {
		t.Error("begin was accepted and made a prepared claim half prepared")
	}
}

func TestAnotherBoot(t *testing.T) {
	r := newRig(t)
	a, b := testClaim("a", "gpu-0"), testClaim("b", "gpu-1")
	r.mustPrepare(a, "mig-1")
	r.mustPrepare(b, "mig-2")
	r.hw.did()
	r.hw = r.hw.reboot()
	r.open("boot-2")
	if got, want := r.list(), "a Rebooted mig-1, b Rebooted mig-2"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	// The kubelet prepares a again; Run takes care of b.
	r.mustPrepare(a, "mig-3")
	if err := r.pass(t.Context(), time.Now, r.seen); err != nil {
		t.Fatal(err)
	}
	r.expect("unprepare a Rebooted mig-1, prepare a mig-3, unprepare b Rebooted mig-2", "[a-uid] [a-uid]")
}

func TestAFullDiskDoesNotKeepAClaim(t *testing.T) {
	r := newRig(t)
	a, b := testClaim("a", "gpu-0"), testClaim("b", "gpu-1")
	r.mustPrepare(a, "mig-1")
	r.hw.did()
	full := &fullDisk{FS: r.disk}
	cfg := testConfig(r.hw, r.api)
	s, err := openOn(cfg, full)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prepare(t.Context(), b, r.hw.prepare(b, "mig-2")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v, want ENOSPC", err)
	}
	if err := s.Unprepare(t.Context(), types.NamespacedName{Namespace: "ns", Name: "a"}, a.UID); err != nil {
		t.Error(err)
	}
	if err := s.Unprepare(t.Context(), types.NamespacedName{Namespace: "ns", Name: "c"}, "unknown"); err != nil {
		t.Error(err)
	}
	r.open("boot-1")
	r.mustPrepare(b, "mig-3")
	r.expect("unprepare a Prepared mig-1, unprepare c Absent, prepare b mig-3", "[b-uid] [b-uid]")
}

// TestDamage spoils bytes of the file at rest.
func TestDamage(t *testing.T) {
	r := newRig(t)
	a, b, c := testClaim("a", "gpu-0"), testClaim("b", "gpu-1"), testClaim("c", "gpu-2")
	for _, claim := range []*resourcev1.ResourceClaim{a, b, c} {
		claim := claim
		_, err := r.Prepare(t.Context(), claim, func(context.Context, func(partition) error) (partition, error) {
			r.hw.partitions[claim.UID] = claim.Name
			return partition{ID: "id-of-" + claim.Name, Extra: "done"}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	data, _ := r.disk.Data(journalFile)
	spoilt := strings.ReplaceAll(strings.ReplaceAll(string(data), "id-of-a", "xx-xx-x"), `"uid":"b-uid"`, `?uid?:?b-uid?`)
	r.disk.Put(journalFile, []byte(spoilt))
	r.open("boot-1")

	// What can be read of a names its claim and device.
	if _, err := r.prepare(a, "mig"); !isUnreadable(err, "a") {
		t.Errorf("%v, want an UnreadableError about a", err)
	}
	if _, err := r.prepare(testClaim("d", "gpu-0"), "mig"); err == nil {
		t.Error("the device of a damaged claim was handed out")
	}
	r.mustPrepare(c, "mig") // not damaged
	r.api.put(a)
	r.api.put(c)
	for range 2 {
		if err := r.pass(t.Context(), time.Now, r.seen); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(r.tells, "\n"); len(r.tells) != 2 || !strings.Contains(got, `?b-uid?`) || !strings.Contains(got, "ns/a (UID a-uid)") {
		t.Errorf("reports:\n%s", got)
	}
	if err := r.unprepare(a); err != nil {
		t.Fatal(err)
	}
	if err := r.unprepare(b); err != nil { // the driver finds it by the UID
		t.Fatal(err)
	}
	r.expect("unprepare a Unreadable, unprepare b Absent", "[c-uid] []")
	if err := r.pass(t.Context(), time.Now, r.seen); err != nil || len(r.seen.unreadable) > 0 {
		t.Errorf("%v, and %v count as unreadable", err, r.seen.unreadable)
	}
	r.mustPrepare(testClaim("d", "gpu-0"), "mig")
	if aside, _ := r.disk.Data(damagedFile); !strings.Contains(string(aside), "?b-uid?") {
		t.Errorf("put aside: %q", aside)
	}
}

// TestARecordWithoutANameWaitsForUnprepare: nothing can be asked about its claim, and that
// is no failure of each pass.
func TestARecordWithoutANameWaitsForUnprepare(t *testing.T) {
	r := newRig(t)
	a := testClaim("a", "gpu-0")
	r.mustPrepare(a, "mig")
	r.api.put(a)
	data, _ := r.disk.Data(journalFile)
	spoilt := strings.ReplaceAll(string(data), `"namespace":"ns","name":`, `"namespace":"ns","?":`)
	if spoilt == string(data) {
		t.Fatalf("no name in %q", data)
	}
	r.disk.Put(journalFile, []byte(spoilt))
	r.open("boot-1")
	for range 2 {
		if err := r.pass(t.Context(), time.Now, r.seen); err != nil {
			t.Error(err)
		}
	}
	if err := r.unprepare(a); err != nil {
		t.Fatal(err)
	}
	r.expect("prepare a mig, unprepare  Unreadable", "[] []")
}

// TestTheDamagedLinesTakeLittleSpace: what is put aside begins again at a mebibyte.
func TestTheDamagedLinesTakeLittleSpace(t *testing.T) {
	r := newRig(t)
	r.mustPrepare(testClaim("a", "gpu-0"), "mig-1")
	for _, tc := range []struct{ before, after int }{{100, 109}, {maxDamaged, len(dropped) + 9}} {
		data, _ := r.disk.Data(journalFile)
		r.disk.Put(journalFile, append(data, "spoilt \n+\n"...))
		r.disk.Put(damagedFile, bytes.Repeat([]byte{'x'}, tc.before))
		r.open("boot-1")
		r.mustPrepare(testClaim(fmt.Sprint("b", tc.before), fmt.Sprint("gpu-", tc.before)), "mig-2")
		if aside, _ := r.disk.Data(damagedFile); len(aside) != tc.after {
			t.Errorf("%d bytes after %d: %q", len(aside), tc.before, aside[max(0, len(aside)-20):])
		}
	}
}

// TestTheOrderOfDevices: it is by pool, by name and by share, so that two allocations of
// the same devices are equal.
func TestTheOrderOfDevices(t *testing.T) {
	sorted := []Device{{Pool: "a", Name: "z"}, {Pool: "b", Name: "a", ShareID: "s1"}, {Pool: "b", Name: "a", ShareID: "s2"}, {Pool: "b", Name: "b"}}
	for i, a := range sorted {
		for j, b := range sorted {
			if got := compareDevices(a, b); got != cmp.Compare(i, j) {
				t.Errorf("%v and %v: %d", a, b, got)
			}
		}
	}
}

func isUnreadable(err error, name string) bool {
	e, ok := errors.AsType[*UnreadableError](err)
	return ok && e.Claim.Name == name
}

// TestAStateOfAnotherTypeConcernsOneClaim: a downgrade meets what it can't decode.
func TestAStateOfAnotherTypeConcernsOneClaim(t *testing.T) {
	r := newRig(t)
	a, b := testClaim("a", "gpu-0"), testClaim("b", "gpu-1")
	type newer struct {
		ID    []string `json:"id"`
		Field string   `json:"field"`
	}
	s, err := open(t.Context(), Config[newer]{Driver: driver, BootID: "boot-1", Shared: func(Device) bool { return false }}, r.disk, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Prepare(t.Context(), a, func(context.Context, func(newer) error) (newer, error) {
		return newer{ID: []string{"x"}, Field: "kept"}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.open("boot-1")
	if _, err := r.prepare(a, "mig"); !isUnreadable(err, "a") {
		t.Errorf("%v, want an UnreadableError", err)
	}
	r.mustPrepare(b, "mig-2")
	r.expect("prepare b mig-2", "[b-uid] [b-uid]")
	data, _ := r.disk.Data(journalFile)
	if !strings.Contains(string(data), `"field":"kept"`) {
		t.Errorf("the field of the newer version is gone:\n%s", data)
	}
	if err := r.unprepare(a); err != nil {
		t.Fatal(err)
	}
	r.expect("unprepare a Unreadable", "[b-uid] [b-uid]")
}

func TestTheFileOfAnotherIsRefused(t *testing.T) {
	for content, want := range map[string]error{
		"claimstore 1 nic.example.com\n": ErrDriver,
		"claimstore 2 gpu.example.com\n": ErrVersion,
	} {
		r := newRig(t)
		r.disk.Put(".", nil)
		r.disk.Put(journalFile, []byte(content))
		if _, err := openOn(testConfig(r.hw, r.api), r.disk); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
		if data, _ := r.disk.Data(journalFile); string(data) != content {
			t.Errorf("the file was changed to %q", data)
		}
	}
}

func TestWhatCannotBeReadIsNotWrittenOver(t *testing.T) {
	r := newRig(t)
	a := testClaim("a", "gpu-0")
	r.mustPrepare(a, "mig-1")
	before, _ := r.disk.Data(journalFile)
	r.disk.SetUnreadable(journalFile, syscall.EIO)
	if _, err := r.prepare(testClaim("b", "gpu-1"), "mig-2"); !errors.Is(err, syscall.EIO) {
		t.Errorf("%v, want EIO", err)
	}
	if err := r.unprepare(a); !errors.Is(err, syscall.EIO) {
		t.Errorf("%v, want EIO", err)
	}
	r.disk.SetUnreadable(journalFile, nil)
	if after, _ := r.disk.Data(journalFile); string(after) != string(before) {
		t.Error("the file was changed")
	}
}

func TestTheFileDoesNotGrowWithoutLimit(t *testing.T) {
	r := newRig(t)
	for i := range 1200 {
		claim := testClaim(fmt.Sprintf("c%d", i), "gpu-0")
		r.mustPrepare(claim, "mig")
		if err := r.unprepare(claim); err != nil {
			t.Fatal(err)
		}
	}
	if data, _ := r.disk.Data(journalFile); len(data) > 250<<10 {
		t.Errorf("%d bytes after 1,200 claims have come and gone", len(data))
	}
	r.open("boot-1")
	if _, err := r.prepare(testClaim("c1199", "gpu-0"), "mig"); !errors.Is(err, ErrNotInUse) {
		t.Errorf("the newest tombstone is lost: %v", err)
	}
}

func TestInvalidConfig(t *testing.T) {
	_, err := Open(t.Context(), Config[partition]{Interval: 1})
	for _, field := range []string{"Dir", "Driver", "BootID", "Claims", "Unprepare", "Interval"} {
		if err == nil || !strings.Contains(err.Error(), field+": ") {
			t.Errorf("%v: does not name %s", err, field)
		}
	}
	cfg := testConfig(newHardware(), &cluster{})
	cfg.Driver = "two words"
	if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "Driver: ") {
		t.Errorf("%v", err)
	}
}

func TestList(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"b", "a", "c"} {
		r.mustPrepare(testClaim(name, "gpu-"+name), "of-"+name)
	}
	if err := r.unprepare(testClaim("a", "gpu-a")); err != nil {
		t.Fatal(err)
	}
	if err := r.record(t.Context(), r.claimOf(testClaim("d", "gpu-d")), journal.Preparing, partition{ID: "of-d"}); err != nil {
		t.Fatal(err)
	}
	r.spoil(`"id":"of-c"`, `"id":"ox-c"`)
	if got, want := r.list(), "b Prepared of-b, c Unreadable gpu-c, d Preparing of-d"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	r.disk.Put(journalFile, []byte("claimstore 9 "+driver+"\n"))
	if _, err := r.List(t.Context()); !errors.Is(err, journal.ErrVersion) {
		t.Errorf("List: %v, want that the file is newer", err)
	}
	if err := r.pass(t.Context(), time.Now, r.seen); !errors.Is(err, journal.ErrVersion) {
		t.Errorf("a pass: %v, want that the file is newer", err)
	}
}

// TestAFileThatCannotBeWrittenIsReplaced: what a failed write has left is not known.
func TestAFileThatCannotBeWrittenIsReplaced(t *testing.T) {
	r := newRig(t)
	r.mustPrepare(testClaim("a", "gpu-0"), "mig-1")
	broken := &brokenFile{FS: r.disk}
	r.Store.disk.fs = broken
	b := testClaim("b", "gpu-1")
	if _, err := r.prepare(b, "mig-2"); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	if _, err := r.prepare(b, "mig-2"); err != nil || broken.writes != 2 {
		t.Errorf("%v after %d writes, want one that fails, and one into the new file", err, broken.writes)
	}
	r.open("boot-1")
	r.mustPrepare(b, "never")
	r.expect("prepare a mig-1, prepare b mig-2", "[a-uid b-uid] [a-uid b-uid]")
}

// TestAFileThatWasReplacedInPartIsReplacedAgain: a power cut may bring back the file that
// was there before. What can't be marked as being undone is not undone.
func TestAFileThatWasReplacedInPartIsReplacedAgain(t *testing.T) {
	r := newRig(t)
	a, b := testClaim("a", "gpu-0"), testClaim("b", "gpu-1")
	r.mustPrepare(a, "mig-1")
	disk := &unsyncedDir{FS: r.disk, fails: true}
	r.Store.disk.fs = disk
	if err := r.unprepare(a); !errors.Is(err, syscall.EIO) || disk.renames != 1 {
		t.Fatalf("%v after %d renames, want EIO after one", err, disk.renames)
	}
	r.expect("prepare a mig-1", "[a-uid] [a-uid]")
	disk.fails = false
	r.mustPrepare(b, "mig-2")
	if disk.renames != 2 {
		t.Errorf("%d renames, want another one before the next record", disk.renames)
	}
	r.expect("prepare b mig-2", "[a-uid b-uid] [a-uid b-uid]")
}

// TestAReadOnlyDiskChangesNothing: what is prepared can be read, and nothing begins or ends.
func TestAReadOnlyDiskChangesNothing(t *testing.T) {
	r := newRig(t)
	a, ended := testClaim("a", "gpu-0"), testClaim("c", "gpu-2")
	r.mustPrepare(ended, "mig-3")
	if err := r.unprepare(ended); err != nil {
		t.Fatal(err)
	}
	r.mustPrepare(a, "mig-1")
	r.hw.did()
	r.Store.disk.fs = &readOnly{r.disk}
	r.locks.open = func() (*os.File, error) { return nil, &fs.PathError{Op: "open", Path: lockFile, Err: syscall.EROFS} }
	if _, err := r.prepare(testClaim("b", "gpu-1"), "mig-2"); !errors.Is(err, syscall.EROFS) {
		t.Errorf("Prepare: %v, want EROFS", err)
	}
	if err := r.unprepare(a); !errors.Is(err, syscall.EROFS) {
		t.Errorf("Unprepare: %v, want EROFS", err)
	}
	r.mustPrepare(a, "never")
	if err := r.unprepare(ended); err != nil {
		t.Errorf("Unprepare of a claim that has ended: %v", err)
	}
	if got, want := r.list(), "a Prepared mig-1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	r.expect("", "[a-uid] [a-uid]")
}
