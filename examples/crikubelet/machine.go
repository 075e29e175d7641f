// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// version is what kubectl get nodes shows.
const version = "v1.37.0-kubewright"

// machine holds the facts about this machine.
type machine struct {
	capacity corev1.ResourceList
}

func readMachine(maxPods int) (*machine, error) {
	memory, err := meminfo("/proc/meminfo", "MemTotal:")
	if err != nil {
		return nil, err
	}
	var disk syscall.Statfs_t
	if err := syscall.Statfs("/", &disk); err != nil {
		return nil, err
	}
	return &machine{corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(memory, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(int64(disk.Blocks)*disk.Bsize, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(int64(maxPods), resource.DecimalSI),
	}}, nil
}

// allocatable is what pods can have: nothing is kept back for this process.
func (m *machine) allocatable() corev1.ResourceList { return m.capacity }

// memory returns the memory in bytes.
func (m *machine) memory() int64 { return m.capacity.Memory().Value() }

// setters fill in the Node.
func (k *kubelet) setters(ctx context.Context) []nodestatus.Setter {
	// A runtime that does not answer yet is asked again with each status.
	runtimeVersion := func(ctx context.Context, node *corev1.Node) error {
		v, err := k.runtime.Version(ctx)
		if err == nil {
			node.Status.NodeInfo.ContainerRuntimeVersion = v
		}
		return nil // the health check reports it
	}
	return []nodestatus.Setter{
		nodestatus.HostInfo(corev1.NodeSystemInfo{KubeletVersion: version}),
		runtimeVersion,
		nodestatus.StandardLabels(),
		nodestatus.KubeletPort(int32(k.port)),
		nodestatus.Capacity(k.machine.capacity, nil),
		nodestatus.DeclaredFeatures("RestartAllContainersOnContainerExits"), // podruntime has it
		nodestatus.Addresses(
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: k.nodeIP},
			corev1.NodeAddress{Type: corev1.NodeHostName, Address: k.nodeName},
		),
	}
}

// readResolvConf reads a file like /etc/resolv.conf. A machine without one has no
// DNS.
func readResolvConf(path string) (dns podruntime.DNS, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		if os.IsNotExist(err) {
			err = nil
		}
		return dns, err
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			dns.Servers = append(dns.Servers, fields[1])
		case "search", "domain":
			dns.Searches = fields[1:]
		case "options":
			dns.Options = append(dns.Options, fields[1:]...)
		}
	}
	return dns, nil
}

// meminfo returns the bytes that a line of a file like /proc/meminfo says.
func meminfo(path, name string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), name); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("%s has no line %s", path, name)
}
