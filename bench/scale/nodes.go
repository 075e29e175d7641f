// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"sync"
	"time"
)

// nodeView is the part of a Node that the benchmark observes.
type nodeView struct {
	UID, Name string
	Ready     bool
}

// nodeLife is the history of a node name.
type nodeLife struct {
	uid   string
	ready bool
	since time.Time // when its last Node was deleted; zero for never
}

// nodes follows all Nodes. It is safe for concurrent use.
type nodes struct {
	mu       sync.Mutex
	lives    map[string]*nodeLife // by name, deleted Nodes included
	there    int
	ready    int
	absences []span // from deleted to Ready again
	// flips counts Nodes that were Ready and no longer are.
	flips faults
}

func newNodes() *nodes { return &nodes{lives: make(map[string]*nodeLife)} }

// observe records the state of a Node from an event.
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

// gone records the last event of a Node.
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

// setReady records whether a Node is Ready. n.mu must be held.
func (n *nodes) setReady(life *nodeLife, ready bool) {
	n.ready += toInt(ready) - toInt(life.ready)
	life.ready = ready
}

// counts returns the number of Nodes that exist, and how many of them are
// Ready.
func (n *nodes) counts() (there, ready int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.there, n.ready
}

// isReady reports whether a Node exists and is Ready.
func (n *nodes) isReady(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	life := n.lives[name]
	return life != nil && life.ready
}

// took returns the durations of the absences that ended in [from, to).
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
