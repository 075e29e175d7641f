// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubewright/kubewright/internal/record"
)

func TestALogBeginsSoManyLinesBeforeItsEnd(t *testing.T) {
	long := strings.Repeat("x", 40<<10)
	for _, c := range []struct {
		text  string
		lines int64
		want  string
	}{
		{"a\nb\nc\n", -1, "a\nb\nc\n"},
		{"a\nb\nc\n", 0, ""},
		{"a\nb\nc\n", 1, "c\n"},
		{"a\nb\nc\n", 3, "a\nb\nc\n"},
		{"a\nb\nc\n", 9, "a\nb\nc\n"},
		{"a\nb\nc", 1, "c"},
		{"a\nb\nc", 2, "b\nc"},
		{"a\n\n\n", 2, "\n\n"},
		{"", 2, ""},
		{long + "\n" + long + "\nend\n", 2, long + "\nend\n"},
	} {
		log := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(log, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		reader, err := Instance{log: log}.Log(c.lines, false)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(reader)
		if err = errors.Join(err, reader.Close()); err != nil || string(got) != c.want {
			t.Errorf("%.20q, %d lines: %d bytes %.20q, %v", c.text, c.lines, len(got), got, err)
		}
	}
}

func TestAFollowedLogEndsWithTheRunOrWithClose(t *testing.T) {
	dir := t.TempDir()
	run := Instance{dir: filepath.Join(dir, "0"), log: filepath.Join(dir, "0.log")}
	if err := errors.Join(os.Mkdir(run.dir, 0o700), os.WriteFile(run.log, []byte("first\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	reader, err := run.Log(-1, true)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	if n, err := reader.Read(buf); err != nil || string(buf[:n]) != "first\n" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	closed, err := run.Log(0, true)
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
	if err := errors.Join(os.WriteFile(run.log, []byte("first\nlast\n"), 0o600), record.Write(filepath.Join(run.dir, "exit.json"), map[string]int{"code": 0})); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(reader); err != nil || string(rest) != "last\n" {
		t.Errorf("%q, %v", rest, err)
	}
	if err := reader.Close(); err != nil {
		t.Error(err)
	}
}
