// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package listwatch makes the source of an informer that an API server can
// neither hang nor turn into a hot loop.
//
// The reflector of client-go bounds neither a list nor the start of a watch,
// trusts the server to end a watch in time, sleeps through the end of its
// context after some errors, and after others asks again at once and without
// end. What is made here has a deadline for every request and every stream, and
// does the waiting itself.
package listwatch

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/internal/backoff"
)

// slack is how much longer than it asked the server for a watch may last
// before it is taken to be dead.
const slack = 30 * time.Second

// Config says what is listed and watched, and within which bounds. All fields
// are required but FieldSelector and Outcome.
type Config struct {
	// List and Watch are the methods of a typed client.
	List  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	Watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// FieldSelector narrows both.
	FieldSelector string
	// ListTimeout is the deadline of a list, AnswerTimeout that of the answer
	// to a watch. How long the stream may last follows from the request.
	ListTimeout, AnswerTimeout time.Duration
	// Retries is how long to wait after errors for which the reflector waits
	// wrongly or not at all.
	Retries backoff.Policy
	// Outcome is told of each list and each start of a watch: nil for one that
	// went well. It is not told of what the end of the context has ended. It
	// returns how long to wait before the next one, at least. Calls don't
	// overlap.
	Outcome func(ctx context.Context, err error) time.Duration
}

// New returns the source.
func New(cfg Config) *cache.ListWatch {
	p := &pacer{outcome: cfg.Outcome, policy: cfg.Retries}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			call, cancel := context.WithTimeout(ctx, cfg.ListTimeout)
			defer cancel()
			opts.FieldSelector = cfg.FieldSelector
			list, err := cfg.List(call, opts)
			return list, p.note(ctx, err)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			opts.FieldSelector = cfg.FieldSelector
			for {
				stream, err := Bounded(ctx, cfg.AnswerTimeout, opts, cfg.Watch)
				switch err = p.note(ctx, err); {
				case err == nil:
					return stream, nil
				case ctx.Err() != nil:
					return nil, ctx.Err()
				case !isWaitedFor(err):
					return nil, err
				}
			}
		},
	}
}

// Bounded opens a watch that can't hang: the answer must come within timeout,
// and the stream must end when the server was asked to end it, or soon after.
func Bounded(ctx context.Context, timeout time.Duration, opts metav1.ListOptions,
	open func(context.Context, metav1.ListOptions) (watch.Interface, error),
) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(timeout, cancel)
	s, err := open(ctx, opts)
	if err != nil {
		if !timer.Stop() { // it is the timer that has ended it
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

// isWaitedFor reports whether a watch failed in a way after which a reflector
// waits, for up to half a minute and whatever becomes of its context.
func isWaitedFor(err error) bool {
	return utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err)
}

// isExpired reports whether a watch failed in a way after which a reflector
// streams the list again, at once and for ever.
func isExpired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// pacer waits where a reflector does not, or not as it should.
type pacer struct {
	outcome func(context.Context, error) time.Duration
	policy  backoff.Policy

	mu      sync.Mutex
	refused int // answers in a row after which we wait
	expired int // answers in a row that the version asked for is gone
}

// note takes the result of a list or watch, and returns it when the next one
// may be sent.
func (p *pacer) note(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return err
	}
	if delay := p.delay(ctx, err); delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return err
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
		delay = p.policy.Delay(p.expired) // the first one is in the order of things
		p.expired++
	}
	if p.outcome != nil {
		delay = max(delay, p.outcome(ctx, err))
	}
	return delay
}
