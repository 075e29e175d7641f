// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstore

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/kubelet/checkpointmanager"
	"k8s.io/kubernetes/pkg/kubelet/checkpointmanager/checksum"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/resourceslice/claimstore"
)

const driver = "gpu.example.com"

// state is what a driver remembers of a claim, in the size of real ones.
type state struct {
	Device     string            `json:"device"`
	Partition  string            `json:"partition"`
	CDI        []string          `json:"cdi"`
	Attributes map[string]string `json:"attributes"`
}

func stateOf(i int) state {
	return state{
		Device: fmt.Sprintf("gpu-%d", i), Partition: fmt.Sprintf("MIG-7c8f3a10-5a3b-4a8e-9d0c-%012d", i),
		CDI:        []string{fmt.Sprintf("gpu.example.com/claim=7c8f3a10-5a3b-4a8e-9d0c-%012d-gpu-%d", i, i)},
		Attributes: map[string]string{"profile": "1g.10gb", "parent": "GPU-2f6d7a4e-3f9c-4f0d-8a61-0d6f5d1b9e77", "index": fmt.Sprint(i)},
	}
}

func claimOf(i, use int) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("claim-%d-%d", i, use), UID: types.UID(fmt.Sprintf("7c8f3a10-5a3b-4a8e-%04d-%012d", i, use))},
		Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "gpu", Driver: driver, Pool: "n1", Device: fmt.Sprintf("gpu-%d", i)},
		}}}},
	}
}

// record is a claim in the checkpoint.
type record struct {
	Phase string `json:"phase"`
	State state  `json:"state"`
}

// checkpoint has all claims, as drivers write it.
type checkpoint struct {
	Checksum checksum.Checksum    `json:"checksum"`
	Claims   map[types.UID]record `json:"claims"`
}

func (c *checkpoint) MarshalCheckpoint() ([]byte, error) {
	c.Checksum = 0
	out, err := json.Marshal(*c)
	if err != nil {
		return nil, err
	}
	c.Checksum = checksum.New(out)
	return json.Marshal(*c)
}

func (c *checkpoint) UnmarshalCheckpoint(data []byte) error { return json.Unmarshal(data, c) }

func (c *checkpoint) VerifyChecksum() error {
	sum := c.Checksum
	c.Checksum = 0
	defer func() { c.Checksum = sum }()
	out, err := json.Marshal(*c)
	if err != nil {
		return err
	}
	return sum.Verify(out)
}

// A life is a claim that is prepared, with the intent written first, and
// unprepared, beside n claims that stay.
func BenchmarkLife(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("claims=%d/claimstore", n), func(b *testing.B) {
			ctx := context.Background()
			store, err := claimstore.Open(ctx, claimstore.Config[state]{
				Dir: filepath.Join(b.TempDir(), "claims"), Driver: driver, BootID: "boot", Claims: apitest.New(apitest.Options{}).Client(apitest.User{}).ResourceV1(),
				Unprepare: func(context.Context, claimstore.Claim, state, claimstore.Phase) error { return nil },
			})
			if err != nil {
				b.Fatal(err)
			}
			prepare := func(claim *resourcev1.ResourceClaim, i int) {
				_, err := store.Prepare(ctx, claim, func(_ context.Context, begin func(state) error) (state, error) {
					return stateOf(i), begin(stateOf(i))
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			for i := range n {
				prepare(claimOf(i, 0), i)
			}
			b.ReportAllocs()
			for use := 1; b.Loop(); use++ {
				claim := claimOf(n, use)
				prepare(claim, n)
				if err := store.Unprepare(ctx, types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, claim.UID); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("claims=%d/checkpointmanager", n), func(b *testing.B) {
			manager, err := checkpointmanager.NewCheckpointManager(b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			all := &checkpoint{Claims: map[types.UID]record{}}
			write := func() {
				if err := manager.CreateCheckpoint("checkpoint.json", all); err != nil {
					b.Fatal(err)
				}
			}
			for i := range n {
				all.Claims[claimOf(i, 0).UID] = record{"PrepareCompleted", stateOf(i)}
			}
			write()
			b.ReportAllocs()
			for use := 1; b.Loop(); use++ {
				uid := claimOf(n, use).UID
				all.Claims[uid] = record{"PrepareStarted", stateOf(n)}
				write()
				all.Claims[uid] = record{"PrepareCompleted", stateOf(n)}
				write()
				delete(all.Claims, uid)
				write()
			}
		})
	}
}
