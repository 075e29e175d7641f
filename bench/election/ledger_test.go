// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"slices"
	"sync"
	"time"
)

// ledger records the current and former leaders.
type ledger struct {
	mu    sync.Mutex
	terms []*term
	wake  chan struct{} // closed and replaced at each change
}

// term is the period in which a process did the work.
type term struct {
	process string
	from    time.Time
	to      time.Time // zero while the term lasts
}

func newLedger() *ledger { return &ledger{wake: make(chan struct{})} }

func (l *ledger) changed() {
	close(l.wake)
	l.wake = make(chan struct{})
}

// begin records that process does the work until the returned function is
// called.
func (l *ledger) begin(process string) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &term{process: process, from: time.Now()}
	l.terms = append(l.terms, t)
	l.changed()
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if t.to.IsZero() { // a term of a dead process has already ended
			t.to = time.Now()
			l.changed()
		}
	}
}

// kill ends the term of a process that died.
func (l *ledger) kill(process string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.terms {
		if t.process == process && t.to.IsZero() {
			t.to = time.Now()
			l.changed()
		}
	}
}

// leaders returns the current leaders, the latest at the end.
func (l *ledger) leaders() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for _, t := range l.terms {
		if t.to.IsZero() {
			names = append(names, t.process)
		}
	}
	return names
}

// await waits until the condition holds for a leader, and reports whether it
// did within limit.
func (l *ledger) await(limit time.Duration, holds func(leader string) bool) bool {
	timeout := time.After(limit)
	for {
		l.mu.Lock()
		wake := l.wake
		l.mu.Unlock()
		for _, name := range l.leaders() {
			if holds(name) {
				return true
			}
		}
		select {
		case <-wake:
		case <-timeout:
			return false
		}
	}
}

// tally returns how long no process and how long more than one process did the
// work between from and to, and how many terms began.
func (l *ledger) tally(from, to time.Time) (none, several time.Duration, terms int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	type edge struct {
		at    time.Time
		delta int
	}
	var edges []edge
	for _, t := range l.terms {
		end := t.to
		if end.IsZero() || end.After(to) {
			end = to
		}
		begin := t.from
		if !begin.Before(from) && begin.Before(to) {
			terms++
		}
		if begin.Before(from) {
			begin = from
		}
		if begin.Before(end) {
			edges = append(edges, edge{begin, 1}, edge{end, -1})
		}
	}
	slices.SortStableFunc(edges, func(a, b edge) int { return a.at.Compare(b.at) })
	n, last := 0, from
	count := func(now time.Time) {
		switch {
		case n == 0:
			none += now.Sub(last)
		case n > 1:
			several += now.Sub(last)
		}
		last = now
	}
	for _, e := range edges {
		count(e.at)
		n += e.delta
	}
	count(to)
	return none, several, terms
}
