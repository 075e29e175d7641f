// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"io"
	"maps"
	"slices"
	"sync"
	"time"
)

// watchRules are delays of the watches that match.
type watchRules struct {
	mu   sync.Mutex
	list []*watchRule
}

type watchRule struct {
	match   Match
	lag     time.Duration
	stalled bool
}

// of returns the delay of a watch and whether it gets nothing at all.
func (ws *watchRules) of(r *Request) (lag time.Duration, stalled bool) {
	ws.mu.Lock()
	if len(ws.list) == 0 {
		ws.mu.Unlock()
		return 0, false
	}
	list := slices.Clone(ws.list)
	ws.mu.Unlock()
	for _, rule := range list {
		if rule.match.matches(r) {
			lag = max(lag, rule.lag)
			stalled = stalled || rule.stalled
		}
	}
	return lag, stalled
}

func (s *Server) addRule(rule *watchRule) (remove func()) {
	s.watches.mu.Lock()
	s.watches.list = append(s.watches.list, rule)
	s.watches.mu.Unlock()
	return func() {
		s.watches.mu.Lock()
		s.watches.list = slices.DeleteFunc(s.watches.list, func(r *watchRule) bool { return r == rule })
		s.watches.mu.Unlock()
		for _, w := range s.watchers(Match{}) {
			w.poke()
		}
	}
}

// LagWatches delays every event of the watches that match by d, from now on
// and until remove is called.
func (s *Server) LagWatches(m Match, d time.Duration) (remove func()) {
	return s.addRule(&watchRule{match: m, lag: d})
}

// StallWatches keeps the watches that match from receiving anything, while
// they stay open, until resume is called; then they get what they missed.
func (s *Server) StallWatches(m Match) (resume func()) {
	return s.addRule(&watchRule{match: m, stalled: true})
}

// watchers returns the open watches that m matches.
func (s *Server) watchers(m Match) []*watcher {
	s.store.mu.Lock()
	var ws []*watcher
	for _, t := range s.store.tables {
		for w := range t.watchers {
			ws = append(ws, w)
		}
	}
	s.store.mu.Unlock()
	return slices.DeleteFunc(ws, func(w *watcher) bool { return !m.matches(w.c.r) })
}

// DropWatches ends the watches that match, after what they have queued, and
// returns how many there were. The client sees a stream that ends without an
// error, as when an API server restarts.
func (s *Server) DropWatches(m Match) int { return s.endWatches(m, io.EOF) }

// BreakWatches ends the watches that match with ErrConnReset.
func (s *Server) BreakWatches(m Match) int { return s.endWatches(m, ErrConnReset) }

func (s *Server) endWatches(m Match, err error) int {
	ws := s.watchers(m)
	for _, w := range ws {
		w.end(err)
	}
	return len(ws)
}

// Backup remembers all objects. The function that it returns restores them, as from
// a backup of etcd: with their old resourceVersions, from which later writes go on.
// It breaks all watches. Many versions lie between the backup and the next write, so
// a resourceVersion does not soon stand for two states.
func (s *Server) Backup() (restore func()) {
	const busy = 1_000_000
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	backup, rv := map[*table]map[key]*item{}, s.store.rv
	for _, t := range s.store.tables {
		backup[t] = maps.Clone(t.items)
	}
	s.store.rv += busy
	return func() {
		s.store.mu.Lock()
		for _, t := range s.store.tables {
			t.items = maps.Clone(backup[t])
			if t.items == nil {
				t.items = map[key]*item{}
			}
			t.forget(0)
		}
		s.store.rv = rv
		s.store.mu.Unlock()
		s.BreakWatches(Match{})
	}
}

// ExpireWatches sends the watches that match an ERROR event with status 410
// and ends them.
func (s *Server) ExpireWatches(m Match) int {
	ws := s.watchers(m)
	for _, w := range ws {
		w.push(expired(w.after, w.after+1))
		w.end(io.EOF)
	}
	return len(ws)
}

// Compact forgets all history: a watch or a page of a list from an older
// resourceVersion is answered with 410. Watches that are open go on.
func (s *Server) Compact() {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	rv := s.store.next()
	s.store.forgot = rv
	for _, t := range s.store.tables {
		t.forget(rv)
	}
}
