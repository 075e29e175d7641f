// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
)

// install moves an executable to dir, under a name made of its content, and returns the path. The same content is installed once,
// and a file that is there never changes: another process may be running it.
func install(executable, dir string) (string, error) {
	content, err := os.ReadFile(executable)
	if err != nil {
		return "", err
	}
	target := filepath.Join(dir, fmt.Sprintf("controlplane-%.6x", sha256.Sum256(content)))
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}
	return target, os.Rename(executable, target)
}
