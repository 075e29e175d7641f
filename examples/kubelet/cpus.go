// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/resourceslice"
)

// cpuDriver is the driver whose devices are the CPUs of the machine.
const cpuDriver = "cpu.kubewright.dev"

// devicePrefix and the number of a CPU are the name of its device.
const devicePrefix = "cpu-"

// newCPUs returns a controller that publishes the machine's CPUs as devices of
// the node.
func newCPUs(client kubernetes.Interface, nodeName, sys string) (*resourceslice.Controller, error) {
	devices, err := cpuDevices(sys)
	if err != nil {
		return nil, err
	}
	controller, err := resourceslice.New(resourceslice.Config{
		Client:   client.ResourceV1(),
		NodeName: nodeName,
		Driver:   cpuDriver,
		Owner:    resourceslice.NodeOwner(client.CoreV1().Nodes(), nodeName),
	})
	if err != nil {
		return nil, err
	}
	pool := resourceslice.PoolID{Driver: cpuDriver, Name: nodeName}
	return controller, controller.Set(pool, resourceslice.Pool{Devices: devices})
}

// cpuDevices returns a device for each CPU that is online, by a folder like
// /sys/devices/system/cpu.
func cpuDevices(sys string) ([]resourcev1.Device, error) {
	online, err := os.ReadFile(filepath.Join(sys, "online"))
	if err != nil {
		return nil, err
	}
	numbers, err := parseCPUs(strings.TrimSpace(string(online)))
	if err != nil {
		return nil, err
	}
	var devices []resourcev1.Device
	for _, n := range numbers {
		device := resourcev1.Device{
			Name:       devicePrefix + strconv.Itoa(n),
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"cpu": {IntValue: new(int64(n))}},
		}
		for attribute, file := range map[resourcev1.QualifiedName]string{"core": "core_id", "package": "physical_package_id"} {
			// Virtual machines may not say; a claim can't ask for it then.
			text, err := os.ReadFile(filepath.Join(sys, "cpu"+strconv.Itoa(n), "topology", file))
			if err != nil {
				continue
			}
			if v, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
				device.Attributes[attribute] = resourcev1.DeviceAttribute{IntValue: &v}
			}
		}
		devices = append(devices, device)
	}
	return devices, nil
}

// parseCPUs reads a list as the kernel writes it, such as 0-3,8.
func parseCPUs(list string) (numbers []int, err error) {
	for part := range strings.SplitSeq(list, ",") {
		first, last, ranged := strings.Cut(part, "-")
		a, err := strconv.Atoi(first)
		if err != nil {
			return nil, err
		}
		b := a
		if ranged {
			if b, err = strconv.Atoi(last); err != nil {
				return nil, err
			}
		}
		for n := a; n <= b; n++ {
			numbers = append(numbers, n)
		}
	}
	return numbers, nil
}
