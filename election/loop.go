// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/election/internal/machine"
	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/report"
)

// loop drives a machine: it sends requests, runs the work, watches the Lease, and
// reports. One goroutine owns it.
type loop struct {
	*Candidate
	core *machine.Machine
	ctx  context.Context // of Run
	wg   sync.WaitGroup

	lease    lane[*coordinationv1.Lease]
	keeper   *keeper // of the LeaseCandidate; nil with the registry OnLease
	term     *term   // the last one
	returned chan error
	err      error // of work that returned on its own
	finished bool  // nothing is left to do about the Lease
}

func (c *Candidate) newLoop(ctx context.Context) *loop {
	var panics apierr.Streak // never ends: one that happens at each step is reported once
	strategy := ranking{Strategy: c.cfg.Strategy, name: c.cfg.Strategy.Name(), report: func(err error) {
		panics.Fail(ctx, c.cfg.ErrorHandler, fmt.Errorf("election: %w", err), "The strategy panicked")
	}}
	rules := c.cfg.rules(c.identity, strategy)
	l := &loop{
		Candidate: c, ctx: ctx, returned: make(chan error, 1),
		core: machine.New(rules, spec.Peer(c.peer()), c.clock.now()),
	}
	l.lease = newLane(l, "lease", c.cfg.Lease.Name, client[*coordinationv1.Lease](c.cfg.Client.Leases(c.cfg.Lease.Namespace)))
	l.lease.failed, l.lease.apply, l.lease.polls = c.cfg.Hooks.Failed, l.apply, l.core.Polling
	l.lease.missing = func(_ machine.Op, err error) bool { return apierr.IsMissing(err, "leases", c.cfg.Lease.Name) }
	if c.cfg.Watch != nil {
		l.lease.join = c.cfg.Watch.join
	}
	if c.cfg.Registry.native {
		k := &keeper{upkeep: machine.NewUpkeep(rules), check: c.check}
		k.lane = newLane(l, "LeaseCandidate", c.identity, client[*coordinationv1beta1.LeaseCandidate](c.cfg.Registry.candidates.LeaseCandidates(c.cfg.Lease.Namespace)))
		k.apply, k.polls, k.missing = k.tell, k.upkeep.Polling, missingCandidate(c.identity)
		l.keeper = k
	}
	return l
}

// newLane returns a lane of l.
func newLane[T object](l *loop, kind, name string, c client[T]) lane[T] {
	return lane[T]{
		kind: kind, name: name, client: c, clock: l.clock, callTimeout: l.cfg.CallTimeout, handler: l.cfg.ErrorHandler,
		ctx: l.ctx, requests: context.WithoutCancel(l.ctx), running: &l.wg, answers: make(chan *answer[T], 1),
	}
}

