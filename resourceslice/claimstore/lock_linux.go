// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstore

import (
	"errors"
	"os"
	"syscall"
)

// setOpenFileLock is F_OFD_SETLK of fcntl(2), which package syscall lacks. Unlike
// those of POSIX, such a lock belongs to the open file: closing another file
// descriptor of this process does not release it.
const setOpenFileLock = 37

// lockRange locks a byte until the file is closed. It does not wait.
func lockRange(file *os.File, at int64) error {
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Start: at, Len: 1}
	err := syscall.FcntlFlock(file.Fd(), setOpenFileLock, &lock)
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EINTR) {
		return errBusy
	}
	return err
}
