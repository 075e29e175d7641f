// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// mark is the environment variable that identifies the kubelet's processes. Its
// value is the directory of a run.
const mark = "KUBEWRIGHT_RUN="

// A process is an entry of the process table that belongs to the kubelet.
type process struct {
	PID     int
	Started string // in clock ticks since the boot
	Session int
	Shim    bool
	Run     string // the directory of its run
}

// A processTable reads /proc repeatedly. It caches facts that do not change,
// because most processes do not belong to the kubelet.
type processTable struct {
	root  string // of the kubelet; processes outside it do not count
	known map[int]remembered
	after func(pid int) // for tests: called when a process has been looked at; may be nil
}

// remembered is the cached data of a process.
type remembered struct {
	process
	mine    bool
	settled bool // its environment is not read again
	since   time.Time
}

// mayExec is the time for which a process is read again, because it may be about to
// execute another program.
const mayExec = 3 * time.Second

// scan returns the running processes. The result is not an atomic snapshot.
func (t *processTable) scan() ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	now := time.Now()
	next := make(map[int]remembered, len(entries))
	var found []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		started, session, alive := readStat(pid)
		if !alive {
			continue
		}
		r, ok := t.known[pid]
		if !ok || r.Started != started {
			r = remembered{process: process{PID: pid, Started: started}, since: now}
		}
		if !r.settled {
			r.Session = session
			r.look(t.root)
			if r.mine && !r.Shim {
				if t.after != nil {
					t.after(pid)
				}
				// It may have become its own session after the first read, or have ended.
				if _, r.Session, alive = readStat(pid); !alive {
					continue
				}
			}
			r.settled = r.mine && !r.Shim || now.Sub(r.since) > mayExec
		}
		next[pid] = r
		if r.mine {
			found = append(found, r.process)
		}
	}
	t.known = next
	return found, nil
}

// look reads the environment and the command line of a process.
func (r *remembered) look(root string) {
	dir := filepath.Join("/proc", strconv.Itoa(r.PID))
	environ, err := os.ReadFile(filepath.Join(dir, "environ"))
	if err != nil {
		return
	}
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		if run, ok := strings.CutPrefix(string(v), mark); ok && strings.HasPrefix(run, root+"/") {
			r.mine, r.Run = true, run
		}
	}
	if r.mine {
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		name, _, _ := bytes.Cut(line, []byte{0})
		r.Shim = string(name) == "kubelet-shim"
	}
}

// readStat returns the start time and the session of a process, and whether it
// is alive: not a zombie.
func readStat(pid int) (started string, session int, alive bool) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", 0, false
	}
	// The program name may contain any character, so fields are counted after
	// the last parenthesis.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", 0, false
	}
	// A process that is ending may have no session.
	session, err = strconv.Atoi(fields[3])
	return fields[19], session, err == nil && session > 0
}

// lives reports whether the process still exists.
func (p process) lives() bool {
	started, _, alive := readStat(p.PID)
	return alive && started == p.Started
}

// instance returns the container run that a process belongs to. It ignores
// shims and commands run inside a container, such as probes.
func (p process) instance(root string) (instance, bool) {
	rest, ok := strings.CutPrefix(p.Run, root+"/pods/")
	parts := strings.Split(rest, "/")
	if !ok || p.Shim || len(parts) != 4 || parts[1] != "containers" {
		return instance{}, false
	}
	if _, err := strconv.Atoi(parts[3]); err != nil {
		return instance{}, false
	}
	return instance{types.UID(parts[0]), parts[2], parts[3], p.Session}, true
}

// overlapsOf returns pairs of instances of one container that run at the same
// time. It asks alive again about both: first about the later one, then about
// the other. The later one was alive from its discovery until its check, and
// the other one outlived that check.
func overlapsOf(found []process, root string, alive func(process) bool) (pairs []overlap) {
	first := map[containerKey]process{}
	for _, p := range found {
		i, ok := p.instance(root)
		if !ok {
			continue
		}
		key := containerKey{i.UID, i.Container}
		other, ok := first[key]
		if !ok {
			first[key] = p
			continue
		}
		if o, _ := other.instance(root); o != i {
			if alive(other) && alive(p) {
				pairs = append(pairs, overlap{time.Now(), o, i})
			}
		}
	}
	return pairs
}
