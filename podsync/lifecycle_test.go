// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/lifecycletest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

func TestLifecycle(t *testing.T) {
	lifecycletest.Test(t, lifecycletest.Subject{
		New: func(t *testing.T, s *apitest.Server, i int) lifecycletest.Controller {
			name := fmt.Sprint("n", i)
			for j := range 3 {
				s.Put(newPod(fmt.Sprint(name, "-", j), func(p *corev1.Pod) { p.Spec.NodeName = name }))
			}
			c, err := podsync.New(podsync.Config{
				Client:   s.Client(apitest.NodeUser(name)).CoreV1(),
				Provider: podsynctest.NewBackend(podsynctest.Options{}).Connect(),
				NodeName: name,
			})
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
		ErrAlreadyRun: podsync.ErrAlreadyRun,
		ReturnWithin:  0, // nothing has ended, so nothing has to be stored
		// A reflector tries twice in half a minute, and client-go repeats a
		// throttled or reset request ten times.
		MaxPerHour:  2 * 120 * 11 * 3 / 2,
		ReadyWithin: 2 * time.Minute,
	}, testing.Short())
}
