// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/callback"
	"github.com/kubewright/kubewright/internal/report"
)

// loop is one Run: the state that only its goroutine uses.
type loop[T any] struct {
	c       *Controller[T]
	streaks errorStreaks

	admission callback.Line[time.Duration]
	applying  callback.Line[struct{}]

	deliveries    chan delivery
	payload       *Payload    // the last one; nil before the first
	inspected     Digest      // the payload that Codec has accepted
	admitFailures int         // in a row
	admitErr      error       // to be reported
	again         *time.Timer // to handle payload again

	store    *time.Timer // to retry a failed store operation
	retrying bool        // store is set
	storeErr error       // to be reported

	check  *time.Timer // the next check of the trial
	trial  bool        // check is set, or a check is under way
	health callback.Line[struct{}]
	asked  bool               // a check is under way, or its result was not taken
	cancel context.CancelFunc // of the check under way

	reported Status
}

// A delivery is a payload or an error of the source.
type delivery struct {
	payload Payload
	err     error
}

// Run follows the source, carries out the trial and rolls back, until ctx is
// done, and then returns nil. It returns an error that wraps ErrRestart when
// another configuration must run; that one is stored, and only the restart
// remains to be done. Other errors are ErrNotBooted, ErrAlreadyRun and
// ErrClosed. Outages of the source or the disk are never fatal.
func (c *Controller[T]) Run(ctx context.Context) error {
	if !c.once.Begin() {
		return ErrAlreadyRun
	}
	c.mu.Lock()
	if err := c.usable(); err != nil {
		c.mu.Unlock()
		return err
	}
	c.life = inRun
	c.mu.Unlock()
	ctx, cancel := context.WithCancel(c.withLogger(ctx))
	report.ContainHooks(ctx, c.cfg.ErrorHandler, &c.observer.hooks)
	l := newLoop(c)
	logger := klog.FromContext(ctx)
	logger.V(3).Info("Started")
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		l.follow(ctx)
	}()
	err := l.run(ctx)
	cancel()
	for _, timer := range []*time.Timer{l.again, l.store, l.check} {
		timer.Stop()
	}
	if !c.await(followed) {
		logger.Info("Left a call behind that did not return when its context was done", "timeout", c.shutdownTimeout)
	}
	c.progress.Stop()
	c.mu.Lock()
	c.life = afterRun
	c.mu.Unlock()
	logger.V(3).Info("Stopped")
	return err
}

// await waits until the source and every function that was called have returned, or for
// shutdownTimeout. It reports whether they have.
func (c *Controller[T]) await(followed <-chan struct{}) bool {
	deadline := time.Now().Add(c.shutdownTimeout)
	select {
	case <-followed:
	case <-time.After(c.shutdownTimeout):
		return false
	}
	for _, waitFor := range []func(time.Duration) bool{c.codec.WaitFor, c.admit.WaitFor, c.apply.WaitFor, c.health.WaitFor} {
		if !waitFor(time.Until(deadline)) {
			return false
		}
	}
	return true
}

// stoppedTimer returns a timer that does not fire until it is reset.
func stoppedTimer() *time.Timer {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return timer
}

func newLoop[T any](c *Controller[T]) *loop[T] {
	return &loop[T]{
		c:          c,
		deliveries: make(chan delivery),
		again:      stoppedTimer(),
		store:      stoppedTimer(),
		check:      stoppedTimer(),
	}
}

// follow hands over the deliveries of the source. A panic of the source is an error
// like others; follow then ranges over the source again.
func (l *loop[T]) follow(ctx context.Context) {
	failures := 0
	hand := func(d delivery) bool {
		if d.err == nil {
			d.err = d.payload.check()
		}
		select {
		case l.deliveries <- d:
		case <-ctx.Done():
			return false
		}
		if d.err == nil {
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
		err := callback.Contain("Source", func() error {
			for p, err := range l.c.cfg.Source.Payloads(ctx) {
				p.Data = bytes.Clone(p.Data)
				if !hand(delivery{p, err}) {
					break
				}
			}
			return nil
		})
		if err == nil || !hand(delivery{err: err}) {
			return
		}
	}
}

// run is the loop. Every change of the running configuration happens here, one
// after the other.
func (l *loop[T]) run(ctx context.Context) error {
	c := l.c
	beat := time.NewTicker(callTimeout)
	defer beat.Stop()
	for {
		c.progress.Beat()
		if ctx.Err() != nil {
			return nil
		}
		err := l.converge(ctx)
		l.followTrial()
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
			l.handleAgain(ctx)
			if l.trial && l.asked {
				l.startCheck(ctx) // which takes the result, if there is one
			}
		case d := <-l.deliveries:
			l.onDelivery(ctx, d)
		case <-l.again.C:
			l.handle(ctx)
		case <-l.store.C:
			l.retryStore()
			l.handleAgain(ctx) // before converge: the record may be news, and the payload is newer
		case <-l.check.C:
			l.startCheck(ctx)
		}
	}
}

