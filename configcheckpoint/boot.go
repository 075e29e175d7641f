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
	"github.com/kubewright/kubewright/internal/callback"
	"github.com/kubewright/kubewright/internal/report"
)

// Boot chooses the configuration to run, from the disk alone: the assigned one
// if it is proven or may be tried once more, else the last-known-good one,
// else the one before it, else the built-in default. Call it once, before
// anything else. The caller then puts the choice into effect.
//
// If the assigned configuration is on trial, its start has been counted and
// written to the disk before it is decoded. Faults of the disk are in the Status
// and go to ErrorHandler; if Codec.Default is set, the errors are ErrLocked,
// ErrPermissions, ErrAlreadyBooted, ErrClosed and that of a Default that fails.
func (c *Controller[T]) Boot(ctx context.Context) (Active[T], error) {
	ctx = c.withLogger(ctx)
	var none Active[T]
	if err := c.beginBoot(); err != nil {
		return none, err
	}
	c.mu.Lock()
	damage, err := c.openStore()
	c.mu.Unlock()
	if errors.Is(err, ErrLocked) || errors.Is(err, ErrPermissions) {
		return none, c.bootFailed(err)
	}
	for _, problem := range []error{err, damage} {
		if problem != nil {
			c.reportError(ctx, fmt.Errorf("configcheckpoint: %w", problem), "Failed to open the store completely")
		}
	}
	found, err := c.choose(ctx)
	if err != nil {
		return none, c.bootFailed(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.activate(found)
	c.life = booted
	// A repair asks for a restart. It waits, so that a disk that loses its content at
	// every start restarts the process ever more rarely.
	wait := min(repairRetry().Base, c.cfg.Trial.Soak)
	if n := c.core.Record().Repairs; n > 0 {
		wait = max(wait, repairRetry().Delay(n+1))
	}
	c.repairAfter = time.Now().Add(wait)
	c.refresh()
	klog.FromContext(ctx).V(2).Info("Chose the configuration", "config", c.active.Ref.String(), "role", c.active.Role, "trial", c.active.Trial)
	return c.active, nil
}

// beginBoot lets Boot run once.
func (c *Controller[T]) beginBoot() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.life {
	case created:
		c.life = booting
		return nil
	case closed:
		return ErrClosed
	}
	return ErrAlreadyBooted
}

// bootFailed returns the error of Boot.
func (c *Controller[T]) bootFailed(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.life = unbooted
	if closing := c.store.Close(); closing != nil {
		return errors.Join(err, closing)
	}
	return err
}

// openStore opens the store, and finds out how the process before this one
// ended. Callers hold mu.
func (c *Controller[T]) openStore() (damage, err error) {
	damage, err = c.store.Open()
	if err != nil {
		c.storeFailed(err)
		c.decide(rollout.NotOpened{})
		return nil, err
	}
	c.state.store = nil
	if damage != nil {
		c.storeFailed(damage)
	}
	// If a rejection can't be written, it holds anyway, and is in the status.
	_, _ = c.change(rollout.Opened{Record: c.store.Record(), Note: c.store.Note(), BootID: c.bootID(), Old: c.store.Unreadable() != nil})
	return damage, nil
}

// A choice is a configuration that can be run.
type choice[T any] struct {
	active  Active[T]
	payload []byte
	skipped *ReasonError // why it is not the assigned one
	passed  *ReasonError // why it is not one that was proven: the store failed, which may pass
}

// choose returns the best configuration that can be run. If that one is on trial,
// choose writes to the store. It calls Codec's functions.
func (c *Controller[T]) choose(ctx context.Context) (choice[T], error) {
	c.mu.Lock()
	chain := c.core.Candidates()
	c.mu.Unlock()
	var causes []error
	var skipped, passed *ReasonError
	for _, cand := range chain {
		found, err := c.try(ctx, cand)
		if err == nil {
			found.skipped, found.passed = skipped, passed
			return found, nil
		}
		switch {
		case cand.Role == rollout.Assigned:
			skipped = c.public(err)
		case err.transient() && passed == nil:
			passed = c.public(err)
		}
		causes = append(causes, fmt.Errorf("%s: %w", cand.Role, err))
		if cand.Role != rollout.Default || len(chain) == 1 {
			c.reportError(ctx, fmt.Errorf("configcheckpoint: %w", err), "Failed to start with a configuration")
		}
	}
	return choice[T]{}, &NoConfigError{Causes: causes}
}

// try prepares one candidate to be run.
func (c *Controller[T]) try(ctx context.Context, cand rollout.Candidate) (choice[T], *ReasonError) {
	ref := refOf(&cand.Ref)
	fail := func(reason Reason, err error) (choice[T], *ReasonError) {
		return choice[T]{}, &ReasonError{Reason: reason, Ref: ref, Err: err}
	}
	active := Active[T]{Ref: ref, Role: Role(cand.Role), Trial: cand.Unproven}
	if cand.Role == rollout.Default {
		if c.cfg.Codec.Default == nil {
			return fail(ReasonNoDefault, errors.New("there is no built-in default"))
		}
		config, err := callback.Get("Codec.Default", c.cfg.Codec.Default)
		if err != nil {
			return fail(ReasonDecodeFailed, err)
		}
		active.Config = config
		return choice[T]{active: active}, nil
	}
	payload, err := c.beginStart(cand)
	if err != nil {
		return fail(storeReason(err), err)
	}
	// The end of ctx is no fault of the configuration.
	config, failure := c.decode(context.WithoutCancel(ctx), bytes.Clone(payload), ref)
	if failure != nil {
		if cand.Unproven {
			c.mu.Lock()
			defer c.mu.Unlock()
			// If this can't be written, it holds in this process anyway, and the
			// start, which is written, counts as failed.
			_ = c.reject(ref, failure.Reason, c.redact(failure.Err), false)
		}
		return choice[T]{}, failure
	}
	active.Config = config
	return choice[T]{active: active, payload: payload}, nil
}

// beginStart loads the payload of a candidate and, if it is not proven, counts
// the start. A start that can't be counted is not made: the process could die of
// it again and again.
func (c *Controller[T]) beginStart(cand rollout.Candidate) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	payload, err := c.store.Load(cand.Ref.Digest)
	if err != nil || !cand.Unproven {
		return payload, err
	}
	if _, err := c.change(rollout.Starting{Digest: cand.Ref.Digest, BootID: c.bootID()}); err != nil {
		return nil, fmt.Errorf("record the start: %w", err)
	}
	return payload, nil
}

