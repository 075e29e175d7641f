// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"slices"
	"strings"
	"sync"
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

// journal keeps the requests since it was last reset.
type journal struct {
	mu   sync.Mutex
	seq  int
	kept []*Request
}

// begin numbers and keeps a request.
func (j *journal) begin(r *Request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seq++
	r.Seq = j.seq
	j.kept = append(j.kept, r)
}

// update changes a request that may be in the journal.
func (j *journal) update(r *Request, f func(*Request)) {
	j.mu.Lock()
	f(r)
	j.mu.Unlock()
}

// Requests returns the requests since the last ResetJournal that m matches, in
// the order in which they arrived. A long test should call ResetJournal at times,
// because every Request keeps its body.
func (s *Server) Requests(m Match) []Request {
	s.journal.mu.Lock()
	all := make([]Request, len(s.journal.kept))
	for i, r := range s.journal.kept {
		all[i] = *r
	}
	s.journal.mu.Unlock()
	return slices.DeleteFunc(all, func(r Request) bool { return !m.matches(&r) })
}

// ResetJournal forgets the requests so far. A request that is running is
// forgotten too.
func (s *Server) ResetJournal() {
	s.journal.mu.Lock()
	defer s.journal.mu.Unlock()
	s.journal.kept = nil
}
