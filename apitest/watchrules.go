// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"math"
	"slices"
	"sync"
	"time"
)

// watchRules are delays of the watches that match.
type watchRules struct {
	mu      sync.Mutex
	list    []*watchRule
	changed chan struct{} // closed when a rule is removed; nil if no reader has asked for it
}

type watchRule struct {
	match   Match
	lag     time.Duration
	stalled bool
	until   uint64 // later changes are held back
}

// of returns the sum of the rules for a request. Its match is not used.
func (ws *watchRules) of(r *Request) (sum watchRule) {
	sum.until = math.MaxUint64
	ws.mu.Lock()
	if len(ws.list) == 0 {
		ws.mu.Unlock()
		return sum
	}
	list := slices.Clone(ws.list)
	ws.mu.Unlock()
	for _, rule := range list {
		if rule.match.matches(r) {
			sum.lag = max(sum.lag, rule.lag)
			sum.stalled = sum.stalled || rule.stalled
			sum.until = min(sum.until, rule.until)
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
