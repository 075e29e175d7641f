// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// keepUnused is the time for which unused launchers and the remains of killed builds stay in the cache.
const keepUnused = 14 * 24 * time.Hour

// install moves an executable to dir, under a name derived from its content, and returns the path. Equal content is
// installed once, and an installed file never changes, because another process may be running it.
func install(executable, dir string) (string, error) {
	content, err := os.ReadFile(executable)
	if err != nil {
		return "", err
	}
	target := filepath.Join(dir, fmt.Sprintf("controlplane-%.6x", sha256.Sum256(content)))
	now := time.Now()
	if err := os.Chtimes(target, now, now); errors.Is(err, os.ErrNotExist) {
		if err := os.Rename(executable, target); err != nil {
			return "", err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		// Another process may be pruning too.
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > keepUnused {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return "", err
			}
		}
	}
	return target, nil
}
