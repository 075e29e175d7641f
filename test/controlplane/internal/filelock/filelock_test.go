// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package filelock

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
)

func TestLockExcludes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	first, err := Try(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Try(file); !errors.Is(err, ErrHeld) {
		t.Errorf("second holder: %v, want ErrHeld", err)
	}
	// Acquire tells once that it must wait, and gets the lock when it is released.
	waited := 0
	second, err := Acquire(t.Context(), file, func() {
		waited++
		first.Release()
	})
	if err != nil || waited != 1 {
		t.Fatalf("waited %d times, %v", waited, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := Acquire(ctx, file, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its context Acquire returned %v", err)
	}
	second.Release()
	third, err := Acquire(t.Context(), file, func() { t.Error("waits for a lock that is free") })
	if err != nil {
		t.Fatal(err)
	}
	third.Release()
}
