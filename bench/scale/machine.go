// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"

	"github.com/prometheus/procfs"
	"k8s.io/utils/ptr"
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
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return m
	}
	if processors, err := fs.CPUInfo(); err == nil && len(processors) > 0 && processors[0].ModelName != "" {
		m.Processor = processors[0].ModelName
	}
	if memory, err := fs.Meminfo(); err == nil {
		m.MemoryMiB = int(ptr.Deref(memory.MemTotal, 0) >> 10)
	}
	return m
}
