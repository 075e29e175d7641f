// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package process runs the servers of a cluster as child processes that do not outlive their parent. It requires Linux:
// procfs and parent-death signals.
package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Spec describes a process to start.
type Spec struct {
	Name string // the component's name, and argv[0]
	Path string
	Args []string // without argv[0]
	Dir  string
	Log  string // file that standard output and error are appended to
}

// Process is a child process.
type Process struct {
	Spec
	Identity
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // valid after exited is closed
}

// Spawner starts processes that the kernel kills when this process ends, even by SIGKILL.
//
// The parent-death signal belongs to the thread that forked, not to the process, and the Go runtime ends threads at any
// time. So one goroutine, which is locked to its thread and never ends, forks all processes.
type Spawner struct {
	requests chan func()
}

// NewSpawner returns a Spawner. Its goroutine lives as long as this process.
func NewSpawner() *Spawner {
	s := &Spawner{requests: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for f := range s.requests {
			f()
		}
	}()
	return s
}

// Start starts a process.
func (s *Spawner) Start(spec Spec) (*Process, error) {
	log, err := os.OpenFile(spec.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &Process{Spec: spec, exited: make(chan struct{})}
	p.cmd = &exec.Cmd{
		Path:   spec.Path,
		Args:   append([]string{spec.Name}, spec.Args...),
		Dir:    spec.Dir,
		Stdout: log,
		Stderr: log,
		Env:    environment(os.Environ()),
		SysProcAttr: &syscall.SysProcAttr{
			Setpgid:   true, // Ctrl-C on a terminal must reach only the launcher, which then stops its children
			Pdeathsig: syscall.SIGKILL,
		},
	}
	started := make(chan error)
	s.requests <- func() { started <- p.cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	// The PID cannot be reused before Wait below returns.
	p.Identity, err = Identify(p.cmd.Process.Pid)
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	if err != nil {
		<-p.exited
		return nil, fmt.Errorf("start %s: it ended at once (%v)", spec.Name, p.err)
	}
	return p, nil
}

// environment returns env without variables that would change the servers' behavior independently of their flags.
func environment(env []string) []string {
	var kept []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case strings.HasPrefix(name, "ETCD_"): // every flag of etcd
		case strings.HasPrefix(name, "KUBE_"): // feature gates of client-go, cache mutation detectors
		case strings.HasPrefix(name, "KUBERNETES_"): // in-cluster configuration
		case name == "KUBECONFIG":
		case strings.HasSuffix(strings.ToLower(name), "_proxy"): // all traffic is on the loopback interface
		default:
			kept = append(kept, kv)
		}
	}
	return kept
}

// Exited is closed when the process has ended and been reaped.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// HasExited reports whether the process has ended and been reaped.
func (p *Process) HasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// Err returns nil if the process ended with status 0, and otherwise an error with the reason. It may be called after
// Exited is closed.
func (p *Process) Err() error { return p.err }

// Kill kills the process and waits for its end.
func (p *Process) Kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.exited
	return nil
}

// Terminate sends the process SIGTERM and waits for its end, at most for timeout.
func (p *Process) Terminate(timeout time.Duration) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.exited:
		return nil
	case <-time.After(timeout):
		return fmt.Errorf("%s still runs %s after SIGTERM", p.Name, timeout)
	}
}

// signalDeadline bounds the time that the kernel needs to stop all threads of a process.
const signalDeadline = 10 * time.Second

// Pause stops the process, as if its machine hung: its sockets stay open. It returns when all its threads are stopped.
func (p *Process) Pause() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return p.await("stop", func(state byte) bool { return state == 'T' || state == 't' })
}

// Resume undoes Pause.
func (p *Process) Resume() error {
	if err := p.signal(syscall.SIGCONT); err != nil {
		return err
	}
	return p.await("continue", func(state byte) bool { return state != 'T' && state != 't' })
}

// Paused reports whether the process is stopped.
func (p *Process) Paused() bool {
	state, _, err := stat(fmt.Sprintf("/proc/%d/stat", p.PID))
	return err == nil && (state == 'T' || state == 't')
}

func (p *Process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("%s: %v: %w", p.Name, sig, err)
	}
	return nil
}

// await waits until every thread is in a wanted state.
func (p *Process) await(verb string, wanted func(state byte) bool) error {
	deadline := time.Now().Add(signalDeadline)
	for {
		all, err := p.allThreads(wanted)
		if err != nil || all {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s did not %s within %s", p.Name, verb, signalDeadline)
		}
		time.Sleep(time.Millisecond)
	}
}

func (p *Process) allThreads(wanted func(state byte) bool) (bool, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.PID))
	if err != nil {
		return false, err
	}
	if len(files) == 0 {
		return false, fmt.Errorf("%s: %w", p.Name, ErrNoProcess)
	}
	for _, file := range files {
		state, _, err := stat(file)
		if errors.Is(err, ErrNoProcess) {
			continue // the thread ended in the meantime
		}
		if err != nil {
			return false, err
		}
		if !wanted(state) {
			return false, nil
		}
	}
	return true, nil
}

// KillAll kills all processes and waits for them to end.
func KillAll(processes []*Process) error {
	errs := make([]error, len(processes))
	var wg sync.WaitGroup
	for i, p := range processes {
		wg.Go(func() { errs[i] = p.Kill() })
	}
	wg.Wait()
	return errors.Join(errs...)
}