// decode turns a payload into a configuration that passed validation. Functions that take
// too long are left behind, and count as failed. It returns when ctx is done.
func (c *Controller[T]) decode(ctx context.Context, payload []byte, ref Ref) (T, *ReasonError) {
	var none T
	var line callback.Line[T] // a payload that hangs is no fault of the next one
	config, err := c.codec.Ask(ctx, ref.String(), &line, func(context.Context) (T, error) {
		config, err := callback.Get("Codec.Decode", func() (T, error) { return c.cfg.Codec.Decode(payload) })
		if err != nil {
			return none, &ReasonError{Reason: ReasonDecodeFailed, Ref: ref, Err: err}
		}
		if c.cfg.Codec.Validate != nil {
			if err := callback.Contain("Codec.Validate", func() error { return c.cfg.Codec.Validate(config) }); err != nil {
				return none, &ReasonError{Reason: ReasonValidationFailed, Ref: ref, Err: err}
			}
		}
		return config, nil
	})
	if err == nil {
		return config, nil
	}
	if failure, ok := err.(*ReasonError); ok {
		return none, failure
	}
	return none, &ReasonError{Reason: ReasonDecodeFailed, Ref: ref, Err: err}
}

// public returns e with the redacted text of its cause.
func (c *Controller[T]) public(e *ReasonError) *ReasonError {
	return &ReasonError{Reason: e.Reason, Ref: e.Ref, Err: errors.New(rollout.Tidy(c.redact(e.Err), rollout.MaxMessage))}
}

// activate makes a choice the running configuration. Callers hold mu.
func (c *Controller[T]) activate(found choice[T]) {
	c.active, c.payload = found.active, found.payload
	c.state.health, c.state.restart = nil, false
	c.skip(found.skipped, found.passed)
	// A failure is in the status.
	_, _ = c.change(rollout.Running{Ref: found.active.Ref.core(), Role: rollout.Role(found.active.Role), Skipped: found.skipped != nil})
}

// skip records why the assigned configuration, or one that was proven, was not started; nil
// if it was, or is no better than the running one. Callers hold mu.
func (c *Controller[T]) skip(assigned, other *ReasonError) {
	c.state.skipped, c.state.passed = assigned, other
	if assigned != nil && assigned.Reason == ReasonCheckpointCorrupt {
		// The next delivery repairs it, and the last one is at hand.
		c.reconsider = true
		c.notify()
	}
}

// reportError calls Config.ErrorHandler, or logs err.
func (c *Controller[T]) reportError(ctx context.Context, err error, msg string) {
	report.Tell(ctx, c.cfg.ErrorHandler, err, msg)
}

// redact calls Config.Redact. The text after a panic shows nothing of err.
func (c *Controller[T]) redact(err error) string {
	text, panicked := callback.Get("Redact", func() (string, error) { return c.cfg.Redact(err), nil })
	if panicked != nil {
		c.panicked(panicked)
		return "the error can't be shown, because Redact panicked"
	}
	return text
}

// panicked lets Run report err if it is a panic. It may be called with and without mu.
func (c *Controller[T]) panicked(err error) {
	if _, ok := errors.AsType[*callback.PanicError](err); ok {
		c.panicsMu.Lock()
		defer c.panicsMu.Unlock()
		c.panics = append(c.panics, err)
	}
}

// bootID returns the identity of the machine's present boot, or "" if the system
// has none.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return rollout.Tidy(string(id), 64)
}
