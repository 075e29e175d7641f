// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
)

// HostInfo returns a Setter for NodeInfo. Fields that info leaves empty are those of
// the machine the process runs on, as far as they can be read: architecture, operating
// system, kernel version, OS image, machine ID, system UUID, boot ID and swap memory.
// Fields that can't be read, as in most containers, stay empty. They are read in each
// round, because a kernel can be patched live. The Setter fails while no file can be
// opened, because too many are open. For a virtual node, which is no machine,
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
		into, files := &node.Status.NodeInfo, &hostFiles{root: root}
		*into = *info.DeepCopy()
		for _, field := range []struct {
			value *string
			read  func() string
		}{
			{&into.Architecture, func() string { return runtime.GOARCH }},
			{&into.OperatingSystem, func() string { return runtime.GOOS }},
			{&into.KernelVersion, files.firstOf("proc/sys/kernel/osrelease")},
			{&into.OSImage, func() string { return prettyName(files.read("etc/os-release")) }},
			{&into.MachineID, files.firstOf("etc/machine-id", "var/lib/dbus/machine-id")},
			{&into.SystemUUID, files.firstOf("sys/class/dmi/id/product_uuid", "etc/machine-id")},
			{&into.BootID, files.firstOf("proc/sys/kernel/random/boot_id")},
		} {
			if *field.value == "" {
				*field.value = field.read()
			}
		}
		if into.Swap == nil {
			into.Swap = swapOf(files.read("proc/meminfo"))
		}
		if files.err != nil {
			return fmt.Errorf("read what the machine is: %w", files.err)
		}
		return nil
	}
}

// hostFiles are the files of a machine.
type hostFiles struct {
	root fs.FS
	// err is set if a file could not be opened because too many are open. That says nothing
	// about the file, unlike any other error.
	err error
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
func (f *hostFiles) firstOf(names ...string) func() string {
	return func() string {
		for _, name := range names {
			if content := f.read(name); content != "" {
				return content
			}
		}
		return ""
	}
}

// read returns the content of a file without the space around it, or
// nothing if it can't be read.
func (f *hostFiles) read(name string) string {
	content, err := fs.ReadFile(f.root, name)
	if err != nil {
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			f.err = err
		}
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
