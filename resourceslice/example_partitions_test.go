// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/resourceslice"
)

// A network card can be allocated whole, or as virtual functions. All of them consume from
// one counter set, so the scheduler never does both. The functions come first, because the
// scheduler takes the first device that matches.
func ExamplePool_partitions() {
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

	functions := func(n string) map[string]resourcev1.Counter {
		return map[string]resourcev1.Counter{"functions": {Value: resource.MustParse(n)}}
	}
	device := func(name, kind, n string) resourcev1.Device {
		return resourcev1.Device{
			Name:             name,
			Attributes:       map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"kind": {StringValue: &kind}},
			ConsumesCounters: []resourcev1.DeviceCounterConsumption{{CounterSet: "card-0", Counters: functions(n)}},
		}
	}
	pool := resourceslice.PoolID{Driver: "nic.example.com", Name: "node-1"}
	err = c.Set(pool, resourceslice.Pool{
		SharedCounters: []resourcev1.CounterSet{{Name: "card-0", Counters: functions("2")}},
		Devices:        []resourcev1.Device{device("card-0-vf-0", "vf", "1"), device("card-0-vf-1", "vf", "1"), device("card-0", "card", "2")},
	})
	if err != nil {
		fmt.Println(err)
	}
	if err := c.Wait(ctx, pool); err != nil {
		fmt.Println(err)
	}
	for _, slice := range apitest.List[*resourcev1.ResourceSlice](server, "") {
		for _, set := range slice.Spec.SharedCounters {
			fmt.Println("counter set", set.Name)
		}
		for _, d := range slice.Spec.Devices {
			fmt.Println("device", d.Name)
		}
	}
	cancel()
	fmt.Println("stopped:", <-stopped)
	// Output:
	// counter set card-0
	// device card-0-vf-0
	// device card-0-vf-1
	// device card-0
	// stopped: <nil>
}
