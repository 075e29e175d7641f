// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"net/http"

	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/internal/lifecycle"
)

// A Candidate stands for election. Make it with [New]. All its methods may be
// called by any number of goroutines, from Lead and hooks too; none of them
// blocks but Run.
type Candidate struct {
	cfg      Config
	identity string
	clock    *clock

	once     lifecycle.Once
	ready    *lifecycle.Ready
	progress *lifecycle.Progress
}

// New returns a Candidate for a valid Config. The error names every field that
// is wrong. New sends nothing and starts nothing.
func New(cfg Config) (*Candidate, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return &Candidate{cfg: cfg, identity: cfg.Self.Identity, clock: newClock(), ready: lifecycle.NewReady(cfg.Name)}, nil
}

// Run stands for election until ctx is done, term after term. It returns nil
// then, after Lead has returned, the lease is given away and the record is
// withdrawn; and before that only when Lead returns by itself, with what that
// returned. It keeps the lease as long as Lead runs, whatever happens to ctx. A
// second call returns [ErrAlreadyRun].
func (c *Candidate) Run(ctx context.Context) error {
	if !c.once.Begin() {
		return ErrAlreadyRun
	}
	<-ctx.Done()
	return nil
}

// Identity returns what this candidate writes to the Lease as its holder
// identity: Self.Identity with a random suffix, or as it is with
// Config.ExclusiveIdentity.
func (c *Candidate) Identity() string { return c.identity }

// Leader returns the holder identity that the Lease had when it was last seen,
// "" for nobody, and whether that is known and was renewed in time.
func (c *Candidate) Leader() (identity string, ok bool) { return "", false }

// Update changes what this candidate says about itself: its load, whether it is
// ready (LastResort), its version. The function is called at once, with a copy;
// the identity can't be changed. What comes of it is published at once if the
// last change is ten seconds old, and else when it is. The error says why a
// change is refused.
func (c *Candidate) Update(change func(*Peer)) error { return nil }

// Resign ends the term, if there is one, as soon as Lead has returned, and lets
// the others claim the lease. This candidate stands back for Timing.MinTenure,
// but for a lease that nobody else wants. It does nothing where this candidate
// does not lead.
func (c *Candidate) Resign() {}

// Ready returns a checker that is done when the Lease has been read for the
// first time: this candidate takes part.
func (c *Candidate) Ready() cache.DoneChecker { return c.ready }

// Name returns Config.Name.
func (c *Candidate) Name() string { return c.cfg.Name }

// Check reports whether the candidate makes progress: nil while it does, and
// before Run. An error says that its loop hangs, as a rule in a hook, or that
// Lead goes on although its context was cancelled longer than Timing.Drain ago.
// An API server that does not answer is no error. The request is not used and
// may be nil.
func (c *Candidate) Check(*http.Request) error { return nil }
