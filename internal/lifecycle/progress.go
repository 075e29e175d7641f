// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"sync"
	"time"
)

// Progress turns the beats of a loop into a liveness check. A loop beats on
// each iteration, whether its work succeeded or not. A controller that cannot
// reach the API server is alive; a controller whose loop is stuck is not. Only
// the second is fixed by restarting the process.
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

// NewProgress returns a Progress for the loop called name. The loop counts as
// stuck if it does not beat for limit.
func NewProgress(name string, limit time.Duration) *Progress {
	return &Progress{name: name, limit: limit}
}

// Beat records an iteration of the loop. After Stop it does nothing.
func (p *Progress) Beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != stopped {
		p.state, p.last = running, time.Now()
	}
}

// Stop records that the loop has ended.
func (p *Progress) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = stopped
}

// Check returns nil before the first beat, so that a starting process is not
// restarted, and as long as beats arrive. It returns an error if the last beat
// is older than the limit or the loop has ended.
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
