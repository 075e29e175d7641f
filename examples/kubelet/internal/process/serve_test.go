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

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/examples/kubelet/internal/shim"
	"github.com/kubewright/kubewright/internal/record"
	"github.com/kubewright/kubewright/podsync"
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

// attach connects to a container and returns the side of the client. The error of
// Attach is sent when it has returned.
func (r *rig) attach(ref podsync.Ref, container string, s IO) (stdin io.WriteCloser, stdout io.Reader, ended <-chan error) {
	r.Helper()
	run, err := r.runtime.Find(r.Context(), ref.UID, container, false)
	if err != nil {
		r.Fatal(err)
	}
	in, stdin := io.Pipe()
	stdout, out := io.Pipe()
	s.Stdin, s.Stdout = in, out
	done := make(chan error, 1)
	go func() {
		err := run.Attach(r.Context(), s)
		_ = out.Close()
		done <- err
	}()
	return stdin, stdout, done
}

func TestAttachHasATerminalThatIsResized(t *testing.T) {
	r := newRig(t)
	c := r.container("c", `echo before; stty -echo; until [ "$(stty size)" = "31 77" ]; do sleep 0.05; done; read line; echo "got $line"`)
	c.Stdin, c.TTY = true, true
	ref := r.begin(newPod(corev1.RestartPolicyNever, c))
	r.await(ref, "it to run", allRunning)
	sizes := make(chan shim.Size, 1)
	sizes <- shim.Size{Rows: 31, Columns: 77}
	close(sizes)
	stdin, stdout, ended := r.attach(ref, "c", IO{Resize: sizes})
	if _, err := io.WriteString(stdin, "word\n"); err != nil {
		t.Fatal(err)
	}
	shown, err := io.ReadAll(stdout)
	if err != nil || !strings.HasSuffix(string(shown), "got word\r\n") {
		t.Errorf("%q, %v", shown, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	r.await(ref, "its end", stopped)
}

func TestTheFirstClientEndsTheInputOfStdinOnce(t *testing.T) {
	r := newRig(t)
	c := r.container("c", "cat; echo end; sleep 1000")
	c.Stdin, c.StdinOnce = true, true
	ref := r.begin(newPod(corev1.RestartPolicyNever, c))
	r.await(ref, "it to run", allRunning)
	stdin, stdout, ended := r.attach(ref, "c", IO{})
	if _, err := io.WriteString(stdin, "input\n"); err != nil {
		t.Fatal(err)
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	shown := make([]byte, len("input\nend\n"))
	if _, err := io.ReadFull(stdout, shown); err != nil || string(shown) != "input\nend\n" {
		t.Errorf("%q, %v", shown, err)
	}
	_, _, second := r.attach(ref, "c", IO{})
	if err := <-second; err == nil || !strings.Contains(err.Error(), "the container has no input") {
		t.Errorf("a second client: %v", err)
	}
	r.stopAll()
	if _, err := io.Copy(io.Discard, stdout); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
