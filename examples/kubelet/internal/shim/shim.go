// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/kubewright/kubewright/internal/record"
	"github.com/kubewright/kubewright/podsync/crilog"
)

// Name is the process name of a shim.
const Name = "kubelet-shim"

// Main runs a shim and does not return if this process was started as one;
// otherwise it returns immediately. A program that uses this package calls it first
// in main, and in TestMain.
func Main() {
	if len(os.Args) != 2 || os.Args[0] != Name {
		return
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// The files that a shim is started with.
const (
	aliveFD   = 3
	controlFD = 4
	commandFD = 5
)

// prSetChildSubreaper is PR_SET_CHILD_SUBREAPER of prctl(2).
const prSetChildSubreaper = 36

// reaper is a shim at work. All of it is one goroutine, so that a process is
// never signalled after it was reaped, when its number may be another's.
type reaper struct {
	dir     string
	alive   *os.File
	command *os.File // is read by Environ, too

	pid      int // the command, which leads its process group
	log      *logger
	terminal *os.File // master; nil if the command has none
	input    *os.File // keeps the command's input from ending; nil if it has ended

	started time.Time
	running *Running  // as long as it is not on the disk
	exit    *Exit     // once it has ended
	over    bool      // and nothing is left of it
	asked   bool      // to end
	killAt  time.Time // the earliest deadline of a stop
	kill    <-chan time.Time
}

// retryWrite is the time between two tries to write to a disk that is full.
const retryWrite = 500 * time.Millisecond

func run(dir string) error {
	s := &reaper{dir: dir, alive: os.NewFile(aliveFD, aliveFile), command: os.NewFile(commandFD, "command")}
	control := os.NewFile(controlFD, controlFile)
	if err := keepFiles(); err != nil {
		return err
	}
	// The command is killed when the thread that started it dies.
	runtime.LockOSThread()
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		return fmt.Errorf("prctl: %w", errno)
	}
	// The command is stopped through control, not by signals. They are caught and
	// not ignored, because the command would inherit ignored signals.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)

	var c Command
	if err := json.NewDecoder(s.command).Decode(&c); err != nil {
		return fmt.Errorf("no command: %w", err)
	}
	if err := s.start(c); err != nil {
		return err
	}
	orders := make(chan order)
	go watch(control, orders)
	gone := make(chan struct{})
	if c.Bound {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			close(gone)
		}()
	}
	for {
		if err := s.reap(); err != nil {
			return err
		}
		if s.over {
			s.log.drain() // the exit comes after all output
		}
		var again <-chan time.Time
		switch kept, err := s.keep(); {
		case err != nil:
			return err
		case !kept:
			again = time.After(retryWrite)
		case s.over:
			return nil
		}
		select {
		case <-died:
		case <-again:
		case o := <-orders:
			s.obey(o)
		case <-s.kill:
			s.kill = nil
			s.killAll()
		case <-gone:
			gone = nil
			s.killAll()
		}
	}
}

// keepFiles makes the open files of this process close in the command: its own
// pipes, and files that the kubelet may have been started with.
func keepFiles() error {
	entries, err := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	return err
}

// watch reads orders from control.
func watch(control io.Reader, orders chan<- order) {
	for d := json.NewDecoder(control); ; {
		var o order
		if d.Decode(&o) != nil {
			return
		}
		orders <- o
	}
}

func (s *reaper) obey(o order) {
	switch {
	case o.Stop != nil:
		s.stop(*o.Stop)
	case o.Size != nil && s.terminal != nil:
		_ = ResizeTerminal(s.terminal, o.Size.Rows, o.Size.Columns) // the kernel signals the command
	case o.EndInput && s.input != nil:
		_ = os.Remove(filepath.Join(s.dir, inputFile))
		if s.terminal == nil {
			_ = s.input.Close()
			s.input = nil
		}
	}
}

// start runs the command. A command that can't be run has ended. If its output has
// no place to go it has not been started, and may be later.
func (s *reaper) start(c Command) error {
	file, err := os.OpenFile(c.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return err
	}
	s.log = &logger{f: file}
	if err := os.WriteFile(filepath.Join(s.dir, startingFile), nil, 0o600); err != nil {
		return err
	}
	s.started = time.Now()
	s.pid, err = s.execute(c)
	if err != nil {
		s.exit = &Exit{Code: 128, Reason: ReasonStartError, Message: err.Error(), StartedAt: s.started, FinishedAt: s.started}
		return nil
	}
	s.running = &Running{PID: s.pid, StartedAt: s.started}
	return nil
}

