// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package testlog keeps what a test logs for the case that it fails. Then the
// last lines are printed, once, in front of the first failure, so that the
// reason stands at the end of the output: that is the part which CI shows. A
// test that passes prints nothing, whatever becomes of its neighbours.
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

// kept is how many lines are printed at most.
const kept = 100

// verbosity is what controllers log of single writes.
const verbosity = 4

// T is a test with a log. It can be used by any number of goroutines, in a
// bubble too.
type T struct {
	*testing.T
	logger klog.Logger

	mu    sync.Mutex
	lines []string // the last ones
	lost  int      // how many went before them
	told  bool
}

// New returns t with a log.
func New(t *testing.T) *T {
	l := &T{T: t}
	config := textlogger.NewConfig(textlogger.Output((*sink)(l)), textlogger.Verbosity(verbosity))
	l.logger = textlogger.NewLogger(config)
	t.Cleanup(func() {
		if t.Failed() {
			l.Tell() // something failed that went past the log
		}
	})
	return l
}

// Context returns the context of the test with the log as its logger.
func (t *T) Context() context.Context { return klog.NewContext(t.T.Context(), t.logger) }

// Notef adds a line of the test's own, such as what it does next.
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

// Tell prints the log, once: for a test that has failed otherwise.
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

// Error is testing.T.Error behind the log.
func (t *T) Error(args ...any) {
	t.Helper()
	t.Tell()
	t.T.Error(args...)
}

// Errorf is testing.T.Errorf behind the log.
func (t *T) Errorf(format string, args ...any) {
	t.Helper()
	t.Tell()
	t.T.Errorf(format, args...)
}

// Fatal is testing.T.Fatal behind the log.
func (t *T) Fatal(args ...any) {
	t.Helper()
	t.Tell()
	t.T.Fatal(args...)
}

// Fatalf is testing.T.Fatalf behind the log.
func (t *T) Fatalf(format string, args ...any) {
	t.Helper()
	t.Tell()
	t.T.Fatalf(format, args...)
}

// sink takes the lines of the logger.
type sink T

func (s *sink) Write(p []byte) (int, error) {
	(*T)(s).add(string(bytes.TrimRight(p, "\n")))
	return len(p), nil
}
