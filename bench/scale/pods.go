// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"sync"
	"time"
)

// maxExamples is the number of faults that are kept as examples.
const maxExamples = 10

// faults counts events that must not happen, and keeps the first ones.
type faults struct {
	Count    int      `json:"count"`
	Examples []string `json:"examples,omitempty"`
}

func (f *faults) add(format string, args ...any) {
	f.Count++
	if len(f.Examples) < maxExamples {
		f.Examples = append(f.Examples, fmt.Sprintf(format, args...))
	}
}

// podView is the part of a pod that the benchmark observes.
type podView struct {
	UID, Name string
	Running   bool // in phase Running, and Ready
	Ended     bool // in phase Succeeded or Failed
	Deleting  bool // it has a deletion time
}

// podLife is the history of a pod.
type podLife struct {
	bound, deleted time.Time // when it was first seen, and first seen with a deletion time
	running        bool
	expected       bool // its deletion is expected
}

// pods follows all pods from their first to their last event. It is safe for
// concurrent use.
type pods struct {
	mu      sync.Mutex
	lives   map[string]*podLife // by UID
	wanted  map[string]bool     // UIDs of pods that the driver deletes
	running int
	starts  []span // from bound to Running
	ends    []span // from deleted to gone
	// lost counts pods that disappeared, ended or stopped running although the
	// driver did not delete them.
	lost faults
}

func newPods() *pods {
	return &pods{lives: make(map[string]*podLife), wanted: make(map[string]bool)}
}

// want records that a pod is about to be deleted.
func (p *pods) want(uid string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted[uid] = true
}

// observe records the state of a pod from an event.
func (p *pods) observe(now time.Time, v podView) {
	p.mu.Lock()
	defer p.mu.Unlock()
	life := p.lives[v.UID]
	if life == nil {
		life = &podLife{bound: now}
		p.lives[v.UID] = life
	}
	if v.Deleting && life.deleted.IsZero() {
		life.deleted = now
	}
	if (v.Deleting || v.Ended || life.running && !v.Running) && !p.wanted[v.UID] && !life.expected {
		life.expected = true // report it once
		p.lost.add("%s %s", v.Name, describe(v))
	}
	if v.Running == life.running {
		return
	}
	if v.Running && life.deleted.IsZero() {
		p.starts = append(p.starts, span{End: now, Took: now.Sub(life.bound)})
	}
	life.running = v.Running
	p.running += toInt(v.Running) - toInt(!v.Running)
}

// gone records the last event of a pod.
func (p *pods) gone(now time.Time, v podView) {
	p.mu.Lock()
	defer p.mu.Unlock()
	life := p.lives[v.UID]
	if life == nil {
		return
	}
	if !p.wanted[v.UID] && !life.expected {
		p.lost.add("%s is gone", v.Name)
	}
	if life.deleted.IsZero() {
		life.deleted = now // deleted without a grace period
	}
	p.ends = append(p.ends, span{End: now, Took: now.Sub(life.deleted)})
	p.running -= toInt(life.running)
	delete(p.lives, v.UID)
	delete(p.wanted, v.UID)
}

// counts returns the number of pods that exist, and how many of them run.
func (p *pods) counts() (there, running int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lives), p.running
}

// took returns the durations of the starts and ends that were complete in
// [from, to).
func (p *pods) took(from, to time.Time) (starts, ends distribution) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return distribute(within(p.starts, from, to)), distribute(within(p.ends, from, to))
}

func (p *pods) faults() faults {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// describe describes the fault of a pod that the driver did not delete.
func describe(v podView) string {
	switch {
	case v.Deleting:
		return "was deleted by another client"
	case v.Ended:
		return "ended"
	}
	return "is no longer Running and Ready"
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
