// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/resourceslice"
)

// A driver publishes its devices, and again when they change.
func Example() {
	server := apitest.New(apitest.Options{}) // in a program: a cluster
	server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}})
	clientset := server.Client(apitest.NodeUser("node-1"))

	c, err := resourceslice.New(resourceslice.Config{
		Client:   clientset.ResourceV1(),
		NodeName: "node-1",
		Owner:    resourceslice.NodeOwner(clientset.CoreV1().Nodes(), "node-1"),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- c.Run(ctx) }()

	pool := resourceslice.PoolID{Driver: "gpu.example.com", Name: "node-1"}
	gpu := func(name string, taints ...resourcev1.DeviceTaint) resourcev1.Device {
		return resourcev1.Device{
			Name:       name,
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: new("A1")}},
			Taints:     taints,
		}
	}
	unhealthy := resourcev1.DeviceTaint{Key: "gpu.example.com/unhealthy", Effect: resourcev1.DeviceTaintEffectNoSchedule}
	for _, devices := range [][]resourcev1.Device{
		{gpu("gpu-0"), gpu("gpu-1")},
		{gpu("gpu-1"), gpu("gpu-0")}, // as far as the API is concerned the same
		{gpu("gpu-0", unhealthy), gpu("gpu-1")},
	} {
		if err := c.Set(pool, resourceslice.Pool{Devices: devices}); err != nil {
			fmt.Println(err)
		}
		if err := c.Wait(ctx, pool); err != nil {
			fmt.Println(err)
		}
		status, _ := c.Status(pool)
		fmt.Printf("revision %d: %d devices in %d slice of generation %d\n", status.Revision, status.Devices, status.Slices, status.Generation)
	}
	cancel()
	fmt.Println("stopped:", <-stopped)
	// Output:
	// revision 1: 2 devices in 1 slice of generation 1
	// revision 1: 2 devices in 1 slice of generation 1
	// revision 2: 2 devices in 1 slice of generation 1
	// stopped: <nil>
}