// run returns when the candidate has finished.
func (l *loop) run() {
	defer l.wg.Wait()
	defer l.lease.stopWatch()
	var answers <-chan *answer[*coordinationv1beta1.LeaseCandidate]
	var sights <-chan *sight[*coordinationv1beta1.LeaseCandidate]
	if l.keeper != nil {
		defer l.keeper.stopWatch()
		answers = l.keeper.answers
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	stopped := l.ctx.Done()
	for {
		l.progress.Beat()
		wake := l.step()
		if l.keeper != nil {
			sights = l.keeper.sights
		}
		if l.finished && (l.keeper == nil || l.keeper.ended()) {
			return
		}
		timer.Reset(l.clock.span(wake - l.clock.now().Mono))
		select {
		case <-timer.C:
		case a := <-l.lease.answers:
			l.answered(a)
		case s, ok := <-l.lease.sights:
			l.lease.received(s, ok)
		case a := <-answers:
			l.candidateAnswered(a)
		case s, ok := <-sights:
			l.keeper.received(s, ok)
		case err := <-l.returned:
			l.workReturned(err)
		case <-l.changed:
			l.takeRequests()
		case <-stopped:
			stopped = nil
			l.apply(machine.Stopped{})
		}
	}
}

// step asks the machine and the keeper for the next requests, and sends them. It
// returns when to ask again.
func (l *loop) step() time.Duration {
	wake := l.clock.now().Mono + machine.IdleWake
	if !l.finished {
		l.apply(machine.Tick{})
		now := l.clock.now()
		a := l.core.Next(now)
		wake = a.Wake
		if l.lease.take(a) {
			l.apply(machine.Sent{Action: a})
		}
	}
	if l.keeper != nil && !l.keeper.ended() {
		wake = min(wake, l.keeper.step(l.core.Candidacy(l.clock.now().Mono)))
	}
	l.publishStatus()
	return wake
}

// answered passes the answer to a request to the machine.
func (l *loop) answered(a *answer[*coordinationv1.Lease]) {
	l.lease.abort = nil
	l.apply(l.lease.event(a)) // a term that is over ends before any report
	l.lease.report(a.op, a.err)
	if a.op == machine.Renew && a.err == nil {
		spec.Call(l.cfg.Hooks.Renewed, Renewed{Latency: a.latency})
	}
}

// candidateAnswered passes the answer to a request about a LeaseCandidate to the keeper, and
// to the machine if it has asked.
func (l *loop) candidateAnswered(a *answer[*coordinationv1beta1.LeaseCandidate]) {
	l.keeper.answered(a)
	if a.op == machine.Inquire {
		l.apply(machine.Inquired{Name: a.name, Candidate: a.object, Outcome: l.keeper.outcome(a.op, a.err)})
	}
	l.keeper.report(a.op, a.err)
}

// apply passes a fact to the machine, and carries out what follows.
func (l *loop) apply(e machine.Event) {
	now := l.clock.now()
	l.effects(now, l.core.Apply(now, e))
	l.checkInvariants()
}

// checkInvariants is for tests.
func (l *loop) checkInvariants() {
	if l.check != nil {
		l.check(l.core.Check())
	}
}

// effects carries out and reports the decisions of the machine. A hook may take long, so
// a term ends before anything is reported.
func (l *loop) effects(now machine.Instant, effects []machine.Effect) {
	late := false
	for _, effect := range effects {
		switch e := effect.(type) {
		case machine.WorkCancelled:
			if lost(e.Cause) {
				l.term.lose(l.cause(e.Cause))
			} else {
				l.term.end(l.cause(e.Cause))
			}
		case machine.TermExtended:
			late = !l.term.extend(now.Mono, e.Sent, e.Deadline)
		case machine.TermEnded:
			l.term.end(nil)
		}
	}
	if late { // its timer was faster
		l.apply(machine.Expired{})
	}
	for _, effect := range effects {
		l.tell(effect)
		if e, ok := effect.(machine.TermStarted); ok {
			l.begin(e)
		}
	}
}

// begin starts the work.
func (l *loop) begin(e machine.TermStarted) {
	ctx, cancel := context.WithCancelCause(l.ctx)
	t := &term{token: e.Token, clock: l.clock, drain: l.cfg.Timing.Drain, sent: e.Sent, deadline: e.Deadline}
	started := t.start(ctx.Err, cancel, func(cause error) { l.wg.Go(func() { l.overrun(cause) }) })
	l.term = t
	l.leading.Store(t)
	if !started {
		// A hook took longer than the term. Another candidate may lead now, so the
		// work must not begin.
		t.finish()
		l.apply(machine.Expired{})
		l.returned <- nil
		return
	}
	l.wg.Go(func() {
		err := errGoexit
		defer func() {
			t.finish()
			l.returned <- err
		}()
		err = l.cfg.Lead(ctx, Term{t})
	})
}

// overrun reports that the work still runs when another candidate may lead.
func (l *loop) overrun(cause error) {
	err := fmt.Errorf("election: the work of the leader still runs, and another candidate may lead: %w", cause)
	klog.FromContext(l.ctx).Error(err, "The work has outlived the lease", "drain", l.cfg.Timing.Drain)
	if l.cfg.OnOverrun != nil {
		l.cfg.OnOverrun(err)
	}
}

// workReturned passes the end of the work to the machine.
func (l *loop) workReturned(err error) {
	if l.ctx.Err() != nil { // that may not have been processed yet
		l.apply(machine.Stopped{})
	}
	now := l.clock.now()
	effects := l.core.Apply(now, machine.WorkReturned{})
	for _, effect := range effects {
		if e, ok := effect.(machine.TermEnded); ok {
			l.judge(err, l.cause(e.Cause))
		}
	}
	l.effects(now, effects)
}

// judge keeps the error of work that returned on its own, and reports one that says more
// than the cause of the end of the term.
func (l *loop) judge(err, cause error) {
	expected := err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || cause != nil && errors.Is(err, cause)
	if cause == nil {
		l.err = err
	} else if !expected {
		report.Tell(l.ctx, l.cfg.ErrorHandler, fmt.Errorf("election: lead: %w", err), "The work of the leader ended with an error")
	}
}

// takeRequests handles the requests of other goroutines.
func (l *loop) takeRequests() {
	l.apply(machine.Described{Self: spec.Peer(l.peer())})
	for identity := range l.gone.Range {
		l.gone.Delete(identity) // another process may use it later
		l.apply(machine.HolderGone{Identity: identity.(string)})
	}
	if l.resigning.CompareAndSwap(true, false) {
		l.apply(machine.Resigned{})
	}
}

// publishStatus copies the state of the machine for other goroutines.
func (l *loop) publishStatus() {
	s := l.core.Status()
	st := status{holder: s.Holder, until: s.Until}
	if s.Cause != machine.NoCause {
		st.drainBy = s.CancelledAt + l.cfg.Timing.Drain
	}
	l.status.Store(&st)
	l.finished = s.Phase == machine.Finished
	if s.Exists {
		l.ready.Mark()
	}
}

// cause returns the cause of the end of a term, nil for none.
func (l *loop) cause(c machine.Cause) error {
	switch c {
	case machine.Lost:
		return ErrLost
	case machine.TimeOut:
		return ErrExpired
	case machine.Superseded:
		return ErrSuperseded
	case machine.Resigning:
		return ErrResigned
	case machine.Stopping:
		return context.Cause(l.ctx)
	}
	return nil
}

// tell reports an event to the log, the hooks and the event recorder.
func (l *loop) tell(effect machine.Effect) {
	log, hooks := klog.FromContext(l.ctx), &l.cfg.Hooks
	switch e := effect.(type) {
	case machine.TermStarted:
		log.Info("Became leader", "token", e.Token, "transitions", e.Transitions, "vacant", e.Vacant)
		l.event(corev1.EventTypeNormal, "BecameLeader", "%s leads", l.identity)
		spec.Call(hooks.TermStarted, TermStarted{Token: e.Token, Transitions: e.Transitions, Vacant: e.Vacant})
	case machine.WorkCancelled:
		cause := l.cause(e.Cause)
		if !lost(e.Cause) {
			log.V(2).Info("Told the work to stop", "cause", cause.Error())
			break
		}
		log.Info("Lost the lease", "cause", cause.Error(), "holder", l.core.Status().Holder)
		l.event(corev1.EventTypeWarning, "LeadershipLost", "%s has lost the lease: %v", l.identity, cause)
	case machine.TermEnded:
		cause := l.cause(e.Cause)
		log.V(2).Info("Stopped leading", "token", e.Token, "cause", fmt.Sprint(cause), "duration", e.Duration, "drained", e.Drained)
		if lost(e.Cause) && e.Drained > l.cfg.Timing.Drain {
			log.Info("The work returned later than Timing.Drain after its context was cancelled: two may have led", "drained", e.Drained, "drain", l.cfg.Timing.Drain)
		}
		if !lost(e.Cause) {
			l.event(corev1.EventTypeNormal, "StoppedLeading", "%s does not lead any more", l.identity)
		}
		spec.Call(hooks.TermEnded, TermEnded{Token: e.Token, Cause: cause, Duration: e.Duration, Drained: e.Drained})
	case machine.LeaderChanged:
		switch e.To {
		case "":
			log.V(2).Info("The lease has no holder", "previous", e.From)
		case l.identity: // which becomes the leader, or gives the lease away
		default:
			log.Info("Another candidate leads", "leader", e.To, "previous", e.From)
		}
		spec.Call(hooks.LeaderChanged, LeaderChanged(e))
	case machine.Offered:
		log.V(2).Info("Offered the lease to a better candidate", "to", e.To)
		spec.Call(hooks.Offered, Offered(e))
	case machine.OfferEnded:
		log.V(2).Info("The offer of the lease has ended", "to", e.To, "accepted", e.Accepted, "elapsed", e.Elapsed)
		spec.Call(hooks.OfferEnded, OfferEnded(e))
	case machine.MixedRegistries:
		report.Tell(l.ctx, l.cfg.ErrorHandler, ErrMixedRegistries, "Other candidates for the lease use another registry")
	case machine.Broken:
		report.Tell(l.ctx, l.cfg.ErrorHandler, fmt.Errorf("election: broken invariant: %w", e.Err), "A change of state was refused")
	}
}

func lost(c machine.Cause) bool { return c == machine.Lost || c == machine.TimeOut }

// event records an event about the Lease.
func (l *loop) event(eventType, reason, note string, args ...any) {
	s := l.core.Status()
	if l.cfg.EventRecorder == nil || !s.Exists {
		return
	}
	regarding := &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Namespace: l.cfg.Lease.Namespace, Name: l.cfg.Lease.Name, UID: s.UID},
	}
	report.Call(l.ctx, l.cfg.ErrorHandler, "EventRecorder", func() {
		l.cfg.EventRecorder.Eventf(regarding, nil, eventType, reason, "Lead", note, args...)
	})
}

// clock reads the two clocks of a process. Safety depends on the monotonic clock
// only. The wall clock is written to the Lease, and shows that the machine was
// suspended.
type clock struct {
	epoch time.Time
	// rate is the speed of the monotonic clock, 1 if it is right. step returns the
	// error of the wall clock. Tests set them, because a bubble has one clock.
	rate float64
	step func() time.Duration
}

func newClock() *clock {
	return &clock{epoch: time.Now(), rate: 1, step: func() time.Duration { return 0 }}
}

func (c *clock) now() machine.Instant {
	t := time.Now()
	mono := t.Sub(c.epoch)
	fast := time.Duration(float64(mono) * (c.rate - 1))
	return machine.Instant{Mono: mono + fast, Wall: t.Round(0).Add(fast + c.step())}
}

// span returns the time in which this clock advances by d, rounded up so that a
// timer does not fire a nanosecond early.
func (c *clock) span(d time.Duration) time.Duration {
	if c.rate == 1 {
		return d
	}
	return time.Duration(float64(d)/c.rate) + 1
}
