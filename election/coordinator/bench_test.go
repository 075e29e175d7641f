// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"context"
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
)

// benchController is a Controller that knows so many Leases, each with a holder
// and so many candidates, and that nothing runs for.
func benchController(b testing.TB, leases, each int) *Controller {
	b.Helper()
	c := &Controller{index: index{}, rules: new(Config).rules(), ctx: context.Background()}
	c.leases = &mirror{informer: cache.NewSharedIndexInformer(&cache.ListWatch{}, &coordinationv1.Lease{}, 0, nil)}
	c.queue = workqueue.NewTypedDelayingQueue[types.NamespacedName]()
	b.Cleanup(c.queue.ShutDown)
	for l := range leases {
		for i := range each {
			if err := c.admit(nil, benchCandidate(l, i), true); err != nil {
				b.Fatal(err)
			}
		}
		c.leaseSeen(benchLease(l, 1))
	}
	return c
}

func benchCandidate(lease, i int) *coordinationv1beta1.LeaseCandidate {
	return &coordinationv1beta1.LeaseCandidate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("lease-%d.%d", lease, i), UID: types.UID(fmt.Sprint(lease, i)), ResourceVersion: "1"},
		Spec: coordinationv1beta1.LeaseCandidateSpec{
			LeaseName: fmt.Sprintf("lease-%d", lease), BinaryVersion: "1.37.0", EmulationVersion: "1.37.0",
			Strategy: coordinationv1.OldestEmulationVersion, RenewTime: ptr.To(metav1.NowMicro()),
		},
	}
}

func benchLease(lease, version int) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("lease-%d", lease), UID: "l", ResourceVersion: fmt.Sprint(version)},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To(fmt.Sprintf("lease-%d.0", lease)), LeaseDurationSeconds: ptr.To[int32](15),
			RenewTime: ptr.To(metav1.NewMicroTime(time.UnixMicro(int64(version)))),
		},
	}
}

// sizes shows that the cost depends on the candidates of the Lease, and not the
// number of Leases.
var sizes = []struct{ leases, each int }{{10, 5}, {1000, 5}, {10_000, 5}, {10, 50}, {1000, 50}}

// BenchmarkControllerRenewal is the cost of one renewal of a Lease in time, from
// the watch to its last event.
func BenchmarkControllerRenewal(b *testing.B) {
	for _, s := range sizes {
		b.Run(fmt.Sprintf("leases=%d/candidates=%d", s.leases, s.each), func(b *testing.B) {
			c := benchController(b, s.leases, s.each)
			renewals := []*coordinationv1.Lease{benchLease(1, 2), benchLease(1, 3)}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				l := renewals[i%2]
				l.ResourceVersion = fmt.Sprint(2 + i)
				c.leaseSeen(l)
			}
		})
	}
}

// BenchmarkControllerChange is the cost of a change of one candidate, from the
// watch to the decision about its Lease.
func BenchmarkControllerChange(b *testing.B) {
	for _, s := range sizes {
		b.Run(fmt.Sprintf("leases=%d/candidates=%d", s.leases, s.each), func(b *testing.B) {
			c := benchController(b, s.leases, s.each)
			old, obj := benchCandidate(1, 2), benchCandidate(1, 2)
			key := leaseKey(obj)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				obj.ResourceVersion = fmt.Sprint(2 + i)
				obj.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.UnixMicro(int64(i + 1))))
				c.candidateSeen(old, obj, false)
				c.visit(c.ctx, key)
			}
		})
	}
}

// BenchmarkControllerLeaseOfOthers is the cost of an event of a Lease that has
// no candidates.
func BenchmarkControllerLeaseOfOthers(b *testing.B) {
	c := benchController(b, 1000, 5)
	other := benchLease(1_000_000, 1)
	b.ReportAllocs()
	for b.Loop() {
		c.leaseSeen(other)
	}
}
