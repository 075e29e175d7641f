// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"sync"
	"time"
)

// Progress turns the beats of a loop into a liveness check. A loop beats each
// time it comes round, whether its work succeeded or not: a controller that
// can't reach the API server is alive, one whose loop is stuck is not, and
// restarting the process helps only the second.
type Progress struct {
	name  string
	limit time.Duration

	mu    sync.Mutex
	state progressState
	last  time.Time
}

type progressState int

const (
	notRunning progressState = iota
	running
	stopped
)

// NewProgress returns a Progress for the loop called name that is held to be
// stuck when no beat came for limit.
func NewProgress(name string, limit time.Duration) *Progress {
	return &Progress{name: name, limit: limit}
}

// Beat says that the loop is running and came round now. After Stop it does
// nothing.
func (p *Progress) Beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != stopped {
		p.state, p.last = running, time.Now()
	}
}

// Stop says that the loop has ended.
func (p *Progress) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = stopped
}

// Check returns nil before the first beat (a process that is starting is not
// to be restarted) and while beats come, and an error when the last one is
// older than the limit or the loop has ended.
func (p *Progress) Check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.state {
	case stopped:
		return fmt.Errorf("%s: not running: Run has returned", p.name)
	case running:
		if age := time.Since(p.last); age > p.limit {
			return fmt.Errorf("%s: no progress for %v, more than %v", p.name, age.Round(time.Millisecond), p.limit)
		}
	}
	return nil
}
