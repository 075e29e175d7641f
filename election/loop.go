// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/report"
)

// loop drives a machine: it sends requests, runs the work, watches the Lease, and
// reports. One goroutine owns it.
type loop struct {
	*Candidate
	machine *machine
	// ctx is the context of Run. requests is the same without its end, because the
	// lease is kept until the work has returned.
	ctx, requests context.Context
	wg            sync.WaitGroup

	lease    lane[*coordinationv1.Lease]
	keeper   *keeper    // does nothing with the registry OnLease
	returned chan error // by the work
	err      error      // of work that returned on its own
}

func (c *Candidate) newLoop(ctx context.Context) *loop {
	s := setup{Config: c.cfg, id: c.identity, random: rand.Float64}
	var panics report.Streak // never ends: one that happens at each step is reported once
	s.Strategy = contained{Strategy: c.cfg.Strategy, name: c.cfg.Strategy.Name(), report: func(err error) {
		panics.Fail(ctx, c.cfg.ErrorHandler, fmt.Errorf("election: %w", err), "The strategy panicked")
	}}
	l := &loop{
		Candidate: c, ctx: ctx, requests: context.WithoutCancel(ctx),
		machine: newMachine(s, c.peer(), c.clock.now()), returned: make(chan error, 1),
		keeper: &keeper{upkeep: upkeep{ended: true}},
	}
	l.lease = lane[*coordinationv1.Lease]{
		follower: &l.machine.follower, loop: l, kind: "lease", name: c.cfg.Lease.Name, client: c.cfg.Client.Leases(c.cfg.Lease.Namespace),
		answers: make(chan answer[*coordinationv1.Lease], 1), failed: c.cfg.Hooks.Failed,
	}
	if c.cfg.Registry.native {
		l.keeper = l.newKeeper()
	}
	return l
}

// run returns when the candidate has finished.
func (l *loop) run() {
	defer l.wg.Wait()
	defer l.lease.stopWatch()
	defer l.keeper.stopWatch()
	timer := time.NewTimer(0)
	defer timer.Stop()
	stopped := l.ctx.Done()
	for {
		l.progress.Beat()
		wake := l.step()
		if l.machine.phase == finished && l.keeper.upkeep.ended {
			return
		}
		timer.Reset(l.clock.span(wake - l.clock.now().mono))
		select {
		case <-timer.C:
		case a := <-l.lease.answers:
			l.answered(a)
		case s := <-l.lease.sights:
			l.sighted(s)
		case a := <-l.keeper.answers:
			l.keeper.abort = nil
			if now := l.clock.now(); a.op == opInquire {
				l.machine.judge(now.mono, l.keeper.upkeep.asked, a.object, a.err)
			} else {
				l.keeper.upkeep.done(now, a.op, a.object, a.err)
			}
			l.keeper.report(a.op, a.err)
		case s := <-l.keeper.sights:
			if !s.began && l.keeper.sighted(l.clock.now().mono, s) {
				l.keeper.upkeep.observe(s.object, s.deleted)
			}
		case err := <-l.returned:
			l.workReturned(err)
		case <-l.changed:
			l.takeRequests()
		case <-stopped:
			stopped = nil
			l.machine.stop(l.clock.now().mono, context.Cause(l.ctx))
		}
	}
}

// step asks the machine and the upkeep for the next requests, and sends them. It
// returns when to ask again.
func (l *loop) step() time.Duration {
	wake := l.clock.now().mono + idleWake
	if l.machine.phase != finished {
		s := l.machine.next(l.clock.now())
		wake = s.wake
		l.effects()
		l.lease.take(s, l.machine.watching(), versionOf(l.machine.lease))
	}
	if !l.keeper.upkeep.ended {
		wake = min(wake, l.keep())
	}
	l.publishStatus()
	return wake
}

// answered passes the answer to a request to the machine.
func (l *loop) answered(a answer[*coordinationv1.Lease]) {
	l.lease.abort = nil
	now := l.clock.now()
	if a.op == OpRead {
		l.machine.readDone(now, a.sent, a.object, a.err)
	} else {
		l.machine.writeDone(now, a.sent, a.op, a.object, a.err)
	}
	l.effects() // a term that is over ends before any report
	l.lease.report(a.op, a.err)
	if a.op == OpRenew && a.err == nil {
		spec.Call(l.cfg.Hooks.Renewed, Renewed{Latency: now.mono - a.sent.mono})
	}
}

// sighted passes an observation of the watch to the machine.
func (l *loop) sighted(s sight[*coordinationv1.Lease]) {
	now := l.clock.now()
	switch {
	case s.began:
		l.machine.watchBegan(now.mono)
	case l.lease.sighted(now.mono, s):
		l.machine.watched(now, s.object, s.deleted)
		l.effects()
	}
}

// effects carries out and reports the decisions of the machine.
func (l *loop) effects() {
	told := l.machine.told
	l.machine.told = nil
	for _, effect := range told {
		l.tell(effect)
		if _, ok := effect.(TermStarted); ok {
			l.begin()
		}
	}
}

