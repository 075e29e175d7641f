// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// Match says which requests a fault, a count or a drop is about. Every
// non-empty field must match; the zero Match matches every request.
type Match struct {
	User string // user name
	Verb string // one verb or several with commas: "update,patch"
	// Group is the API group, "core" for the group without a name.
	Group string
	// Resource is a plural resource. "pods" means the main resource only,
	// "pods/status" the subresource, "pods/*" both.
	Resource  string
	Namespace string
	Name      string
	Func      func(Request) bool // asked last
}

func (m *Match) matches(r *Request) bool {
	switch {
	case m.User != "" && m.User != r.User.Name,
		m.Namespace != "" && m.Namespace != r.Namespace,
		m.Name != "" && m.Name != r.Name,
		m.Group == "core" && r.Group != "",
		m.Group != "" && m.Group != "core" && m.Group != r.Group:
		return false
	}
	if m.Verb != "" && m.Verb != r.Verb && !(strings.Contains(m.Verb, ",") && slices.Contains(strings.Split(m.Verb, ","), r.Verb)) {
		return false
	}
	if m.Resource != "" {
		resource, sub, _ := strings.Cut(m.Resource, "/")
		if resource != r.Resource || sub != "*" && sub != r.Subresource {
			return false
		}
	}
	return m.Func == nil || m.Func(*r)
}

// journal keeps the requests that its filter wants, and counts all of them.
type journal struct {
	mu    sync.Mutex
	start time.Time
	keep  func(Request) bool
	seq   int
	kept  []*Request
}

// begin numbers a request and, if it is wanted, keeps it.
func (j *journal) begin(r *Request) {
	j.mu.Lock()
	j.seq++
	r.Seq = j.seq
	j.mu.Unlock()
	if j.keep != nil && !j.keep(*r) {
		return
	}
	j.mu.Lock()
	j.kept = append(j.kept, r)
	j.mu.Unlock()
}

// update changes a request that may already be in the journal.
func (j *journal) update(r *Request, f func(*Request)) {
	j.mu.Lock()
	f(r)
	j.mu.Unlock()
}

func (j *journal) snapshot(m *Match) []Request {
	j.mu.Lock()
	all := make([]Request, len(j.kept))
	for i, r := range j.kept {
		all[i] = *r
	}
	j.mu.Unlock()
	if m == nil {
		return all
	}
	return slices.DeleteFunc(all, func(r Request) bool { return !m.matches(&r) })
}

// Journal returns every request kept so far (see Options.Journal), in the
// order in which they arrived.
func (s *Server) Journal() []Request { return s.journal.snapshot(nil) }

// Requests returns the requests of the journal that m matches.
func (s *Server) Requests(m Match) []Request { return s.journal.snapshot(&m) }

// Count returns how many requests of the journal m matches.
func (s *Server) Count(m Match) int { return len(s.journal.snapshot(&m)) }

// Total returns how many requests the server has seen, also those that the
// journal does not keep.
func (s *Server) Total() int {
	s.journal.mu.Lock()
	defer s.journal.mu.Unlock()
	return s.journal.seq
}

// ResetJournal forgets the requests kept so far and starts the seconds of
// PerSecond anew. Requests still running are forgotten too.
func (s *Server) ResetJournal() {
	s.journal.mu.Lock()
	defer s.journal.mu.Unlock()
	s.journal.kept = nil
	s.journal.start = time.Now()
}

// PerSecond is a histogram: how many matching requests arrived in each whole
// second since the server was made or its journal was last reset. Its last
// element is the second in which the last of them arrived.
func (s *Server) PerSecond(m Match) []int {
	s.journal.mu.Lock()
	start := s.journal.start
	s.journal.mu.Unlock()
	var h []int
	for _, r := range s.journal.snapshot(&m) {
		sec := int(r.Time.Sub(start) / time.Second)
		if sec < 0 {
			continue
		}
		for len(h) <= sec {
			h = append(h, 0)
		}
		h[sec]++
	}
	return h
}
