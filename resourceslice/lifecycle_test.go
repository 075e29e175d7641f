// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/lifecycletest"
	"github.com/kubewright/kubewright/resourceslice"
)

func TestLifecycle(t *testing.T) {
	lifecycletest.Test(t, lifecycletest.Subject{
		New: func(t *testing.T, s *apitest.Server, i int) lifecycletest.Controller {
			name := fmt.Sprintf("n%d", i)
			s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
			cs := s.Client(apitest.NodeUser(name))
			c, err := resourceslice.New(resourceslice.Config{
				Client: cs.ResourceV1(), NodeName: name, Owner: resourceslice.NodeOwner(cs.CoreV1().Nodes(), name),
			})
			if err != nil {
				t.Fatal(err)
			}
			for p := range 3 {
				id := resourceslice.PoolID{Driver: fmt.Sprintf("d%d.example.com", p), Name: name}
				if err := c.Set(id, resourceslice.Pool{Devices: tainted(70)}); err != nil {
					t.Fatal(err)
				}
			}
			return c
		},
		ErrAlreadyRun: resourceslice.ErrAlreadyRun,
		ReturnWithin:  resourceslice.DefaultShutdownTimeout,
		// client-go repeats a throttled or reset request ten times. Resets take the
		// most requests, about 2,230 in an hour, with a standard deviation of 60.
		MaxPerHour:  2700,
		ReadyWithin: 6 * time.Minute,
	}, testing.Short())
}

func TestPublishedIsCalledBeforeWaitReturns(t *testing.T) {
	bubble(t, func(r *rig) {
		called := false
		r.start(func(cfg *resourceslice.Config) {
			cfg.Hooks.Published = func(resourceslice.Published) {
				time.Sleep(time.Second) // long enough for Wait to return first
				called = true
			}
		})
		r.publish(resourceslice.Pool{Devices: devices(3)})
		if !called {
			t.Error("Wait has returned before the hook")
		}
	})
}
