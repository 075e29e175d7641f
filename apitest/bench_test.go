// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
)

// BenchmarkLeasePUT is the steady state of 10,000 nodes: a renewal through the
// real clientset, encoding and decoding on both sides included.
func BenchmarkLeasePUT(b *testing.B) {
	s := apitest.New(apitest.Options{})
	leases := s.Client(apitest.User{}).CoordinationV1().Leases("kube-node-lease")
	ctx := context.Background()
	objs := make([]*coordinationv1.Lease, 10000)
	for i := range objs {
		name := fmt.Sprintf("node-%05d", i)
		objs[i] = s.Put(&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-node-lease", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: "u"}}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: ptr.To[int32](40), RenewTime: &metav1.MicroTime{Time: time.Now()}},
		}).(*coordinationv1.Lease)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		l := objs[i%len(objs)]
		l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		l.ManagedFields = nil
		l, err := leases.Update(ctx, l, metav1.UpdateOptions{})
		if err != nil {
			b.Fatal(err)
		}
		objs[i%len(objs)] = l
		i++
	}
}
