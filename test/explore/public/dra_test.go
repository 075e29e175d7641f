// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package public

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
	"k8s.io/client-go/util/workqueue"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
)

// lateQueue adds items a moment later. The controller asks whether a time is past and adds
// the item for that time. In virtual time it wakes exactly then, which is not past, and
// would do so without end.
type lateQueue struct {
	workqueue.TypedRateLimitingInterface[string]
}

// AddAfter implements workqueue.TypedDelayingInterface.
func (q lateQueue) AddAfter(item string, d time.Duration) {
	q.TypedRateLimitingInterface.AddAfter(item, d+time.Microsecond)
}

// TestResourceSlice explores the publisher that DRA drivers use, with the scenario of
// this library's own.
func TestResourceSlice(t *testing.T) {
	run(t, testing.Short(), known{}, func(w *explore.World) explore.Scenario {
		w.Server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		var mu sync.Mutex
		want := 100
		wanted := func() int {
			mu.Lock()
			defer mu.Unlock()
			return want
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
			list := apitest.List[*resourcev1.ResourceSlice](w.Server, "")
			for _, s := range list {
				newest = max(newest, s.Spec.Pool.Generation)
			}
			n, count := int64(0), int64(0)
			for _, s := range list {
				if s.Spec.Pool.Generation == newest {
					n, count = n+1, s.Spec.Pool.ResourceSliceCount
					for _, d := range s.Spec.Devices {
						seen[d.Name]++
					}
				}
			}
			if n != count || int(n) != len(list) || len(seen) != wanted() {
				return fmt.Errorf("%d slices of %d at generation %d, %d in all, %d devices", n, count, newest, len(list), len(seen))
			}
			for name, times := range seen {
				if times != 1 {
					return fmt.Errorf("device %s is published %d times", name, times)
				}
			}
			return nil
		}
		until := func() bool { return complete() == nil }
		return explore.Scenario{
			Programs: []explore.Program{{Name: "driver", User: apitest.NodeUser("n1"), Run: func(ctx context.Context, p *explore.Process) error {
				return publish(ctx, kubernetes.NewForConfigOrDie(p.Config), wanted)
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

// publish publishes as many devices as wanted says, 128 in a slice.
func publish(ctx context.Context, client kubernetes.Interface, wanted func() int) error {
	queue := lateQueue{workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())}
	c, err := resourceslice.StartController(ctx, resourceslice.Options{
		DriverName: "gpu.example.com", KubeClient: client, Owner: &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: "n1"}, Queue: queue,
		ErrorHandler: func(context.Context, error, string) {}, // it tries again
	})
	if err != nil {
		return err
	}
	defer c.Stop()
	for now := -1; ; {
		if next := wanted(); next != now {
			now = next
			var slices []resourceslice.Slice
			for i := range next {
				if i%128 == 0 {
					slices = append(slices, resourceslice.Slice{})
				}
				last := &slices[len(slices)-1]
				last.Devices = append(last.Devices, resourcev1.Device{Name: fmt.Sprintf("gpu-%03d", i)})
			}
			c.Update(&resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"n1": {Slices: slices}}})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}
