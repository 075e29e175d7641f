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
)

// delivered deals with what the source yielded last. It returns after how long
// the same is to be looked at again, or 0 where it is settled. It runs on
// Run's goroutine.
func (l *loop[T]) delivered(ctx context.Context) time.Duration {
	c, p := l.c, *l.payload
	ref := Ref{Name: tidy(p.Name, maxName), Version: tidy(p.Version, maxVersion), Size: len(p.Data), Time: time.Now()}
	if p.Data != nil {
		ref.Digest = DigestOf(p.Data)
	} else {
		ref = Ref{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.refresh()
	c.sit.door, c.sit.waiting = nil, ""
	if len(p.Data) > MaxPayloadSize {
		// Not remembered: to find out again costs less than to write it down.
		c.sit.door = &ReasonError{Reason: ReasonTooLarge, Ref: ref, Err: fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(p.Data), MaxPayloadSize)}
		return 0
	}
	var skipped Reason
	if c.sit.skipped != nil {
		skipped = c.sit.skipped.Reason
	}
	switch planDelivery(c.sit.rec, c.cfg.Build, c.sit.running.Digest, skipped, ref.Digest) {
	case deliveredNothing:
		return l.deliveredNothing(ctx)
	case deliveredDamaged:
		return l.heal(ctx, ref, p.Data)
	case deliveredNew:
		return l.deliveredNew(ctx, ref, p)
	case deliveredRejected:
		if a := c.sit.rec.Assigned; a == nil || a.Digest != ref.Digest {
			x, _ := c.sit.rec.rejection(ref.Digest, c.cfg.Build)
			c.sit.door = &ReasonError{Reason: x.Reason, Ref: ref, Err: errors.New(x.Message)}
		}
	case deliveredRunning, deliveredBlocked: // the latter is retried by itself
	}
	return 0
}

// deliveredNothing returns to the built-in default, if there is one.
func (l *loop[T]) deliveredNothing(ctx context.Context) time.Duration {
	c := l.c
	if c.cfg.Codec.Default == nil {
		c.sit.door = &ReasonError{Reason: ReasonNoDefault, Err: errors.New("the source assigns nothing, and there is no built-in default")}
		return 0
	}
	return l.assign(ctx, Ref{}, func(r record) (record, bool) { return unassign(r), true })
}

// deliveredNew takes a configuration that is not assigned through the door:
// what fails here has disturbed nothing.
func (l *loop[T]) deliveredNew(ctx context.Context, ref Ref, p Payload) time.Duration {
	c := l.c
	proven := c.sit.rec.LKG != nil && c.sit.rec.LKG.Digest == ref.Digest
	failure, wait := l.inspect(ctx, ref, p, proven)
	switch {
	case ctx.Err() != nil:
		return 0
	case failure != nil:
		c.sit.door = c.public(failure)
		if !proven {
			// Where this can't be written it holds in this process all the same.
			_ = c.bar(ref, failure.Reason, c.cfg.Redact(failure.Err))
		}
		return 0
	case wait > 0:
		c.sit.waiting = fmt.Sprintf("%s is not admitted yet", ref)
		return wait
	}
	if err := l.save(ref, p.Data, proven); err != nil {
		c.storeFailed(err)
		return l.storeRetry(err)
	}
	return l.assign(ctx, ref, func(r record) (record, bool) { return stage(r, ref, c.cfg.Build), true })
}

// inspect decodes, validates and asks for admission, without the lock.
func (l *loop[T]) inspect(ctx context.Context, ref Ref, p Payload, proven bool) (*ReasonError, time.Duration) {
	c := l.c
	c.mu.Unlock()
	defer c.mu.Lock()
	if _, failure := c.decode(bytes.Clone(p.Data), ref); failure != nil {
		return failure, 0
	}
	if c.cfg.Admit == nil || proven {
		return nil, 0
	}
	var wait time.Duration
	err := l.calls.do(ctx, c.cfg.CallTimeout, &l.busy.admit, func(ctx context.Context) error {
		w, err := c.cfg.Admit(ctx, Payload{Data: bytes.Clone(p.Data), Name: p.Name, Version: p.Version})
		if err == nil {
			wait = w
		}
		return err
	})
	switch {
	case err == nil:
		return nil, wait
	case errors.Is(err, errAbandoned), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		// No answer is no verdict.
		l.streaks.other.Fail(ctx, c.cfg.ErrorHandler, fmt.Errorf("configcheckpoint: ask for admission: %w", err), "Failed to ask for admission")
		return nil, c.cfg.CallTimeout
	}
	return &ReasonError{Reason: ReasonNotAdmitted, Ref: ref, Err: err}, 0
}

// save makes the payload durable, and sees to it that what a failed trial
// falls back to can be read: while that runs its bytes are at hand.
func (l *loop[T]) save(ref Ref, data []byte, proven bool) error {
	c := l.c
	if r := c.sit.rec; r.LKG != nil && r.LKG.Digest == c.sit.running.Digest {
		if _, err := c.store.load(r.LKG.Digest); err != nil {
			if err := c.store.save(r.LKG.Digest, c.payload); err != nil {
				return err
			}
		}
	}
	if proven {
		// A durable record has mentioned it since it was staged.
		if _, err := c.store.load(ref.Digest); err == nil {
			return nil
		}
	}
	return c.store.save(ref.Digest, data)
}

// assign commits an assignment and has it put into effect.
func (l *loop[T]) assign(ctx context.Context, ref Ref, change func(record) (record, bool)) time.Duration {
	c := l.c
	if err := c.update(change); err != nil {
		return l.storeRetry(err)
	}
	c.prune()
	c.sit.skipped = nil
	c.diverged = true
	info := Staged{Ref: ref, Proven: c.sit.rec.proven()}
	c.tell(func(o observer) { o.staged(info) })
	return 0
}

// heal writes the payload of what is assigned anew, and has it started. A disk
// that loses it over and over must not restart the process over and over, so
// the record counts how often that was done.
func (l *loop[T]) heal(ctx context.Context, ref Ref, data []byte) time.Duration {
	c := l.c
	if c.sit.rec.Healed >= c.cfg.Trial.Attempts {
		c.sit.skipped = &ReasonError{Reason: ReasonCheckpointCorrupt, Ref: ref, Err: fmt.Errorf("its stored copy was damaged again after %d repairs", c.sit.rec.Healed)}
		return 0
	}
	if err := c.store.save(ref.Digest, data); err != nil {
		c.storeFailed(err)
		return l.storeRetry(err)
	}
	err := c.update(func(r record) (record, bool) { r.Healed++; return r, true })
	if err != nil {
		return l.storeRetry(err)
	}
	c.sit.skipped = nil
	c.diverged = true
	klog.FromContext(ctx).Info("Repaired the stored copy of a configuration", "config", ref.String())
	return 0
}

// storeRetry reports that the store can't be written and returns when to try
// again, or 0 where that is useless.
func (l *loop[T]) storeRetry(err error) time.Duration {
	l.storeErr = err
	if !transientStore(storeReason(err)) {
		return 0
	}
	l.c.storeFailures++
	return storeRetry().Delay(l.c.storeFailures)
}
