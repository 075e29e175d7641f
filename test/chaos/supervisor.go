// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// A supervisor runs the kubelet and restarts it when it ends, like systemd with
// Restart=always and KillMode=process.
type supervisor struct {
	binary string
	args   []string
	log    *os.File

	mu      sync.Mutex
	process *os.Process
	wanted  bool
	changed chan struct{} // closed at the next change
	byUs    bool          // the supervisor signalled the process to end
	exits   []kubeletExit
	starts  int
}

// A kubeletExit is one exit of the kubelet.
type kubeletExit struct {
	At    time.Time
	State string
	ByUs  bool
	Code  int // -1 for a signal
}

// restartDelay is the delay after an unexpected exit.
const restartDelay = 300 * time.Millisecond

func newSupervisor(binary, log string, args ...string) (*supervisor, error) {
	f, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &supervisor{binary: binary, args: args, log: f, changed: make(chan struct{})}, nil
}

// run keeps the kubelet running as long as it is wanted, until ctx is done.
// Then run kills it if it is still running.
func (s *supervisor) run(ctx context.Context) error {
	defer s.log.Close()
	for {
		s.mu.Lock()
		wanted, changed := s.wanted, s.changed
		s.mu.Unlock()
		if !wanted {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		cmd := exec.CommandContext(ctx, s.binary, s.args...)
		cmd.Stdout, cmd.Stderr = s.log, s.log
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		fmt.Fprintf(s.log, "=== %s start\n", time.Now().UTC().Format(time.StampMilli))
		s.mu.Lock()
		err := cmd.Start()
		if err == nil {
			s.process, s.byUs = cmd.Process, false
			s.starts++
			s.announce()
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
		_ = cmd.Wait() // the result is in its state
		s.mu.Lock()
		exit := kubeletExit{time.Now(), cmd.ProcessState.String(), s.byUs, cmd.ProcessState.ExitCode()}
		s.exits = append(s.exits, exit)
		s.process = nil
		s.announce()
		s.mu.Unlock()
		fmt.Fprintf(s.log, "=== %s end: %s\n", exit.At.UTC().Format(time.StampMilli), exit.State)
		if ctx.Err() != nil {
			return nil
		}
		if !exit.ByUs {
			select {
			case <-time.After(restartDelay):
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// announce wakes the goroutines that wait for a change. mu must be held.
func (s *supervisor) announce() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// start requests that the kubelet runs, and waits until it does.
func (s *supervisor) start(ctx context.Context) error {
	s.mu.Lock()
	s.wanted = true
	s.announce()
	s.mu.Unlock()
	return s.await(ctx, func() bool { return s.process != nil })
}

// end sends the kubelet a signal, and waits until it has ended.
func (s *supervisor) end(ctx context.Context, signal os.Signal) error {
	s.mu.Lock()
	s.wanted, s.byUs = false, true
	if s.process != nil {
		_ = s.process.Signal(signal)
	}
	s.mu.Unlock()
	return s.await(ctx, func() bool { return s.process == nil })
}

// signal sends the kubelet a signal that does not end it.
func (s *supervisor) signal(signal os.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		_ = s.process.Signal(signal)
	}
}

func (s *supervisor) await(ctx context.Context, condition func() bool) error {
	for {
		s.mu.Lock()
		ok, changed := condition(), s.changed
		s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ended returns all exits so far, and the number of starts.
func (s *supervisor) ended() (exits []kubeletExit, starts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(exits, s.exits...), s.starts
}
