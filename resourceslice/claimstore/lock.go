// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstore

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// The pauses between two tries to get a lock that another process has.
const (
	minPause = 2 * time.Millisecond
	maxPause = 100 * time.Millisecond
)

// errBusy is returned by lockRange if another process has the range.
var errBusy = errors.New("another process has the lock")

// locks are locks by name that the goroutines of all processes with one directory
// share. A process that dies loses its locks.
type locks struct {
	// open opens the file whose ranges are locked. It stays empty. If open is nil, only the
	// goroutines of this process share the locks.
	open func() (*os.File, error)

	mu   sync.Mutex
	busy map[string]chan struct{} // closed when the lock is released
}

// opener returns a function that opens a file of locks.
func opener(file string) func() (*os.File, error) {
	return func() (*os.File, error) { return os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600) }
}

// lock takes all locks with these names and returns a function that releases them.
// Every caller takes them in one order, so no two callers wait for each other.
func (l *locks) lock(ctx context.Context, names ...string) (unlock func(), err error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	var mine []string
	var file *os.File
	release := func() {
		_ = file.Close() // releases the ranges; an error if no file is open
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, name := range mine {
			close(l.busy[name])
			delete(l.busy, name)
		}
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	for _, name := range names {
		if err := l.lockHere(ctx, name); err != nil {
			return nil, err
		}
		mine = append(mine, name)
	}
	if l.open == nil {
		return release, nil
	}
	file, err = l.open()
	if errors.Is(err, syscall.EROFS) {
		// Other processes can't write a record either, and to read one needs no lock.
		return release, nil
	}
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		sum := sha256.Sum256([]byte(name))
		at := int64(binary.BigEndian.Uint64(sum[:]) >> 2)
		if err := try(ctx, func() error { return lockRange(file, at) }); err != nil {
			return nil, err
		}
	}
	return release, nil
}

// lockHere takes a lock from the other goroutines of this process.
func (l *locks) lockHere(ctx context.Context, name string) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		l.mu.Lock()
		released, taken := l.busy[name]
		if !taken {
			l.busy[name] = make(chan struct{})
			l.mu.Unlock()
			return nil
		}
		l.mu.Unlock()
		select {
		case <-released:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// try calls f until it does not return errBusy.
func try(ctx context.Context, f func() error) error {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		err := f()
		if !errors.Is(err, errBusy) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}
