// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/election/internal/machine"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/report"
)

// A Candidate takes part in an election. Create it with [New]. Its methods may be
// called concurrently, also by Lead and by hooks. Only Run blocks.
type Candidate struct {
	cfg      Config
	identity string
	clock    *clock

	once     lifecycle.Once
	ready    *lifecycle.Ready
	progress *lifecycle.Progress

	changed   chan struct{} // wakes the loop
	resigning atomic.Bool
	gone      sync.Map             // the arguments of HolderGone that the loop has not taken
	leading   atomic.Pointer[term] // the last term

	status atomic.Pointer[status]
	check  func(error) // tests: is called with the result of Machine.Check; nil otherwise

	updating sync.Mutex           // held while Update calls its function; the loop never waits for it
	self     atomic.Pointer[Peer] // never changed, but replaced
}

// status is the part of the loop's state that other goroutines read.
type status struct {
	holder string
	until  time.Duration // monotonic time to which the holder holds the lease
	// drainBy is when work whose context is cancelled should have returned; 0 if it
	// has returned, or its context is not cancelled.
	drainBy time.Duration
}

// New returns a Candidate for a valid Config. The error names every invalid field.
// New sends no request and starts no goroutine.
func New(cfg Config) (*Candidate, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	c := &Candidate{
		cfg:      cfg,
		identity: cfg.Self.Identity,
		clock:    newClock(),
		ready:    lifecycle.NewReady(cfg.Name),
		// The loop makes a step at least every machine.IdleWake.
		progress: lifecycle.NewProgress(cfg.Name, 3*machine.IdleWake),
		changed:  make(chan struct{}, 1),
	}
	c.self.Store(&c.cfg.Self) // not cfg: that would outlive New as a whole
	c.status.Store(&status{})
	if !cfg.ExclusiveIdentity {
		c.identity += fmt.Sprintf("_%0*x", machine.SuffixLength, rand.Uint32())
	}
	return c, nil
}

// Run stands for election until ctx is done, term after term. Then it waits for
// Lead, gives the lease away, withdraws the record, and returns nil. If Lead returns
// although its context is not done, Run releases the lease and returns the error of
// Lead. Run keeps the lease while Lead runs, also after ctx is done. A second call
// returns [ErrAlreadyRun].
func (c *Candidate) Run(ctx context.Context) error {
	if !c.once.Begin() {
		return ErrAlreadyRun
	}
	if ctx.Err() != nil {
		return nil
	}
	defer c.progress.Stop()
	l := c.begin(ctx)
	l.run()
	klog.FromContext(l.ctx).V(3).Info("Stopped")
	return l.err
}

// begin returns the loop of Run. The frames of Run and of loop.run are all that the stack of
// an idle candidate has, so that the garbage collector can halve it.
func (c *Candidate) begin(ctx context.Context) *loop {
	logger := klog.LoggerWithName(klog.FromContext(ctx), c.cfg.Name)
	logger = klog.LoggerWithValues(logger, "lease", klog.KRef(c.cfg.Lease.Namespace, c.cfg.Lease.Name), "identity", c.identity)
	ctx = klog.NewContext(ctx, logger)
	logger.V(3).Info("Started", "strategy", c.cfg.Strategy.Name(), "timing", c.cfg.Timing)
	report.ContainHooks(ctx, c.cfg.ErrorHandler, &c.cfg.Hooks)
	return c.newLoop(ctx)
}

// Identity returns the holder identity that this candidate writes to the Lease:
// Self.Identity with a random suffix, or without it if Config.ExclusiveIdentity is
// set.
func (c *Candidate) Identity() string { return c.identity }

// IsLeader reports whether this candidate leads now: [Term.Valid] of its present
// term. It is for health endpoints and metrics; work should use its own Term.
func (c *Candidate) IsLeader() bool { return Term{c.leading.Load()}.Valid() }

// HolderGone ends the wait for a holder whose process has ended for certain, for
// example because the kubelet has reported that all containers of its Pod have
// terminated: candidates then claim the lease at once, in the order of their
// rank. identity is a holder identity, or the Peer.Identity that it was made of.
// HolderGone does nothing if another identity holds the Lease.
//
// The caller must be sure: if the process still runs, two candidates lead. A Pod
// that was deleted with force, or whose Node does not answer, is no proof.
func (c *Candidate) HolderGone(identity string) {
	if identity != "" {
		c.gone.Store(identity, nil)
		c.wake()
	}
}

// Leader returns the last observed holder identity of the Lease, "" for none, and
// reports whether that holder has renewed it in time.
func (c *Candidate) Leader() (identity string, ok bool) {
	st := c.status.Load()
	return st.holder, st.holder != "" && c.clock.now().Mono < st.until
}

// Update changes the Peer that describes this candidate, for example its load, its
// version or its readiness (LastResort). It calls the function synchronously with a
// copy; the election goes on meanwhile, and other calls of Update wait. The identity
// can't be changed. Changes are published at once, but at most every ten seconds. If
// the changed Peer is invalid, Update changes nothing and returns the problems.
func (c *Candidate) Update(change func(*Peer)) error {
	c.updating.Lock()
	defer c.updating.Unlock()
	self := c.peer()
	p := self.clone()
	change(&p)
	p = p.clone() // the function may keep the map
	p.Identity, p.Created = self.Identity, self.Created
	if problems := checkPeer(field.NewPath("Self"), p, c.cfg.Registry.native, c.cfg.Strategy); len(problems) > 0 {
		return fmt.Errorf("election: invalid update: %w", utilerrors.NewAggregate(problems))
	}
	c.self.Store(&p)
	c.wake()
	return nil
}

// Resign ends the term, if there is one, as soon as Lead has returned, and lets
// the others claim the lease. This candidate stands back for Timing.MinTenure,
// unless no other candidate claims the lease. Resign does nothing if this candidate
// does not lead.
func (c *Candidate) Resign() {
	c.resigning.Store(true)
	c.wake()
}

// wake wakes the loop.
func (c *Candidate) wake() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// peer returns the Peer of this candidate.
func (c *Candidate) peer() Peer { return *c.self.Load() }

// Ready returns a checker that is done when the Lease was first observed or written:
// this candidate takes part in the election.
func (c *Candidate) Ready() cache.DoneChecker { return c.ready }

// Name returns Config.Name.
func (c *Candidate) Name() string { return c.cfg.Name }

// Check returns nil before Run and while the candidate makes progress. It returns
// an error after Run, if the loop hangs, usually in a hook, and if Lead still runs
// Timing.Drain after its context was cancelled. An API server that does not answer
// is no error. The request is not used and may be nil.
func (c *Candidate) Check(*http.Request) error {
	drainBy := c.status.Load().drainBy
	if late := c.clock.now().Mono - drainBy; drainBy != 0 && late > 0 {
		return fmt.Errorf("%s: the work of the leader goes on %v after it should have returned", c.cfg.Name, late.Round(time.Millisecond))
	}
	return c.progress.Check()
}
