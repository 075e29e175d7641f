// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package filelock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
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
	// Acquire reports once that it must wait, and gets the lock when it is released.
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

// TestHoldersMayRemoveTheFile checks that a process that waits for a lock does not get it on a removed file, which no
// other process can see.
func TestHoldersMayRemoveTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	holders := 0
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				lock, err := Try(file)
				if errors.Is(err, ErrHeld) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				count := func(d int) int {
					mu.Lock()
					defer mu.Unlock()
					holders += d
					return holders
				}
				if n := count(1); n != 1 {
					t.Errorf("%d holders", n)
				}
				runtime.Gosched()
				count(-1)
				if err := os.Remove(file); err != nil {
					t.Error(err)
				}
				lock.Release()
			}
		})
	}
	wg.Wait()
}
