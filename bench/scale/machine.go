// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// machine describes the machine of a run.
type machine struct {
	Processor string `json:"processor"`
	Cores     int    `json:"cores"`
	MemoryMiB int    `json:"memoryMiB"`
	Go        string `json:"go"`
}

// String describes a machine in one line.
func (m machine) String() string {
	return fmt.Sprintf("%d cores (%s), %d GiB, %s", m.Cores, m.Processor, (m.MemoryMiB+512)>>10, m.Go)
}

// thisMachine describes this machine. It omits values that it cannot read,
// because only the report needs them.
func thisMachine() machine {
	m := machine{Processor: "unknown", Cores: runtime.NumCPU(), Go: runtime.Version()}
	if s := firstField("/proc/cpuinfo", "model name"); s != "" {
		m.Processor = s
	}
	kib, _ := strconv.Atoi(strings.TrimSuffix(firstField("/proc/meminfo", "MemTotal"), " kB"))
	m.MemoryMiB = kib >> 10
	return m
}

// firstField returns the value of the first line that begins with "name:".
func firstField(path, name string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		key, value, found := strings.Cut(line, ":")
		if found && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
