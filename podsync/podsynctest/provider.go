// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsynctest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/podsync"
)

// ErrCrashed is the error of calls of a Provider after Crash.
var ErrCrashed = errors.New("podsynctest: the connection was cut")

// A Provider connects one process to a Backend. It has every capability; to
// leave some out embed it in a struct of the interfaces that are to stay:
//
//	struct {
//		podsync.Provider
//		podsync.Releaser
//	}{p, p}
type Provider struct {
	backend *Backend
	cut     chan struct{}

	mu      sync.Mutex
	pending map[types.UID]podsync.State // what Watch has not reported yet
	order   []types.UID
	wake    chan struct{}
	admit   func(ctx context.Context, pod *corev1.Pod, active iter.Seq[*corev1.Pod]) error
}

var _ interface {
	podsync.Provider
	podsync.Updater
	podsync.Watcher
	podsync.Inspector
	podsync.Releaser
	podsync.Admitter
} = (*Provider)(nil)

// Connect returns a new connection.
func (b *Backend) Connect() *Provider {
	p := &Provider{backend: b, cut: make(chan struct{}), pending: map[types.UID]podsync.State{}, wake: make(chan struct{}, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.connected[p] = struct{}{}
	return p
}

// Crash cuts the connection, as the death of the process would: calls under way
// return ErrCrashed, with or without having had an effect, and nothing is
// reported any more.
func (p *Provider) Crash() {
	p.backend.mu.Lock()
	defer p.backend.mu.Unlock()
	if _, ok := p.backend.connected[p]; !ok {
		return
	}
	delete(p.backend.connected, p)
	close(p.cut)
	p.backend.forgetCalls(p)
}

// OnAdmit sets what Admit answers. By default it admits everything.
func (p *Provider) OnAdmit(f func(ctx context.Context, pod *corev1.Pod, active iter.Seq[*corev1.Pod]) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.admit = f
}

// Start implements podsync.Provider.
func (p *Provider) Start(ctx context.Context, pod *corev1.Pod) (st podsync.State, err error) {
	err = p.call(ctx, Call{Op: podsync.OpStart, Ref: podsync.RefOf(pod), Generation: pod.Generation}, func(b *Backend) error {
		if pod.DeletionTimestamp != nil {
			b.violate("Start of %v, which is being deleted", podsync.RefOf(pod))
		}
		in := b.pods[pod.UID]
		if in == nil {
			in = b.create(pod.DeepCopy())
			if b.opts.StartTime > 0 {
				b.report(in)
				b.after(in, b.opts.StartTime, func() { b.run(in) })
			} else {
				b.run(in)
			}
		}
		st = copyState(in.state)
		return nil
	})
	return st, err
}

// Update implements podsync.Updater.
func (p *Provider) Update(ctx context.Context, pod *corev1.Pod) (st podsync.State, err error) {
	err = p.call(ctx, Call{Op: podsync.OpUpdate, Ref: podsync.RefOf(pod), Generation: pod.Generation}, func(b *Backend) error {
		in := b.pods[pod.UID]
		if in == nil {
			return fmt.Errorf("update of %v: %w", podsync.RefOf(pod), podsync.ErrNotFound)
		}
		in.pod, in.state.Generation = pod.DeepCopy(), pod.Generation
		st = copyState(in.state)
		return nil
	})
	return st, err
}

// Stop implements podsync.Provider.
func (p *Provider) Stop(ctx context.Context, ref podsync.Ref, opts podsync.StopOptions) (st podsync.State, err error) {
	err = p.call(ctx, Call{Op: podsync.OpStop, Ref: ref, Grace: opts.Grace, Reason: opts.Reason}, func(b *Backend) error {
		in := b.pods[ref.UID]
		if in == nil {
			st = podsync.State{Ref: ref, Stopped: true}
			return nil
		}
		b.stopping(in, opts.Grace)
		st = copyState(in.state)
		return nil
	})
	return st, err
}

// stopping makes an instance end within a grace period.
func (b *Backend) stopping(in *instance, grace time.Duration) {
	if in.state.Stopped {
		if b.opts.Forgets {
			delete(b.pods, in.ref.UID)
		}
		return
	}
	kill := time.Now().Add(grace)
	if !in.kill.IsZero() && !kill.Before(in.kill) {
		return
	}
	first := in.kill.IsZero()
	in.kill = kill
	switch {
	case b.opts.StopTime == 0:
		b.stopped(in, b.opts.ExitCode)
	case b.opts.StopTime > grace:
		b.after(in, grace, func() { b.stopped(in, 137) })
	case first:
		b.after(in, b.opts.StopTime, func() { b.stopped(in, b.opts.ExitCode) })
	}
}

// List implements podsync.Provider.
func (p *Provider) List(ctx context.Context) (states []podsync.State, err error) {
	err = p.call(ctx, Call{Op: podsync.OpList}, func(b *Backend) error {
		for _, in := range b.pods {
			states = append(states, copyState(in.state))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return states, nil
}

// Inspect implements podsync.Inspector.
func (p *Provider) Inspect(ctx context.Context, ref podsync.Ref) (st podsync.State, err error) {
	err = p.call(ctx, Call{Op: podsync.OpInspect, Ref: ref}, func(b *Backend) error {
		in := b.pods[ref.UID]
		if in == nil {
			return fmt.Errorf("%v: %w", ref, podsync.ErrNotFound)
		}
		st = copyState(in.state)
		return nil
	})
	return st, err
}

// Release implements podsync.Releaser.
func (p *Provider) Release(ctx context.Context, ref podsync.Ref) error {
	return p.call(ctx, Call{Op: podsync.OpRelease, Ref: ref}, func(b *Backend) error {
		if in := b.pods[ref.UID]; in != nil && !in.state.Stopped {
			b.violate("Release of %v, which runs", ref)
		}
		delete(b.pods, ref.UID)
		return nil
	})
}

// Admit implements podsync.Admitter.
func (p *Provider) Admit(ctx context.Context, pod *corev1.Pod, active iter.Seq[*corev1.Pod]) error {
	p.mu.Lock()
	admit := p.admit
	p.mu.Unlock()
	return p.call(ctx, Call{Op: podsync.OpAdmit, Ref: podsync.RefOf(pod)}, func(b *Backend) error {
		if admit == nil {
			return nil
		}
		return admit(ctx, pod, active)
	})
}

// Watch implements podsync.Watcher.
func (p *Provider) Watch(ctx context.Context, report func(podsync.State)) error {
	for {
		f := p.backend.faultOf(Call{Op: podsync.OpWatch})
		if f != nil && f.Err != nil {
			return f.Err
		}
		for _, st := range p.drain() {
			f := p.backend.faultOf(Call{Op: OpReport, Ref: st.Ref})
			if f == nil {
				report(st)
				continue
			}
			if f.Delay > 0 && !wait(ctx, p.cut, f.Delay) {
				return nil
			}
			if !f.Lose {
				report(st)
			}
			for range f.Repeat {
				report(copyState(st))
			}
		}
		select {
		case <-p.wake:
		case <-ctx.Done():
			return nil
		case <-p.cut:
			<-ctx.Done() // the dead say nothing
			return nil
		}
	}
}

// queue keeps the newest state of a pod for Watch.
func (p *Provider) queue(st podsync.State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.pending[st.UID]; !ok {
		p.order = append(p.order, st.UID)
	}
	p.pending[st.UID] = st
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *Provider) drain() (states []podsync.State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, uid := range p.order {
		states = append(states, p.pending[uid])
	}
	clear(p.pending)
	p.order = nil
	return states
}

// wait waits and reports whether neither ctx nor the connection ended first.
func wait(ctx context.Context, cut <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	case <-cut:
		return false
	}
}
