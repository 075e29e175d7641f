// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/listwatch"
)

// pollFor is the time for which an object is polled after a watch was refused.
const pollFor = 10 * time.Minute

// patientGone is the number of watches in a row that may lose their place, each
// started from the result of a read, before the object is polled.
const patientGone = 3

// follower decides when an object is read, and whether it is watched. The Lease has
// one, and so has the LeaseCandidate. It is pure state, like the machine.
//
// Invariant: nothing is read before retryAt. An object that is not watched has a
// next read.
type follower struct {
	poll time.Duration // between two reads of an object that can't be watched

	reread     bool          // a change may have been missed
	watchStale bool          // the watch waits for versions that will not come
	polling    bool          // the object can't be watched,
	pollUntil  time.Duration // until then
	gone       int           // watches in a row that only lost their place
	readAt     time.Duration // the next read without a watch
	failures   int           // reads in a row that failed
	retryAt    time.Duration
}

// tick ends the polling after pollFor.
func (f *follower) tick(now time.Duration) { f.polling = f.polling && now < f.pollUntil }

// nextRead returns when to read an object that is watched or not.
func (f *follower) nextRead(watched bool) time.Duration {
	switch {
	case f.reread:
		return f.retryAt
	case watched:
		return never
	}
	return max(f.readAt, f.retryAt)
}

// lost updates f after a watch that has lost its place (gone) or was refused. It
// reports whether the object is polled from now on.
func (f *follower) lost(now time.Duration, gone bool) bool {
	if gone {
		f.reread = true
		if f.gone++; f.gone < patientGone {
			return false
		}
	}
	f.gone, f.polling, f.pollUntil, f.readAt = 0, true, now+pollFor, now+f.poll
	return true
}

// lane does the I/O about one object: one request at a time, and the watch. The
// zero value does nothing.
type lane[T object] struct {
	*follower
	name    string
	open    func(context.Context, metav1.ListOptions) (watch.Interface, error)
	timeout time.Duration // of the answer to a watch
	clock   *clock
	ctx     context.Context
	wg      *sync.WaitGroup

	answers chan answer[T]
	abort   context.CancelFunc // of the request under way; nil for none
	aborted bool               // abort was called
	watch   *watcher[T]
}

// newLane returns a lane for the object with a name.
func newLane[T object](l *loop, f *follower, name string, open func(context.Context, metav1.ListOptions) (watch.Interface, error)) lane[T] {
	return lane[T]{
		follower: f, name: name, open: open, timeout: l.cfg.CallTimeout, clock: l.clock, ctx: l.requests, wg: &l.wg,
		answers: make(chan answer[T], 1),
	}
}

// answer is the result of a request.
type answer[T object] struct {
	op     Op
	sent   instant
	object T
	err    error
}

// send starts a request.
func (l *lane[T]) send(op Op, timeout time.Duration, do func(context.Context) (T, error)) {
	ctx, cancel := context.WithTimeout(l.ctx, l.clock.span(timeout))
	l.abort, l.aborted = cancel, false
	sent := l.clock.now()
	l.wg.Go(func() {
		defer cancel()
		o, err := do(ctx)
		l.answers <- answer[T]{op, sent, o, err}
	})
}

// cancel ends the request under way, if there is one.
func (l *lane[T]) cancel() {
	if l.abort != nil {
		l.abort()
		l.aborted = true
	}
}

// tend starts or stops the watch. It starts from version.
func (l *lane[T]) tend(wanted bool, version string) {
	if l.watchStale || !wanted {
		l.watchStale = false
		l.stopWatch()
	}
	if l.watch == nil && wanted && !l.reread {
		ctx, cancel := context.WithCancel(l.ctx)
		w := &watcher[T]{name: l.name, open: l.open, answer: l.timeout, seen: make(chan sight[T]), cancel: cancel}
		l.watch = w
		l.wg.Go(func() { w.run(ctx, version) })
	}
}

func (l *lane[T]) stopWatch() {
	if l.watch != nil {
		l.watch.cancel()
		l.watch = nil
	}
}

// sights returns the channel of the watch, nil without one.
func (l *lane[T]) sights() <-chan sight[T] {
	if l.watch == nil {
		return nil
	}
	return l.watch.seen
}

// sighted updates the follower after s. It returns an error to report.
func (l *lane[T]) sighted(now time.Duration, s sight[T]) error {
	switch {
	case s.err == nil:
		l.gone = 0
	case s.gone || s.refused:
		l.stopWatch()
		if !l.lost(now, s.gone) {
			return nil
		}
	}
	return s.err
}

// object is an API object that can be followed.
type object interface {
	metav1.Object
	runtime.Object
}

// watcher watches one object by name from a resourceVersion on. It survives broken
// streams, and ends when it has lost its place or is refused.
type watcher[T object] struct {
	name   string
	open   func(context.Context, metav1.ListOptions) (watch.Interface, error)
	answer time.Duration
	seen   chan sight[T]
	cancel context.CancelFunc
}

// longStream is the least duration of a stream whose successor is opened at once.
const longStream = 10 * time.Second

// sight is an observation of a watcher, or a failure.
type sight[T object] struct {
	object  T
	deleted bool
	// gone: the resourceVersion is no longer served. refused: the permission is
	// missing. Both end the watcher.
	gone, refused bool
	err           error
}

// run watches until ctx is done.
func (w *watcher[T]) run(ctx context.Context, from string) {
	failures := 0
	for ctx.Err() == nil {
		opened := time.Now()
		progress, err := w.stream(ctx, &from)
		if err == nil && time.Since(opened) > longStream {
			failures = 0
			continue // the API server ends every stream after some minutes
		}
		s := sight[T]{err: err}
		switch class := apierr.Classify(err); {
		case class == apierr.Gone:
			s.gone = true
		case class == apierr.Forbidden || apierrors.IsMethodNotSupported(err):
			s.refused = true
		}
		if progress {
			failures = 0
		}
		failures++ // also after a stream that ended early without an error
		if err != nil && !w.send(ctx, s) || s.gone || s.refused {
			return
		}
		pause := time.NewTimer(spec.Retry(failures, standbyRetry, err))
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
}

// stream delivers the events of one stream and moves from along. It reports whether
// there was an event.
func (w *watcher[T]) stream(ctx context.Context, from *string) (progress bool, err error) {
	opts := metav1.ListOptions{
		FieldSelector:       fields.OneTermEqualSelector(metav1.ObjectNameField, w.name).String(),
		ResourceVersion:     *from,
		AllowWatchBookmarks: true,
		TimeoutSeconds:      ptr.To(300 + rand.Int64N(300)),
	}
	stream, err := listwatch.Bounded(ctx, w.answer, opts, w.open)
	if err != nil {
		return false, err
	}
	defer stream.Stop()
	for {
		var event watch.Event
		select {
		case <-ctx.Done():
			return progress, nil
		case e, ok := <-stream.ResultChan():
			if !ok {
				return progress, nil
			}
			event = e
		}
		if event.Type == watch.Error {
			return progress, fmt.Errorf("election: watch: %w", apierrors.FromObject(event.Object))
		}
		o, ok := event.Object.(T)
		if !ok {
			continue
		}
		progress = true
		*from = o.GetResourceVersion()
		if event.Type == watch.Bookmark || o.GetName() != w.name {
			continue
		}
		if !w.send(ctx, sight[T]{object: o, deleted: event.Type == watch.Deleted}) {
			return progress, nil
		}
	}
}

func (w *watcher[T]) send(ctx context.Context, s sight[T]) bool {
	select {
	case w.seen <- s:
		return true
	case <-ctx.Done():
		return false
	}
}