// onDelivery records and handles a delivery.
func (l *loop[T]) onDelivery(ctx context.Context, d delivery) {
	c := l.c
	info := Delivered{Err: d.err}
	if d.err == nil && !d.payload.Unassign {
		info.Ref = d.payload.ref()
	}
	c.mu.Lock()
	c.state.source = d.err
	c.report(func(o observer) { o.delivered(info) })
	c.refresh()
	c.mu.Unlock()
	if d.err != nil {
		l.streaks.source.Fail(ctx, sourceClass(d.err), c.cfg.ErrorHandler, d.err, "Failed to learn from the source what to run")
		return
	}
	l.streaks.source.OK(ctx, "The source delivers again")
	l.payload = &d.payload
	l.handle(ctx)
	c.ready.Mark()
}

// handle handles the last payload, and sets the timer to handle it again.
func (l *loop[T]) handle(ctx context.Context) {
	l.again.Stop()
	if wait := l.deliver(ctx); wait > 0 {
		l.again.Reset(wait)
	}
}

// handleAgain handles the last payload again if the state has changed without a
// delivery.
func (l *loop[T]) handleAgain(ctx context.Context) {
	c := l.c
	c.mu.Lock()
	again := c.reconsider
	c.reconsider = false
	c.mu.Unlock()
	if again && l.payload != nil {
		l.handle(ctx)
	}
}

// followStore sets the timer to retry a failed store operation.
func (l *loop[T]) followStore() {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.retrying || !c.storeNeedsRetry() {
		return
	}
	c.storeFailures++
	l.retrying = true
	l.store.Reset(storeRetry().Delay(c.storeFailures))
}

// storeNeedsRetry reports whether the store failed in a way that may pass. Callers
// hold mu.
func (c *Controller[T]) storeNeedsRetry() bool {
	return !c.store.Complete() || c.core.Unsaved() || c.blocked() || c.state.store.transient()
}

// blocked reports whether a better configuration was not started because the store
// failed. Callers hold mu.
func (c *Controller[T]) blocked() bool {
	return c.state.skipped.transient() || c.state.passed.transient()
}

// transient reports whether e is a fault of the store that may pass.
func (e *ReasonError) transient() bool { return e != nil && rollout.Reason(e.Reason).Transient() }

// retryStore is the retry.
func (l *loop[T]) retryStore() {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.refresh()
	l.retrying = false
	if !c.storeNeedsRetry() {
		return // another write has succeeded in the meantime
	}
	blocked := c.blocked()
	if err := l.tryStore(); err != nil {
		l.storeErr = err
		return
	}
	if blocked && c.blocked() {
		c.decide(rollout.Unblocked{})
	}
}

// tryStore opens the store if Boot could not, and reads and writes it if
// necessary. Callers hold mu.
func (l *loop[T]) tryStore() error {
	c := l.c
	if !c.store.Complete() {
		if _, err := c.openStore(); err != nil {
			return err
		}
		if err := c.store.Unreadable(); err != nil {
			return err
		}
		c.reconsider = true // the last payload was compared with another record, or with none
	}
	if c.blocked() {
		if err := l.tryPayloads(); err != nil {
			return err
		}
	}
	_, err := c.change(rollout.Retried{})
	return err
}

// tryPayloads returns an error if no configuration that is better than the running one
// can be read, but one may be later. Callers hold mu.
func (l *loop[T]) tryPayloads() error {
	c := l.c
	for _, cand := range c.core.Candidates() {
		if cand.Role == rollout.Default || Digest(cand.Ref.Digest) == c.active.Ref.Digest {
			break
		}
		switch _, err := c.store.Load(cand.Ref.Digest); {
		case err == nil:
			return nil
		case !errors.Is(err, slotstore.ErrPayload):
			return err
		case cand.Role == rollout.Assigned:
			c.skip(c.public(&ReasonError{Reason: ReasonCheckpointCorrupt, Ref: refOf(&cand.Ref), Err: err}), c.state.passed)
		}
	}
	c.state.passed = nil
	return nil
}

