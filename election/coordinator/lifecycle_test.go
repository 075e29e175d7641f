// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/lifecycletest"
)

func TestControllerLifecycle(t *testing.T) {
	lifecycletest.Test(t, lifecycletest.Subject{
		New: func(t *testing.T, s *apitest.Server, i int) lifecycletest.Controller {
			s.Serve(coordinationv1beta1.SchemeGroupVersion, true)
			s.SetGate(apitest.CoordinatedLeaderElection, true)
			// Candidates that never answer, each for a Lease that is vacant or
			// expires, so that there is always something to do.
			for c := range 3 {
				s.Put(&coordinationv1beta1.LeaseCandidate{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("c-%d", c)},
					Spec: coordinationv1beta1.LeaseCandidateSpec{
						LeaseName: fmt.Sprintf("lease-%d", c), BinaryVersion: "1.37.0", EmulationVersion: "1.37.0",
						Strategy: coordinationv1.OldestEmulationVersion, RenewTime: ptr.To(metav1.NowMicro()),
					},
				})
			}
			s.Put(&coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "lease-2"},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("x"), LeaseDurationSeconds: ptr.To[int32](15)},
			})
			cs := s.Client(apitest.User{Name: fmt.Sprintf("%s-%d", ctlUser, i)})
			c, err := New(Config{Client: cs.CoordinationV1(), Candidates: cs.CoordinationV1beta1()})
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
		ErrAlreadyRun: ErrAlreadyRun,
		// The informer of the candidates tries every 30 to 60 seconds, with two
		// requests, and client-go repeats a throttled or reset request ten times.
		MaxPerHour:  2500,
		ReadyWithin: 3 * time.Minute,
	}, testing.Short())
}
