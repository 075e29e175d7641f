// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstore

import (
	"fmt"
	"syscall"

	"github.com/kubewright/kubewright/internal/durable"
)

// fullDisk is a disk without free space: only bytes that are there can be written.
type fullDisk struct{ durable.FS }

func (d *fullDisk) WriteFile(name string, _ []byte) error {
	return fmt.Errorf("%s: %w", name, syscall.ENOSPC)
}

func (d *fullDisk) Overwrite(name string, data []byte, offset int, flush bool) error {
	before, err := d.ReadFile(name, maxJournal)
	if err != nil {
		return err
	}
	if offset+len(data) > len(before) {
		return fmt.Errorf("%s: %w", name, syscall.ENOSPC)
	}
	return d.FS.Overwrite(name, data, offset, flush)
}
