// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
)

// deliver handles the last payload. It returns the delay after which to handle
// it again, or 0 if it is settled. It runs on Run's goroutine.
func (l *loop[T]) deliver(ctx context.Context) time.Duration {
	c, p := l.c, *l.payload
	var ref Ref
	if !p.Unassign {
		ref = p.ref()
		ref.Time = time.Now()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.refresh()
	c.state.refused, c.state.waiting = nil, ""
	if len(p.Data) > MaxPayloadSize {
		// Not stored: finding it out again costs less than a write.
		c.state.refused = &ReasonError{Reason: ReasonTooLarge, Ref: ref, Err: fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(p.Data), MaxPayloadSize)}
		return 0
	}
	var skipped Reason
	if c.state.skipped != nil {
		skipped = c.state.skipped.Reason
	}
	switch c.core.Delivery(rollout.Reason(skipped), rollout.Digest(ref.Digest)) {
	case rollout.Unassign:
		if c.cfg.Codec.Default == nil {
			c.state.refused = &ReasonError{Reason: ReasonNoDefault, Err: errors.New("the source assigns nothing, and there is no built-in default")}
			return 0
		}
		return l.assign(Ref{}, rollout.Withdrawn{})
	case rollout.Repair:
		return l.repair(ctx, ref, p.Data)
	case rollout.Stage:
		return l.stage(ctx, ref, p)
	case rollout.ReportRejection:
		if x, _ := c.core.Rejection(rollout.Digest(ref.Digest)); !c.core.IsAssigned(x.Digest) {
			c.state.refused = &ReasonError{Reason: Reason(x.Reason), Ref: ref, Err: errors.New(x.Message)}
		}
	case rollout.Nothing, rollout.AwaitStore:
	}
	return 0
}

// stage inspects, admits, saves and assigns a configuration. A failure on the
// way has disturbed nothing that runs. Callers hold mu.
func (l *loop[T]) stage(ctx context.Context, ref Ref, p Payload) time.Duration {
	c := l.c
	proven := c.core.IsGood(rollout.Digest(ref.Digest))
	failure, err := l.inspect(ctx, ref, p.Data)
	if err != nil {
		return l.retryDelivery(ref, err)
	}
	var wait time.Duration
	if failure == nil && !proven {
		failure, wait = l.admit(ctx, ref, p)
	}
	switch {
	case ctx.Err() != nil:
		return 0
	case failure != nil:
		c.panicked(failure)
		c.state.refused = c.public(failure)
		if !proven {
			// If this can't be written, it holds in this process anyway.
			_ = c.reject(ref, failure.Reason, c.redact(failure.Err), false)
		}
		return 0
	case wait > 0:
		return wait
	}
	if err := l.save(ref, p.Data, proven); err != nil {
		return l.retryDelivery(ref, err)
	}
	return l.assign(ref, rollout.Accepted{Ref: ref.core()})
}

// inspect decodes and validates a payload that does not run, without the lock.
// The store's note says so in the meantime: a payload that ends the process is
// inspected Trial.Attempts times and then rejected. A note that can't be written
// is an error, and the payload is not touched. Callers hold mu.
func (l *loop[T]) inspect(ctx context.Context, ref Ref, data []byte) (failure *ReasonError, err error) {
	c := l.c
	if l.inspected == ref.Digest {
		return nil, nil
	}
	digest := rollout.Digest(ref.Digest)
	if deaths := c.core.Deaths(digest); deaths >= c.cfg.Trial.Attempts {
		return &ReasonError{
			Reason: ReasonCrashLoop, Ref: ref,
			Err: fmt.Errorf("%d processes ended while they decoded and validated it", deaths),
		}, nil
	}
	if err := c.store.SetNote(c.core.Note(digest)); err != nil {
		return nil, fmt.Errorf("record the inspection: %w", err)
	}
	c.decide(rollout.Inspecting{Digest: digest})
	c.mu.Unlock()
	_, failure = c.decode(ctx, bytes.Clone(data), ref)
	hangs := ctx.Err() != nil && !c.codec.WaitFor(patience)
	c.mu.Lock()
	if hangs {
		return nil, nil // and so may the end of the process; else Close ends the inspection
	}
	if err := c.store.SetNote(nil); err != nil {
		return nil, fmt.Errorf("record the end of the inspection: %w", err)
	}
	c.decide(rollout.Inspected{})
	if failure == nil {
		l.inspected = ref.Digest
	}
	return failure, nil
}

