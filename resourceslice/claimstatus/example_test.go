// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstatus_test

import (
	"context"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/resourceslice/claimstatus"
)

// A network driver has attached the port that a claim has got. The scheduler
// binds the Pod when all binding conditions of the device are true.
func Example() {
	server := apitest.New(apitest.Options{}) // stands for the cluster
	server.Put(claim())
	clientset := server.Client(apitest.User{})
	ctx := context.Background()

	w, err := claimstatus.New(claimstatus.Config{Client: clientset.ResourceV1(), Driver: driver})
	if err != nil {
		fmt.Println(err)
		return
	}
	claim, err := clientset.ResourceV1().ResourceClaims("default").Get(ctx, "net", metav1.GetOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	port := claimstatus.Bound(&claim.Status.Allocation.Devices.Results[0], "Attached", "The port is up.")
	port.NetworkData = &resourcev1.NetworkDeviceData{InterfaceName: "net1", IPs: []string{"10.0.0.7/24"}}
	claim, err = w.Write(ctx, claim, port)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, device := range claim.Status.Devices {
		fmt.Println(device.Device, device.NetworkData.InterfaceName, device.NetworkData.IPs)
		for _, condition := range device.Conditions {
			fmt.Println(condition.Type, condition.Status)
		}
	}
	// Output:
	// port-0 net1 [10.0.0.7/24]
	// attached True
	// configured True
}
