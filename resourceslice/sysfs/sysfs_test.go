// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package sysfs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/kubewright/kubewright/resourceslice/sysfs"
)

func link(target string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
}

func file(content string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(content)} }

// machine is a sysfs with devices of several kinds.
var machine = fstest.MapFS{
	// A GPU behind a bridge, with NUMA node 1.
	"bus/pci/devices/0000:3b:00.0":                                  link("../../../devices/pci0000:3a/0000:3a:02.0/0000:3b:00.0"),
	"devices/pci0000:3a/0000:3a:02.0/0000:3b:00.0/numa_node":        file("1\n"),
	"devices/pci0000:3a/0000:3a:02.0/0000:3b:00.0/drm/card0/dev":    file("226:0\n"),
	"devices/pci0000:3a/0000:3a:02.0/0000:3b:00.0/drm/card0/device": link("../../../0000:3b:00.0"),
	"class/drm/card0": link("../../devices/pci0000:3a/0000:3a:02.0/0000:3b:00.0/drm/card0"),
	// The bridge has another NUMA node, which is not the GPU's.
	"devices/pci0000:3a/0000:3a:02.0/numa_node": file("0\n"),
	// A network interface on the root, without a NUMA node.
	"bus/pci/devices/0000:00:03.0":                         link("../../../devices/pci0000:00/0000:00:03.0"),
	"devices/pci0000:00/0000:00:03.0/numa_node":            file("-1\n"),
	"devices/pci0000:00/0000:00:03.0/virtio0/net/eth0/mtu": file("1500\n"),
	"class/net/eth0": link("../../devices/pci0000:00/0000:00:03.0/virtio0/net/eth0"),
	// An NVMe disk behind a volume management device, which is a root of its
	// own: the root complex is the first one. The domain has five digits.
	"bus/pci/devices/10000:01:00.0": link("../../../devices/pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0/10000:01:00.0"),
	"devices/pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0/10000:01:00.0/numa_node": file("0\n"),
	// A root that is a child of a platform device, on a kernel without NUMA.
	"bus/pci/devices/0001:01:00.0": link("../../../devices/platform/40000000.pcie/pci0001:00/0001:00:00.0/0001:01:00.0"),
	"devices/platform/40000000.pcie/pci0001:00/0001:00:00.0/0001:01:00.0/vendor": file("0x14e4\n"),

	"devices/virtual/net/lo/mtu": file("65536\n"),
	"class/net/lo":               link("../../devices/virtual/net/lo"),
	"devices/pci0000:7f/vendor":  file("no function\n"),

	"bus/pci/devices/0000:99:00.0":              link("../../../devices/pci0000:99/0000:99:00.0"),
	"devices/pci0000:99/0000:99:00.0/numa_node": file("many\n"),
	"class/net/loop":                            link("loop"),
	"class/net/outside":                         link("../../../etc/passwd"),
	"class/net/absolute":                        link("/devices/virtual/net/lo"),
	"class/net/nowhere":                         link("../../devices/virtual/net/gone"),
}

func TestAttributes(t *testing.T) {
	for device, want := range map[string]string{
		"bus/pci/devices/0000:3b:00.0":  "numaNode=1 pciBusID=0000:3b:00.0 pcieRoot=pci0000:3a",
		"class/drm/card0":               "numaNode=1 pciBusID=0000:3b:00.0 pcieRoot=pci0000:3a",
		"class/drm/card0/device":        "numaNode=1 pciBusID=0000:3b:00.0 pcieRoot=pci0000:3a",
		"class/net/eth0":                "pciBusID=0000:00:03.0 pcieRoot=pci0000:00",
		"class/net/../net/eth0/":        "pciBusID=0000:00:03.0 pcieRoot=pci0000:00",
		"bus/pci/devices/10000:01:00.0": "numaNode=0 pciBusID=10000:01:00.0 pcieRoot=pci0000:00",
		"bus/pci/devices/0001:01:00.0":  "pciBusID=0001:01:00.0 pcieRoot=pci0001:00",
	} {
		if got := attributes(t, machine, device); got != want {
			t.Errorf("%s: %s, want %s", device, got, want)
		}
	}
	if got, want := attributes(t, machine, "class/drm/card0"), pciAttributes(t, "0000:3b:00.0"); got != want {
		t.Errorf("by class %s, by address %s", got, want)
	}
}

func TestDevicesWithoutAttributes(t *testing.T) {
	for device, want := range map[string]error{
		"class/net/lo":                 sysfs.ErrNotPCI,
		"devices/pci0000:7f":           sysfs.ErrNotPCI,
		"class/net/eth9":               fs.ErrNotExist,
		"class/net/nowhere":            fs.ErrNotExist,
		"bus/pci/devices/0000:99:00.0": nil,
		"class/net/loop":               nil,
		"class/net/outside":            nil,
		"class/net/absolute":           nil,
		"":                             nil,
		"../sys/class/net/eth0":        nil,
	} {
		got, err := sysfs.Attributes(machine, device)
		if err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v, error %v, want %v", device, got, err, want)
		}
	}
	for _, address := range []string{"", "3b:00.0", "0000:3B:00.0", "0000:3b:00.8", "0000:3b:00.0/..", "../../../etc"} {
		if got, err := sysfs.PCIAttributes(machine, address); err == nil {
			t.Errorf("address %q: %v", address, got)
		}
	}
}

// TestADirectoryOfTheOS: the file system of package os has links, too.
func TestADirectoryOfTheOS(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "devices/pci0000:3a/0000:3b:00.0")
	if err := os.MkdirAll(target, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "bus/pci/devices"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(target, "numa_node"), []byte("3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../../devices/pci0000:3a/0000:3b:00.0", filepath.Join(dir, "bus/pci/devices/0000:3b:00.0")); err != nil {
		t.Fatal(err)
	}
	if got, want := attributes(t, os.DirFS(dir), "bus/pci/devices/0000:3b:00.0"), "numaNode=3 pciBusID=0000:3b:00.0 pcieRoot=pci0000:3a"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func attributes(t *testing.T, sys fs.FS, device string) string {
	t.Helper()
	all, err := sysfs.Attributes(sys, device)
	if err != nil {
		t.Errorf("%s: %v", device, err)
	}
	text := ""
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value := all[name]
		if text != "" {
			text += " "
		}
		text += filepath.Base(string(name)) + "="
		if value.IntValue != nil {
			text += fmt.Sprint(*value.IntValue)
		} else {
			text += *value.StringValue
		}
	}
	return text
}

func pciAttributes(t *testing.T, address string) string {
	t.Helper()
	return attributes(t, machine, "bus/pci/devices/"+address)
}
