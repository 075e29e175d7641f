// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"io"
	"math"
	"time"

	"github.com/kubewright/kubewright/apitest/internal/serve"
)

// LagWatches delays every event of the watches that match by d, until remove is
// called.
func (s *Server) LagWatches(m Match, d time.Duration) (remove func()) {
	return s.core.AddRule(&serve.Rule{Match: m.inner(), Lag: d, Until: math.MaxUint64})
}

// StallWatches holds back the events of the watches that match, which stay open,
// until resume is called. Then they receive these events.
func (s *Server) StallWatches(m Match) (resume func()) {
	return s.core.AddRule(&serve.Rule{Match: m.inner(), Stalled: true, Until: math.MaxUint64})
}

// StallReads makes the requests that match see the state from before the last writes
// changes, of any kind, until resume is called. It is an API server whose watch cache
// stands still: a get or list with resourceVersion 0 and the initial events of a watch
// are old, and all later events are held back. A read without a resourceVersion is not
// old, because the real server passes it to etcd. A read of a later resourceVersion, and a
// watch with initial events that may not be old, are answered with 504 after three
// seconds, as the real server does.
func (s *Server) StallReads(m Match, writes int) (resume func()) {
	s.core.Store.Lock()
	until := s.core.Store.Before(writes)
	s.core.Store.Unlock()
	return s.core.AddRule(&serve.Rule{Match: m.inner(), Until: until})
}

// RefuseWatchLists answers the watches that match and ask for initial events with 422,
// until remove is called, as a server does whose gate WatchList is off. The reflectors of
// client-go then use a list with resourceVersion 0 for the rest of their life. Such a list
// can be old, see StallReads, and a watch with initial events can't.
func (s *Server) RefuseWatchLists(m Match) (remove func()) {
	return s.core.AddRule(&serve.Rule{Match: m.inner(), NoLists: true, Until: math.MaxUint64})
}

// ShortenWatches ends each watch that matches after its first event, without an error, until
// remove is called. Some proxies do so. Initial events and bookmarks do not count. Request.Fault
// of such a watch is ShortenWatches.
func (s *Server) ShortenWatches(m Match) (remove func()) {
	return s.core.AddRule(&serve.Rule{Match: m.inner(), Short: true, Until: math.MaxUint64})
}

// DropWatches ends the watches that match, after their queued events, and returns
// their number. The stream ends without an error, as when an API server shuts
// down.
func (s *Server) DropWatches(m Match) int { return s.core.EndWatches(m.inner(), io.EOF) }

// BreakWatches ends the watches that match with ErrConnReset, after their queued
// events, and returns their number.
func (s *Server) BreakWatches(m Match) int { return s.core.EndWatches(m.inner(), ErrConnReset) }

// ExpireWatches sends an ERROR event with status 410 to the watches that match,
// ends them, and returns their number.
func (s *Server) ExpireWatches(m Match) int { return s.core.ExpireWatches(m.inner()) }

// Compact forgets all history: a watch or a page of a list from an older
// resourceVersion is answered with 410. Open watches continue.
func (s *Server) Compact() { s.core.Compact() }
