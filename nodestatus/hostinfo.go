// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"io/fs"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// HostInfo returns a Setter for NodeInfo. Fields that info leaves empty are those of
// the machine the process runs on, as far as they can be read: architecture, operating
// system, kernel version, OS image, machine ID, system UUID, boot ID and swap memory.
// Fields that can't be read, as in most containers, stay empty. They are read in each
// round, because a kernel can be patched live. For a virtual node, which is no machine,
// set NodeInfo in a custom Setter.
//
// KubeletVersion should be set: an empty one is shown in kubectl get nodes, and
// some tools refuse to parse it.
func HostInfo(info corev1.NodeSystemInfo) Setter {
	return hostInfo(os.DirFS("/"), info)
}

// hostInfo is HostInfo for the machine whose root directory is root.
func hostInfo(root fs.FS, info corev1.NodeSystemInfo) Setter {
	return func(_ context.Context, node *corev1.Node) error {
		into := &node.Status.NodeInfo
		*into = *info.DeepCopy()
		for _, field := range []struct {
			value *string
			read  func() string
		}{
			{&into.Architecture, func() string { return runtime.GOARCH }},
			{&into.OperatingSystem, func() string { return runtime.GOOS }},
			{&into.KernelVersion, firstOf(root, "proc/sys/kernel/osrelease")},
			{&into.OSImage, func() string { return prettyName(readFile(root, "etc/os-release")) }},
			{&into.MachineID, firstOf(root, "etc/machine-id", "var/lib/dbus/machine-id")},
			{&into.SystemUUID, firstOf(root, "sys/class/dmi/id/product_uuid", "etc/machine-id")},
			{&into.BootID, firstOf(root, "proc/sys/kernel/random/boot_id")},
		} {
			if *field.value == "" {
				*field.value = field.read()
			}
		}
		if into.Swap == nil {
			into.Swap = swapOf(readFile(root, "proc/meminfo"))
		}
		return nil
	}
}

// swapOf returns the swap memory of a machine by its /proc/meminfo, or nil if it has
// none, as the kubelet reports it.
func swapOf(meminfo string) *corev1.NodeSwapStatus {
	for line := range strings.Lines(meminfo) {
		value, ok := strings.CutPrefix(line, "SwapTotal:")
		if !ok {
			continue
		}
		kilobytes, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		if err != nil || kilobytes <= 0 || kilobytes > math.MaxInt64/1024 {
			return nil
		}
		return &corev1.NodeSwapStatus{Capacity: new(kilobytes * 1024)}
	}
	return nil
}

// firstOf returns a function that returns the content of the first of the files
// that has any.
func firstOf(root fs.FS, names ...string) func() string {
	return func() string {
		for _, name := range names {
			if content := readFile(root, name); content != "" {
				return content
			}
		}
		return ""
	}
}

// readFile returns the content of a file without the space around it, or
// nothing if it can't be read.
func readFile(root fs.FS, name string) string {
	content, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

// prettyName returns PRETTY_NAME of an os-release file (os-release(5)).
func prettyName(content string) string {
	for line := range strings.Lines(content) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(value, `"'`)
		}
	}
	return ""
}