// keep writes the state that is not on the disk yet, and reports whether all of it
// is. The shim retries if the disk is full, because only the shim knows how the
// command ended.
func (s *reaper) keep() (kept bool, err error) {
	switch {
	case s.over:
		err = record.Write(filepath.Join(s.dir, exitFile), s.exit)
	case s.running != nil:
		if err = record.Write(filepath.Join(s.dir, runningFile), s.running); err == nil {
			s.running = nil
			s.tell()
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, err // the directory was removed
	}
	return err == nil, nil
}

// execute starts the command and connects its streams.
func (s *reaper) execute(c Command) (int, error) {
	if len(c.Args) == 0 {
		return 0, errors.New("the container has no command, and images are not pulled")
	}
	// The program is searched in the command's directory and PATH.
	if err := os.Chdir(c.Dir); err != nil {
		return 0, err
	}
	for _, v := range c.Env {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			if err := os.Setenv("PATH", path); err != nil {
				return 0, err
			}
		}
	}
	program, err := exec.LookPath(c.Args[0])
	if err != nil {
		return 0, err
	}
	if len(c.CPUs) > 0 {
		if err := pin(c.CPUs); err != nil {
			return 0, fmt.Errorf("run on CPUs %v: %w", c.CPUs, err)
		}
	}
	attr := &syscall.ProcAttr{Env: c.Env, Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}}
	files, err := s.connect(c, attr)
	defer func() {
		for _, f := range files {
			_ = f.Close() // the command has copies
		}
	}()
	if err != nil {
		return 0, err
	}
	return syscall.ForkExec(program, c.Args, attr)
}

// connect makes the streams of the command, and copies its output to the log. The
// caller closes the files, which are those of the command.
func (s *reaper) connect(c Command, attr *syscall.ProcAttr) (files []*os.File, err error) {
	if c.Stdin {
		// It has a reader and a writer from now on, so opening it never waits.
		if s.input, err = os.OpenFile(filepath.Join(s.dir, inputFile), os.O_RDWR, 0); err != nil {
			return nil, err
		}
	}
	if c.TTY {
		master, slave, err := OpenTerminal()
		if err != nil {
			return nil, err
		}
		s.terminal = master
		s.log.read(crilog.Stdout, master)
		if s.input != nil {
			go func() { _, _ = io.Copy(master, s.input) }()
		}
		attr.Sys.Setctty = true
		attr.Files = []uintptr{slave.Fd(), slave.Fd(), slave.Fd()}
		return []*os.File{slave}, nil
	}
	path := os.DevNull
	if c.Stdin {
		path = filepath.Join(s.dir, inputFile)
	}
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	files = append(files, in)
	attr.Files = append(attr.Files, in.Fd())
	for _, stream := range []string{crilog.Stdout, crilog.Stderr} {
		from, to, err := os.Pipe()
		if err != nil {
			return files, err
		}
		s.log.read(stream, from)
		files = append(files, to)
		attr.Files = append(attr.Files, to.Fd())
	}
	return files, nil
}

// pin restricts this thread, and the processes that it starts, to these CPUs.
func pin(cpus []int) error {
	const bits = 8 * unsafe.Sizeof(uintptr(0))
	mask := make([]uintptr, uintptr(slices.Max(cpus))/bits+1)
	for _, n := range cpus {
		mask[uintptr(n)/bits] |= 1 << (uintptr(n) % bits)
	}
	_, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, uintptr(len(mask))*bits/8, uintptr(unsafe.Pointer(&mask[0])))
	if errno != 0 {
		return errno
	}
	return nil
}

// tell wakes the follower of the run, if there is one.
func (s *reaper) tell() { _, _ = s.alive.Write([]byte{0}) }

// reap waits for dead processes. Once the command is dead, it kills the remaining
// ones until there are none.
func (s *reaper) reap() error {
	for !s.over {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
		case err == syscall.ECHILD:
			if s.exit == nil {
				return fmt.Errorf("process %d vanished", s.pid)
			}
			s.over = true
		case err != nil:
			return fmt.Errorf("wait: %w", err)
		case pid == 0: // some processes live
			if s.exit != nil {
				s.killAll()
			}
			return nil
		case pid == s.pid:
			s.ended(status)
		}
	}
	return nil
}

func (s *reaper) ended(status syscall.WaitStatus) {
	s.exit = &Exit{Code: int32(status.ExitStatus()), Reason: ReasonCompleted, StartedAt: s.started, FinishedAt: time.Now()}
	if status.Signaled() {
		s.exit.Signal = int32(status.Signal())
		s.exit.Code = 128 + s.exit.Signal
	}
	if s.exit.Code != 0 {
		s.exit.Reason = ReasonError
	}
}

// stop asks the command to end, and has it killed later.
func (s *reaper) stop(st stop) {
	if !s.asked && s.exit == nil {
		s.asked = true
		_ = syscall.Kill(-s.pid, syscall.SIGTERM)
	}
	if s.killAt.IsZero() || st.Deadline.Before(s.killAt) {
		s.killAt, s.kill = st.Deadline, time.After(time.Until(st.Deadline))
	}
}

// killAll kills the command's process group and every child, including orphaned
// descendants. Their own descendants become children of this process when they die,
// and the next call kills those.
func (s *reaper) killAll() {
	if s.exit == nil {
		_ = syscall.Kill(-s.pid, syscall.SIGKILL)
	}
	if err := killChildren(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
