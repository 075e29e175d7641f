// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"testing"
	"time"

	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/lifecycletest"
)

// Two candidates of different Leases, so that each of them leads.
func candidateSubject(native bool) lifecycletest.Subject {
	return lifecycletest.Subject{
		New: func(t *testing.T, s *apitest.Server, i int) lifecycletest.Controller {
			t.Helper()
			s.Serve(coordinationv1beta1.SchemeGroupVersion, true)
			clients := s.Client(apitest.User{})
			cfg := Config{
				Client: clients.CoordinationV1(),
				Lease:  types.NamespacedName{Namespace: "default", Name: []string{"first", "second"}[i]},
				Self:   Peer{Identity: "a", BinaryVersion: "1.37.0"},
				Lead: func(ctx context.Context, _ Term) error {
					<-ctx.Done()
					return nil
				},
			}
			if native {
				cfg.Registry = LeaseCandidates(clients.CoordinationV1beta1())
			}
			c, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
		ErrAlreadyRun: ErrAlreadyRun,
		ReturnWithin:  DefaultShutdownTimeout,
		// Where everything is said not to be there: a read, a claim and a watch
		// every 3.75 s on average, or an hour of 2,880. With LeaseCandidates
		// the same once more, at most.
		MaxPerHour:  map[bool]int{false: 3000, true: 4500}[native],
		ReadyWithin: map[bool]time.Duration{false: 10 * time.Second, true: 40 * time.Second}[native], // the fallback
	}
}

func TestCandidateLifecycle(t *testing.T) {
	lifecycletest.Test(t, candidateSubject(false), testing.Short())
}

func TestCandidateLifecycleWithLeaseCandidates(t *testing.T) {
	lifecycletest.Test(t, candidateSubject(true), testing.Short())
}
