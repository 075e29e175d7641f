// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubewright/kubewright/internal/record"
)

// entry returns a log entry of a second of 2026.
func entry(second int, stream, tag, text string) string {
	return fmt.Sprintf("2026-01-02T03:04:%02d.000000000Z %s %s %s\n", second, stream, tag, text)
}

// logOf returns an Instance with a log.
func logOf(t *testing.T, log string) Instance {
	t.Helper()
	run := Instance{dir: filepath.Join(t.TempDir(), "0"), log: filepath.Join(t.TempDir(), "log")}
	if err := errors.Join(os.Mkdir(run.dir, 0o700), os.WriteFile(run.log, []byte(log), 0o600)); err != nil {
		t.Fatal(err)
	}
	return run
}

func readLog(t *testing.T, run Instance, opts LogOptions) string {
	t.Helper()
	reader, err := run.Log(opts)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(reader)
	if err = errors.Join(err, reader.Close()); err != nil {
		t.Fatal(err)
	}
	return string(got)
}

func TestALogBeginsSoManyLinesBeforeItsEnd(t *testing.T) {
	long := strings.Repeat("x", 16<<10)
	full := func(texts ...string) (log string) {
		for _, text := range texts {
			log += entry(1, "stdout", "F", text)
		}
		return log
	}
	part := func(text string) string { return entry(1, "stdout", "P", text) }
	for _, c := range []struct {
		log   string
		lines int64
		want  string
	}{
		{full("a", "b", "c"), -1, "a\nb\nc\n"},
		{full("a", "b", "c"), 0, ""},
		{full("a", "b", "c"), 1, "c\n"},
		{full("a", "b", "c"), 2, "b\nc\n"},
		{full("a", "b", "c"), 3, "a\nb\nc\n"},
		{full("a", "b", "c"), 9, "a\nb\nc\n"},
		{full("a", "b") + part("c"), 1, "c"},
		{full("a", "b") + part("c"), 2, "b\nc"},
		{full("a") + part("b1 ") + part("b2 ") + full("b3", "c"), 2, "b1 b2 b3\nc\n"},
		{part("a1 ") + full("a2", "b"), 1, "b\n"},
		{part("a1 ") + full("a2", "b"), 2, "a1 a2\nb\n"},
		{part("a1 ") + part("a2"), 1, "a1 a2"},
		{full("a", "", ""), 2, "\n\n"},
		{full("a"), 1, "a\n"},
		{"", 2, ""},
		{full("a", "b") + "2026-01-02T03", 1, "b\n"}, // cut off by a crash
		{full("a") + "2026-01\n" + full("b"), 2, "2026-01\nb\n"},
		{full("first") + part(long) + part(long) + full("", long, "end"), 3, long + long + "\n" + long + "\nend\n"},
	} {
		if got := readLog(t, logOf(t, c.log), LogOptions{Lines: c.lines}); got != c.want {
			t.Errorf("%.200q, %d lines: %d bytes %.100q, want %.100q", c.log, c.lines, len(got), got, c.want)
		}
	}
}

func TestALogHasTimesAndStreams(t *testing.T) {
	run := logOf(t, entry(1, "stdout", "F", "one")+entry(2, "stderr", "F", "two")+entry(3, "stdout", "P", "th")+entry(4, "stdout", "F", "ree")+
		"damaged\n"+entry(5, "stdout", "F", "with spaces  and F P"))
	at := func(second int) string { return fmt.Sprintf("2026-01-02T03:04:%02d.000000000Z ", second) }
	for name, c := range map[string]struct {
		opts LogOptions
		want string
	}{
		"all":        {LogOptions{Lines: -1}, "one\ntwo\nthree\ndamaged\nwith spaces  and F P\n"},
		"times":      {LogOptions{Lines: -1, Timestamps: true}, at(1) + "one\n" + at(2) + "two\n" + at(3) + "three\ndamaged\n" + at(5) + "with spaces  and F P\n"},
		"stdout":     {LogOptions{Lines: -1, Stream: "stdout"}, "one\nthree\ndamaged\nwith spaces  and F P\n"},
		"stderr":     {LogOptions{Lines: -1, Stream: "stderr"}, "two\n"},
		"since":      {LogOptions{Lines: -1, Since: time.Date(2026, 1, 2, 5, 4, 3, 0, time.FixedZone("", 2*3600))}, "three\nwith spaces  and F P\n"},
		"since soon": {LogOptions{Lines: -1, Since: time.Date(2026, 1, 2, 3, 4, 5, 1, time.UTC)}, ""},
		"tail since": {LogOptions{Lines: 1, Since: time.Date(2026, 1, 2, 3, 4, 2, 0, time.UTC)}, "with spaces  and F P\n"},
	} {
		if got := readLog(t, run, c.opts); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestTheEndOfTheOutputIsThatOfManyShortLinesToo(t *testing.T) {
	var log strings.Builder
	for range 5000 {
		log.WriteString(entry(1, "stdout", "F", ""))
	}
	log.WriteString(entry(1, "stderr", "P", "end"))
	for limit, want := range map[int64]string{0: "", 2: "nd", 3: "end", 1000: strings.Repeat("\n", 997) + "end", 1 << 20: strings.Repeat("\n", 5000) + "end"} {
		if got, err := lastOutput(logOf(t, log.String()).log, limit); err != nil || string(got) != want {
			t.Errorf("the last %d bytes: %d bytes, %v, want %d", limit, len(got), err, len(want))
		}
	}
}

func TestAFollowedLogEndsWithTheRunOrWithClose(t *testing.T) {
	run := logOf(t, entry(1, "stdout", "F", "first"))
	reader, err := run.Log(LogOptions{Lines: -1, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	if n, err := reader.Read(buf); err != nil || string(buf[:n]) != "first\n" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	closed, err := run.Log(LogOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := closed.Read(make([]byte, 1))
		ended <- err
	}()
	if err := closed.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("a reader that was closed returned %v", err)
	}
	// The last words come before the end of the run is seen.
	text := entry(1, "stdout", "F", "first") + entry(2, "stdout", "P", "la") + entry(2, "stdout", "F", "st")
	if err := errors.Join(os.WriteFile(run.log, []byte(text), 0o600), record.Write(filepath.Join(run.dir, "exit.json"), map[string]int{"code": 0})); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(reader); err != nil || string(rest) != "last\n" {
		t.Errorf("%q, %v", rest, err)
	}
	if err := reader.Close(); err != nil {
		t.Error(err)
	}
}
