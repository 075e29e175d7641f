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

	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/report"
)

// An Active is a running configuration.
type Active[T any] struct {
	// Config is what Codec.Decode or Codec.Default returned.
	Config T
	// Ref names it; the zero Ref is the built-in default.
	Ref Ref
	// Role is the part it plays.
	Role Role
	// Trial means that it is not proven yet.
	Trial bool
}

// A Controller keeps a configuration on disk, decides which one runs, and
// rolls back one that turns out bad. Make it with [New], call Boot once, then
// Run.
//
// All its methods may be called by any number of goroutines, from the functions
// in Config too, except that Codec's and Redact may only call Status.
type Controller[T any] struct {
	cfg      Config[T]
	bootID   func() string
	once     lifecycle.Once
	ready    *lifecycle.Ready
	progress *lifecycle.Progress
	wake     chan struct{} // receives when another goroutine changed the state
	observer observer

	calls calls

	// mu guards the fields below. It is held while the disk is written, but never
	// while a function of the program other than Redact runs.
	mu      sync.Mutex
	life    life
	store   *slotstore.Store
	active  Active[T]
	payload []byte    // of active; nil for the built-in default
	attempt Digest    // the start that this process has recorded and not ended
	soak    soak      // of active
	began   time.Time // when active was put into effect
	// inspection is the one that the process before this one did not survive.
	inspection inspection
	// inspecting is the one that the store's note says is under way, or nil.
	inspecting *inspection
	// state is the input of decisions. Its record is the stored one, except for
	// rejections that could not be written, which hold at once.
	state    situation
	unsaved  bool // state.rec holds such a rejection
	diverged bool // another configuration than active must run
	// reconsider means that the last payload may be handled differently now.
	reconsider bool
	reports    []func(observer)
	pruneErr   error // of the last prune
	// repairAfter is the earliest time of the next repair of a payload.
	repairAfter time.Time
	// storeFailures counts the failures of the store in a row.
	storeFailures int
	since         time.Time

	panicsMu sync.Mutex
	panics   []error // to be reported

	statusMu sync.Mutex
	status   Status
}

// life is the progress of the controller through its methods.
type life int

const (
	created life = iota
	booting
	unbooted // Boot has failed
	booted
	inRun
	afterRun
	closed
)

// New returns a Controller for a valid Config. The error names every field that
// is wrong. New reads nothing and starts nothing.
func New[T any](cfg Config[T]) (*Controller[T], error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	store, err := newStore(slotstore.Dir(cfg.Dir))
	if err != nil {
		return nil, err
	}
	c := &Controller[T]{
		cfg:    cfg,
		bootID: bootID,
		ready:  lifecycle.NewReady(cfg.Name),
		// The loop is busy longest with one Apply after another.
		progress: lifecycle.NewProgress(cfg.Name, 4*cfg.CallTimeout+time.Minute),
		wake:     make(chan struct{}, 1),
		observer: observer{hooks: cfg.Hooks, recorder: cfg.EventRecorder, object: cfg.EventObject},
		store:    store,
	}
	c.state = situation{build: cfg.Build, attempts: cfg.Trial.Attempts}
	return c, nil
}

// Ready returns a checker that is done when Run has handled the first payload
// that the source yields. Don't delay the start of the agent until then: the
// point of a checkpoint is to start without the source.
func (c *Controller[T]) Ready() cache.DoneChecker { return c.ready }

// Name returns Config.Name.
func (c *Controller[T]) Name() string { return c.cfg.Name }

// Check returns nil while the controller makes progress, and before Run. A source
// or a disk that fails is no reason to restart the process, so it is not an error
// here; [Controller.Status] has it. The request is not used and may be nil.
func (c *Controller[T]) Check(*http.Request) error { return c.progress.Check() }

// Status returns which configuration runs and why. It never blocks on the disk.
func (c *Controller[T]) Status() Status {
	c.statusMu.Lock()
	defer c.statusMu.Unlock()
	return c.status
}

// Verdict ends the trial of the running configuration: nil promotes it now, as
// an operator's confirmation does, and an error rolls it back now. It returns
// ErrNoTrial if there is no trial, ErrNotBooted or ErrClosed, and an error of
// the disk if the verdict could not be stored. A roll-back is then carried out
// anyway, and the start counts as failed.
func (c *Controller[T]) Verdict(failure error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(); err != nil {
		return err
	}
	if !c.state.onTrial() {
		return ErrNoTrial
	}
	defer c.notify()
	if failure == nil {
		return c.promote(true)
	}
	return c.rollBack(ReasonUnhealthy, c.redact(failure))
}

// Forget removes the rejection of a configuration, so that it may be tried
// again: at once if it is assigned or was delivered last, otherwise when it is
// delivered. It returns nil if there is no rejection.
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
	if c.inspection.Digest == d {
		c.inspection = inspection{}
		err = errors.Join(err, c.store.SetNote(nil))
	}
	c.reconsider = c.reconsider || forgot
	if err == nil && forgot && c.state.rec.isAssigned(d) {
		c.diverged = true // also if it still runs, and is about to be replaced
	}
	return err
}

// Close ends this process's use of the store. Call it after Boot and Run have
// returned and the work has stopped. failure is nil if the work was asked to stop; that
// does not count as a failed start, provided that the configuration on trial was
// healthy at the end. Otherwise failure is the error that ended the work, which
// the message of a later roll-back quotes.
//
// Don't defer Close(nil): it would record a panic as a clean stop. A process may
// also end without Close; during a trial that counts as a failed start. A second
// Close does nothing.
func (c *Controller[T]) Close(failure error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.life {
	case closed:
		return nil
	case booting:
		return errors.New("configcheckpoint: Close before Boot has returned")
	case inRun:
		return errors.New("configcheckpoint: Close before Run has returned")
	}
	c.life = closed
	var err error
	if t := c.state.rec.Trial; t != nil && t.Open && t.Digest == c.attempt {
		// A start that was recorded and not made has not failed.
		healthy := c.attempt != c.state.running.Digest || c.cfg.Trial.Health == nil || !c.soak.good.IsZero()
		clean := failure == nil && healthy
		note := ""
		if failure != nil {
			note = c.redact(failure)
		}
		err = c.update(func(r record) (record, bool) { return endAttempt(r, clean, note) })
	}
	if i := c.inspecting; i != nil {
		// The process did not die of it. A power cut may bring the note back.
		note, noteErr := i.note(true)
		err = errors.Join(err, noteErr)
		if noteErr == nil {
			err = errors.Join(err, c.store.SetNote(note))
		}
	}
	return errors.Join(err, c.store.Close())
}

// usable returns why the controller can't be used now. Callers hold mu.
func (c *Controller[T]) usable() error {
	switch c.life {
	case created, booting, unbooted:
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

// errorStreaks report once that something fails, and once that it works again.
type errorStreaks struct{ source, store, other report.Streak }

// sourceRetry is the delay after errors of the source in a row.
func sourceRetry() backoff.Policy {
	return backoff.Policy{Base: 200 * time.Millisecond, Cap: 10 * time.Second}
}

// storeRetry is the delay after failures of the store in a row.
func storeRetry() backoff.Policy {
	return backoff.Policy{Base: 10 * time.Second, Cap: 10 * time.Minute}
}

// withLogger returns ctx with a logger named after the controller.
func (c *Controller[T]) withLogger(ctx context.Context) context.Context {
	return klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), c.cfg.Name))
}
