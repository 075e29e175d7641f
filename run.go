// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubewright

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/kubewright/kubewright/internal/lifecycle"
)

const (
	// stepTimeout is the time that one controller has to return before the others are
	// stopped as well.
	stepTimeout = 8 * time.Second
	// restTimeout is the time that all controllers but the first have.
	restTimeout = 16 * time.Second
	// firstTimeout is the time that the first one has after that. Together the two are less
	// than the 30 s that Kubernetes gives a Pod by default.
	firstTimeout = 8 * time.Second
)

// Run runs controllers until ctx is done or one of them returns, because a node must not
// run without one of its parts. Then it stops them one after another, the last one first:
//
//	kubewright.Run(ctx, leases, node, pods)
//
// So pods write their last statuses before the Node gets its last write, and the lease is
// renewed until both have ended. Each controller has 8 s to return. If one takes longer, all
// others but the first are stopped at once, and the first is stopped 16 s after the
// beginning of the end. After 24 s Run returns. An error names the controllers that have not
// returned by then: they may still act, so the program must exit.
//
// Run returns nil after ctx is done, if no controller returns an error. If ctx is done when
// it is called, it starts nothing. Otherwise it returns the errors of all controllers, and
// one for a controller that returned before it was stopped, even with nil. A panic of a
// controller stops the others in the same way, and is then raised again.
//
// Run refuses a controller of package podsync without a Gate next to a lease: set its Gate
// to Holds of the lease. It has no other knowledge of what it runs. A program that needs
// another order can run its controllers with an errgroup or in goroutines.
func Run(ctx context.Context, controllers ...interface {
	Run(ctx context.Context) error
}) error {
	if err := check(controllers); err != nil || ctx.Err() != nil {
		return err
	}
	ended := make(chan *part, len(controllers))
	parts := make([]*part, len(controllers))
	for i, c := range controllers {
		parts[i] = start(ctx, c, ended)
	}
	var early *part
	select {
	case <-ctx.Done():
	case early = <-ended:
	}
	stop(parts)
	return result(parts, early)
}

// runner is what Run runs.
type runner = interface {
	Run(ctx context.Context) error
}

// A part is a controller that Run has started.
type part struct {
	name     string
	cancel   context.CancelFunc
	returned chan struct{} // closed after err and panicked are set
	err      error
	panicked *panicError
}

// A panicError is the panic of a controller.
type panicError struct {
	name  string
	value any
	stack []byte
}

// Error implements error.
func (e *panicError) Error() string {
	return fmt.Sprintf("kubewright: panic in %s: %v\n\n%s", e.name, e.value, e.stack)
}

// Unwrap returns the value of the panic, if that is an error.
func (e *panicError) Unwrap() error {
	err, _ := e.value.(error)
	return err
}

// check returns why the controllers must not run.
func check(controllers []runner) error {
	var ungated []string
	var lease string
	for i, c := range controllers {
		if lifecycle.IsNil(c) {
			return fmt.Errorf("kubewright: controller %d is nil", i)
		}
		if gated, ok := c.(interface{ Gated() bool }); ok && !gated.Gated() {
			ungated = append(ungated, nameOf(c))
		}
		if _, ok := c.(interface {
			Holds(ctx context.Context, nodeName string) error
		}); ok {
			lease = nameOf(c)
		}
	}
	if lease != "" && len(ungated) > 0 {
		return fmt.Errorf("kubewright: %s has no Gate, so it would act while another process holds the %s: set its Gate to the Holds of that", strings.Join(ungated, ", "), lease)
	}
	return nil
}

// nameOf returns the name of a controller.
func nameOf(c runner) string {
	if named, ok := c.(interface{ Name() string }); ok {
		return named.Name()
	}
	return fmt.Sprintf("%T", c)
}

// start starts a controller.
func start(ctx context.Context, c runner, ended chan<- *part) *part {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &part{name: nameOf(c), cancel: cancel, returned: make(chan struct{})}
	go func() {
		returned := false
		defer func() {
			if value := recover(); value != nil {
				p.panicked = &panicError{p.name, value, debug.Stack()}
			} else if !returned {
				p.err = fmt.Errorf("kubewright: %s ended its goroutine with runtime.Goexit", p.name)
			}
			close(p.returned)
			ended <- p
		}()
		err := c.Run(own)
		returned = true
		switch {
		case err != nil:
			p.err = fmt.Errorf("kubewright: %s: %w", p.name, err)
		case own.Err() == nil:
			p.err = fmt.Errorf("kubewright: %s returned before it was stopped", p.name)
		}
	}()
	return p
}

// stop stops the parts, the last one first.
func stop(parts []*part) {
	rest := time.Now().Add(restTimeout)
	inTime := true
	for _, p := range slices.Backward(parts[min(1, len(parts)):]) {
		p.cancel()
		if inTime {
			inTime = p.wait(min(stepTimeout, time.Until(rest)))
		}
	}
	for i, p := range parts {
		if i > 0 {
			p.wait(time.Until(rest))
		}
	}
	if len(parts) > 0 {
		parts[0].cancel()
		parts[0].wait(firstTimeout)
	}
}

// wait waits until p has returned, for at most d, and reports whether it has.
func (p *part) wait(d time.Duration) bool {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-p.returned:
		return true
	case <-timer.C:
	}
	return p.hasReturned()
}

func (p *part) hasReturned() bool {
	select {
	case <-p.returned:
		return true
	default:
		return false
	}
}

// result returns the errors of the parts, or raises the panic of one again. early is the
// part that returned first, or nil.
func result(parts []*part, early *part) error {
	var errs []error
	if early != nil {
		errs = append(errs, early.err)
	}
	for _, p := range parts {
		switch {
		case !p.hasReturned():
			errs = append(errs, fmt.Errorf("kubewright: %s has not returned %v after it was stopped", p.name, restTimeout+firstTimeout))
		case p.panicked != nil:
			panic(p.panicked)
		case p != early:
			errs = append(errs, p.err)
		}
	}
	return errors.Join(errs...)
}
