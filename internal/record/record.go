// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package record stores small JSON files that are complete or absent even if
// the process that writes them dies.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces the file at path with v as JSON. A reader finds either the old
// content or the new one, also after a crash. Only the owner can read the file.
// At most one process at a time may write to a path.
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
		// A rename may reach the disk before the file's content does. The
		// directory needs no sync: a machine crash that loses the newest record
		// also ends the processes that it describes.
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Read decodes the file at path into v, and reports whether the file exists.
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
