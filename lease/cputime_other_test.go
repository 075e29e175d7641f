// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package lease

import (
	"testing"
	"time"
)

// cpuTime returns 0: only Unix has the system call.
func cpuTime(*testing.B) time.Duration { return 0 }
