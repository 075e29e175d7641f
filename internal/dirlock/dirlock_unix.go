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

// Lock locks a directory for as long as dir is open, without waiting. The kernel
// drops the lock however the process ends; a child that was forked and has not yet
// called exec holds it a moment longer.
func Lock(dir *os.File) error {
	err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrHeld
	}
	if err != nil {
		return fmt.Errorf("flock %s: %w", dir.Name(), err)
	}
	return nil
}