// converge puts the configuration into effect that must run, if another one
// runs.
func (l *loop[T]) converge(ctx context.Context) error {
	c := l.c
	c.mu.Lock()
	want, differs := c.core.Wanted()
	c.decide(rollout.Replacing{})
	if !differs {
		c.mu.Unlock()
		return nil
	}
	if c.cfg.Apply == nil {
		defer c.mu.Unlock()
		return l.restart(refOf(&want))
	}
	c.mu.Unlock()
	err := l.endChecks(ctx)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		c.mu.Lock()
		defer c.mu.Unlock()
		return fmt.Errorf("%w: %w", l.restart(refOf(&c.core.Candidates()[0].Ref)), err)
	}
	return l.apply(ctx)
}

// restart makes the error that Run returns. Callers hold mu.
func (l *loop[T]) restart(want Ref) error {
	l.c.state.restart = true
	l.c.refresh()
	return fmt.Errorf("%w: %s instead of %s", ErrRestart, want, l.c.state.running())
}

// apply is a boot within the process: it chooses a configuration and calls Apply,
// until Apply accepts one.
func (l *loop[T]) apply(ctx context.Context) error {
	c := l.c
	for failed := false; ; failed = true {
		found, err := c.choose(ctx)
		if err != nil {
			return errors.Join(ErrRestart, err)
		}
		c.mu.Lock()
		if !failed && found.active.Ref.Digest == c.active.Ref.Digest {
			// The wanted one can't be started, and the running one is next in line.
			c.skip(found.skipped, found.passed)
			c.refresh()
			c.mu.Unlock()
			return nil
		}
		c.mu.Unlock()
		_, err = c.apply.Ask(ctx, found.active.Ref.String(), &l.applying, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, c.cfg.Apply(ctx, found.active)
		})
		c.mu.Lock()
		switch {
		case err == nil:
			c.activate(found)
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
			// If this can't be written, it holds in this process anyway.
			_ = c.reject(found.active.Ref, ReasonApplyFailed, c.redact(err), false)
		}
		// If the call hangs, the fallback is not applied either: that has no answer at once.
		if !found.active.Trial {
			defer c.mu.Unlock()
			return fmt.Errorf("%w: %w", l.restart(refOf(&c.core.Candidates()[0].Ref)), failure)
		}
		c.mu.Unlock()
		c.reportError(ctx, fmt.Errorf("configcheckpoint: %w", failure), "Failed to apply a configuration")
	}
}

// publish makes the pending reports, without the lock.
func (l *loop[T]) publish(ctx context.Context) {
	c := l.c
	c.mu.Lock()
	reports, pruneErr, storeErr := c.reports, c.pruneErr, l.storeErr
	c.reports, c.pruneErr, l.storeErr = nil, nil, nil
	healthy := c.state.store == nil && !c.state.refused.transient()
	c.mu.Unlock()
	admitErr := l.admitErr
	l.admitErr = nil
	c.panicsMu.Lock()
	panics := c.panics
	c.panics = nil
	c.panicsMu.Unlock()
	for _, err := range panics {
		c.reportError(ctx, fmt.Errorf("configcheckpoint: %w", err), "A callback panicked")
	}
	if admitErr != nil {
		l.streaks.other.Fail(ctx, 0, c.cfg.ErrorHandler, fmt.Errorf("configcheckpoint: admit: %w", admitErr), "Failed to get an answer of Admit")
	}
	if pruneErr != nil {
		l.streaks.other.Fail(ctx, 0, c.cfg.ErrorHandler, fmt.Errorf("configcheckpoint: remove old payloads: %w", pruneErr), "Failed to remove old payloads")
	}
	switch {
	case storeErr != nil:
		l.streaks.store.Fail(ctx, 0, c.cfg.ErrorHandler, fmt.Errorf("configcheckpoint: write the store: %w", storeErr), "Failed to write the store")
	case healthy:
		l.streaks.store.OK(ctx, "The store can be written again")
	}
	observer := c.observer
	observer.logger = klog.FromContext(ctx)
	for _, call := range reports {
		call(observer)
	}
	if st := c.Status(); st != l.reported {
		l.reported = st
		observer.statusChanged(st)
	}
}

