// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package filelock locks files between processes. The kernel releases a lock when its last holder ends, even if it was
// killed.
package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// ErrHeld is returned by Try when another process holds the lock.
var ErrHeld = errors.New("lock is held")

// Lock is a held lock.
type Lock struct{ file *os.File }

// pollPeriod is the time between two attempts to take a lock that another process holds. Polling is needed because
// flock(2) can't be interrupted.
const pollPeriod = 50 * time.Millisecond

// Try takes the lock on file, or returns ErrHeld. It creates the file if it does not exist. A holder may remove the
// file.
func Try(file string) (*Lock, error) {
	for {
		lock, err := open(file)
		if err != nil {
			return nil, err
		}
		if lock.isAt(file) {
			return lock, nil
		}
		// The former holder removed the file after it was opened here. Later callers open another file.
		lock.Release()
	}
}

// open opens file and locks it.
func open(file string) (*Lock, error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return &Lock{f}, nil
	}
	f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, ErrHeld
	}
	return nil, fmt.Errorf("lock %s: %w", file, err)
}

// isAt reports whether the locked file still has the name file.
func (l *Lock) isAt(file string) bool {
	mine, err := l.file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(file)
	return err == nil && os.SameFile(mine, there)
}

// Acquire takes the lock on file, and waits for it until ctx is done. It calls waiting once if it must wait.
func Acquire(ctx context.Context, file string, waiting func()) (*Lock, error) {
	for {
		lock, err := Try(file)
		if !errors.Is(err, ErrHeld) {
			return lock, err
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(pollPeriod):
		}
	}
}

// File returns the locked file, which a child process can inherit. The lock is held as long as any process has the file
// open.
func (l *Lock) File() *os.File { return l.file }

// Release releases this process's hold.
func (l *Lock) Release() { l.file.Close() }
