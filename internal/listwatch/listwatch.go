// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package listwatch builds informer sources that an API server can neither
// block nor drive into a hot loop.
//
// The reflector of client-go sets no deadline for a list or for the start of a
// watch, and relies on the server to end a watch in time. After some errors it
// keeps sleeping when its context is done; after others it retries at once,
// without limit. The sources of this package set a deadline for every request
// and every stream, and do the waiting themselves.
//
// An API server that was restored from a backup takes a version that it has not
// reached yet for the start of a watch, and delivers nothing until it has. So a
// stream that breaks, or a watch that is refused, is followed by a list. And a stream
// that brings neither an object nor a bookmark for two minutes is ended, and so is
// followed by a list: it has not shown that the server has reached its version.
package listwatch

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptrace"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"

	"github.com/kubewright/kubewright/internal/backoff"
)

// listSilence is the least time in which the first byte of a list must come. A connection that
// drops everything must not cost the whole ListTimeout, which is for long lists.
const listSilence = 20 * time.Second

// slack is the time that a watch may exceed the requested timeout before it
// counts as dead.
const slack = 30 * time.Second

// Config describes a list and watch and its bounds. All fields except
// Client, FieldSelector, Listed and Outcome are required.
type Config struct {
	// List and Watch are the methods of a typed client.
	List  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	Watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// Client, if set, is the client of List and Watch. If it says that it can't stream a
	// list, as the fake clientset of client-go does, the informer lists instead. The typed
	// clients of that clientset don't say so, but have no REST client.
	Client any
	// FieldSelector restricts both List and Watch.
	FieldSelector string
	// ListTimeout is the deadline of a list, AnswerTimeout the deadline for the
	// start of a watch. The duration of the stream follows from the request.
	ListTimeout, AnswerTimeout time.Duration
	// Retries is the backoff after errors that the reflector handles with a
	// wrong delay or with none.
	Retries backoff.Policy
	// Listed, if set, is called with the version of each complete list before the informer
	// has it: the answer to a list, or the end of a streamed one.
	Listed func(resourceVersion string)
	// Outcome is called after each list and each start of a watch, with nil for
	// a success. It is not called for requests that ended with the context. It
	// returns the minimum delay before the next request. Calls do not overlap.
	Outcome func(ctx context.Context, err error) time.Duration
}

// A Source is an informer source.
type Source struct {
	*cache.ListWatch
	listOnly bool
}

// IsWatchListSemanticsUnSupported reports whether the client can't stream a list. It is the
// method that reflectors look for.
func (s *Source) IsWatchListSemanticsUnSupported() bool { return s.listOnly }

// cannotStream reports whether client can't stream a list.
func cannotStream(client any) bool {
	if watchlist.DoesClientNotSupportWatchListSemantics(client) {
		return true
	}
	typed, ok := client.(interface{ RESTClient() rest.Interface })
	if !ok {
		return false
	}
	c, ok := typed.RESTClient().(*rest.RESTClient)
	return ok && c == nil // only a fake has none
}

// New returns an informer source with the bounds in cfg.
func New(cfg Config) *Source {
	p := &pacer{outcome: cfg.Outcome, policy: cfg.Retries}
	// A reflector's calls do not overlap.
	var ends time.Time   // when the last stream ends, if it does not break
	var doubt bool       // the version of the last stream may be newer than the server's
	var opened time.Time // when the last stream began; zero: its length was counted
	var brief int        // the streams in a row that ended before steady
	relist := func() (watch.Interface, error) {
		doubt = true
		return nil, errRelist
	}
	return &Source{listOnly: cannotStream(cfg.Client), ListWatch: &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			call, cancel := context.WithTimeout(ctx, cfg.ListTimeout)
			defer cancel()
			silent := time.AfterFunc(max(cfg.AnswerTimeout, listSilence), cancel)
			defer silent.Stop()
			call = httptrace.WithClientTrace(call, &httptrace.ClientTrace{GotFirstResponseByte: func() { silent.Stop() }})
			opts.FieldSelector = cfg.FieldSelector
			if doubt {
				opts.ResourceVersion = "" // not one that the server must have reached
			}
			ends = time.Time{}
			list, err := cfg.List(call, opts)
			if err != nil && ctx.Err() == nil && errors.Is(call.Err(), context.Canceled) {
				err = fmt.Errorf("list: no answer: %w", context.DeadlineExceeded)
			}
			doubt = doubt && err != nil
			if meta, e := apimeta.ListAccessor(list); e == nil && err == nil && cfg.Listed != nil {
				cfg.Listed(meta.GetResourceVersion())
			}
			return list, p.note(ctx, err)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			if !opened.IsZero() {
				if brief++; time.Since(opened) >= steady {
					brief = 0
				}
				opened = time.Time{}
				if brief > 1 && !sleep(ctx, cfg.Retries.Delay(brief-1)) { // the first such stream is normal
					return nil, ctx.Err()
				}
			}
			opts.FieldSelector = cfg.FieldSelector
			lists := opts.SendInitialEvents != nil && *opts.SendInitialEvents
			switch {
			case lists && doubt:
				opts.ResourceVersion = ""
			case !lists && time.Until(ends) > early:
				return relist()
			}
			ends = time.Time{}
			if opts.TimeoutSeconds != nil {
				ends = time.Now().Add(time.Duration(*opts.TimeoutSeconds) * time.Second)
			}
			for {
				stream, err := Bounded(ctx, cfg.AnswerTimeout, opts, cfg.Watch)
				switch err = p.note(ctx, err); {
				case err == nil:
					doubt, opened = false, time.Now()
					return proven(stream, cfg.Listed), nil
				case ctx.Err() != nil:
					return nil, ctx.Err()
				case utilnet.IsConnectionRefused(err) && !lists:
					return relist()
				case !isWaitedFor(err):
					return nil, err
				}
			}
		},
	}}
}

