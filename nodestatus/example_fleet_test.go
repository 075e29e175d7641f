// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kubewright/kubewright/nodestatus"
)

// Virtual nodes in one process: the same functions serve all of them, nodes
// come while it runs, and the Node of one that was removed by mistake is
// created again.
func ExampleController_Add() {
	clientset := fake.NewClientset()
	registered := make(chan string)

	controller, err := nodestatus.New(nodestatus.Config{
		Client: clientset.CoreV1(),
		Fleet:  true,
		Template: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"type": "virtual"}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "example.com/virtual", Effect: corev1.TaintEffectNoSchedule}}},
		},
		Setters: []nodestatus.Setter{func(_ context.Context, node *corev1.Node) error {
			node.Spec.ProviderID = "example://" + node.Name // taken when it is created
			return nil
		}},
		OnDeleted: nodestatus.DeletedReregister,
		Hooks:     nodestatus.Hooks{Registered: func(r nodestatus.Registered) { registered <- r.NodeName }},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stopped := make(chan error)
	go func() { stopped <- controller.Run(ctx) }()

	for _, name := range []string{"virtual-1", "virtual-2", "virtual-3"} {
		if err := controller.Add(name); err != nil {
			fmt.Println(err)
		}
		fmt.Println("registered:", <-registered)
	}
	node, err := clientset.CoreV1().Nodes().Get(ctx, "virtual-2", metav1.GetOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(node.Labels["type"], node.Spec.ProviderID, node.Spec.Taints[0].Key)

	cancel()
	fmt.Println("stopped:", <-stopped)
	// Output:
	// registered: virtual-1
	// registered: virtual-2
	// registered: virtual-3
	// virtual example://virtual-2 example.com/virtual
	// stopped: <nil>
}
