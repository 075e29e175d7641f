// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/testmain"
)

func TestMain(m *testing.M) {
	if os.Getenv("APITEST_WITHOUT_TESTMAIN") != "" {
		os.Exit(m.Run())
	}
	testmain.Run(m)
}

func TestLeaseLife(t *testing.T) { synctest.Test(t, testLeaseLife) }

func testLeaseLife(t *testing.T) {
	ctx := t.Context()
	s := apitest.New(apitest.Options{})
	leases := s.Client(apitest.NodeUser("n1")).CoordinationV1().Leases("kube-node-lease")

	if _, err := leases.Get(ctx, "n1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("get of no lease: %v", err)
	}
	l, err := leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("n1"), RenewTime: &metav1.MicroTime{Time: time.Now()}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if l.UID == "" || l.ResourceVersion == "" || l.CreationTimestamp.IsZero() || len(l.ManagedFields) != 1 {
		t.Fatalf("created: %+v", l.ObjectMeta)
	}
	stale := l.DeepCopy()
	time.Sleep(10 * time.Second)
	l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	l.ManagedFields = nil
	if l, err = leases.Update(ctx, l, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if l.ResourceVersion == stale.ResourceVersion || len(l.ManagedFields) != 1 || l.UID != stale.UID {
		t.Fatalf("updated: %+v", l.ObjectMeta)
	}
	if _, err = leases.Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Fatalf("stale update: %v", err)
	}
	apitest.Remove[*coordinationv1.Lease](s, "kube-node-lease", "n1")
	if _, err = leases.Update(ctx, l, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Fatalf("update of a lease that is gone, with its UID: %v", err)
	}
	if n := len(s.Requests(apitest.Match{Verb: "update", Resource: "leases"})); n != 3 {
		t.Fatalf("%d updates: %v", n, s.Requests(apitest.Match{}))
	}
}

func TestWatchNodes(t *testing.T) { synctest.Test(t, testWatchNodes) }

func testWatchNodes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := apitest.New(apitest.Options{})
	nodes := s.Client(apitest.User{}).CoreV1().Nodes()
	w, err := nodes.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=n1"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if _, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := []byte(`{"status":{"conditions":[{"type":"Ready","status":"True"}]},"spec":{"unschedulable":true}}`)
	n, err := nodes.Patch(ctx, "n1", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	if len(n.Status.Conditions) != 1 {
		t.Fatalf("patched: %+v", n)
	}
	if err := nodes.Delete(ctx, "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		if ev := <-w.ResultChan(); ev.Type != want {
			t.Fatalf("got %v, want %v", ev, want)
		}
	}
}
