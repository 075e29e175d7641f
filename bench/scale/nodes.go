// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"sync"
	"time"
)

// nodeView is what an event shows of a Node.
type nodeView struct {
	UID, Name string
	Ready     bool
}

// nodeLife is what is known of a node name.
type nodeLife struct {
	uid   string
	ready bool
	since time.Time // when its last Node was gone; zero for never
}

// nodes follows all Nodes. Its methods may be called concurrently.
type nodes struct {
	mu       sync.Mutex
	lives    map[string]*nodeLife // by name; those that are gone as well
	there    int
	ready    int
	absences []span // from gone to Ready again
	// flips are Nodes that had been Ready and were not any more.
	flips faults
}

func newNodes() *nodes { return &nodes{lives: make(map[string]*nodeLife)} }

// observe takes the state of a Node as an event shows it.
func (n *nodes) observe(now time.Time, v nodeView) {
	n.mu.Lock()
	defer n.mu.Unlock()
	life := n.lives[v.Name]
	if life == nil {
		life = &nodeLife{}
		n.lives[v.Name] = life
	}
	if life.uid == "" {
		n.there++
	}
	if life.uid != v.UID {
		n.setReady(life, false)
		life.uid = v.UID
	}
	if life.ready && !v.Ready {
		n.flips.add("%s at %s", v.Name, now.Format(time.TimeOnly))
	}
	n.setReady(life, v.Ready)
	if v.Ready && !life.since.IsZero() {
		n.absences = append(n.absences, span{End: now, Took: now.Sub(life.since)})
		life.since = time.Time{}
	}
}

// gone takes the last event of a Node.
func (n *nodes) gone(now time.Time, v nodeView) {
	n.mu.Lock()
	defer n.mu.Unlock()
	life := n.lives[v.Name]
	if life == nil || life.uid != v.UID {
		return
	}
	n.setReady(life, false)
	life.uid, life.since = "", now
	n.there--
}

// setReady changes whether a Node is Ready. The caller holds the lock.
func (n *nodes) setReady(life *nodeLife, ready bool) {
	n.ready += toInt(ready) - toInt(life.ready)
	life.ready = ready
}

// counts returns how many Nodes are there, and how many of them are Ready.
func (n *nodes) counts() (there, ready int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.there, n.ready
}

// isReady reports whether a Node is there and Ready.
func (n *nodes) isReady(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	life := n.lives[name]
	return life != nil && life.ready
}

// took returns how long the absences were that ended in [from, to).
func (n *nodes) took(from, to time.Time) distribution {
	n.mu.Lock()
	defer n.mu.Unlock()
	return distribute(within(n.absences, from, to))
}

func (n *nodes) faults() faults {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.flips
}
