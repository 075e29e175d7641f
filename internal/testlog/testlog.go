// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package testlog keeps the log of a test and prints it only if the test fails.
// It prints the last lines once, before the first failure message, so that the
// reason is at the end of the output, which is the part that CI shows. A test
// that passes prints nothing.
package testlog

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// kept is the maximum number of lines that are printed.
const kept = 100

// verbosity is the level at which controllers log single writes.
const verbosity = 4

// T is a test with a log. It is safe for concurrent use, in a bubble too.
type T struct {
	*testing.T
	logger klog.Logger

	mu    sync.Mutex
	lines []string // the last lines
	lost  int      // number of lines dropped before them
	told  bool
}

// New returns t with a log.
func New(t *testing.T) *T {
	l := &T{T: t}
	config := textlogger.NewConfig(textlogger.Output((*sink)(l)), textlogger.Verbosity(verbosity))
	l.logger = textlogger.NewLogger(config)
	t.Cleanup(func() {
		if t.Failed() {
			l.Tell() // a failure that did not go through this T
		}
	})
	return l
}

// Context returns the test's context with the log as its logger.
func (t *T) Context() context.Context { return klog.NewContext(t.T.Context(), t.logger) }

// Notef adds a line that the test itself writes, such as its next step.
func (t *T) Notef(format string, args ...any) {
	t.add(time.Now().Format("15:04:05.000 ") + fmt.Sprintf(format, args...))
}

func (t *T) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == kept {
		t.lines = slices.Delete(t.lines, 0, 1)
		t.lost++
	}
	t.lines = append(t.lines, line)
}

// Tell prints the log once, for a test that failed through another T.
func (t *T) Tell() {
	t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.told {
		return
	}
	t.told = true
	if t.lost > 0 {
		t.Logf("(%d lines before these)", t.lost)
	}
	for _, line := range t.lines {
		t.Log(line)
	}
}

// Error prints the log and calls testing.T.Error.
func (t *T) Error(args ...any) {
	t.Helper()
	t.Tell()
	t.T.Error(args...)
}

// Errorf prints the log and calls testing.T.Errorf.
func (t *T) Errorf(format string, args ...any) {
	t.Helper()
	t.Tell()
	t.T.Errorf(format, args...)
}

// Fatal prints the log and calls testing.T.Fatal.
func (t *T) Fatal(args ...any) {
	t.Helper()
	t.Tell()
	t.T.Fatal(args...)
}

// Fatalf prints the log and calls testing.T.Fatalf.
func (t *T) Fatalf(format string, args ...any) {
	t.Helper()
	t.Tell()
	t.T.Fatalf(format, args...)
}

// sink receives the logger's lines.
type sink T

func (s *sink) Write(p []byte) (int, error) {
	(*T)(s).add(string(bytes.TrimRight(p, "\n")))
	return len(p), nil
}
