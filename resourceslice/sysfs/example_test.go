// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package sysfs_test

import (
	"fmt"
	"maps"
	"testing/fstest"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/kubewright/kubewright/resourceslice/sysfs"
)

// A driver adds the standard attributes to its own. It passes os.DirFS("/sys").
func Example() {
	sys := fstest.MapFS{
		"class/net/eth0": link("../../devices/pci0000:3a/0000:3b:00.1/net/eth0"),
		"devices/pci0000:3a/0000:3b:00.1/net/eth0/speed": file("100000\n"),
		"devices/pci0000:3a/0000:3b:00.1/numa_node":      file("1\n"),
	}
	device := resourcev1.Device{Name: "eth0", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
		"gbps": {IntValue: new(int64(100))},
	}}
	standard, err := sysfs.Attributes(sys, "class/net/eth0")
	if err != nil {
		fmt.Println(err)
		return
	}
	maps.Copy(device.Attributes, standard)
	fmt.Println(*device.Attributes[sysfs.PCIeRoot].StringValue, *device.Attributes[sysfs.NUMANode].IntValue, *device.Attributes["gbps"].IntValue)
	// Output: pci0000:3a 1 100
}
