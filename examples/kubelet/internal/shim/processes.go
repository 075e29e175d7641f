// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shim

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// sweep kills all processes that have the run of this folder in their
// environment, and returns when there are none.
func sweep(ctx context.Context, dir string) error {
	for {
		found, err := marked(func(run string) bool { return run == dir }, func(p *os.Process) { _ = p.Kill() })
		if err != nil || len(found) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond): // for them to die
		}
	}
}

// Processes returns the numbers of all processes, shims included, that belong to
// runs in folders below root.
func Processes(root string) ([]int, error) {
	return marked(func(run string) bool { return strings.HasPrefix(run, root+"/") }, func(*os.Process) {})
}

// marked returns the processes that were started with a run in their
// environment that matches, and does something with each.
func marked(matches func(run string) bool, do func(*os.Process)) (found []int, err error) {
	pids, err := processes()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		// What is held is a pidfd: if the number gets another owner between
		// the look at its environment and a signal, the signal fails.
		p, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		environ, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
		if err == nil && slices.ContainsFunc(strings.Split(string(environ), "\x00"), func(v string) bool {
			run, ok := strings.CutPrefix(v, variable+"=")
			return ok && matches(run)
		}) {
			found = append(found, pid)
			do(p)
		}
		_ = p.Release()
	}
	return found, nil
}

// processes returns the numbers of all processes.
func processes() ([]int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer func() { _ = proc.Close() }()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// killChildren sends SIGKILL to all children of this process.
func killChildren() error {
	pids, err := processes()
	if err != nil {
		return err
	}
	self := os.Getpid()
	for _, pid := range pids {
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err == nil && parent(string(stat)) == self {
			// Nobody but this process can reap it, so the number is still its own.
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return nil
}

// parent returns the number of the parent in a /proc/PID/stat. The name of the
// program in it may hold anything, so the fields are counted from its end.
func parent(stat string) int {
	at := strings.LastIndexByte(stat, ')')
	if at < 0 {
		return -1
	}
	fields := strings.Fields(stat[at+1:])
	if len(fields) < 2 {
		return -1
	}
	ppid, err := strconv.Atoi(fields[1])
	if err != nil {
		return -1
	}
	return ppid
}
