// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/resourceslice/claimstore"
)

const driver = "gpu.example.com"

// partition is what the driver must know to undo its work.
type partition struct{ ID string }

// claim returns a ResourceClaim with a device of the driver.
func claim() *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gpu", UID: "6f1c"},
		Status: resourcev1.ResourceClaimStatus{
			ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "train", UID: "0a7b"}},
			Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
				{Request: "gpu", Driver: driver, Pool: "n1", Device: "gpu-0"},
			}}},
		},
	}
}

// config returns the store of a driver whose partitions are printed.
func config(dir, boot string) claimstore.Config[partition] {
	server := apitest.New(apitest.Options{}) // stands for the cluster
	return claimstore.Config[partition]{
		Dir:    filepath.Join(dir, "claims"),
		Driver: driver,
		BootID: boot, // a driver uses claimstore.BootID
		Claims: server.Client(apitest.User{}).ResourceV1(),
		Unprepare: func(_ context.Context, claim claimstore.Claim, state partition, phase claimstore.Phase) error {
			fmt.Printf("%s: remove partition %q of %s\n", phase, state.ID, claim.Name)
			return nil
		},
	}
}

// A claim is prepared once, however often the kubelet asks, and unprepared once.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "claimstore")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	store, err := claimstore.Open(ctx, config(dir, "boot-1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		state, err := store.Prepare(ctx, claim(), func(_ context.Context, begin func(partition) error) (partition, error) {
			state := partition{ID: "mig-1"}
			if err := begin(state); err != nil { // on the disk before the partition exists
				return state, err
			}
			fmt.Println("create partition", state.ID)
			return state, nil
		})
		fmt.Println("prepared", state.ID, err)
	}
	for range 2 {
		fmt.Println(store.Unprepare(ctx, types.NamespacedName{Namespace: "default", Name: "gpu"}, claim().UID))
	}
	// Output:
	// create partition mig-1
	// prepared mig-1 <nil>
	// prepared mig-1 <nil>
	// Prepared: remove partition "mig-1" of gpu
	// <nil>
	// <nil>
}

// The machine goes down while a claim is being prepared. After the boot the driver
// undoes what may be left, and prepares the claim again.
func Example_reboot() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "claimstore")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	for _, boot := range []string{"boot-1", "boot-2"} {
		store, err := claimstore.Open(ctx, config(dir, boot))
		if err != nil {
			fmt.Println(err)
			return
		}
		_, err = store.Prepare(ctx, claim(), func(_ context.Context, begin func(partition) error) (partition, error) {
			state := partition{ID: "mig-of-" + boot}
			if err := begin(state); err != nil {
				return state, err
			}
			if boot == "boot-1" {
				return state, fmt.Errorf("power failure")
			}
			return state, nil
		})
		fmt.Println(boot, err)
	}
	// Output:
	// boot-1 claimstore: prepare ResourceClaim default/gpu (UID 6f1c): power failure
	// Rebooted: remove partition "mig-of-boot-1" of gpu
	// boot-2 <nil>
}

// A file is lost while the boot ID stays: /run is a tmpfs, and the node is a container that
// has restarted.
func Example_restore() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "claimstore")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "cdi.json")
	cfg := config(dir, "boot-1")
	cfg.Restore = func(_ context.Context, claim claimstore.Claim, state partition) (partition, error) {
		if _, err := os.Stat(file); err == nil {
			return state, nil
		}
		fmt.Println("write the file of", claim.Name, "again")
		return state, os.WriteFile(file, []byte(state.ID), 0o600)
	}
	store, err := claimstore.Open(ctx, cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		_, err = store.Prepare(ctx, claim(), func(_ context.Context, begin func(partition) error) (partition, error) {
			state := partition{ID: "mig-1"}
			if err := begin(state); err != nil {
				return state, err
			}
			return state, os.WriteFile(file, []byte(state.ID), 0o600)
		})
		fmt.Println("prepared", err)
		if err := os.Remove(file); err != nil { // what an administrator, or a restart, does
			fmt.Println(err)
		}
	}
	// Output:
	// prepared <nil>
	// write the file of gpu again
	// prepared <nil>
}

// A driver starts, and removes what exists and belongs to no claim.
func ExampleStore_Sweep() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "claimstore")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	store, err := claimstore.Open(ctx, config(dir, "boot-1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = store.Prepare(ctx, claim(), func(_ context.Context, begin func(partition) error) (partition, error) {
		return partition{ID: "mig-1"}, begin(partition{ID: "mig-1"})
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, found := range []string{"gpu-0", "gpu-1"} { // on the machine
		device := claimstore.Device{Pool: "n1", Name: found}
		err := store.Sweep(ctx, device, func(context.Context) error {
			fmt.Println("destroy what is left of", found)
			return nil
		})
		if held, used := errors.AsType[*claimstore.DeviceHeldError](err); used {
			fmt.Println(found, "belongs to", held.Holder.Name)
		} else if err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// gpu-0 belongs to gpu
	// destroy what is left of gpu-1
}
