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

// mark is the variable by which the kubelet's processes are known: its value is the
// folder of a run.
const mark = "KUBEWRIGHT_RUN="

// A process is one of the process table that runs for the kubelet.
type process struct {
	PID     int
	Started string // in clock ticks since the machine was
	Session int
	Shim    bool
	Run     string // its folder
}

// A processTable reads /proc again and again. It remembers what it can't be wrong
// about, since most processes are nobody's business here.
type processTable struct {
	root  string // of the kubelet: only what runs below it counts
	known map[int]remembered
}

// remembered is what is known of a process.
type remembered struct {
	process
	mine    bool
	settled bool // its environment is not looked at again
	since   time.Time
}

// mayExec is how long a process is looked at again, since it may be about to
// execute another program.
const mayExec = 3 * time.Second

// scan returns the processes that live. It is no snapshot: while it looks, others
// come and go.
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
				// It may have become a session of its own after the first look.
				_, r.Session, _ = readStat(pid)
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

// readStat returns when a process was started and in which session it is, and
// whether it is more than a number that its parent hasn't asked for.
func readStat(pid int) (started string, session int, alive bool) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", 0, false
	}
	// The name of the program may hold anything, so fields are counted from its end.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", 0, false
	}
	session, err = strconv.Atoi(fields[3])
	return fields[19], session, err == nil
}

// lives reports whether a process that was seen is still there.
func (p process) lives() bool {
	started, _, alive := readStat(p.PID)
	return alive && started == p.Started
}

// instance returns which run of which container a process belongs to. Shims don't
// count, nor what is run inside a container, such as a probe.
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

// overlaps returns pairs of instances of one container that run at one moment.
// alive is asked again about both. The one that was found later has lived from then
// until it is asked about, and in between it is asked about the other one.
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
