// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/report"
)

// Boot chooses the configuration to run, from the disk alone: the assigned one
// if it is proven or may be tried once more, else the last-known-good one,
// else the one before it, else the built-in default. Call it once, before
// anything else; the choice is to be put into effect by the caller.
//
// When the assigned configuration is on trial its start has been counted and
// written to the disk before it is decoded. Whatever is wrong with the disk is
// in the Status and goes to ErrorHandler; with Codec.Default set, the errors
// are ErrLocked, ErrPermissions, ErrAlreadyBooted, ErrClosed and that of a
// Default that fails.
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
		return none, err
	}
	for _, problem := range []error{err, damage} {
		if problem != nil {
			c.report(ctx, fmt.Errorf("configcheckpoint: %w", problem), "Failed to open the store whole")
		}
	}
	choice, err := c.resolve(ctx)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		return none, errors.Join(err, c.store.close())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.activate(choice)
	c.life = booted
	c.refresh()
	info := Booted{Ref: c.sit.running, Role: c.sit.role, Trial: c.active.Trial}
	c.tell(func(o observer) { o.booted(info) })
	klog.FromContext(ctx).V(2).Info("Chose the configuration", "config", c.sit.running.String(), "role", c.sit.role, "trial", c.active.Trial)
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

// openStore opens the store and draws the conclusions from how the process
// before this one ended. Callers hold mu.
func (c *Controller[T]) openStore() (damage, err error) {
	damage, err = c.store.open()
	if err != nil {
		c.storeFailed(err)
		c.sit.rec = emptyRecord()
		return nil, err
	}
	c.sit.store = nil
	c.sit.rec = afterBoot(c.store.rec, c.bootID())
	if damage == nil {
		damage = c.store.frozen
	}
	if damage != nil {
		var known *ReasonError
		if !errors.As(damage, &known) {
			known = &ReasonError{Reason: storeReason(damage), Err: damage}
		}
		c.sit.store = known
	}
	if x, found := crashLoop(c.sit.rec, c.cfg.Build, c.cfg.Trial.Attempts); found {
		if _, known := c.sit.rec.rejection(x.Digest, x.Build); !known {
			// Where this can't be written it holds all the same, and the
			// status says so.
			_ = c.bar(*c.sit.rec.Assigned, x.Reason, x.Message)
		}
	}
	return damage, nil
}

// A choice is a configuration that can be run.
type choice[T any] struct {
	active  Active[T]
	payload []byte
	skipped *ReasonError // why it is not the assigned one
}

// resolve returns the best configuration that can be run. It writes to the
// store when that is one on trial, and calls the codec.
func (c *Controller[T]) resolve(ctx context.Context) (choice[T], error) {
	c.mu.Lock()
	chain := candidates(c.sit.rec, c.cfg.Build)
	c.mu.Unlock()
	var causes []error
	var skipped *ReasonError
	for _, cand := range chain {
		found, err := c.try(cand)
		if err == nil {
			found.skipped = skipped
			return found, nil
		}
		if cand.role == RoleAssigned {
			skipped = c.public(err)
		}
		causes = append(causes, fmt.Errorf("%s: %w", cand.role, err))
		if cand.role != RoleDefault || len(chain) == 1 {
			c.report(ctx, fmt.Errorf("configcheckpoint: %w", err), "Failed to start with a configuration")
		}
	}
	return choice[T]{}, &NoConfigError{Causes: causes}
}

// try prepares one candidate to be run.
func (c *Controller[T]) try(cand candidate) (choice[T], *ReasonError) {
	fail := func(reason Reason, err error) (choice[T], *ReasonError) {
		return choice[T]{}, &ReasonError{Reason: reason, Ref: cand.ref, Err: err}
	}
	active := Active[T]{Ref: cand.ref, Role: cand.role, Trial: cand.unproven}
	if cand.role == RoleDefault {
		if c.cfg.Codec.Default == nil {
			return fail(ReasonNoDefault, errors.New("there is no built-in default"))
		}
		config, err := guard(c.cfg.Codec.Default)
		if err != nil {
			return fail(ReasonDecodeFailed, err)
		}
		active.Config = config
		return choice[T]{active: active}, nil
	}
	payload, err := c.begin(cand)
	if err != nil {
		return fail(storeReason(err), err)
	}
	config, failure := c.decode(bytes.Clone(payload), cand.ref)
	if failure != nil {
		if cand.unproven {
			c.mu.Lock()
			defer c.mu.Unlock()
			// Where this can't be written it holds in this process all the
			// same, and the start, which is written, counts as failed.
			_ = c.bar(cand.ref, failure.Reason, c.cfg.Redact(failure.Err))
		}
		return choice[T]{}, failure
	}
	active.Config = config
	return choice[T]{active: active, payload: payload}, nil
}

// begin loads the payload of a candidate and, where it is not proven, counts
// the start. One that can't be counted is not made: the process could die of
// it again and again.
func (c *Controller[T]) begin(cand candidate) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	payload, err := c.store.load(cand.ref.Digest)
	if err != nil || !cand.unproven {
		return payload, err
	}
	err = c.update(func(r record) (record, bool) { return openAttempt(r, c.cfg.Build, c.bootID()), true })
	if err != nil {
		return nil, fmt.Errorf("record the start: %w", err)
	}
	c.attempt = cand.ref.Digest
	return payload, nil
}

// decode turns a payload into a configuration that passed validation.
func (c *Controller[T]) decode(payload []byte, ref Ref) (T, *ReasonError) {
	config, err := guard(func() (T, error) { return c.cfg.Codec.Decode(payload) })
	if err != nil {
		return config, &ReasonError{Reason: ReasonDecodeFailed, Ref: ref, Err: err}
	}
	if c.cfg.Codec.Validate == nil {
		return config, nil
	}
	_, err = guard(func() (struct{}, error) { return struct{}{}, c.cfg.Codec.Validate(config) })
	if err != nil {
		return config, &ReasonError{Reason: ReasonValidationFailed, Ref: ref, Err: err}
	}
	return config, nil
}

// public returns e with the cause as it may be shown to everybody.
func (c *Controller[T]) public(e *ReasonError) *ReasonError {
	return &ReasonError{Reason: e.Reason, Ref: e.Ref, Err: errors.New(tidy(c.cfg.Redact(e.Err), maxMessage))}
}

// activate makes a choice what runs. Callers hold mu.
func (c *Controller[T]) activate(found choice[T]) {
	c.active, c.payload = found.active, found.payload
	c.soak = soak{}
	c.sit.running, c.sit.role = found.active.Ref, found.active.Role
	c.sit.skipped, c.sit.health = found.skipped, nil
	c.sit.restart, c.diverged = false, false
}

// report hands an error to the embedder's handler, or logs it.
func (c *Controller[T]) report(ctx context.Context, err error, msg string) {
	report.Tell(ctx, c.cfg.ErrorHandler, err, msg)
}

// guard calls a function of the embedder and turns a panic into an error.
func guard[R any](f func() (R, error)) (result R, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f()
}
