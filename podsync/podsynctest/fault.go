// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsynctest

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/podsync"
)

var errHung = errors.New("podsynctest: the call hung")

// OpReport is the operation of faults of single reports of Watch.
const OpReport podsync.Op = "report"

// A Fault is something that goes wrong on purpose.
type Fault struct {
	// Op is the call that it happens to. "" is every call, but not OpReport.
	Op podsync.Op
	// UID and Name say to which pod; "" is every pod.
	UID  types.UID
	Name string
	// Times is how often; 0 is until it is removed.
	Times int

	// Delay is the time that the call waits before anything else.
	Delay time.Duration
	// Hang makes the call wait until its context is done or the fault is
	// removed, and then fail without effect.
	Hang bool
	// HangOn makes the call wait until the fault is removed, whatever its
	// context says, and then go on.
	HangOn bool
	// Err is returned instead of doing anything. With OpWatch it ends Watch.
	Err error
	// ErrAfter is returned although the call has had its effect, as when an
	// answer is lost.
	ErrAfter error
	// Lose drops a report. It goes with OpReport.
	Lose bool
	// Repeat reports so many times more. It goes with OpReport.
	Repeat int
}

type fault struct {
	Fault
	used int
	gone chan struct{}
}

// Inject makes things go wrong until remove is called.
func (b *Backend) Inject(f Fault) (remove func()) {
	in := &fault{Fault: f, gone: make(chan struct{})}
	b.mu.Lock()
	b.faults = append(b.faults, in)
	b.mu.Unlock()
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if i := slices.Index(b.faults, in); i >= 0 {
			b.faults = slices.Delete(b.faults, i, i+1)
			close(in.gone)
		}
	}
}

// faultOf returns the first fault that a call meets, or nil.
func (b *Backend) faultOf(c Call) *fault {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.faults {
		if f.Op == "" && c.Op == OpReport || f.Op != "" && f.Op != c.Op ||
			f.UID != "" && f.UID != c.Ref.UID || f.Name != "" && f.Name != c.Ref.Name ||
			f.Times > 0 && f.used >= f.Times {
			continue
		}
		f.used++
		return f
	}
	return nil
}

// call does one call with its faults.
func (p *Provider) call(ctx context.Context, c Call, effect func(*Backend) error) (err error) {
	b := p.backend
	f := b.faultOf(c)
	entry := b.begin(p, c)
	defer func() { b.finish(entry, err) }()
	if f != nil {
		if f.Delay > 0 {
			wait(ctx, p.cut, f.Delay)
		}
		switch {
		case f.Hang:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-f.gone:
				return errHung
			case <-p.cut:
			}
		case f.HangOn:
			select {
			case <-f.gone:
			case <-p.cut:
			}
		}
		if f.Err != nil {
			return f.Err
		}
	}
	select {
	case <-p.cut:
		return ErrCrashed
	default:
	}
	if ctx.Err() != nil && c.Op == podsync.OpStart {
		return ctx.Err()
	}
	if c.Op == podsync.OpAdmit {
		return effect(b) // it may take its time
	}
	b.mu.Lock()
	err = effect(b)
	b.mu.Unlock()
	if err == nil && f != nil && f.ErrAfter != nil {
		return f.ErrAfter
	}
	return err
}

// ClearFaults removes every fault.
func (b *Backend) ClearFaults() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.faults {
		close(f.gone)
	}
	b.faults = nil
}
