// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"fmt"
	"testing"
	"time"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/lifecycletest"
)

func TestLifecycle(t *testing.T) {
	lifecycletest.Test(t, lifecycletest.Subject{
		New: func(t *testing.T, s *apitest.Server, i int) lifecycletest.Controller {
			name := fmt.Sprintf("n%d", i)
			c, err := New(Config{Client: s.Client(apitest.NodeUser(name)).CoreV1(), NodeName: name, NodeCredentials: true})
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
		ErrAlreadyRun: ErrAlreadyRun,
		// A failed call is repeated after 5.25 s on average; a throttled one is
		// repeated by client-go, ten times and as often as the server says,
		// within callTimeout. So are the attempts to watch the Node, twice a minute.
		MaxPerHour:  5000,
		ReadyWithin: 30 * time.Second,
	}, testing.Short())
}

func TestLifecycleWithShutdownWork(t *testing.T) {
	lifecycletest.Test(t, lifecycletest.Subject{
		New: func(t *testing.T, s *apitest.Server, i int) lifecycletest.Controller {
			name := fmt.Sprintf("n%d", i)
			c, err := New(Config{
				Client: s.Client(apitest.User{}).CoreV1(), NodeName: name,
				OnShutdown: ShutdownUnregister, OnDeleted: DeletedReregister,
			})
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
		ErrAlreadyRun: ErrAlreadyRun,
		ReturnWithin:  DefaultShutdownTimeout,
		MaxPerHour:    5000,
		ReadyWithin:   45 * time.Second, // a call that hangs does so for callTimeout
	}, testing.Short())
}
