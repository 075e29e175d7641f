// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubewright/kubewright/examples/kubelet/internal/shim"
	"github.com/kubewright/kubewright/internal/record"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/crilog"
	"github.com/kubewright/kubewright/podsync/podruntime"
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

func TestAFollowedLogEndsWithTheRun(t *testing.T) {
	run := logOf(t, entry(1, "stdout", "F", "first"))
	reader, err := run.Log(crilog.Options{Tail: -1, Follow: true, Ended: run.Over})
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	if n, err := reader.Read(buf); err != nil || string(buf[:n]) != "first\n" {
		t.Fatalf("%q, %v", buf[:n], err)
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
	if _, err := (Instance{log: run.log + "x"}).Log(crilog.Options{}); !apierrors.IsBadRequest(err) {
		t.Errorf("a log that is not there: %v", err)
	}
}

// attach connects to a container and returns the side of the client. The error of
// Attach is sent when it has returned.
func (r *rig) attach(ref podsync.Ref, container string, s IO) (stdin io.WriteCloser, stdout io.Reader, ended <-chan error) {
	r.Helper()
	run, err := r.runtime.Find(ref.UID, container, false)
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

// TestAProgramThatSetsItsTitle: its logs and commands waited without limit, and so did
// probes after a restart of the kubelet, which killed the container.
func TestAProgramThatSetsItsTitle(t *testing.T) {
	r := newRig(t)
	c := r.container("c", "")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c.Command = []string{program}
	c.Env = append(c.Env, corev1.EnvVar{Name: titled, Value: "1"}, corev1.EnvVar{Name: "WORD", Value: "word"})
	ref := r.begin(newPod(corev1.RestartPolicyNever, c))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	command := []string{"sh", "-c", "echo $WORD"}
	for range 2 {
		r.await(ref, "it to run", allRunning)
		run, err := r.runtime.Find(ref.UID, "c", false)
		if err != nil {
			t.Fatal(err)
		}
		reader, err := run.Log(crilog.Options{Tail: -1, Follow: true, Ended: run.Over})
		if err != nil {
			t.Fatal(err)
		}
		title := make([]byte, len("<nil>\n"))
		if _, err := io.ReadFull(reader, title); err != nil || string(title) != "<nil>\n" {
			t.Errorf("it has no title: %q, %v", title, err)
		}
		_ = reader.Close()
		var out bytes.Buffer
		if err := run.Exec(ctx, command, IO{Stdout: &out}); err != nil || out.String() != "word\n" {
			t.Errorf("exec printed %q, %v", &out, err)
		}
		result, err := r.runtime.Exec(ctx, podruntime.ContainerID{Pod: ref.UID, Name: "c"}, command)
		if err != nil || string(result.Output) != "word\n" {
			t.Errorf("a probe printed %q, %v", result.Output, err)
		}
		if runs, err := shim.Runs(filepath.Join(r.root, "pods")); err != nil || runs[run.pid] != run.dir {
			t.Errorf("its usage is not that of its container: it belongs to %q, %v", runs[run.pid], err)
		}
		r.restart()
	}
}

// running starts a pod whose container "c" runs a script, and returns the run.
func (r *rig) running(script string) Instance {
	r.Helper()
	ref := r.begin(newPod(corev1.RestartPolicyNever, r.container("c", script)))
	r.await(ref, "it to run", allRunning)
	run, err := r.runtime.Find(ref.UID, "c", false)
	if err != nil {
		r.Fatal(err)
	}
	return run
}

// A slowClient does not read for some time after the first bytes.
type slowClient struct{ got bytes.Buffer }

func (s *slowClient) Write(p []byte) (int, error) {
	if s.got.Len() == 0 {
		<-time.After(2 * leftOpen)
	}
	return s.got.Write(p)
}

// TestASlowClientGetsTheWholeOutput: the rest was dropped a second after the end of the
// command, which was reported as a success.
func TestASlowClientGetsTheWholeOutput(t *testing.T) {
	r := newRig(t)
	run := r.running(forever)
	var execs sync.WaitGroup
	for size, resize := range map[int]chan shim.Size{90_000: nil, 4_000: make(chan shim.Size)} { // the latter in a terminal
		execs.Go(func() {
			if resize != nil {
				close(resize)
			}
			var stdout, stderr slowClient
			s := IO{Stdout: &stdout, Stderr: &stderr, Resize: resize}
			err := run.Exec(t.Context(), []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/zero; echo -n end >&2", size)}, s)
			if n := stdout.got.Len() + stderr.got.Len(); err != nil || n != size+len("end") {
				t.Errorf("%d bytes of %d, %v", n, size, err)
			}
		})
	}
	execs.Wait()
}

// TestAnOutputThatIsLeftOpenEnds: by a process that the command leaves behind.
func TestAnOutputThatIsLeftOpenEnds(t *testing.T) {
	from, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = end.Close() }()
	var got bytes.Buffer
	out := newOutput()
	out.copy(&got, from)
	if _, err := end.WriteString("all"); err != nil {
		t.Fatal(err)
	}
	if err := out.wait(t.Context()); err != nil || got.String() != "all" {
		t.Errorf("%q, %v", &got, err)
	}
}

// TestAClientThatIsGoneIsNotWaitedFor: its output may be blocked.
func TestAClientThatIsGoneIsNotWaitedFor(t *testing.T) {
	from, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	blocked, far := io.Pipe() // far is not read
	defer func() { _ = errors.Join(end.Close(), blocked.Close(), far.Close()) }()
	out := newOutput()
	out.copy(far, from)
	if _, err := end.WriteString("all"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := out.wait(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
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

// TestACommandClosesItsTerminalForAWhile: it goes on, since only the output has ended.
func TestACommandClosesItsTerminalForAWhile(t *testing.T) {
	r := newRig(t)
	run := r.running("exec sleep 1000")
	sizes := make(chan shim.Size)
	close(sizes)
	var out bytes.Buffer
	command := "exec </dev/null >/dev/null 2>&1; sleep 0.5; exit 7"
	err := run.Exec(t.Context(), []string{"sh", "-c", command}, IO{Stdout: &out, Resize: sizes})
	if err == nil || !strings.Contains(err.Error(), "7") {
		t.Errorf("%v, want exit code 7", err)
	}
}
