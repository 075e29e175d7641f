// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kubewright/kubewright/nodestatus"
)

// A node that is registered, and kept up to date until the context is done.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	clientset := fake.NewClientset() // kubernetes.NewForConfig in a program

	controller, err := nodestatus.New(nodestatus.Config{
		Client:   clientset.CoreV1(),
		NodeName: "node-1",
		Setters: []nodestatus.Setter{
			nodestatus.Capacity(corev1.ResourceList{
				corev1.ResourceCPU:  resource.MustParse("4"),
				corev1.ResourcePods: resource.MustParse("110"),
			}, corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("500m"), // for the system
			}),
			nodestatus.StandardLabels(),
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	stopped := make(chan error)
	go func() { stopped <- controller.Run(ctx) }()

	<-controller.Ready().Done()
	node, err := clientset.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("label:", node.Labels["kubernetes.io/hostname"])
	fmt.Println("for pods:", node.Status.Allocatable.Cpu(), "CPU")
	for _, condition := range node.Status.Conditions {
		fmt.Println(condition.Type, condition.Status)
	}

	cancel()
	fmt.Println("stopped:", <-stopped)
	// Output:
	// label: node-1
	// for pods: 3500m CPU
	// MemoryPressure False
	// DiskPressure False
	// PIDPressure False
	// Ready True
	// stopped: <nil>
}