// begin starts the work.
func (l *loop) begin() {
	ctx, cancel := context.WithCancelCause(l.ctx)
	t := l.machine.term
	started := t.start(l.clock, ctx.Err, cancel)
	l.leading.Store(t)
	if !started {
		// A hook took longer than the term. Another candidate may lead now, so the
		// work must not begin.
		l.machine.endTerm(l.clock.now().mono, ErrExpired)
		l.returned <- nil
		return
	}
	l.wg.Go(func() {
		err := errGoexit
		defer func() { l.returned <- err }()
		err = l.cfg.Lead(ctx, Term{t})
	})
}

// workReturned passes the end of the work to the machine.
func (l *loop) workReturned(err error) {
	now := l.clock.now()
	// The reason for the end may not have been processed yet.
	l.machine.expire(now)
	if l.ctx.Err() != nil {
		l.machine.stop(now.mono, context.Cause(l.ctx))
	}
	cause := l.machine.term.cause
	expected := err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || cause != nil && errors.Is(err, cause)
	if l.machine.finishWork(now.mono) {
		l.err = err
	} else if !expected {
		report.Tell(l.ctx, l.cfg.ErrorHandler, fmt.Errorf("election: lead: %w", err), "The work of the leader ended with an error")
	}
	l.effects()
}

// takeRequests handles the requests of other goroutines.
func (l *loop) takeRequests() {
	l.machine.self = l.peer()
	if holder := l.gone.Swap(nil); holder != nil {
		l.machine.holderGone(l.clock.now().mono, *holder)
	}
	if l.resigning.CompareAndSwap(true, false) {
		l.machine.resign(l.clock.now().mono)
		l.effects()
	}
}

// publishStatus copies the state of the machine for other goroutines.
func (l *loop) publishStatus() {
	m := l.machine
	st := status{holder: spec.HolderOf(m.lease), until: m.held}
	if t := m.term; t != nil {
		if t.cause != nil {
			st.drainBy = t.cancelledAt + l.cfg.Timing.Drain
		}
		if m.mine() {
			st.until = t.until()
		}
	}
	l.status.Store(&st)
	if m.lease != nil {
		l.ready.Mark()
	}
}

// tell reports an event to the log, the hooks and the event recorder.
func (l *loop) tell(effect any) {
	log, hooks := klog.FromContext(l.ctx), &l.cfg.Hooks
	switch e := effect.(type) {
	case TermStarted:
		log.Info("Became leader", "token", e.Token, "transitions", e.Transitions, "vacant", e.Vacant)
		l.event(corev1.EventTypeNormal, "BecameLeader", "%s leads", l.identity)
		spec.Call(hooks.TermStarted, e)
	case workCancelled:
		if !lost(e.cause) {
			log.V(2).Info("Told the work to stop", "cause", e.cause.Error())
			break
		}
		log.Info("Lost the lease", "cause", e.cause.Error(), "holder", spec.HolderOf(l.machine.lease))
		l.event(corev1.EventTypeWarning, "LeadershipLost", "%s has lost the lease: %v", l.identity, e.cause)
	case TermEnded:
		log.V(2).Info("Stopped leading", "token", e.Token, "cause", fmt.Sprint(e.Cause), "duration", e.Duration, "drained", e.Drained)
		if lost(e.Cause) && e.Drained > l.cfg.Timing.Drain {
			log.Info("The work returned later than Timing.Drain after its context was cancelled: two may have led", "drained", e.Drained, "drain", l.cfg.Timing.Drain)
		}
		if !lost(e.Cause) {
			l.event(corev1.EventTypeNormal, "StoppedLeading", "%s does not lead any more", l.identity)
		}
		spec.Call(hooks.TermEnded, e)
	case LeaderChanged:
		switch e.To {
		case "":
			log.V(2).Info("The lease has no holder", "previous", e.From)
		case l.identity: // which becomes the leader, or gives the lease away
		default:
			log.Info("Another candidate leads", "leader", e.To, "previous", e.From)
		}
		spec.Call(hooks.LeaderChanged, e)
	case Offered:
		log.V(2).Info("Offered the lease to a better candidate", "to", e.To)
		spec.Call(hooks.Offered, e)
	case OfferEnded:
		log.V(2).Info("The offer of the lease has ended", "to", e.To, "accepted", e.Accepted, "elapsed", e.Elapsed)
		spec.Call(hooks.OfferEnded, e)
	case mixedRegistries:
		report.Tell(l.ctx, l.cfg.ErrorHandler, ErrMixedRegistries, "Other candidates for the lease use another registry")
	}
}

func lost(cause error) bool { return errors.Is(cause, ErrLost) || errors.Is(cause, ErrExpired) }

// event records an event about the Lease.
func (l *loop) event(eventType, reason, note string, args ...any) {
	if l.cfg.EventRecorder == nil || l.machine.lease == nil {
		return
	}
	regarding := &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Namespace: l.cfg.Lease.Namespace, Name: l.cfg.Lease.Name, UID: l.machine.lease.UID},
	}
	report.Call(l.ctx, l.cfg.ErrorHandler, "EventRecorder", func() {
		l.cfg.EventRecorder.Eventf(regarding, nil, eventType, reason, "Lead", note, args...)
	})
}
