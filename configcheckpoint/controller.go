// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
	"github.com/kubewright/kubewright/internal/callback"
	"github.com/kubewright/kubewright/internal/durable"
	"github.com/kubewright/kubewright/internal/lifecycle"
)

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

	// The functions of Config that may hang, in the room for such calls. An answer that
	// comes after callTimeout is none.
	codec         callback.Room[T] // Decode and Validate; each payload has a line
	admit         callback.Room[time.Duration]
	apply, health callback.Room[struct{}]

	shutdownTimeout time.Duration // the constant, except in tests

	// mu guards the fields below. It is held while the disk is written, but never
	// while a function of the program other than Redact runs.
	mu      sync.Mutex
	life    life
	store   *slotstore.Store
	active  Active[T]
	payload []byte        // of active; nil for the built-in default
	core    rollout.State // decides
	state   situation     // for the status
	// reconsider means that the last payload may be handled differently now.
	reconsider bool
	reports    []func(observer)
	pruneErr   error // of the last prune
	// repairAfter is the earliest time of the next repair of a payload.
	repairAfter time.Time
	// storeFailures counts the failures of the store in a row.
	storeFailures int
	since         time.Time

	check func(*rollout.State, error) // for tests: called after each event; nil otherwise

	panicsMu sync.Mutex
	panics   []error // to be reported

	statusMu sync.Mutex
	status   Status
}

const (
	// callTimeout is the deadline of each call of Health, Apply and Admit, and of Decode
	// and Validate together.
	callTimeout = 30 * time.Second
	// patience is the time that a function has to return after its context is done, if
	// something depends on it.
	patience = time.Second
	// shutdownTimeout is the time that Run, before it returns, waits for calls that
	// outlive their contexts.
	shutdownTimeout = 10 * time.Second
)

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
		progress: lifecycle.NewProgress(cfg.Name, 4*callTimeout+time.Minute),
		wake:     make(chan struct{}, 1),
		observer: observer{hooks: cfg.Hooks},
		store:    store,

		codec:  callback.Room[T]{Name: "Codec", Limit: callTimeout},
		admit:  callback.Room[time.Duration]{Name: "Admit", Limit: callTimeout},
		apply:  callback.Room[struct{}]{Name: "Apply", Limit: callTimeout},
		health: callback.Room[struct{}]{Name: "Trial.Health", Limit: callTimeout},

		shutdownTimeout: shutdownTimeout,

		core: rollout.New(rollout.Rules{
			Build: cfg.Build, Attempts: cfg.Trial.Attempts,
			Soak: cfg.Trial.Soak, Grace: cfg.Trial.Grace, Every: cfg.Trial.Every, Health: cfg.Trial.Health != nil,
		}),
	}
	c.admit.Late = func(string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.reconsider = true
		c.notify()
	}
	c.health.Late = func(string) { c.notify() }
	c.state = situation{core: &c.core, attempts: cfg.Trial.Attempts}
	return c, nil
}

// A DoneChecker reports an event. It has the methods of client-go's cache.DoneChecker, and
// may be used as one.
type DoneChecker interface {
	// Name returns the name of what is waited for.
	Name() string
	// Done returns a channel that is closed when the event has happened.
	Done() <-chan struct{}
}

// Ready returns a checker that is done when Run has handled the first payload
// that the source yields. Don't delay the start of the agent until then: the
// point of a checkpoint is to start without the source.
func (c *Controller[T]) Ready() DoneChecker { return c.ready }

// Name returns Config.Name.
func (c *Controller[T]) Name() string { return c.cfg.Name }

// Check returns nil before Run and while the controller makes progress, and an
// error after Run. A source or a disk that fails is no reason to restart the
// process, so it is not an error here; [Controller.Status] has it. The request is
// not used and may be nil.
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
	if c.core.OnTrial() == 0 {
		return ErrNoTrial
	}
	defer c.notify()
	if failure == nil {
		return c.promote(true)
	}
	return c.rollBack(c.redact(failure))
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
	died := c.core.Died(rollout.Digest(d))
	news, err := c.change(rollout.Forgotten{Digest: rollout.Digest(d)})
	if died {
		err = errors.Join(err, c.store.SetNote(nil))
	}
	c.reconsider = c.reconsider || news.Changed
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
	stopping := rollout.Stopping{Failed: failure != nil}
	if failure != nil {
		stopping.Note = c.redact(failure)
	}
	_, err := c.change(stopping)
	if note, changed := c.core.LastNote(); changed {
		err = errors.Join(err, c.store.SetNote(note))
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

// withLogger returns ctx with a logger named after the controller.
func (c *Controller[T]) withLogger(ctx context.Context) context.Context {
	return klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), c.cfg.Name))
}

// The methods below change the state. Callers hold mu. They keep the reports and the
// status in step with the disk.

