// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
	"github.com/kubewright/kubewright/internal/backoff"
)

// deliver handles the last payload. It returns the delay after which to handle
// it again, or 0 if it is settled. It runs on Run's goroutine.
func (l *loop[T]) deliver(ctx context.Context) time.Duration {
	c, p := l.c, *l.payload
	var ref Ref
	if !p.Unassign {
		ref = Ref{Digest: DigestOf(p.Data), Name: tidy(p.Name, maxName), Version: tidy(p.Version, maxVersion), Size: len(p.Data), Time: time.Now()}
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
	switch decideDelivery(c.state.rec, c.cfg.Build, c.state.running.Digest, skipped, ref.Digest) {
	case doUnassign:
		if c.cfg.Codec.Default == nil {
			c.state.refused = &ReasonError{Reason: ReasonNoDefault, Err: errors.New("the source assigns nothing, and there is no built-in default")}
			return 0
		}
		return l.assign(Ref{}, unassign)
	case doRepair:
		return l.repair(ctx, ref, p.Data)
	case doStage:
		return l.stage(ctx, ref, p)
	case doReportRejection:
		if !c.state.rec.isAssigned(ref.Digest) {
			x, _ := c.state.rec.rejection(ref.Digest, c.cfg.Build)
			c.state.refused = &ReasonError{Reason: x.Reason, Ref: ref, Err: errors.New(x.Message)}
		}
	case doNothing, doAwaitStore:
	}
	return 0
}

// stage inspects, admits, saves and assigns a configuration. A failure on the
// way has disturbed nothing that runs. Callers hold mu.
func (l *loop[T]) stage(ctx context.Context, ref Ref, p Payload) time.Duration {
	c := l.c
	proven := c.state.rec.isGood(ref.Digest)
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
			_ = c.rejectConfig(ref, failure.Reason, c.redact(failure.Err))
		}
		return 0
	case wait > 0:
		return wait
	}
	if err := l.save(ref, p.Data, proven); err != nil {
		return l.retryDelivery(ref, err)
	}
	return l.assign(ref, func(r record) record { return stage(r, ref, c.cfg.Build) })
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
	now := c.inspection.again(ref.Digest, c.cfg.Build)
	if now.Deaths >= c.cfg.Trial.Attempts {
		return &ReasonError{
			Reason: ReasonCrashLoop, Ref: ref,
			Err: fmt.Errorf("%d processes ended while they decoded and validated it", now.Deaths),
		}, nil
	}
	note, err := now.note(false)
	if err == nil {
		err = c.store.SetNote(note)
	}
	if err != nil {
		return nil, fmt.Errorf("record the inspection: %w", err)
	}
	c.inspecting = &now
	c.mu.Unlock()
	_, failure = c.decode(ctx, bytes.Clone(data), ref)
	c.mu.Lock()
	if ctx.Err() != nil && failure != nil && errors.Is(failure, errAbandoned) {
		return nil, nil // it hangs, and so may the end of the process; else Close ends it
	}
	if err := c.store.SetNote(nil); err != nil {
		return nil, fmt.Errorf("record the end of the inspection: %w", err)
	}
	c.inspection, c.inspecting = inspection{}, nil
	if failure == nil {
		l.inspected = ref.Digest
	}
	return failure, nil
}

// admitRetry is the delay after errors of Admit in a row.
func admitRetry() backoff.Policy {
	return backoff.Policy{Base: 10 * time.Second, Cap: 5 * time.Minute}
}

