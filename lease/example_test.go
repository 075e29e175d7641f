// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kubewright/kubewright/lease"
)

// A node that renews its lease until its context is done.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	clientset := fake.NewClientset() // kubernetes.NewForConfig in a program

	controller, err := lease.New(lease.Config{
		Client:   clientset.CoordinationV1(),
		NodeName: "node-1",
		// In a program this is the method of a nodestatus.Controller, or
		// lease.NodeOwner with the lister of an informer.
		Owner: func(_ context.Context, nodeName string) (metav1.OwnerReference, error) {
			return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: "6f2c…"}, nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	stopped := make(chan error)
	go func() { stopped <- controller.Run(ctx) }()

	<-controller.Ready().Done()
	l, err := clientset.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, "node-1", metav1.GetOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("holder:", *l.Spec.HolderIdentity)
	fmt.Println("duration:", *l.Spec.LeaseDurationSeconds, "s")
	fmt.Println("owner:", l.OwnerReferences[0].Kind, l.OwnerReferences[0].Name)

	cancel()
	fmt.Println("stopped:", <-stopped)
	// Output:
	// holder: node-1
	// duration: 40 s
	// owner: Node node-1
	// stopped: <nil>
}