// followTrial starts and stops the checks together with the trial.
func (l *loop[T]) followTrial() {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	onTrial := c.core.OnTrial() > 0
	switch {
	case onTrial && !l.trial:
		l.trial = true
		l.check.Reset(0)
	case !onTrial && l.trial:
		l.trial = false
		l.check.Stop()
	}
}

// startCheck calls Health for the configuration on trial, or takes the result of the check
// under way. Late is called when that one has returned.
func (l *loop[T]) startCheck(ctx context.Context) {
	c := l.c
	if c.cfg.Trial.Health == nil {
		l.onCheck(nil)
		return
	}
	if !l.asked {
		ctx, l.cancel = context.WithCancel(ctx)
	}
	wait, err := l.visit(ctx)
	if wait > 0 {
		l.check.Reset(wait)
		return
	}
	l.onCheck(err)
}

// visit calls Health, or takes the result of the call under way. It returns the time to wait
// if there is none yet.
func (l *loop[T]) visit(ctx context.Context) (wait time.Duration, err error) {
	_, err, wait, known := l.c.health.Visit(ctx, "", &l.health, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, l.c.cfg.Trial.Health(ctx)
	})
	if l.asked = !known; known {
		l.cancel()
	}
	return wait, err
}

// endChecks ends the checks before another configuration is applied, because their
// results say nothing about that one. It returns an error if a call of Health does not
// return, because no other configuration can then be checked in this process. If the
// running configuration stays on trial, followTrial starts the checks again.
func (l *loop[T]) endChecks(ctx context.Context) error {
	l.trial = false
	l.check.Stop()
	if l.asked {
		l.cancel()
	}
	if !l.c.health.WaitFor(patience) {
		return errors.New("Trial.Health did not return when its context was done")
	}
	if l.asked {
		_, err := l.visit(ctx)
		l.c.panicked(err)
	}
	l.health = callback.Line[struct{}]{} // a result that came too late was not taken
	return nil
}

// onCheck applies the result of a check to the trial.
func (l *loop[T]) onCheck(err error) {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if !l.trial || c.core.OnTrial() == 0 {
		return
	}
	c.panicked(err)
	now := time.Now()
	c.decide(rollout.Checked{Healthy: err == nil})
	next := c.core.NextCheck(now)
	c.state.health = nil
	if err != nil {
		c.state.health = errors.New(c.redact(err))
	}
	c.refresh()
	switch c.core.Verdict(now) {
	case rollout.Passed:
		if err := c.promote(false); err != nil {
			next = l.storeRetry(err)
		}
	case rollout.Failed:
		if err := c.rollBack(c.redact(err)); err != nil {
			l.storeErr = err
		}
	case rollout.Lasted:
		if c.state.store == nil {
			if _, err := c.change(rollout.Lived{}); err != nil {
				l.storeErr = err
			}
		}
	case rollout.Undecided:
	}
	if next > 0 {
		l.check.Reset(next)
	}
}

// errorStreaks report once that something fails, and once that it works again.
type errorStreaks struct{ source, store, other report.Streak }

// sourceClass tells apart the errors of the source that are each reported once: it has
// no such configuration, it does not answer, or it has another problem.
func sourceClass(err error) int {
	switch {
	case errors.Is(err, ErrSourceNotFound):
		return 1
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return 2
	}
	return 0
}

// sourceRetry is the delay after errors of the source in a row.
func sourceRetry() backoff.Policy {
	return backoff.Policy{Base: 200 * time.Millisecond, Cap: 10 * time.Second}
}

// storeRetry is the delay after failures of the store in a row.
func storeRetry() backoff.Policy {
	return backoff.Policy{Base: 10 * time.Second, Cap: 10 * time.Minute}
}

// admitRetry is the delay after errors of Admit in a row.
func admitRetry() backoff.Policy {
	return backoff.Policy{Base: 10 * time.Second, Cap: 5 * time.Minute}
}

// repairRetry is the delay before the next repair, after repairs in a row that
// did not lead to a start, in this process or in those before it. A disk that loses
// its content again and again must not restart the process, or apply a
// configuration, again and again at once.
func repairRetry() backoff.Policy {
	return backoff.Policy{Base: 10 * time.Second, Cap: 10 * time.Minute}
}
