// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package dirlock keeps two processes from using one directory.
package dirlock

import (
	"context"
	"errors"
	"os"
	"time"
)

// ErrHeld is returned by Lock and Wait if the directory is open and locked elsewhere.
var ErrHeld = errors.New("another process uses the directory")

const (
	// patience is the time for which a lock may outlive its process: a child that was
	// being forked holds it until it calls exec.
	patience = 3 * time.Second
	// interval is the time between two tries.
	interval = 20 * time.Millisecond
)

// Wait locks f as Lock does, and waits for a moment if the process that had the lock
// has just ended.
func Wait(ctx context.Context, f *os.File) error {
	for begin := time.Now(); ; {
		err := Lock(f)
		if !errors.Is(err, ErrHeld) || time.Since(begin) > patience {
			return err
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return err
		}
	}
}
