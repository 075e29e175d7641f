// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package machine reads the capacity, the usage and the DNS configuration of a Linux machine.
package machine

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kubewright/kubewright/podsync/podruntime"
)

// Capacity returns the capacity of the machine for maxPods pods. root is a directory on
// the disk that they use.
func Capacity(root string, maxPods int) (corev1.ResourceList, error) {
	memory, err := meminfo("/proc/meminfo", "MemTotal:")
	if err != nil {
		return nil, err
	}
	var disk syscall.Statfs_t
	if err := syscall.Statfs(root, &disk); err != nil {
		return nil, fmt.Errorf("statfs %s: %w", root, err)
	}
	return corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(memory, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(int64(disk.Blocks)*int64(disk.Bsize), resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(int64(maxPods), resource.DecimalSI),
	}, nil
}

// Usage is the usage of the machine since it was booted.
type Usage struct {
	// Booted is the time at which the machine was booted.
	Booted time.Time
	// CPU is the time that all CPUs together were not idle.
	CPU time.Duration
	// Memory is the memory in bytes that is not available.
	Memory uint64
}

// ReadUsage returns the usage of the machine.
func ReadUsage() (u Usage, err error) {
	if u.CPU, u.Booted, err = cpuBusy("/proc/stat"); err != nil {
		return u, err
	}
	total, err := meminfo("/proc/meminfo", "MemTotal:")
	if err != nil {
		return u, err
	}
	available, err := meminfo("/proc/meminfo", "MemAvailable:")
	u.Memory = uint64(total - available)
	return u, err
}

// ReadResolvConf reads a file like /etc/resolv.conf. A machine without one has no DNS.
func ReadResolvConf(path string) (dns podruntime.DNS, err error) {
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

// cpuBusy returns the time that the CPUs were not idle, and the time of the boot, from a
// file like /proc/stat.
func cpuBusy(path string) (busy time.Duration, booted time.Time, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, booted, err
	}
	defer func() { _ = f.Close() }()
	const tick = 10 * time.Millisecond
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) > 8 && fields[0] == "cpu": // user nice system idle iowait irq softirq steal
			for _, i := range []int{1, 2, 3, 6, 7, 8} {
				n, _ := strconv.ParseInt(fields[i], 10, 64)
				busy += time.Duration(n) * tick
			}
		case len(fields) == 2 && fields[0] == "btime":
			n, _ := strconv.ParseInt(fields[1], 10, 64)
			booted = time.Unix(n, 0)
		}
	}
	if busy == 0 {
		return 0, booted, fmt.Errorf("%s does not contain the CPU time", path)
	}
	return busy, booted, nil
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