// change applies an event, and commits the record if it changes it, or if an earlier
// change is not on the disk. On an error the event has not taken effect, except that of
// a rejection.
func (c *Controller[T]) change(event rollout.Event) (rollout.News, error) {
	news := c.decide(event)
	text, err := c.core.Next()
	if err == nil && text == nil {
		return news, nil
	}
	if err == nil {
		err = c.store.Commit(text)
	}
	if err != nil {
		c.decide(rollout.Lost{})
		c.storeFailed(err)
	} else {
		c.decide(rollout.Committed{})
		c.state.store, c.storeFailures = nil, 0
	}
	c.refresh()
	return news, err
}

// decide applies an event to the decisions.
func (c *Controller[T]) decide(event rollout.Event) rollout.News {
	news, err := c.core.Apply(time.Now(), event)
	if c.check != nil {
		c.check(&c.core, err)
	}
	if err != nil { // a defect of this package
		c.report(func(o observer) { o.logger.Error(err, "A decision is not possible", "event", event) })
	}
	if x := news.Rejected; x != nil {
		info := Rejected{Ref: refOf(&news.Ref), Reason: Reason(x.Reason), Message: x.Message, RolledBack: news.RolledBack}
		c.report(func(o observer) { o.rejected(info) })
	}
	return news
}

// storeFailed keeps why the store could not be written, for the status.
func (c *Controller[T]) storeFailed(err error) {
	c.state.store = &ReasonError{Reason: storeReason(err), Err: err}
}

// reject rejects ref, which runs and must stop if stops is set.
func (c *Controller[T]) reject(ref Ref, reason Reason, message string, stops bool) error {
	_, err := c.change(rollout.Rejected{Ref: ref.core(), Reason: rollout.Reason(reason), Message: message, Stops: stops})
	return err
}

// promote ends the trial of the running configuration with success.
func (c *Controller[T]) promote(byVerdict bool) error {
	ref := c.state.running()
	if news, err := c.change(rollout.Confirmed{}); err != nil || !news.Changed {
		return err
	}
	c.state.health, c.active.Trial = nil, false
	info := Promoted{Ref: ref, ByVerdict: byVerdict}
	c.report(func(o observer) { o.promoted(info) })
	c.refresh()
	c.prune()
	return nil
}

// rollBack ends the trial of the running configuration with a failure.
func (c *Controller[T]) rollBack(message string) error {
	return c.reject(c.state.running(), ReasonUnhealthy, message, true)
}

// prune removes the payloads that are no longer needed. A file that can't be
// removed costs space only. Run reports the error, and the next prune tries
// again.
func (c *Controller[T]) prune() { c.pruneErr = c.store.Prune() }

// report queues a call of the hooks for Run.
func (c *Controller[T]) report(call func(observer)) { c.reports = append(c.reports, call) }

// refresh computes the status.
func (c *Controller[T]) refresh() {
	c.state.before = c.Status()
	st := c.state.status()
	if before := c.state.before; st.OK != before.OK || before.Phase == PhasePending {
		c.since = time.Now()
	}
	st.Since = c.since
	c.statusMu.Lock()
	defer c.statusMu.Unlock()
	c.status = st
}

// errTooNew is wrapped by the reason for which this code must not write a store.
var errTooNew = errors.New("the store was written by a newer program")

// newStore returns the store of records in a directory.
func newStore(fs durable.FS) (*slotstore.Store, error) {
	empty, err := rollout.Empty().Encode()
	if err != nil {
		return nil, err
	}
	return slotstore.New(slotstore.Config{FS: fs, Parse: describe, Empty: empty, MaxPayload: MaxPayloadSize}), nil
}

// describe returns the facts about a record that the store needs.
func describe(text []byte) (slotstore.Info, error) {
	r, err := rollout.Parse(text)
	if err != nil {
		return slotstore.Info{}, err
	}
	info := slotstore.Info{Generation: r.Gen}
	for _, ref := range r.Refs() {
		info.Payloads = append(info.Payloads, ref.Digest)
	}
	if r.MinReader > rollout.Schema {
		info.ReadOnly = fmt.Errorf("%w: schema %d needs a reader of %d; this is %d", errTooNew, r.Schema, r.MinReader, rollout.Schema)
	}
	return info, nil
}

// storeReason returns the reason for an error of the store.
func storeReason(err error) Reason {
	switch {
	case errors.Is(err, errTooNew):
		return ReasonStoreTooNew
	case errors.Is(err, slotstore.ErrPayload):
		return ReasonCheckpointCorrupt
	case errors.Is(err, slotstore.ErrSlots):
		return ReasonStoreCorrupt
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return ReasonStoreFull
	case errors.Is(err, syscall.EROFS):
		return ReasonStoreReadOnly
	}
	return ReasonStoreFailed
}
