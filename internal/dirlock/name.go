// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package dirlock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// nameInterval is the time between two tries to get a name.
const nameInterval = time.Second

// ForName gets a name for this process alone, among the processes of this machine that
// use the directory at path for it, which is created if necessary. If another process
// has the name, ForName calls waiting once, and waits until that process has ended or
// ctx is done. Closing the file gives the name up; so does the end of the process.
// Other names don't wait for it.
func ForName(ctx context.Context, path, name string, waiting func()) (*os.File, error) {
	if name != filepath.Base(name) || !filepath.IsLocal(name) {
		return nil, fmt.Errorf("%q is not a file name", name)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	// The file stays: if one process removed it, two others could each lock a file of
	// that name.
	f, err := os.OpenFile(filepath.Join(path, name+".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for first := true; ; first = false {
		err := Lock(f)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, ErrHeld) {
			return nil, errors.Join(err, f.Close())
		}
		if first {
			waiting()
		}
		select {
		case <-time.After(nameInterval):
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		}
	}
}
