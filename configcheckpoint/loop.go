// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
)

// loop is one Run: everything that only its goroutine touches.
type loop[T any] struct {
	c       *Controller[T]
	calls   calls
	busy    struct{ health, admit, apply atomic.Bool }
	streaks errorStreaks

	deliveries chan arrival
	payload    *Payload    // the last one; nil before the first
	again      *time.Timer // to look at payload once more

	store    *time.Timer // to write again what could not be written
	waiting  bool        // for that timer
	storeErr error       // to be reported

	check   *time.Timer  // the next check of the trial
	checked <-chan error // the result of the one under way, or nil
	trial   bool         // the timers above run

	mended  *time.Timer // to forget that a payload had to be repaired
	mending bool        // for that timer

	reported Status
}

// arrival is what the source goroutine hands over.
type arrival struct {
	payload Payload
	err     error
}

// Run follows the source, carries out the trial and rolls back, until ctx is
// done, and then returns nil. It returns an error that wraps ErrRestart when
// another configuration is to run, and then nothing is left to do but to
// restart: what it found is stored. Other errors are ErrNotBooted,
// ErrAlreadyRun and ErrClosed. Outages of the source or the disk are never
// fatal.
func (c *Controller[T]) Run(ctx context.Context) error {
	if !c.once.Begin() {
		return ErrAlreadyRun
	}
	c.mu.Lock()
	if err := c.usable(); err != nil {
		c.mu.Unlock()
		return err
	}
	c.life = running
	c.mu.Unlock()
	ctx, cancel := context.WithCancel(c.withLogger(ctx))
	l := &loop[T]{
		c:          c,
		deliveries: make(chan arrival),
		again:      stoppedTimer(),
		store:      stoppedTimer(),
		check:      stoppedTimer(),
		mended:     stoppedTimer(),
	}
	logger := klog.FromContext(ctx)
	logger.V(3).Info("Started")
	l.calls.pending.Go(func() { l.follow(ctx) })
	err := l.run(ctx)
	cancel()
	for _, timer := range []*time.Timer{l.again, l.store, l.check, l.mended} {
		timer.Stop()
	}
	if !l.calls.wait(c.cfg.ShutdownTimeout) {
		logger.Info("Left a call behind that did not return when its context was done", "timeout", c.cfg.ShutdownTimeout)
	}
	c.progress.Stop()
	c.mu.Lock()
	c.life = returned
	c.mu.Unlock()
	logger.V(3).Info("Stopped")
	return err
}

// follow hands over what the source yields. A panic of the source is an error
// like others, after which it is ranged over anew.
func (l *loop[T]) follow(ctx context.Context) {
	failures := 0
	hand := func(a arrival) bool {
		select {
		case l.deliveries <- a:
		case <-ctx.Done():
			return false
		}
		if a.err == nil {
			failures = 0
			return true
		}
		failures++
		select {
		case <-time.After(sourceRetry().Delay(failures)):
			return true
		case <-ctx.Done():
			return false
		}
	}
	for {
		_, err := guard(func() (struct{}, error) {
			for p, err := range l.c.cfg.Source.Payloads(ctx) {
				p.Data = bytes.Clone(p.Data)
				if !hand(arrival{p, err}) {
					break
				}
			}
			return struct{}{}, nil
		})
		if err == nil || !hand(arrival{err: err}) {
			return
		}
	}
}

// run is the loop. All that changes what runs happens here, one thing after
// the other.
func (l *loop[T]) run(ctx context.Context) error {
	c := l.c
	beat := time.NewTicker(c.cfg.CallTimeout)
	defer beat.Stop()
	for {
		c.progress.Beat()
		if ctx.Err() != nil {
			return nil
		}
		err := l.converge(ctx)
		l.followTrial()
		l.followRepair()
		l.followStore()
		l.publish(ctx)
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
		case <-c.wake:
			l.lookAgain(ctx)
		case a := <-l.deliveries:
			l.arrived(ctx, a)
		case <-l.again.C:
			l.look(ctx)
		case <-l.store.C:
			l.retryStore()
		case <-l.mended.C:
			l.forgetRepairs()
		case <-l.check.C:
			l.startCheck(ctx)
		case err := <-l.checked:
			l.checked = nil
			l.observe(err)
		}
	}
}

// arrived takes what the source yielded.
func (l *loop[T]) arrived(ctx context.Context, a arrival) {
	c := l.c
	info := Delivered{Err: a.err}
	if a.err == nil && a.payload.Data != nil {
		info.Ref = Ref{Digest: DigestOf(a.payload.Data), Name: a.payload.Name, Version: a.payload.Version, Size: len(a.payload.Data)}
	}
	c.mu.Lock()
	c.sit.source = a.err
	c.tell(func(o observer) { o.delivered(info) })
	c.refresh()
	c.mu.Unlock()
	if a.err != nil {
		l.streaks.source.Fail(ctx, c.cfg.ErrorHandler, a.err, "Failed to learn from the source what to run")
		return
	}
	l.streaks.source.OK(ctx, "The source delivers again")
	l.payload = &a.payload
	l.look(ctx)
	c.ready.Mark()
}

// look deals with the last payload, and arranges for another look.
func (l *loop[T]) look(ctx context.Context) {
	l.again.Stop()
	if wait := l.delivered(ctx); wait > 0 {
		l.again.Reset(wait)
	}
}

// lookAgain looks at the last payload once more if Forget asks for it.
func (l *loop[T]) lookAgain(ctx context.Context) {
	c := l.c
	c.mu.Lock()
	forgot := c.forgot
	c.forgot = false
	c.mu.Unlock()
	if forgot && l.payload != nil {
		l.look(ctx)
	}
}

