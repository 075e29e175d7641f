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

// A node has the addresses and labels of its cloud instance, reports the volumes that
// its pods use, and keeps a taint, for which a node's own credentials are not enough.
func ExampleCloud() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	clientset := fake.NewClientset() // kubernetes.NewForConfig in a program

	controller, err := nodestatus.New(nodestatus.Config{
		Client:   clientset.CoreV1(),
		NodeName: "node-1",
		Setters: []nodestatus.Setter{
			nodestatus.Cloud(func(context.Context, string) (nodestatus.CloudInstance, error) {
				return nodestatus.CloudInstance{
					ProviderID: "example://i-4711",
					Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}},
					Type:       "small", Zone: "east-1a",
				}, nil
			}),
			nodestatus.VolumesInUse(func(context.Context, string) ([]corev1.UniqueVolumeName, error) {
				return []corev1.UniqueVolumeName{"kubernetes.io/csi/disk.example.com^vol-1"}, nil
			}),
		},
		KeepTaints: []corev1.Taint{{Key: "example.com/edge", Effect: corev1.TaintEffectNoSchedule}},
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
	fmt.Println(node.Spec.ProviderID, node.Status.Addresses[0].Address, node.Labels[corev1.LabelTopologyZone])
	fmt.Println("in use:", node.Status.VolumesInUse[0])
	fmt.Println("taint:", node.Spec.Taints[0].Key)

	cancel()
	fmt.Println("stopped:", <-stopped)
	// Output:
	// example://i-4711 10.0.0.1 east-1a
	// in use: kubernetes.io/csi/disk.example.com^vol-1
	// taint: example.com/edge
	// stopped: <nil>
}

// A program that drains its node first makes it NotReady, so that the scheduler sends no
// more pods, and stays alive until the last pod has ended.
func ExampleController_SetNotReady() {
	ready := make(chan corev1.NodeCondition)
	controller, err := nodestatus.New(nodestatus.Config{
		Client:   fake.NewClientset().CoreV1(),
		NodeName: "node-1",
		Hooks: nodestatus.Hooks{ConditionChanged: func(c nodestatus.ConditionChanged) {
			if c.Condition.Type == corev1.NodeReady {
				ready <- c.Condition
			}
		}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stopped := make(chan error)
	go func() { stopped <- controller.Run(ctx) }()
	fmt.Println("Ready:", (<-ready).Status)

	controller.SetNotReady("node-1", &nodestatus.NotReadyError{Reason: "Draining", Message: "the machine is replaced"})
	c := <-ready
	fmt.Printf("Ready: %s, %s: %s\n", c.Status, c.Reason, c.Message)
	// Here the program ends its pods.

	cancel()
	fmt.Println("stopped:", <-stopped)
	// Output:
	// Ready: True
	// Ready: False, Draining: the machine is replaced
	// stopped: <nil>
}

// The kubelet's event Rebooted has a hook of its own: a program may check its disks.
func ExampleHooks_rebooted() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// The Node of an earlier process, from before the machine was started again.
	clientset := fake.NewClientset(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
		Status:     corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: "monday"}},
	})
	rebooted := make(chan nodestatus.Rebooted, 1)
	controller, err := nodestatus.New(nodestatus.Config{
		Client:   clientset.CoreV1(),
		NodeName: "node-1",
		Setters:  []nodestatus.Setter{nodestatus.HostInfo(corev1.NodeSystemInfo{BootID: "tuesday"})},
		Hooks:    nodestatus.Hooks{Rebooted: func(r nodestatus.Rebooted) { rebooted <- r }},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	stopped := make(chan error)
	go func() { stopped <- controller.Run(ctx) }()

	r := <-rebooted
	fmt.Printf("%s was rebooted: %s, %s\n", r.NodeName, r.OldBootID, r.NewBootID)

	cancel()
	fmt.Println("stopped:", <-stopped)
	// Output:
	// node-1 was rebooted: monday, tuesday
	// stopped: <nil>
}
