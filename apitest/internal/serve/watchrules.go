// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kubewright/kubewright/apitest/internal/request"
)

// watchRules are delays of the watches that match.
type watchRules struct {
	mu      sync.Mutex
	list    []*Rule
	changed chan struct{} // closed when a rule is removed; nil if no reader has asked for it
}

// Rule delays the watches that match, and holds back changes from reads.
type Rule struct {
	Match   request.Match
	Lag     time.Duration
	Stalled bool
	Until   uint64 // later changes are held back
	NoLists bool   // watches can't begin with a list
	Short   bool   // watches end after their first event
}

// of returns the sum of the rules for a request. Its match is not used.
func (ws *watchRules) of(r *request.Request) (sum Rule) {
	sum.Until = math.MaxUint64
	ws.mu.Lock()
	if len(ws.list) == 0 {
		ws.mu.Unlock()
		return sum
	}
	list := slices.Clone(ws.list)
	ws.mu.Unlock()
	for _, rule := range list {
		if rule.Match.Matches(r) {
			sum.Lag = max(sum.Lag, rule.Lag)
			sum.Stalled = sum.Stalled || rule.Stalled
			sum.Until = min(sum.Until, rule.Until)
			sum.NoLists = sum.NoLists || rule.NoLists
			sum.Short = sum.Short || rule.Short
		}
	}
	return sum
}

// resumed returns a channel that is closed when a rule is removed. It also wakes the
// readers of streams that have ended, which the tables no longer know.
func (ws *watchRules) resumed() <-chan struct{} {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.changed == nil {
		ws.changed = make(chan struct{})
	}
	return ws.changed
}