// followStore arranges for what could not be written to be written again, and
// for the start that could not be recorded to be made.
func (l *loop[T]) followStore() {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.waiting || !c.blocked() && !c.unsaved && c.store.opened {
		return
	}
	c.storeFailures++
	l.waiting = true
	l.store.Reset(storeRetry().Delay(c.storeFailures))
}

// blocked reports whether the assigned configuration was not started because
// that could not be recorded. Callers hold mu.
func (c *Controller[T]) blocked() bool {
	return c.sit.skipped != nil && transientStore(c.sit.skipped.Reason)
}

// retryStore is the next try.
func (l *loop[T]) retryStore() {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.refresh()
	l.waiting = false
	blocked := c.blocked()
	if !blocked && !c.unsaved && c.store.opened {
		return // something else has been written meanwhile, and this with it
	}
	if err := l.writeAgain(); err == nil {
		c.diverged = c.diverged || blocked
	}
}

// writeAgain opens the store where Boot could not, and commits what is known.
// Callers hold mu.
func (l *loop[T]) writeAgain() error {
	c := l.c
	if !c.store.opened {
		if _, err := c.openStore(); err != nil {
			l.storeErr = err
			return err
		}
		// The disk came late, and may know more than this process does.
		c.diverged = candidates(c.sit.rec, c.cfg.Build)[0].ref.Digest != c.sit.running.Digest
	}
	err := c.update(func(r record) (record, bool) { return r, true })
	if err != nil {
		l.storeErr = err
	}
	return err
}

// converge puts into effect what is to run, where that has changed.
func (l *loop[T]) converge(ctx context.Context) error {
	c := l.c
	c.mu.Lock()
	want := candidates(c.sit.rec, c.cfg.Build)[0].ref
	diverged := c.diverged
	c.diverged = false
	if !diverged || want.Digest == c.sit.running.Digest {
		c.mu.Unlock()
		return nil
	}
	if c.cfg.Apply == nil {
		defer c.mu.Unlock()
		return l.restart(want)
	}
	c.mu.Unlock()
	return l.apply(ctx)
}

// restart makes the error that Run returns. Callers hold mu.
func (l *loop[T]) restart(want Ref) error {
	l.c.sit.restart = true
	l.c.refresh()
	return fmt.Errorf("%w: %s instead of %s", ErrRestart, want, l.c.sit.running)
}

// apply is a boot within the process: it chooses, and hands the choice to the
// embedder until one is taken.
func (l *loop[T]) apply(ctx context.Context) error {
	c := l.c
	for failed := false; ; failed = true {
		found, err := c.resolve(ctx)
		if err != nil {
			return errors.Join(ErrRestart, err)
		}
		c.mu.Lock()
		if !failed && found.active.Ref.Digest == c.sit.running.Digest {
			// What is to run can't be started, and what runs is next in line.
			c.sit.skipped = found.skipped
			c.refresh()
			c.mu.Unlock()
			return nil
		}
		c.mu.Unlock()
		err = l.calls.do(ctx, c.cfg.CallTimeout, &l.busy.apply, func(ctx context.Context) error { return c.cfg.Apply(ctx, found.active) })
		c.mu.Lock()
		switch {
		case err == nil:
			c.activate(found)
			l.trial = false // begin anew
			c.refresh()
			c.mu.Unlock()
			klog.FromContext(ctx).V(2).Info("Applied a configuration", "config", found.active.Ref.String(), "role", found.active.Role)
			return nil
		case ctx.Err() != nil:
			c.mu.Unlock()
			return nil
		}
		failure := &ReasonError{Reason: ReasonApplyFailed, Ref: found.active.Ref, Err: err}
		if found.active.Trial {
			// Where this can't be written it holds in this process all the same.
			_ = c.bar(found.active.Ref, ReasonApplyFailed, c.cfg.Redact(err))
		}
		if !found.active.Trial || errors.Is(err, errAbandoned) {
			defer c.mu.Unlock()
			return fmt.Errorf("%w: %w", l.restart(candidates(c.sit.rec, c.cfg.Build)[0].ref), failure)
		}
		c.mu.Unlock()
		c.report(ctx, fmt.Errorf("configcheckpoint: %w", failure), "Failed to apply a configuration")
	}
}

// publish hands what happened to the hooks, without the lock.
func (l *loop[T]) publish(ctx context.Context) {
	c := l.c
	c.mu.Lock()
	news, untidy, storeErr := c.news, c.untidy, l.storeErr
	c.news, c.untidy, l.storeErr = nil, nil, nil
	healthy := c.sit.store == nil
	c.mu.Unlock()
	if untidy != nil {
		l.streaks.other.Fail(ctx, c.cfg.ErrorHandler, fmt.Errorf("configcheckpoint: remove old payloads: %w", untidy), "Failed to remove old payloads")
	}
	switch {
	case storeErr != nil:
		l.streaks.store.Fail(ctx, c.cfg.ErrorHandler, fmt.Errorf("configcheckpoint: write the store: %w", storeErr), "Failed to write the store")
	case healthy:
		l.streaks.store.OK(ctx, "The store can be written again")
	}
	observer := c.observer
	observer.logger = klog.FromContext(ctx)
	for _, tell := range news {
		tell(observer)
	}
	if st := c.Status(); st != l.reported {
		l.reported = st
		observer.statusChanged(st)
	}
}

// stoppedTimer returns a timer that does not fire until it is reset.
func stoppedTimer() *time.Timer {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return timer
}
