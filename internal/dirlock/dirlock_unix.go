// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !aix && !solaris

package dirlock

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Lock locks a directory, or a file in it, for as long as f is open, without waiting.
// The kernel drops the lock however the process ends; a child that was forked and has
// not yet called exec holds it a moment longer.
func Lock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrHeld
	}
	if err != nil {
		return fmt.Errorf("flock %s: %w", f.Name(), err)
	}
	return nil
}
