// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubewright/kubewright/internal/record"
)

// Variable is the environment variable by which what descends from a command is
// known. Its value is the folder of the run.
const Variable = "KUBEWRIGHT_RUN"

// A Run is a command under its shim, as seen by the kubelet.
type Run struct {
	dir   string
	alive *os.File
	cmd   *exec.Cmd // nil if an earlier process started the shim
	stdin *os.File  // of the shim; a bound command ends when this is closed
}

// Start runs a command. The directory must exist and hold no other run. If Start
// returns an error, nothing was started.
func Start(dir string, c Command) (*Run, error) {
	c.Env = slices.DeleteFunc(slices.Clone(c.Env), func(v string) bool { return strings.HasPrefix(v, Variable+"=") })
	c.Env = append(c.Env, Variable+"="+dir)
	r, err := fork(dir, c)
	if err != nil {
		return nil, fmt.Errorf("start a shim: %w", err)
	}
	return r, nil
}

// fork makes the FIFOs of a run and the shim that holds them.
func fork(dir string, c Command) (_ *Run, err error) {
	var files []*os.File // closed here, whatever happens; the shim has copies
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	open := func(name string, flag int) *os.File {
		if err != nil {
			return nil
		}
		var f *os.File
		if f, err = os.OpenFile(filepath.Join(dir, name), flag, 0o600); err == nil {
			files = append(files, f)
		}
		return f
	}
	fifos := []string{aliveFile, controlFile}
	if c.Stdin {
		fifos = append(fifos, inputFile)
	}
	for _, name := range fifos {
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			return nil, fmt.Errorf("mkfifo %s: %w", name, err)
		}
	}
	r, err := Open(dir)
	if err != nil {
		return nil, err
	}
	alive := open(aliveFile, os.O_WRONLY|syscall.O_NONBLOCK)
	control := open(controlFile, os.O_RDWR)
	output := open(outputFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	command, err := inMemory(c)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	files = append(files, command)
	r.cmd = &exec.Cmd{
		Path:       "/proc/self/exe", // also after an upgrade has replaced the file
		Args:       []string{Name, dir},
		Dir:        "/",
		Env:        []string{"GOMAXPROCS=1", endAtOnce, Variable + "=" + dir},
		Stdout:     output,
		Stderr:     output,
		ExtraFiles: []*os.File{alive, control, command}, // aliveFD, controlFD, commandFD
		// Signals for the kubelet's process group, as from a terminal, are not
		// for its pods.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if c.Bound {
		from, to, err := os.Pipe()
		if err != nil {
			return nil, errors.Join(err, r.Close())
		}
		files = append(files, from)
		r.cmd.Stdin, r.stdin = from, to
	}
	if err := r.cmd.Start(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// endAtOnce makes the shim of a test, which has the race detector, end without a second of sleep.
const endAtOnce = "GORACE=atexit_sleep_ms=0"

// inMemory returns a file with a command that is not on the disk, because the
// environment may hold secrets. The shim keeps it open, for Environ.
func inMemory(c Command) (*os.File, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("command", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "command")
	if _, err := f.WriteAt(text, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Open returns the run in a folder, which an earlier process may have started.
func Open(dir string) (*Run, error) {
	alive, err := os.OpenFile(filepath.Join(dir, aliveFile), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	return &Run{dir: dir, alive: alive}, nil
}

// Close releases the run, which continues unless it is bound.
func (r *Run) Close() error {
	err := r.alive.Close()
	if r.stdin != nil {
		err = errors.Join(err, r.stdin.Close())
	}
	return err
}

// Follow calls changed for each change of the run's files and returns nil when
// the shim has ended: then either the run has an exit, or it has never started.
// After Close, or when ctx is done, it returns an error. It is called once.
func (r *Run) Follow(ctx context.Context, changed func()) error {
	defer context.AfterFunc(ctx, func() { _ = r.alive.Close() })()
	buf := make([]byte, 16)
	for {
		_, err := r.alive.Read(buf)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		changed()
	}
	if r.cmd != nil {
		_ = r.cmd.Wait() // it has ended; its result is in the files
	}
	if r.stdin != nil {
		_ = r.stdin.Close()
	}
	_ = r.alive.Close()
	st, err := Read(r.dir)
	bound := r.stdin != nil
	if err != nil || !st.MayHaveStarted || st.Exit != nil && bound {
		return err
	}
	// The shim was killed, or another command had the run in its environment and left
	// processes behind. No command runs beside a bound one.
	if err := sweep(ctx, r.dir); err != nil || st.Exit != nil {
		return err
	}
	exit := Exit{Code: 137, Reason: ReasonUnknown, Message: "the process that watched the container was killed", FinishedAt: time.Now()}
	if st.Running != nil {
		exit.StartedAt = st.Running.StartedAt
	}
	return record.Write(filepath.Join(r.dir, exitFile), exit)
}

// Stop sends SIGTERM to the process group of the command. The shim kills the command
// and its descendants at the deadline, even if this process is dead by then. A
// further call can make the deadline earlier. A run that has ended is no error. Stop
// needs no space on the disk, which the command may have filled.
func (r *Run) Stop(deadline time.Time) error {
	return send(r.dir, order{Stop: &stop{Deadline: deadline}})
}

// Resize sets the size of the terminal of the run in a folder. A run that has ended
// or has no terminal is no error.
func Resize(dir string, size Size) error { return send(dir, order{Size: &size}) }

// Input opens the input of the run in a folder. The error is fs.ErrNotExist if the
// run has none, EndInput was called, or the run has ended.
func Input(dir string) (io.WriteCloser, error) {
	input, err := os.OpenFile(filepath.Join(dir, inputFile), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ENXIO) { // no process reads it
		return nil, fs.ErrNotExist
	}
	return input, err
}

// EndInput ends the input of the run in a folder after all that was written to it. A
// terminal has no end of its input, so a command in one just gets no further input.
func EndInput(dir string) error { return send(dir, order{EndInput: true}) }

// send sends an order to the shim of the run in a folder, if it lives.
func send(dir string, o order) error {
	message, err := json.Marshal(o)
	if err != nil {
		return err
	}
	control, err := os.OpenFile(filepath.Join(dir, controlFile), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, syscall.ENXIO), errors.Is(err, fs.ErrNotExist):
		return nil // the shim has ended
	case err != nil:
		return err
	}
	// It is less than PIPE_BUF, so it is written whole or not at all.
	_, err = control.Write(message)
	if err = errors.Join(err, control.Close()); errors.Is(err, syscall.EPIPE) {
		return nil // ended in between
	}
	return err
}
