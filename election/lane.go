// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"cmp"
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
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/election/internal/machine"
	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/listwatch"
	"github.com/kubewright/kubewright/internal/report"
)

// object is an API object that can be followed.
type object interface {
	comparable
	metav1.Object
	runtime.Object
}

// client is the part of a typed client that a lane needs.
type client[T object] interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// lane does the I/O about one object: one request at a time, and the watch.
type lane[T object] struct {
	kind, name  string
	client      client[T]
	clock       *clock
	callTimeout time.Duration
	handler     report.Handler
	failed      func(Failed) // a hook
	// missing reports whether a 404 to a request says that the object does not exist.
	missing func(machine.Op, error) bool
	// apply passes a fact to the core, and polls reports whether the core polls the object.
	apply func(machine.Event)
	polls func() bool
	// join follows the object in a watch that is shared; nil if it is not. See SharedWatch.
	join func(ctx context.Context, name, from string, afresh bool) (<-chan *sight[T], func() <-chan struct{})
	// ctx is the context of Run. requests is the same without its end, because the
	// lease is kept until the work has returned.
	ctx, requests context.Context
	running       *sync.WaitGroup

	// Each of these may fail while the others succeed.
	reads, writes, watches apierr.Streak

	answers chan *answer[T]
	abort   context.CancelFunc // of the request under way; nil for none
	aborted bool               // abort was called

	sights   <-chan *sight[T] // of the watch; nil for none
	endWatch context.CancelFunc
	stream   int           // Action.Stream of the watch
	afresh   bool          // the stream before waits for versions that will not come
	resume   string        // the version from which the next stream starts; "" for that of the object
	pause    time.Duration // before the next stream
	broken   int           // streams in a row that failed
}

// answer is the result of a request.
type answer[T object] struct {
	op     machine.Op
	name   string // of the object
	sent   machine.Instant
	object T
	err    error

	latency time.Duration
}

// event returns the fact that a request was answered.
func (l *lane[T]) event(a *answer[T]) machine.Answered[T] {
	return machine.Answered[T]{Op: a.op, At: a.sent, Object: a.object, Outcome: l.outcome(a.op, a.err)}
}

// outcome returns the outcome of a request.
func (l *lane[T]) outcome(op machine.Op, err error) machine.Outcome {
	o := machine.Outcome{Answer: machine.Failed, Unsure: apierr.MayHaveCommitted(err), RetryAfter: apierr.RetryAfter(err)}
	switch apierr.Classify(err) {
	case apierr.None:
		o.Answer = machine.OK
	case apierr.NotFound:
		if l.missing(op, err) {
			o.Answer = machine.Missing
		}
	case apierr.Conflict, apierr.AlreadyExists:
		o.Answer = machine.Conflict
	case apierr.Canceled:
		o.Answer = machine.Cancelled
	}
	return o
}

// take carries out an action, and reports whether it sent a request.
func (l *lane[T]) take(a machine.Action[T]) (sent bool) {
	if a.Abort {
		l.cancel()
	}
	if a.Op != "" {
		ctx, cancel := context.WithTimeout(l.requests, l.clock.span(a.Timeout))
		l.abort, l.aborted = cancel, false
		at := l.clock.now()
		l.running.Go(func() {
			defer cancel()
			name := l.name
			if a.Op == machine.Inquire {
				name = a.Object.GetName()
			}
			o, err := l.do(ctx, a, name)
			took := l.clock.now().Mono - at.Mono
			klog.FromContext(ctx).V(4).Info("Sent request", "op", a.Op, "latency", took, "outcome", apierr.Classify(err))
			l.answers <- &answer[T]{op: a.Op, name: name, sent: at, object: o, err: err, latency: took}
		})
	}
	if a.Watch == machine.Unwatched || a.Stream != l.stream {
		l.stopWatch()
	}
	l.afresh = l.afresh || a.Stream != l.stream
	l.stream = a.Stream
	if l.endWatch == nil && a.Watch == machine.Watched {
		l.startWatch(cmp.Or(l.resume, a.Version))
		l.afresh = false
	}
	return a.Op != ""
}

