// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
	"github.com/kubewright/kubewright/resourceslice"
)

// TestResourceSlice explores a pool that grows over several slices and shrinks.
func TestResourceSlice(t *testing.T) {
	cfg := config(testing.Short())
	// Another history has other generations, and other slices for the devices.
	cfg.Ignore = []string{"ResourceSlice.spec.pool.generation", "ResourceSlice.spec.devices", "ResourceSlice.metadata.annotations"}
	explore.Run(t, cfg, func(w *explore.World) explore.Scenario {
		w.Server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		var mu sync.Mutex
		want := 100
		pool := func() resourceslice.Pool {
			mu.Lock()
			defer mu.Unlock()
			var p resourceslice.Pool
			for i := range want {
				p.Devices = append(p.Devices, resourcev1.Device{Name: fmt.Sprintf("gpu-%03d", i)})
			}
			return p
		}
		set := func(n int) func() error {
			return func() error {
				mu.Lock()
				defer mu.Unlock()
				want = n
				return nil
			}
		}
		// complete returns nil if a consumer sees exactly the wanted devices.
		complete := func() error {
			newest, seen := int64(0), map[string]int{}
			slices := apitest.List[*resourcev1.ResourceSlice](w.Server, "")
			for _, s := range slices {
				newest = max(newest, s.Spec.Pool.Generation)
			}
			n, count := int64(0), int64(0)
			for _, s := range slices {
				if s.Spec.Pool.Generation == newest {
					n, count = n+1, s.Spec.Pool.ResourceSliceCount
					for _, d := range s.Spec.Devices {
						seen[d.Name]++
					}
				}
			}
			if n != count || int(n) != len(slices) {
				return fmt.Errorf("%d slices of %d at generation %d, %d in all", n, count, newest, len(slices))
			}
			devices := pool().Devices
			for _, d := range devices {
				if seen[d.Name] != 1 {
					return fmt.Errorf("device %s is published %d times", d.Name, seen[d.Name])
				}
			}
			if len(seen) != len(devices) {
				return fmt.Errorf("%d devices, want %d", len(seen), len(devices))
			}
			return nil
		}
		until := func() bool { return complete() == nil }
		return explore.Scenario{
			Programs: []explore.Program{{Name: "driver", User: apitest.NodeUser("n1"), Run: func(ctx context.Context, p *explore.Process) error {
				client := kubernetes.NewForConfigOrDie(p.Config)
				c, err := resourceslice.New(resourceslice.Config{Client: client.ResourceV1(), NodeName: "n1", Owner: resourceslice.NodeOwner(client.CoreV1().Nodes(), "n1")})
				if err != nil {
					return err
				}
				var work sync.WaitGroup
				defer work.Wait()
				work.Go(func() {
					for now := -1; ; {
						if next := pool(); len(next.Devices) != now {
							now = len(next.Devices)
							_ = c.Set(resourceslice.PoolID{Driver: "gpu.example.com", Name: "n1"}, next)
						}
						select {
						case <-ctx.Done():
							return
						case <-time.After(time.Second):
						}
					}
				})
				return c.Run(ctx)
			}}},
			Steps: []explore.Step{
				{Name: "published", Until: until},
				{Name: "300 devices", Do: set(300), Until: until},
				{Name: "301 devices", Do: set(301), Until: until},
				{Name: "50 devices", Do: set(50), Until: until},
			},
			Finally: complete,
		}
	})
}
