// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/lease"
)

// Many nodes in one process, as an informer sees them: nodes are added and
// removed while the controller runs, and Owner answers from the cache.
func ExampleController_Add() {
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil) // informer.GetIndexer() in a program
	held := make(chan string, 3)
	controller, err := lease.New(lease.Config{
		Client: fake.NewClientset().CoordinationV1(),
		Fleet:  true,
		Owner:  lease.NodeOwner(corev1listers.NewNodeLister(nodes)),
		Hooks: lease.Hooks{
			Renewed: func(r lease.Renewed) { held <- r.NodeName },
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- controller.Run(ctx) }()

	// As the handler of the informer does for each Node that comes …
	for i := range 3 {
		name := fmt.Sprintf("node-%d", i)
		if err := nodes.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			fmt.Println(err)
		}
		if err := controller.Add(name); err != nil {
			fmt.Println(err)
		}
		fmt.Println("held:", <-held)
	}
	// … and for each that goes.
	controller.Remove("node-1")
	for i := range 3 {
		_, served := controller.Status(fmt.Sprintf("node-%d", i))
		fmt.Println("served:", served)
	}
	fmt.Println("impossible name:", controller.Add("Node 3") != nil)

	cancel()
	fmt.Println("stopped:", <-stopped)
	// Output:
	// held: node-0
	// held: node-1
	// held: node-2
	// served: true
	// served: false
	// served: true
	// impossible name: true
	// stopped: <nil>
}
