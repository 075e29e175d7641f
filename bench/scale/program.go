// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// program is a running contender.
type program struct {
	cmd  *exec.Cmd
	logs *os.File
	done chan struct{}
	err  error // the result of Wait; valid after done is closed
	base string
}

// startProgram starts the contender called name, and returns when the program
// serves its profiles.
func startProgram(ctx context.Context, env *environment, name, executable string, o options, kubeconfig string) (*program, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	args, err := contenders[name].arguments(env, o, kubeconfig, address)
	if err != nil {
		return nil, err
	}
	p := &program{cmd: exec.Command(executable, args...), done: make(chan struct{}), base: "http://" + address}
	// Do not inherit settings of the caller that would affect the measurement.
	p.cmd.Env = append(os.Environ(), "KUBECONFIG=", "HOME="+env.temp, "GOGC=", "GOMEMLIMIT=", "GOMAXPROCS=")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.logs, err = os.Create(filepath.Join(env.out, name+".log")); err != nil {
		return nil, err
	}
	p.cmd.Stdout, p.cmd.Stderr = p.logs, p.logs
	started := make(chan error)
	go func() {
		// The kernel kills the child when the thread that started it ends.
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
		}
		p.err = errors.Join(p.err, p.logs.Close())
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, p.waitServing(ctx)
}

// waitServing waits until the program answers.
func (p *program) waitServing(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		resp, err := http.Get(p.base + "/debug/pprof/")
		if err == nil {
			return resp.Body.Close()
		}
		select {
		case <-ctx.Done():
			return errors.Join(errors.New("the program does not serve its profiles"), err, p.stop(0))
		case <-p.done:
			return fmt.Errorf("the program has ended: %w", p.err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// stop ends the program gracefully, and kills it if that takes longer than
// patience. It may be called more than once.
func (p *program) stop(patience time.Duration) error {
	if patience > 0 {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may already have ended
	}
	select {
	case <-p.done:
		return p.err
	case <-time.After(patience):
	}
	_ = p.cmd.Process.Kill() // it may have just ended
	<-p.done
	if patience == 0 {
		return nil
	}
	return fmt.Errorf("it still ran %v after SIGTERM and was killed", patience)
}

// freeAddress returns a loopback address that is not in use.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
