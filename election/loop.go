// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// loop drives a machine: it sends the requests, runs the work, watches the
// Lease and tells what happens. One goroutine owns it.
type loop struct {
	*Candidate
	machine *machine
	// ctx is that of Run, requests is the same without its end: the lease is
	// kept until the work has returned.
	ctx, requests context.Context
	wg            sync.WaitGroup

	answers  chan answer
	abort    context.CancelFunc // of the request under way
	aborted  bool               // it was called
	gone     int                // watches in a row that have brought nothing but the loss of their place
	watch    *watcher[*coordinationv1.Lease]
	returned chan error // by the work
	term     *term
	err      error   // what the work returned by itself
	keeper   *keeper // with LeaseCandidates
}

// answer is the outcome of a request.
type answer struct {
	op    Op
	sent  instant
	lease *coordinationv1.Lease
	err   error
}

func (c *Candidate) newLoop(ctx context.Context) *loop {
	s := setup{
		id: c.identity, timing: c.cfg.Timing, callTimeout: c.cfg.CallTimeout, shutdownTimeout: c.cfg.ShutdownTimeout,
		fallback: c.cfg.FallbackAfter, native: c.cfg.Registry.native, strategy: c.cfg.Strategy, random: rand.Float64,
		namespace: c.cfg.Lease.Namespace, name: c.cfg.Lease.Name,
	}
	l := &loop{
		Candidate: c, ctx: ctx, requests: context.WithoutCancel(ctx),
		machine: newMachine(s, c.peer(), c.clock.now()),
		answers: make(chan answer, 1), returned: make(chan error, 1),
	}
	if s.native {
		l.keeper = newKeeper(c)
	}
	return l
}

// run returns when the candidate has finished.
func (l *loop) run() {
	defer l.wg.Wait()
	defer l.stopWatch()
	if l.keeper != nil {
		l.wg.Go(func() { l.keeper.run(l.requests) })
		defer func() { l.keeper.want(candidacy{stopping: true}) }()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	stopped := l.ctx.Done()
	for {
		l.progress.Beat()
		step := l.step()
		if l.machine.phase == finished {
			return
		}
		timer.Reset(l.clock.span(step.wake - l.clock.now().mono))
		select {
		case <-timer.C:
		case a := <-l.answers:
			l.answered(a)
		case s := <-l.watch.sights():
			l.sighted(s)
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

// step asks the machine what to do, and does it.
func (l *loop) step() step {
	s := l.machine.next(l.clock.now())
	l.effects()
	if s.abort && l.abort != nil {
		l.abort()
		l.aborted = true
	}
	if s.op != "" {
		l.send(s.move)
	}
	l.tendWatch()
	if l.keeper != nil {
		l.keeper.want(l.machine.candidacy(l.clock.now().mono))
	}
	l.publishStatus()
	return s
}

// send sends a request.
func (l *loop) send(m move) {
	ctx, cancel := context.WithTimeout(l.requests, l.clock.span(m.timeout))
	l.abort, l.aborted = cancel, false
	sent := l.clock.now()
	l.wg.Go(func() {
		defer cancel()
		lease, err := l.do(ctx, m)
		l.answers <- answer{op: m.op, sent: sent, lease: lease, err: err}
	})
}

// answered hands the outcome of a request to the machine.
func (l *loop) answered(a answer) {
	l.abort = nil
	now := l.clock.now()
	if a.op == OpRead {
		l.machine.readDone(now, a.sent, a.lease, a.err)
	} else {
		l.machine.writeDone(now, a.sent, a.op, a.lease, a.err)
	}
	l.effects() // a term that is over ends before anybody is told anything
	l.report(a, now)
}

// sighted hands what the watch has brought to the machine.
func (l *loop) sighted(s sight[*coordinationv1.Lease]) {
	now := l.clock.now()
	switch {
	case s.gone:
		l.stopWatch()
		l.machine.watchGone()
		if l.gone++; l.gone >= patientGone {
			l.gone = 0
			l.machine.watchRefused(now.mono)
			l.fail(OpWatch, s.err)
		}
	case s.refused:
		l.stopWatch()
		l.machine.watchRefused(now.mono)
	case s.err == nil:
		l.gone = 0
		l.machine.observe(now, s.object, s.deleted)
		l.effects()
	}
	l.reportWatch(s)
}

// tendWatch starts and stops the watch as the machine wants it.
func (l *loop) tendWatch() {
	if l.machine.watchStale || !l.machine.watching() {
		l.machine.watchStale = false
		l.stopWatch()
	}
	if l.watch != nil || !l.machine.watching() || l.machine.reread {
		return
	}
	l.watch = startWatch[*coordinationv1.Lease](l.requests, &l.wg, l.cfg.Lease.Name, resourceVersionOf(l.machine.lease),
		l.cfg.CallTimeout, l.cfg.Client.Leases(l.cfg.Lease.Namespace).Watch)
}

func (l *loop) stopWatch() {
	l.watch.stop()
	l.watch = nil
}

// effects does what the machine has told.
func (l *loop) effects() {
	told := l.machine.told
	l.machine.told = nil
	for _, effect := range told { // first what can't wait for a hook
		switch e := effect.(type) {
		case cancelWork:
			l.term.end(e.cause)
		case extendWork:
			if !l.term.extend(e.sent, e.deadline) {
				// It ended by itself while this loop was held up.
				l.machine.endTerm(l.clock.now().mono, ErrExpired)
			}
		}
	}
	for _, effect := range told {
		if begin, ok := effect.(beginWork); ok {
			l.begin(begin)
		} else {
			l.tell(effect)
		}
	}
}

// begin starts the work.
func (l *loop) begin(b beginWork) {
	ctx, cancel := context.WithCancelCause(l.ctx)
	t := newTerm(l.clock, l.machine.term.token, ctx.Err, cancel, b.sent, b.deadline)
	l.term = t
	if now := l.clock.now().mono; now >= b.deadline {
		// A hook took longer than the term. Somebody else may lead by now, and
		// the work must not even begin.
		l.machine.endTerm(now, ErrExpired)
		l.returned <- nil
		return
	}
	l.wg.Go(func() {
		l.returned <- l.cfg.Lead(ctx, Term{t})
	})
}

// workReturned hands the end of the work to the machine.
func (l *loop) workReturned(err error) {
	now := l.clock.now()
	// What may be why it has returned comes first.
	l.machine.expire(now)
	if l.ctx.Err() != nil {
		l.machine.stop(now.mono, context.Cause(l.ctx))
	}
	l.effects()
	l.term.end(nil)
	cause := l.machine.term.cause
	if l.machine.worked(now.mono) {
		l.err = err
	} else if err != nil {
		l.workFailed(err, cause)
	}
	l.effects()
}

// takeRequests takes in what other goroutines have asked for.
func (l *loop) takeRequests() {
	l.machine.setSelf(l.peer())
	if l.resigning.CompareAndSwap(true, false) {
		l.machine.resign(l.clock.now().mono)
		l.effects()
	}
}

// publishStatus makes what the machine knows visible to other goroutines.
func (l *loop) publishStatus() {
	m := l.machine
	st := status{holder: holderOf(m.lease), until: m.held, cancelled: m.phase == draining || m.phase == ended, cancelledAt: m.cancelledAt}
	if m.mine() {
		st.until = m.term.deadline
	}
	l.setStatus(st)
	if m.lease != nil {
		l.ready.Mark()
	}
}
