// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/report"
)

// An Active is a configuration that runs.
type Active[T any] struct {
	// Config is what Codec.Decode or Codec.Default returned.
	Config T
	// Ref names it; the zero Ref is the built-in default.
	Ref Ref
	// Role is the part it plays.
	Role Role
	// Trial reports whether it has yet to be proven.
	Trial bool
}

// A Controller keeps a configuration on disk, decides which one runs, and
// rolls back one that turns out bad. Make it with [New], call Boot once, then
// Run.
//
// All its methods may be called by any number of goroutines, from the functions
// in Config too, except that Codec's may only call Status.
type Controller[T any] struct {
	cfg      Config[T]
	bootID   func() string
	once     lifecycle.Once
	ready    *lifecycle.Ready
	progress *lifecycle.Progress
	wake     chan struct{} // Verdict or Forget changed something
	observer observer

	// mu guards what follows. It is never held while a function of the
	// embedder runs, but it is while the disk is written.
	mu      sync.Mutex
	life    life
	store   *store
	active  Active[T]
	payload []byte // of active; nil for the built-in default
	attempt Digest // the start that this process has recorded and not ended
	soak    soak   // of active
	// sit is the state that decisions are taken on. Its record is the stored
	// one but for rejections that could not be written: those hold at once,
	// because to run a bad configuration is worse than to forget that it is.
	sit      situation
	unsaved  bool // sit.rec holds such a rejection
	diverged bool // something else than active is to run
	forgot   bool // the last payload may be looked at in another light
	news     []func(observer)
	untidy   error // of the last prune
	// storeFailures counts the commits that failed in a row.
	storeFailures int
	since         time.Time

	statusMu sync.Mutex
	status   Status
}

// life is how far the controller's own life has come.
type life int

const (
	created life = iota
	booting
	booted
	running
	returned
	closed
)

// New returns a Controller for a valid Config. The error names every field that
// is wrong. New reads nothing and starts nothing.
func New[T any](cfg Config[T]) (*Controller[T], error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	c := &Controller[T]{
		cfg:    cfg,
		bootID: bootID,
		ready:  lifecycle.NewReady(cfg.Name),
		// The longest the loop is away is one Apply after another.
		progress: lifecycle.NewProgress(cfg.Name, 4*cfg.CallTimeout+time.Minute),
		wake:     make(chan struct{}, 1),
		observer: observer{hooks: cfg.Hooks, recorder: cfg.EventRecorder, object: cfg.EventObject},
		store:    &store{fs: &osFS{path: cfg.Dir}, build: cfg.Build},
	}
	c.sit = situation{build: cfg.Build, attempts: cfg.Trial.Attempts}
	return c, nil
}

// Ready returns a checker that is done when Run has dealt with the first
// payload that the source yields. Don't hold the start of the agent for it: the
// point of a checkpoint is to start without the source.
func (c *Controller[T]) Ready() cache.DoneChecker { return c.ready }

// Name returns Config.Name.
func (c *Controller[T]) Name() string { return c.cfg.Name }

// Check reports whether the controller makes progress: nil while it does, and
// before Run. A source or a disk that fails is no reason to restart the process,
// so that is not an error here; [Controller.Status] has it. The request is not
// used and may be nil.
func (c *Controller[T]) Check(*http.Request) error { return c.progress.Check() }

// Status returns what runs and why. It never blocks on the disk.
func (c *Controller[T]) Status() Status {
	c.statusMu.Lock()
	defer c.statusMu.Unlock()
	return c.status
}

// Verdict ends the trial of the running configuration: nil promotes it now, as
// an operator's confirmation does, and an error rolls it back now. It returns
// ErrNoTrial when there is no trial to end, ErrNotBooted or ErrClosed, and an
// error of the disk when the verdict could not be stored. A roll-back is
// carried out all the same then, and the start counts as failed.
func (c *Controller[T]) Verdict(failure error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(); err != nil {
		return err
	}
	if !c.sit.onTrial() {
		return ErrNoTrial
	}
	defer c.notify()
	if failure == nil {
		return c.promote(true)
	}
	return c.rollBack(ReasonUnhealthy, c.cfg.Redact(failure))
}

// Forget removes the rejection of a configuration, so that it may be tried
// again: at once where it is assigned or what the source delivered last,
// otherwise when it is delivered. It returns nil where there is none.
func (c *Controller[T]) Forget(d Digest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(); err != nil {
		return err
	}
	defer c.notify()
	forgot := false
	err := c.update(func(r record) (record, bool) {
		r, forgot = forget(r, d)
		return r, forgot
	})
	c.forgot = c.forgot || forgot
	if err == nil && forgot && c.sit.rec.Assigned != nil && c.sit.rec.Assigned.Digest == d && c.sit.running.Digest != d {
		c.diverged = true
	}
	return err
}

// Close ends this process's use of the store. Call it after Run has returned
// and the work has stopped, with what ended the work: nil when it was asked to
// stop, which does not count as a failed start if the configuration on trial
// was healthy to the last; otherwise the error, which is remembered and named
// should the configuration be rolled back.
//
// Don't defer Close(nil): a panic on its way through would be recorded as a
// clean stop. A process may also end without it; during a trial that counts as
// a failed start. A second Close does nothing.
func (c *Controller[T]) Close(failure error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.life {
	case closed:
		return nil
	case running:
		return errors.New("configcheckpoint: Close before Run has returned")
	}
	c.life = closed
	var err error
	if t := c.sit.rec.Trial; t != nil && t.Open && t.Digest == c.attempt {
		// A start that was recorded and not made can't have failed.
		healthy := c.attempt != c.sit.running.Digest || c.cfg.Trial.Health == nil || !c.soak.good.IsZero()
		clean := failure == nil && healthy
		note := ""
		if failure != nil {
			note = c.cfg.Redact(failure)
		}
		err = c.update(func(r record) (record, bool) { return endAttempt(r, clean, note) })
	}
	return errors.Join(err, c.store.close())
}

// usable returns why the controller can't be used now. Callers hold mu.
func (c *Controller[T]) usable() error {
	switch c.life {
	case created, booting:
		return ErrNotBooted
	case closed:
		return ErrClosed
	}
	return nil
}

// notify wakes Run's loop.
func (c *Controller[T]) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// errorStreaks say once what fails, and once that it works again.
type errorStreaks struct{ source, store, other report.Streak }

// sourceRetry is the pause after errors of the source in a row.
func sourceRetry() backoff.Policy {
	return backoff.Policy{Base: 200 * time.Millisecond, Cap: 10 * time.Second}
}

// storeRetry is the pause after commits in a row that failed.
func storeRetry() backoff.Policy {
	return backoff.Policy{Base: 10 * time.Second, Cap: 10 * time.Minute}
}

// withLogger returns ctx with a logger named after the controller.
func (c *Controller[T]) withLogger(ctx context.Context) context.Context {
	return klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), c.cfg.Name))
}
