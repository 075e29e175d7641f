// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shim

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
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
	// A process that dies no longer has an environment, but may still have files
	// and ports.
	dying := map[int]string{} // when it was started, by its number
	for {
		found, err := marked(dir, func(p *os.Process) {
			if st, ok := readStat(p.Pid); ok {
				dying[p.Pid] = st.started
			}
			_ = p.Kill()
		})
		if err != nil {
			return err
		}
		for pid, started := range dying {
			if st, ok := readStat(pid); !ok || st.started != started || st.dead() {
				delete(dying, pid)
			}
		}
		if len(found)+len(dying) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Environ returns the variables that the command of the run in a folder was started
// with, by the command's process number. Its shim has them. The command itself may have
// written over its own: programs such as nginx put their title there.
func Environ(dir string, pid int) ([]string, error) {
	st, _ := readStat(pid)
	shim := filepath.Join("/proc", strconv.Itoa(st.parent))
	environ, err := os.ReadFile(filepath.Join(shim, "environ"))
	if err != nil || !slices.Contains(strings.Split(string(environ), "\x00"), Variable+"="+dir) {
		return nil, fmt.Errorf("process %d is not the command of a run", pid) // it has ended
	}
	text, err := os.ReadFile(filepath.Join(shim, "fd", strconv.Itoa(commandFD)))
	if err != nil {
		return nil, err
	}
	var c Command
	err = json.Unmarshal(text, &c)
	return c.Env, err
}

// Runs returns the folder of the run of each process, shims included, that belongs to a run below
// root. A process that has written over its environment belongs to the run of its parent.
func Runs(root string) (map[int]string, error) {
	pids, err := processes()
	if err != nil {
		return nil, err
	}
	runs, parents := map[int]string{}, map[int]int{}
	for _, pid := range pids {
		if run := runOf(pid); strings.HasPrefix(run, root+"/") {
			runs[pid] = run
		} else if st, ok := readStat(pid); ok {
			parents[pid] = st.parent
		}
	}
	for more := true; more; {
		more = false
		for pid, parent := range parents {
			if run, ok := runs[parent]; ok {
				runs[pid], more = run, true
				delete(parents, pid)
			}
		}
	}
	return runs, nil
}

// runOf returns the run in the environment of a process, or nothing.
func runOf(pid int) string {
	environ, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	if err != nil {
		return "" // gone, or another user's
	}
	for v := range strings.SplitSeq(string(environ), "\x00") {
		if run, ok := strings.CutPrefix(v, Variable+"="); ok {
			return run
		}
	}
	return ""
}

// Processes returns the numbers of all processes, shims included, that belong to
// runs in folders below root.
func Processes(root string) ([]int, error) {
	runs, err := Runs(root)
	return slices.Collect(maps.Keys(runs)), err
}

// marked returns the processes that were started with a run in their environment, and does
// something with each.
func marked(dir string, do func(*os.Process)) (found []int, err error) {
	pids, err := processes()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		// p holds a pidfd: if another process gets the number before the signal is
		// sent, the signal fails.
		p, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		if runOf(pid) == dir {
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
		if st, ok := readStat(pid); ok && st.parent == self {
			// Only this process can reap it, so the number is still its own.
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return nil
}

// stat is a part of /proc/PID/stat.
type stat struct {
	state   string
	parent  int
	started string // in clock ticks since the machine was
}

// dead reports whether only the number of the process is left, for its parent.
func (s stat) dead() bool { return s.state == "Z" || s.state == "X" }

func readStat(pid int) (stat, bool) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return stat{}, false
	}
	return parseStat(string(text))
}

// parseStat reads a /proc/PID/stat. The name of the program in it may hold
// anything, so the fields are counted from its end.
func parseStat(text string) (st stat, ok bool) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return stat{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	return stat{fields[0], parent, fields[19]}, err == nil
}
