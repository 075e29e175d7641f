// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/listwatch"
	"github.com/kubewright/kubewright/internal/report"
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

	wakeAt time.Duration // when the present decision is repeated
}

// begin starts a decision, which is repeated after idle at the latest. It ends the
// polling after pollFor.
func (f *follower) begin(now, idle time.Duration) {
	f.wakeAt = now + idle
	f.polling = f.polling && now < f.pollUntil
}

// due reports whether t has come. If not, the decision is repeated at t.
func (f *follower) due(now, t time.Duration) bool {
	if now < t {
		f.wakeAt = min(f.wakeAt, t)
	}
	return now >= t
}

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

// object is an API object that can be followed.
type object interface {
	comparable
	metav1.Object
	runtime.Object
}

// versionOf returns the resourceVersion of an object, "" for none.
func versionOf[T object](o T) string {
	var none T
	if o == none {
		return ""
	}
	return o.GetResourceVersion()
}

// step is the next action about an object.
type step[T object] struct {
	op Op // of a request, "" for none
	// object is the object to write: by PUT if it has a resourceVersion, else by POST.
	object  T
	timeout time.Duration // of the request
	abort   bool          // cancel the request under way
	wake    time.Duration // when to decide again if no event comes earlier
}

// client is the part of a typed client that a lane needs.
type client[T object] interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// lane does the I/O about one object: one request at a time, and the watch. The
// zero value does nothing.
type lane[T object] struct {
	*follower
	loop       *loop
	kind, name string
	client     client[T]
	failed     func(Failed) // a hook
	// Each of these may fail while the others succeed.
	reads, writes, watches report.Streak

	answers chan answer[T]
	abort   context.CancelFunc // of the request under way; nil for none
	aborted bool               // abort was called

	sights   chan sight[T] // of the watch; nil for none
	endWatch context.CancelFunc
	resume   string        // the version from which the next stream starts; "" for that of the object
	pause    time.Duration // before the next stream
	broken   int           // streams in a row that failed
}

// answer is the result of a request.
type answer[T object] struct {
	op     Op
	sent   instant
	object T
	err    error
}

// take carries out a step. If the object should be watched, the watch starts from
// version.
func (l *lane[T]) take(s step[T], watched bool, version string) {
	if s.abort {
		l.cancel()
	}
	if s.op != "" {
		ctx, cancel := context.WithTimeout(l.loop.requests, l.loop.clock.span(s.timeout))
		l.abort, l.aborted = cancel, false
		sent := l.loop.clock.now()
		l.loop.wg.Go(func() {
			defer cancel()
			o, err := l.do(ctx, s)
			klog.FromContext(ctx).V(4).Info("Sent request", "op", s.op, "latency", l.loop.clock.now().mono-sent.mono, "outcome", apierr.Classify(err))
			l.answers <- answer[T]{s.op, sent, o, err}
		})
	}
	if l.watchStale || !watched {
		l.watchStale = false
		l.stopWatch()
	}
	if l.endWatch == nil && watched && !l.reread {
		ctx, cancel := context.WithCancel(l.loop.requests)
		sights, from, pause := make(chan sight[T]), cmp.Or(l.resume, version), l.pause
		l.sights, l.endWatch = sights, cancel
		l.loop.wg.Go(func() { l.watch(ctx, from, pause, sights) })
	}
}

