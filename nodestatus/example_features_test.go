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

// A node says what its runtime can do, so that the scheduler keeps pods away that need
// more. A cloud controller manager initializes it.
func ExampleDeclaredFeatures() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	clientset := fake.NewClientset() // kubernetes.NewForConfig in a program
	userNamespaces := true

	controller, err := nodestatus.New(nodestatus.Config{
		Client:   clientset.CoreV1(),
		NodeName: "node-1",
		Setters: []nodestatus.Setter{
			nodestatus.ExternalCloud("10.0.0.1"),
			nodestatus.DeclaredFeatures("UserNamespacesHostNetworkSupport", "RestartAllContainersOnContainerExits"),
			nodestatus.Runtime([]corev1.NodeRuntimeHandler{
				{Name: "", Features: &corev1.NodeRuntimeHandlerFeatures{UserNamespaces: &userNamespaces}},
			}, nil),
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
	for _, feature := range node.Status.DeclaredFeatures {
		fmt.Println("declares", feature)
	}
	fmt.Println("user namespaces:", *node.Status.RuntimeHandlers[0].Features.UserNamespaces)
	fmt.Println("taint:", node.Spec.Taints[0].Key)

	cancel()
	fmt.Println("stopped:", <-stopped)
	// Output:
	// declares RestartAllContainersOnContainerExits
	// declares UserNamespacesHostNetworkSupport
	// user namespaces: true
	// taint: node.cloudprovider.kubernetes.io/uninitialized
	// stopped: <nil>
}