// startWatch follows the object from a version on, "" for its present state: in the watch
// that is shared, or in one of its own.
func (l *lane[T]) startWatch(from string) {
	if l.join != nil {
		if sights, leave := l.join(l.requests, l.name, from, l.afresh); sights != nil {
			l.sights, l.endWatch = sights, func() {
				if done := leave(); done != nil {
					l.running.Go(func() { <-done })
				}
			}
			return
		}
	}
	ctx, cancel := context.WithCancel(l.requests)
	sights, pause := make(chan *sight[T]), l.pause
	l.sights, l.endWatch = sights, cancel
	l.running.Go(func() { l.watch(ctx, from, pause, sights) })
}

// do sends the request of an action, about the object with that name. An answer about another object, such as an empty one
// that a proxy makes up, is an error. The object is returned without managedFields: the API
// server keeps them if a write has none, and they may be as large as the rest.
func (l *lane[T]) do(ctx context.Context, s machine.Action[T], name string) (o T, err error) {
	switch {
	case s.Op == machine.Delete:
		return s.Object, l.client.Delete(ctx, l.name, *metav1.NewPreconditionDeleteOptions(string(s.Object.GetUID())))
	case s.Op == machine.Read, s.Op == machine.Inquire:
		o, err = l.client.Get(ctx, name, metav1.GetOptions{})
	case s.Object.GetResourceVersion() == "":
		o, err = l.client.Create(ctx, s.Object, metav1.CreateOptions{FieldManager: spec.FieldManager})
	default:
		o, err = l.client.Update(ctx, s.Object, metav1.UpdateOptions{FieldManager: spec.FieldManager})
	}
	if o, err = apierr.Answer(o, err, name); err == nil {
		o.SetManagedFields(nil)
	}
	return o, err
}

// cancel ends the request under way, if there is one.
func (l *lane[T]) cancel() {
	if l.abort != nil {
		l.abort()
		l.aborted = true
	}
}

func (l *lane[T]) stopWatch() {
	if l.endWatch != nil {
		l.endWatch()
	}
	l.sights, l.endWatch, l.resume, l.pause = nil, nil, "", 0
}

// received passes what was received from sights to the core. The channel of a watch that is
// shared is closed if this candidate was too slow for it.
func (l *lane[T]) received(s *sight[T], ok bool) {
	if !ok {
		s = &sight[T]{ended: true, err: errBehind}
	}
	l.sighted(s)
}

// sighted passes an observation of the watch to the core. It reports a watch that ended
// with an error, except if another one begins at once after a read.
func (l *lane[T]) sighted(s *sight[T]) {
	switch {
	case s.began:
		l.apply(machine.WatchBegan{})
		return
	case s.broken: // and is repeated by itself
		l.report(opWatch, s.err)
		return
	case !s.ended:
		l.broken = 0
		l.apply(machine.WatchWorks{})
		l.report(opWatch, nil)
		var none T
		if s.object != none {
			l.apply(machine.Seen[T]{Object: s.object, Deleted: s.deleted})
		}
		return
	}
	l.stopWatch()
	gone := apierr.Classify(s.err) == apierr.Gone
	silent := s.err == nil
	switch {
	case gone || apierrors.IsForbidden(s.err) || apierrors.IsMethodNotSupported(s.err):
		l.broken = 0
		l.apply(machine.WatchLost{Gone: gone})
		silent = !l.polls()
	case silent && time.Since(s.opened) > longStream:
		l.broken, l.resume = 0, s.version // the API server ends every stream after some minutes
		l.report(opWatch, nil)
	default:
		l.broken++
		l.resume, l.pause = s.version, spec.Retry(l.broken, machine.StandbyRetry, rand.Float64(), apierr.RetryAfter(s.err))
	}
	if !silent {
		l.report(opWatch, s.err)
	}
}

// opWatch is the watch of an object.
const opWatch = machine.Op(OpWatch)