// do sends the request of a step. An answer about another object, such as an empty one
// that a proxy makes up, is an error.
func (l *lane[T]) do(ctx context.Context, s step[T]) (o T, err error) {
	name := l.name
	switch {
	case s.op == opDelete:
		return s.object, l.client.Delete(ctx, l.name, *metav1.NewPreconditionDeleteOptions(string(s.object.GetUID())))
	case s.op == opInquire:
		name = s.object.GetName()
		fallthrough
	case s.op == OpRead:
		o, err = l.client.Get(ctx, name, metav1.GetOptions{})
	case s.object.GetResourceVersion() == "":
		o, err = l.client.Create(ctx, s.object, metav1.CreateOptions{FieldManager: spec.FieldManager})
	default:
		o, err = l.client.Update(ctx, s.object, metav1.UpdateOptions{FieldManager: spec.FieldManager})
	}
	return apierr.Answer(o, err, name)
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

// sighted updates the follower after s. It reports whether s has an object.
func (l *lane[T]) sighted(now time.Duration, s sight[T]) bool {
	if !s.ended {
		l.gone, l.broken = 0, 0
		l.report(OpWatch, nil)
		var none T
		return s.object != none
	}
	l.stopWatch()
	gone := apierr.Classify(s.err) == apierr.Gone
	silent := s.err == nil
	switch {
	case gone || apierrors.IsForbidden(s.err) || apierrors.IsMethodNotSupported(s.err):
		l.broken = 0
		silent = !l.lost(now, gone)
	case silent && time.Since(s.opened) > longStream:
		l.broken, l.resume = 0, s.version // the API server ends every stream after some minutes
		l.report(OpWatch, nil)
	default:
		l.broken++
		l.resume, l.pause = s.version, spec.Retry(l.broken, standbyRetry, s.err)
	}
	if !silent {
		l.report(OpWatch, s.err)
	}
	return false
}

// report reports the result of a request or of a watch.
func (l *lane[T]) report(op Op, err error) {
	streak, again := &l.writes, "Writes of the "+l.kind+" succeed again"
	switch op {
	case OpRead, opInquire:
		streak, again = &l.reads, "Reads of the "+l.kind+" succeed again"
	case OpWatch:
		streak, again = &l.watches, "The watch of the "+l.kind+" works again"
	}
	class := apierr.Classify(err)
	missing := class == apierr.NotFound && !missingNamespace(err)
	switch {
	case class == apierr.None:
		streak.OK(l.loop.ctx, again)
		return
	case class == apierr.Conflict, class == apierr.AlreadyExists, class == apierr.Canceled && l.aborted, missing && op != opCreate:
		return
	case missing:
		err = fmt.Errorf("%w: %w", ErrNoCandidateAPI, err)
	}
	streak.Fail(l.loop.ctx, l.loop.cfg.ErrorHandler, fmt.Errorf("election: %s: %w", op, err), "Request about the "+l.kind+" failed", "op", op)
	spec.Call(l.failed, Failed{Op: op, Class: class.String(), Err: err})
}

// missingNamespace reports whether an object was not created because its namespace
// does not exist.
func missingNamespace(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && status.Status().Details != nil && status.Status().Details.Kind == "namespaces"
}

// longStream is the least duration of a stream whose successor is opened at once.
const longStream = 10 * time.Second

// sight is an observation of a watch, or the end of its stream.
type sight[T object] struct {
	object  T // none for a bookmark, which shows only that the stream works
	deleted bool
	// began reports that a stream began without a version, so that its first event is
	// the state at its beginning.
	began bool

	ended   bool
	version string // from which another stream may continue
	opened  time.Time
	err     error
}

// watch sends the events of one stream, and its end, unless ctx is done. It runs in its
// own goroutine.
func (l *lane[T]) watch(ctx context.Context, from string, pause time.Duration, sights chan<- sight[T]) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(pause):
	}
	end := sight[T]{ended: true, version: from, opened: time.Now()}
	defer func() { send(ctx, sights, end) }()
	stream, err := listwatch.Bounded(ctx, l.loop.cfg.CallTimeout, metav1.ListOptions{
		FieldSelector:       fields.OneTermEqualSelector(metav1.ObjectNameField, l.name).String(),
		ResourceVersion:     from,
		AllowWatchBookmarks: true,
		TimeoutSeconds:      ptr.To(300 + rand.Int64N(300)),
	}, l.client.Watch)
	if err != nil {
		end.err = err
		return
	}
	defer stream.Stop()
	if from == "" {
		send(ctx, sights, sight[T]{began: true})
	}
	for {
		var event watch.Event
		select {
		case <-ctx.Done():
			return
		case event = <-stream.ResultChan(): // the zero Event after its end
		}
		if event.Type == watch.Error {
			end.err = fmt.Errorf("election: watch: %w", apierrors.FromObject(event.Object))
			return
		}
		o, ok := event.Object.(T)
		if !ok {
			return
		}
		end.version = o.GetResourceVersion()
		switch {
		case event.Type == watch.Bookmark:
			send(ctx, sights, sight[T]{})
		case o.GetName() == l.name:
			send(ctx, sights, sight[T]{object: o, deleted: event.Type == watch.Deleted})
		}
	}
}

// send delivers v, unless ctx is done first.
func send[T any](ctx context.Context, to chan<- T, v T) {
	select {
	case to <- v:
	case <-ctx.Done():
	}
}
