// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/nodestatus"
)

// taintKey is the taint that keeps off pods that need isolation.
const taintKey = "kubewright.dev/host-processes"

// version is the version that kubectl get nodes shows.
const version = "v1.37.0-kubewright"

// machine is the capacity of this machine.
type machine struct {
	capacity corev1.ResourceList
}

// readMachine reads the capacity. root is the directory of the pods, on the disk that
// they use.
func readMachine(maxPods int, root string) (*machine, error) {
	memory, err := meminfo("/proc/meminfo", "MemTotal:")
	if err != nil {
		return nil, err
	}
	var disk syscall.Statfs_t
	if err := syscall.Statfs(root, &disk); err != nil {
		return nil, err
	}
	return &machine{corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(memory, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(int64(disk.Blocks)*disk.Bsize, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(int64(maxPods), resource.DecimalSI),
	}}, nil
}

// allocatable returns the resources for pods. Nothing is reserved for this process.
func (m *machine) allocatable() corev1.ResourceList { return m.capacity }

// setters fill in the Node.
func (m *machine) setters(o *options) []nodestatus.Setter {
	return []nodestatus.Setter{
		nodestatus.HostInfo(corev1.NodeSystemInfo{KubeletVersion: version, ContainerRuntimeVersion: "process://" + version}),
		nodestatus.StandardLabels(),
		nodestatus.KubeletPort(int32(o.port)),
		nodestatus.Capacity(m.capacity, nil),
		nodestatus.DeclaredFeatures("RestartAllContainersOnContainerExits"), // podruntime has it
		nodestatus.Addresses(
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: o.nodeIP},
			corev1.NodeAddress{Type: corev1.NodeHostName, Address: o.nodeName},
		),
	}
}

// template returns the Node's labels and taints at its creation.
func template(o *options, s settings) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: o.nodeName, Labels: s.Labels}}
	if o.taint {
		node.Spec.Taints = []corev1.Taint{{Key: taintKey, Effect: corev1.TaintEffectNoSchedule}}
	}
	return node
}

// meminfo returns the value of a line of a file like /proc/meminfo, in bytes.
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