// admit calls Admit without the lock. Only an explicit refusal is final. Callers
// hold mu.
func (l *loop[T]) admit(ctx context.Context, ref Ref, p Payload) (failure *ReasonError, wait time.Duration) {
	c := l.c
	if c.cfg.Admit == nil {
		return nil, 0
	}
	c.mu.Unlock()
	answer := make(chan time.Duration, 1)
	err := c.calls.do(ctx, "Admit", c.cfg.CallTimeout, &l.busy.admit, func(ctx context.Context) error {
		w, err := c.cfg.Admit(ctx, Payload{Data: bytes.Clone(p.Data), Name: p.Name, Version: p.Version})
		if err == nil {
			answer <- w
		}
		return err
	})
	c.mu.Lock()
	switch {
	case err == nil:
		l.admitFailures = 0
		if wait = <-answer; wait > 0 {
			c.state.waiting = fmt.Sprintf("%s is not admitted yet", ref)
		}
		return nil, wait
	case errors.Is(err, ErrRefused):
		return &ReasonError{Reason: ReasonNotAdmitted, Ref: ref, Err: err}, 0
	}
	l.admitFailures++
	c.state.waiting = fmt.Sprintf("the admission of %s failed: %s", ref, c.redact(err))
	if ctx.Err() == nil {
		l.streaks.other.Fail(ctx, c.cfg.ErrorHandler, fmt.Errorf("configcheckpoint: admit: %w", err), "Failed to get an answer of Admit")
	}
	return nil, admitRetry().Delay(l.admitFailures)
}

// save makes the payload durable. It also makes sure that the configuration to
// fall back to can be read: while that one runs, its bytes are at hand. Callers
// hold mu.
func (l *loop[T]) save(ref Ref, data []byte, proven bool) error {
	c := l.c
	if r := c.state.rec; r.isGood(c.state.running.Digest) {
		if _, err := c.store.Load(r.LKG.Digest); errors.Is(err, slotstore.ErrPayload) {
			if err := c.store.Save(r.LKG.Digest, c.payload); err != nil {
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
func (l *loop[T]) assign(ref Ref, change func(record) record) time.Duration {
	c := l.c
	if err := c.update(func(r record) (record, bool) { return change(r), true }); err != nil {
		return l.storeRetry(err)
	}
	c.prune()
	c.state.skipped = nil
	c.diverged = true
	info := Staged{Ref: ref, Proven: c.state.rec.proven()}
	c.report(func(o observer) { o.staged(info) })
	return 0
}

// repairRetry is the delay before the next repair, after repairs in a row that
// did not lead to a start, in this process or in those before it. A disk that loses
// its content again and again must not restart the process, or apply a
// configuration, again and again at once.
func repairRetry() backoff.Policy {
	return backoff.Policy{Base: 10 * time.Second, Cap: 10 * time.Minute}
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
	n := c.state.rec.Repairs + 1
	if err := c.update(func(r record) (record, bool) { return withRepairs(r, n) }); err != nil {
		return l.retryDelivery(ref, err)
	}
	c.repairAfter = time.Now().Add(repairRetry().Delay(n))
	c.state.skipped = nil
	c.diverged = true
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
	if !transientStore(storeReason(err)) {
		return 0
	}
	l.c.storeFailures++
	return storeRetry().Delay(l.c.storeFailures)
}

// hashGateInterval is the time after which a node that is held back asks again.
const hashGateInterval = time.Minute

// HashGate returns a Config.Admit that admits a share of the nodes to a new
// configuration: those for which the hash of node name and content falls below
// percent of its range. The order of the nodes differs between contents, so that
// the first nodes are not always the same; raising the share adds nodes and
// removes none. A percent of 0 or less admits no node, 100 or more every node.
//
// percent is called each time a node asks. A node that is held back asks again
// after half a minute to one and a half, at a time that follows from the hash
// too: when the share is raised, the nodes that it admits don't all restart at
// once.
func HashGate(node string, percent func() int) func(context.Context, Payload) (time.Duration, error) {
	return func(_ context.Context, p Payload) (time.Duration, error) {
		digest := DigestOf(p.Data)
		sum := sha256.Sum256(append([]byte(node+"\x00"), digest[:]...))
		// 2^64 divided by 100 is not whole: the shares differ by less than
		// one node in 10^17.
		if share := int(binary.BigEndian.Uint64(sum[:8]) % 100); share < percent() {
			return 0, nil
		}
		fraction := float64(binary.BigEndian.Uint32(sum[8:12])) / (1 << 32)
		return hashGateInterval/2 + time.Duration(fraction*float64(hashGateInterval)), nil
	}
}
