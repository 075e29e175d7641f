// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package record keeps small JSON files that are whole or absent, whenever the
// process that writes them dies.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces the file at path by v as JSON. Whoever reads it, also after a
// crash, finds the old content or the new one. Only the owner can read the
// file. One process at a time may write a path.
func Write(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		// A rename may reach the disk before what it renames. The folder
		// needs no such care: what a crash of the machine takes away with the
		// newest record is gone with the processes that it is about.
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Read fills v from the file at path, and reports whether there is one.
func Read(path string, v any) (bool, error) {
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return false, fmt.Errorf("read %s: %w", filepath.Clean(path), err)
	}
	return true, nil
}
