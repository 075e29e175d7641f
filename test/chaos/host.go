// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
)

// A host implements the parts of testing.TB that package harness needs, outside
// of a test. Unlike a test, this program cleans up when a signal stops it. Only
// the methods below may be called.
type host struct {
	testing.TB
	ctx context.Context

	mu       sync.Mutex
	cleanups []func()
	failed   bool
	notes    []string
}

// A stopped is the panic value with which Fatalf and Skip end a call.
type stopped struct{ error }

// try calls a function that may call Fatalf.
func (h *host) try(f func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case stopped:
			err = r.error
		default:
			panic(r)
		}
	}()
	f()
	return nil
}

func (h *host) Helper()                  {}
func (h *host) Context() context.Context { return h.ctx }
func (h *host) Fatal(args ...any)        { panic(stopped{errors.New(fmt.Sprint(args...))}) }
func (h *host) Fatalf(format string, args ...any) {
	panic(stopped{fmt.Errorf(format, args...)})
}
func (h *host) Skip(args ...any) { h.Fatal(args...) }
func (h *host) Log(args ...any)  { h.note(fmt.Sprint(args...)) }

func (h *host) Errorf(format string, args ...any) {
	h.note(fmt.Sprintf(format, args...))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failed = true
}

func (h *host) Failed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed
}

func (h *host) Cleanup(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cleanups = append(h.cleanups, f)
}

func (h *host) note(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notes = append(h.notes, text)
}

// close runs the cleanup functions, and returns the reported errors.
func (h *host) close() (notes []string) {
	for _, f := range slices.Backward(h.cleanups) {
		f()
	}
	if !h.failed {
		return nil
	}
	return h.notes
}