// steady is the time that a stream lasts if nothing is wrong with it. A proxy may close each stream
// after its first events. So if streams end sooner, the delay before the next one grows, and a list
// in between has the same delay.
const steady = 30 * time.Second

// early is how much too early a stream may end that did not break.
const early = time.Second

// errRelist makes a reflector list.
var errRelist error = apierrors.NewResourceExpired("the API server may have been restored from a backup")

// Bounded opens a watch that cannot hang. The answer must arrive within
// timeout, and the stream must end at the requested time or soon after.
func Bounded(ctx context.Context, timeout time.Duration, opts metav1.ListOptions,
	open func(context.Context, metav1.ListOptions) (watch.Interface, error),
) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(timeout, cancel)
	s, err := open(ctx, opts)
	if err != nil {
		if !timer.Stop() { // the timer ended it
			err = fmt.Errorf("start a watch: %w", context.DeadlineExceeded)
		}
		cancel()
		return nil, err
	}
	if opts.TimeoutSeconds != nil {
		timer.Reset(time.Duration(*opts.TimeoutSeconds)*time.Second + slack)
	} else {
		timer.Stop()
	}
	return &stream{Interface: s, timer: timer, cancel: cancel}, nil
}

type stream struct {
	watch.Interface
	timer  *time.Timer
	cancel context.CancelFunc
}

// Stop implements watch.Interface.
func (s *stream) Stop() {
	s.timer.Stop()
	s.cancel()
	s.Interface.Stop()
}

// A provenStream delivers the events of another stream, and ends if none comes for too long.
type provenStream struct {
	watch.Interface
	events chan watch.Event
	done   chan struct{}
	once   sync.Once
}

// proven returns a stream with the events of s, that ends unless the first one comes within unproven.
// If listed is set, it calls listed with the version of a streamed list before it delivers
// the end of the list.
func proven(s watch.Interface, listed func(resourceVersion string)) watch.Interface {
	p := &provenStream{Interface: s, events: make(chan watch.Event), done: make(chan struct{})}
	silent := time.NewTimer(unproven)
	go func() {
		defer close(p.events)
		defer silent.Stop()
		for {
			var event watch.Event
			var ok bool
			select {
			case event, ok = <-s.ResultChan():
			case <-silent.C:
			}
			if !ok {
				return
			}
			silent.Stop()
			if listed != nil && event.Type == watch.Bookmark {
				if meta, err := apimeta.Accessor(event.Object); err == nil && meta.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
					listed(meta.GetResourceVersion())
				}
			}
			select {
			case p.events <- event:
			case <-p.done:
				return
			}
		}
	}()
	return p
}

// unproven is how long a stream may bring nothing at first. An API server sends a bookmark at once,
// and then each minute, unless the version of the watch is newer than its own (process and
// nextBookmarkTime of its package cacher). One that runs without a watch cache sends none for as
// long as etcd reports no progress, so it gets a list every two minutes if nothing changes.
const unproven = 2 * time.Minute

// ResultChan implements watch.Interface.
func (p *provenStream) ResultChan() <-chan watch.Event { return p.events }

// Stop implements watch.Interface.
func (p *provenStream) Stop() {
	p.once.Do(func() { close(p.done) })
	p.Interface.Stop()
}

// isWaitedFor reports whether err is an error after which a reflector waits for
// up to half a minute, even if its context is done.
func isWaitedFor(err error) bool {
	return utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err)
}

// isExpired reports whether err is an error after which a reflector lists again
// at once, without limit.
func isExpired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// pacer adds the delays that a reflector lacks.
type pacer struct {
	outcome func(context.Context, error) time.Duration
	policy  backoff.Policy

	mu      sync.Mutex
	refused int // consecutive answers that need a delay
	expired int // consecutive answers that the resourceVersion is gone
}

// note records the result of a list or watch, waits until the next request is
// allowed, and returns the result.
func (p *pacer) note(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return err
	}
	sleep(ctx, p.delay(ctx, err))
	return err
}

// sleep waits for d. It reports false if ctx is done before.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *pacer) delay(ctx context.Context, err error) (delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		p.expired, p.refused = 0, 0
	case isWaitedFor(err):
		p.refused++
		delay = p.policy.Delay(p.refused)
	case isExpired(err):
		delay = p.policy.Delay(p.expired) // the first such answer is normal
		p.expired++
	}
	if p.outcome != nil {
		delay = max(delay, p.outcome(ctx, err))
	}
	return delay
}
