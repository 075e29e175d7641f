// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package lease

import (
	"syscall"
	"testing"
	"time"
)

func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
