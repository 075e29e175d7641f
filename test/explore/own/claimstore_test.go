// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
	"github.com/kubewright/kubewright/resourceslice/claimstore"
)

// cards is what a driver has made of its devices: the device by the claim's name.
type cards struct {
	mu     sync.Mutex
	of     map[string]string
	broken error
}

// take makes a device that of a claim.
func (c *cards) take(claim, device string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for other, its := range c.of {
		if its == device && other != claim {
			c.broken = fmt.Errorf("claims %s and %s have device %s", other, claim, device)
		}
	}
	c.of[claim] = device
}

// tidy is an administrator who removes what the driver has made, under the same boot ID.
func (c *cards) tidy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.of)
	return nil
}

// sweep destroys a device.
func (c *cards) sweep(device string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for claim, its := range c.of {
		if its == device {
			c.broken = fmt.Errorf("device %s was swept, and claim %s has it", device, claim)
		}
	}
}

// free undoes take.
func (c *cards) free(claim string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.of, claim)
}

func (c *cards) has(claim string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of[claim] != ""
}

// claims returns the claims that have a device.
func (c *cards) claims() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.of))
}

// are reports whether claims have these devices, written as claim=device.
func (c *cards) are(want ...string) func() bool {
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		var got []string
		for _, claim := range slices.Sorted(maps.Keys(c.of)) {
			got = append(got, claim+"="+c.of[claim])
		}
		return slices.Equal(got, want)
	}
}

// partition is the state of a claim.
type partition struct {
	Device string `json:"device"`
}

// dra runs the store of a driver, and calls it as a kubelet does that loses its memory in
// a crash.
func dra(ctx context.Context, p *explore.Process, c *cards) error {
	dir, err := p.Dir()
	if err != nil {
		return err
	}
	client := kubernetes.NewForConfigOrDie(p.Config).ResourceV1()
	store, err := claimstore.Open(ctx, claimstore.Config[partition]{
		Dir: filepath.Join(dir, "claims"), Driver: "gpu.example.com", BootID: "boot", Claims: client, Interval: 30 * time.Second,
		Unprepare: func(_ context.Context, claim claimstore.Claim, _ partition, _ claimstore.Phase) error {
			return p.Call("unprepare "+claim.Name, func() { c.free(claim.Name) })
		},
		Restore: func(_ context.Context, claim claimstore.Claim, state partition) (partition, error) {
			if c.has(claim.Name) {
				return state, nil
			}
			return state, p.Call("restore "+claim.Name, func() { c.take(claim.Name, state.Device) })
		},
	})
	if err != nil {
		return err
	}
	var kubelet sync.WaitGroup
	defer kubelet.Wait()
	kubelet.Go(func() {
		prepared := map[types.UID]types.NamespacedName{}
		for ctx.Err() == nil {
			if list, err := client.ResourceClaims("default").List(ctx, metav1.ListOptions{}); err == nil {
				gone := maps.Clone(prepared)
				for i := range list.Items {
					claim := &list.Items[i]
					delete(gone, claim.UID)
					_, err := store.Prepare(ctx, claim, func(_ context.Context, begin func(partition) error) (partition, error) {
						state := partition{claim.Status.Allocation.Devices.Results[0].Device}
						if err := begin(state); err != nil {
							return state, err
						}
						return state, p.Call("prepare "+claim.Name, func() { c.take(claim.Name, state.Device) })
					})
					if err == nil {
						prepared[claim.UID] = types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
					}
				}
				for uid, name := range gone {
					if store.Unprepare(ctx, name, uid) == nil {
						delete(prepared, uid)
					}
				}
			}
			for _, device := range []string{"gpu-0", "gpu-1"} {
				// An error says that a claim has it.
				_ = store.Sweep(ctx, claimstore.Device{Pool: "n1", Name: device}, func(context.Context) error {
					c.sweep(device)
					return nil
				})
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Second):
			}
		}
	})
	return store.Run(ctx)
}

// TestClaimStore explores a driver whose claims come and go. A device goes from one claim
// to the next, what an administrator removes comes back, no device that a claim has is
// swept, and in the end nothing stays prepared.
func TestClaimStore(t *testing.T) {
	cfg := config(testing.Short())
	// The driver of another node has other devices.
	cfg.Faults = slices.DeleteFunc(explore.Faults(), func(f explore.Fault) bool { return f.Name == "takeover" })
	explore.Run(t, cfg, func(w *explore.World) explore.Scenario {
		c := &cards{of: map[string]string{}}
		claim := func(name, device string) *resourcev1.ResourceClaim {
			claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
			claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "p"}}
			claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
				Results: []resourcev1.DeviceRequestAllocationResult{{Request: "r", Driver: "gpu.example.com", Pool: "n1", Device: device}},
			}}
			return claim
		}
		remove := func(name string) { apitest.Remove[*resourcev1.ResourceClaim](w.Server, "default", name) }
		return explore.Scenario{
			Programs: []explore.Program{{Name: "driver", Run: func(ctx context.Context, p *explore.Process) error { return dra(ctx, p, c) }}},
			Steps: []explore.Step{
				{Name: "two claims", Do: put(w, claim("a", "gpu-0"), claim("b", "gpu-1")), Until: c.are("a=gpu-0", "b=gpu-1")},
				{Name: "a device for another claim", Do: func() error {
					remove("a")
					return put(w, claim("c", "gpu-0"))()
				}, Until: c.are("b=gpu-1", "c=gpu-0")},
				{Name: "an administrator tidies up", Do: c.tidy, Until: c.are("b=gpu-1", "c=gpu-0")},
				{Name: "all claims are gone", Do: func() error {
					remove("b")
					remove("c")
					return nil
				}, Until: c.are()},
			},
			Always: []explore.Invariant{{Name: "a device has one claim", Holds: func() error {
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.broken
			}}},
			Outside: []explore.Outside{{Name: "cards", List: c.claims, Rest: c.claims, Delete: c.free}},
		}
	})
}
