// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package sysfs reads the standard attributes of PCI devices from sysfs, a file system of
// the Linux kernel.
//
//	attributes, err := sysfs.PCIAttributes(os.DirFS("/sys"), "0000:3b:00.0")
//
// The attributes let a claim ask for a GPU and a network interface below the same PCIe
// root, even if two drivers publish them. The names and formats are those of package
// deviceattribute of k8s.io/dynamic-resource-allocation. All data comes from the files, so
// a test can pass a testing/fstest.MapFS.
package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
)

// The names of the standard attributes.
const (
	// PCIBusID is the address of a PCI device, a string like 0000:3b:00.0.
	PCIBusID resourcev1.QualifiedName = "resource.kubernetes.io/pciBusID"
	// PCIeRoot is the root complex of a PCI device, a string like pci0000:3a.
	PCIeRoot resourcev1.QualifiedName = "resource.kubernetes.io/pcieRoot"
	// NUMANode is the NUMA node of a device, an integer.
	NUMANode resourcev1.QualifiedName = "resource.kubernetes.io/numaNode"
)

// ErrNotPCI is wrapped by the error of Attributes for a device that is not a
// function of a PCI device, nor part of one.
var ErrNotPCI = errors.New("sysfs: not a PCI device")

var (
	busID = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	root  = regexp.MustCompile(`^pci[0-9a-f]{4,}:[0-9a-f]{2}$`)
)

// PCIAttributes is Attributes for the PCI function with an address like
// 0000:3b:00.0.
func PCIAttributes(sys fs.FS, address string) (map[resourcev1.QualifiedName]resourcev1.DeviceAttribute, error) {
	if !busID.MatchString(address) {
		return nil, fmt.Errorf("sysfs: %q is not the address of a PCI function, such as 0000:3b:00.0", address)
	}
	return Attributes(sys, path.Join("bus/pci/devices", address))
}

// Attributes returns PCIBusID, PCIeRoot and NUMANode of a device. device is any
// path of the device in sys, such as class/net/eth0 or class/drm/card0; it is
// slash-separated and relative to sys. The attributes are those of the PCI
// function that the device belongs to. NUMANode is left out if the kernel knows
// of no NUMA node.
//
// sys is the root of a sysfs, usually os.DirFS("/sys"); it must implement
// fs.ReadLinkFS. The error wraps ErrNotPCI if the device is not on a PCI bus,
// and fs.ErrNotExist if sys doesn't have the device.
func Attributes(sys fs.FS, device string) (map[resourcev1.QualifiedName]resourcev1.DeviceAttribute, error) {
	resolved, err := resolve(sys, device)
	if err != nil {
		return nil, fmt.Errorf("sysfs: %s: %w", device, err)
	}
	elements := strings.Split(resolved, "/")
	first := slices.IndexFunc(elements, root.MatchString)
	last := len(elements) - 1
	for last > first && !busID.MatchString(elements[last]) {
		last--
	}
	if first < 0 || last == first {
		return nil, fmt.Errorf("%w: %s is %s", ErrNotPCI, device, resolved)
	}
	attributes := map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
		PCIBusID: {StringValue: &elements[last]},
		PCIeRoot: {StringValue: &elements[first]},
	}
	file := path.Join(append(elements[:last+1:last+1], "numa_node")...)
	content, err := fs.ReadFile(sys, file)
	if errors.Is(err, fs.ErrNotExist) {
		return attributes, nil // a kernel without NUMA
	}
	if err != nil {
		return nil, fmt.Errorf("sysfs: %w", err)
	}
	node, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("sysfs: %s: %w", file, err)
	}
	if node >= 0 { // -1 means that the firmware names none
		attributes[NUMANode] = resourcev1.DeviceAttribute{IntValue: &node}
	}
	return attributes, nil
}

// maxLinks is the limit of Linux for the symbolic links in one path.
const maxLinks = 40

var (
	errTooManyLinks = errors.New("too many symbolic links")
	errLeaves       = errors.New("a symbolic link leaves the file system")
)

// resolve returns name without symbolic links. The kernel shows the place of a
// device in the hierarchy of buses only as the target of links.
func resolve(sys fs.FS, name string) (string, error) {
	resolved := "."
	rest := strings.Split(path.Clean(name), "/")
	for links := 0; len(rest) > 0; {
		next := path.Join(resolved, rest[0])
		rest = rest[1:]
		info, err := fs.Lstat(sys, next)
		switch {
		case err != nil:
			return "", err
		case info.Mode()&fs.ModeSymlink == 0:
			resolved = next
			continue
		}
		target, err := fs.ReadLink(sys, next)
		if err != nil {
			return "", err
		}
		target = path.Join(resolved, target)
		if !fs.ValidPath(target) {
			return "", fmt.Errorf("%w: %s", errLeaves, next)
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("%w: %s", errTooManyLinks, next)
		}
		rest = append(strings.Split(target, "/"), rest...)
		resolved = "."
	}
	return resolved, nil
}
