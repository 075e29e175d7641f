// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"path/filepath"
	"testing"
)

func TestMountsBelow(t *testing.T) {
	if found, err := Below("/proc"); err != nil || len(found) == 0 {
		t.Errorf("below /proc: %v, %v", found, err)
	}
	if found, err := Below(filepath.Join(t.TempDir(), "x")); err != nil || len(found) > 0 {
		t.Errorf("below a new folder: %v, %v", found, err)
	}
}
