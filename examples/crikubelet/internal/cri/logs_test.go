// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubewright/kubewright/examples/crikubelet/internal/criserver"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

var logID = podruntime.ContainerID{Pod: "uid", Name: "main"}

// writeLog writes a log and returns its path.
func writeLog(t testing.TB, r *Runtime, text string) string {
	t.Helper()
	path := filepath.Join(r.logDir(logID.Pod), logName(logID))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const log0 = `2026-01-01T00:00:00.000000001Z stdout F one
2026-01-01T00:00:01Z stderr F two
2026-01-01T00:00:02Z stdout P thr
2026-01-01T00:00:03Z stdout F ee
garbage
2026-01-01T00:00:04Z stdout F 
`

func TestLog(t *testing.T) {
	r := newRuntime(t, criserver.Start(t))
	writeLog(t, r, log0)
	all := LogOptions{Tail: -1}
	for name, tc := range map[string]struct {
		change func(*LogOptions)
		want   string
	}{
		"all":        {func(*LogOptions) {}, "one\ntwo\nthree\n\n"},
		"stderr":     {func(o *LogOptions) { o.Stream = "stderr" }, "two\n"},
		"since":      {func(o *LogOptions) { o.Since = time.Date(2026, 1, 1, 0, 0, 2, 0, time.UTC) }, "three\n\n"},
		"timestamps": {func(o *LogOptions) { o.Timestamps, o.Stream = true, "stdout" }, "2026-01-01T00:00:00.000000001Z one\n2026-01-01T00:00:02Z three\n2026-01-01T00:00:04Z \n"},
		"tail 0":     {func(o *LogOptions) { o.Tail = 0 }, ""},
		"tail 1":     {func(o *LogOptions) { o.Tail = 1 }, "\n"},
		"tail 3":     {func(o *LogOptions) { o.Tail = 3 }, "three\n\n"}, // garbage counts
		"tail 4":     {func(o *LogOptions) { o.Tail = 4 }, "two\nthree\n\n"},
		"tail 9":     {func(o *LogOptions) { o.Tail = 9 }, "one\ntwo\nthree\n\n"},
	} {
		opts := all
		tc.change(&opts)
		log, err := r.Log(t.Context(), logID, opts, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(log)
		if err != nil || string(got) != tc.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, tc.want)
		}
		_ = log.Close()
	}
	if got, err := r.LogTail(t.Context(), logID, 5); err != nil || string(got) != "ree\n\n" {
		t.Errorf("LogTail: %q, %v", got, err)
	}
}

// seekTail finds the same lines in a log of several blocks as in a small one.
func TestTailOfALongLog(t *testing.T) {
	r := newRuntime(t, criserver.Start(t))
	var b strings.Builder
	for i := range 10000 {
		fmt.Fprintf(&b, "2026-01-01T00:00:00Z stdout F line %d\n", i)
	}
	writeLog(t, r, b.String())
	for _, n := range []int64{1, 10, 5000, 10000, 20000} {
		log, err := r.Log(t.Context(), logID, LogOptions{Tail: n}, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(log)
		_ = log.Close()
		if lines := strings.Count(string(got), "\n"); lines != int(min(n, 10000)) || !strings.HasSuffix(string(got), "line 9999\n") {
			t.Errorf("the last %d lines: %d", n, lines)
		}
	}
}

// A log that is followed goes on in the file that takes its place, and ends with the
// container.
func TestAFollowedLogSurvivesItsRotation(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	spec := set(t, r, pod())
	if err := r.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	path := writeLog(t, r, "2026-01-01T00:00:00Z stdout F before\n")
	ended := make(chan struct{})
	log, err := r.Log(t.Context(), logID, LogOptions{Tail: -1, Follow: true}, func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 100)
	if n, err := log.Read(buffer); err != nil || string(buffer[:n]) != "before\n" {
		t.Fatalf("%q, %v", buffer[:n], err)
	}
	for range 4 {
		if err := os.WriteFile(path, []byte(strings.Repeat("2026-01-01T00:00:01Z stdout F x\n", 4)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := r.rotateLogs(t.Context(), LogRotation{MaxSize: 100, MaxFiles: 3}); err != nil {
			t.Fatal(err)
		}
	}
	if old, _ := filepath.Glob(path + ".*"); len(old) != 2 {
		t.Errorf("old logs: %v, want two and the current one", old)
	}
	if err := os.WriteFile(path, []byte("2026-01-01T00:00:02Z stdout F after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	close(ended)
	rest, err := io.ReadAll(log)
	if err != nil || !strings.HasSuffix(string(rest), "after\n") {
		t.Errorf("%q, %v", rest, err)
	}
	_ = log.Close()
	if err := r.Stop(t.Context(), logID, podruntime.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.Remove(t.Context(), logID); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) != 0 {
		t.Errorf("after Remove: %v", left)
	}
}

func TestCloseEndsAFollowedLog(t *testing.T) {
	r := newRuntime(t, criserver.Start(t))
	writeLog(t, r, log0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log, err := r.Log(ctx, logID, LogOptions{Follow: true}, func() bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _, _ = io.ReadAll(log) }()
	_ = log.Close()
	<-done
}

func FuzzParseLine(f *testing.F) {
	for line := range strings.Lines(log0) {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if l, err := parseLine(data); err == nil && len(l.text) > len(data) {
			t.Errorf("%q is longer than %q", l.text, data)
		}
	})
}