// admit calls Admit without the lock. Only an explicit refusal is final. Callers
// hold mu.
func (l *loop[T]) admit(ctx context.Context, ref Ref, p Payload) (failure *ReasonError, wait time.Duration) {
	c := l.c
	if c.cfg.Admit == nil {
		return nil, 0
	}
	c.mu.Unlock()
	wait, err := c.admit.Ask(ctx, ref.String(), &l.admission, func(ctx context.Context) (time.Duration, error) {
		return c.cfg.Admit(ctx, Payload{Data: bytes.Clone(p.Data), Name: p.Name, Version: p.Version})
	})
	c.mu.Lock()
	switch {
	case err == nil:
		l.admitFailures = 0
		if wait > 0 {
			c.state.waiting = fmt.Sprintf("%s is not admitted yet", ref)
		}
		return nil, wait
	case errors.Is(err, ErrRefused):
		return &ReasonError{Reason: ReasonNotAdmitted, Ref: ref, Err: err}, 0
	}
	l.admitFailures++
	c.state.waiting = fmt.Sprintf("the admission of %s failed: %s", ref, c.redact(err))
	if ctx.Err() == nil {
		l.admitErr = err
	}
	return nil, admitRetry().Delay(l.admitFailures)
}

// save makes the payload durable. It also makes sure that the configuration to
// fall back to can be read: while that one runs, its bytes are at hand. Callers
// hold mu.
func (l *loop[T]) save(ref Ref, data []byte, proven bool) error {
	c := l.c
	if running := c.active.Ref.core().Digest; c.core.IsGood(running) {
		if _, err := c.store.Load(running); errors.Is(err, slotstore.ErrPayload) {
			if err := c.store.Save(running, c.payload); err != nil {
				return err
			}
		}
	}
	if proven {
		// A durable record has referred to it since it was staged.
		if _, err := c.store.Load(ref.Digest); err == nil {
			return nil
		}
	}
	return c.store.Save(ref.Digest, data)
}

// assign commits an assignment and puts it into effect. Callers hold mu.
func (l *loop[T]) assign(ref Ref, event rollout.Event) time.Duration {
	c := l.c
	if _, err := c.change(event); err != nil {
		return l.storeRetry(err)
	}
	c.prune()
	c.state.skipped, c.state.passed = nil, nil
	info := Staged{Ref: ref, Proven: c.core.Proven()}
	c.report(func(o observer) { o.staged(info) })
	return 0
}

// repair saves the payload of the assigned configuration again, and starts it.
// Callers hold mu.
func (l *loop[T]) repair(ctx context.Context, ref Ref, data []byte) time.Duration {
	c := l.c
	if wait := time.Until(c.repairAfter); wait > 0 {
		return wait
	}
	if err := c.store.Save(ref.Digest, data); err != nil {
		return l.retryDelivery(ref, err)
	}
	if _, err := c.change(rollout.Repaired{}); err != nil {
		return l.retryDelivery(ref, err)
	}
	c.repairAfter = time.Now().Add(repairRetry().Delay(c.core.Record().Repairs))
	c.state.skipped, c.state.passed = nil, nil
	klog.FromContext(ctx).Info("Repaired the stored copy of a configuration", "config", ref.String())
	return 0
}

// retryDelivery reports that the store failed for a payload, and returns when to
// handle the payload again, or 0 if that is useless. The failure belongs to the
// payload: another delivery ends it. Callers hold mu.
func (l *loop[T]) retryDelivery(ref Ref, err error) time.Duration {
	l.c.state.refused = &ReasonError{Reason: storeReason(err), Ref: ref, Err: err}
	return l.storeRetry(err)
}

// storeRetry queues the report that the store failed, and returns when to try
// again, or 0 if that is useless. Callers hold mu.
func (l *loop[T]) storeRetry(err error) time.Duration {
	l.storeErr = err
	if !rollout.Reason(storeReason(err)).Transient() {
		return 0
	}
	l.c.storeFailures++
	return storeRetry().Delay(l.c.storeFailures)
}