// report reports the result of a request or of a watch.
func (l *lane[T]) report(op machine.Op, err error) {
	streak, again := &l.writes, "Writes of the "+l.kind+" succeed again"
	switch op {
	case machine.Read, machine.Inquire:
		streak, again = &l.reads, "Reads of the "+l.kind+" succeed again"
	case opWatch:
		streak, again = &l.watches, "The watch of the "+l.kind+" works again"
	}
	class := apierr.Classify(err)
	missing := class == apierr.NotFound && l.missing(op, err)
	switch {
	case class == apierr.None:
		streak.OK(l.ctx, again)
		return
	case class == apierr.Conflict, class == apierr.AlreadyExists, class == apierr.Canceled && l.aborted, missing && op != machine.Create:
		return
	case missing:
		err = fmt.Errorf("%w: %w", ErrNoCandidateAPI, err)
	}
	streak.Fail(l.ctx, l.handler, fmt.Errorf("election: %s: %w", op, apierr.Permission(err, "election.yaml")), "Request about the "+l.kind+" failed", "op", op)
	spec.Call(l.failed, Failed{Op: Op(op), Class: class.String(), Err: err})
}

// longStream is the least duration of a stream whose successor is opened at once.
const longStream = 10 * time.Second

// sight is an observation of a watch, or the end of its stream. Channels have pointers to it
// and to answers, because an idle candidate has little more than its channels and its stack.
type sight[T object] struct {
	object  T // none for a bookmark, which shows only that the stream works
	deleted bool
	// began reports that a stream began without a version, so that its first event is
	// the state at its beginning.
	began bool
	// broken reports that a watch that is shared failed, because of err. It is repeated.
	broken bool

	ended   bool
	version string // from which another stream may continue
	opened  time.Time
	err     error
}

// watch sends the events of one stream, and its end, unless ctx is done. It runs in its
// own goroutine.
func (l *lane[T]) watch(ctx context.Context, from string, pause time.Duration, sights chan<- *sight[T]) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(pause):
	}
	end := &sight[T]{ended: true, opened: time.Now()}
	end.version, end.err = follow(ctx, l.client.Watch, l.callTimeout, fields.OneTermEqualSelector(metav1.ObjectNameField, l.name).String(), from, func() {
		if from == "" {
			send(ctx, sights, &sight[T]{began: true})
		}
	}, func(kind watch.EventType, o T) {
		switch {
		case kind == watch.Bookmark:
			send(ctx, sights, &sight[T]{})
		case o.GetName() == l.name:
			send(ctx, sights, &sight[T]{object: o, deleted: kind == watch.Deleted})
		}
	})
	send(ctx, sights, end)
}

// follow opens one stream from a version, calls began, and then seen with each object. It
// returns the version from which another stream may continue, and why the stream ended; nil
// if the API server or ctx has ended it.
func follow[T object](ctx context.Context, open func(context.Context, metav1.ListOptions) (watch.Interface, error), timeout time.Duration,
	selector, version string, began func(), seen func(watch.EventType, T),
) (string, error) {
	stream, err := listwatch.Bounded(ctx, timeout, metav1.ListOptions{
		FieldSelector:       selector,
		ResourceVersion:     version,
		AllowWatchBookmarks: true,
		TimeoutSeconds:      ptr.To(300 + rand.Int64N(300)),
	}, open)
	if err != nil {
		return version, err
	}
	defer stream.Stop()
	began()
	for {
		var event watch.Event
		select {
		case <-ctx.Done():
			return version, nil
		case event = <-stream.ResultChan(): // the zero Event after its end
		}
		if event.Type == watch.Error {
			return version, fmt.Errorf("election: watch: %w", apierrors.FromObject(event.Object))
		}
		o, ok := event.Object.(T)
		if !ok {
			return version, nil
		}
		version = o.GetResourceVersion()
		o.SetManagedFields(nil) // see do
		seen(event.Type, o)
	}
}

// send delivers v, unless ctx is done first.
func send[T any](ctx context.Context, to chan<- T, v T) {
	select {
	case to <- v:
	case <-ctx.Done():
	}
}
