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

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/listwatch"
)

// object is what a watcher follows.
type object interface {
	metav1.Object
	runtime.Object
}

// watcher follows one object by name from a resourceVersion on, through every
// stream that breaks, until it has lost its place or is refused.
type watcher[T object] struct {
	name   string
	open   func(context.Context, metav1.ListOptions) (watch.Interface, error)
	answer time.Duration // how long the answer to a request may take
	seen   chan sight[T]
	cancel context.CancelFunc
}

// longStream is how long a stream must have lasted for the next one to be opened
// at once.
const longStream = 10 * time.Second

// patientGone is how many watches in a row may lose their place at once, each
// started from what was just read. Then there is no point in another one for a
// while.
const patientGone = 3

// sight is what a watcher has to say.
type sight[T object] struct {
	object  T
	deleted bool
	// gone: the resourceVersion is no longer kept; refused: there is no
	// permission. Both end the watcher.
	gone, refused bool
	err           error
}

// startWatch follows an object until stop is called or what run says ends it.
func startWatch[T object](ctx context.Context, wg *sync.WaitGroup, name, from string, answer time.Duration,
	open func(context.Context, metav1.ListOptions) (watch.Interface, error),
) *watcher[T] {
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher[T]{name: name, open: open, answer: answer, seen: make(chan sight[T]), cancel: cancel}
	wg.Go(func() { w.run(ctx, from) })
	return w
}

// stop ends the watcher. It may be nil.
func (w *watcher[T]) stop() {
	if w != nil {
		w.cancel()
	}
}

// sights returns the channel on which sightings come; nil where nobody watches.
func (w *watcher[T]) sights() <-chan sight[T] {
	if w == nil {
		return nil
	}
	return w.seen
}

// run watches until ctx is done.
func (w *watcher[T]) run(ctx context.Context, from string) {
	failures := 0
	for ctx.Err() == nil {
		opened := time.Now()
		progress, err := w.stream(ctx, &from)
		if err == nil && time.Since(opened) > longStream {
			failures = 0
			continue // the server ends them all in time
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
		failures++ // an end so soon is no failure, but no reason for haste either
		if err != nil && !w.send(ctx, s) || s.gone || s.refused {
			return
		}
		pause := time.NewTimer(max(retries().Delay(failures), apierr.RetryAfter(err)))
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
}

// stream passes on what one stream brings, and moves from along with it. It
// reports whether anything came.
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
