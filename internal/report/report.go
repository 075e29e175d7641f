// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package report reports a failing activity once, and its recovery once. While it fails,
// a line is logged each hour. The package imports nothing of Kubernetes except its log;
// package apierr has a Streak that tells the errors of API calls apart.
package report

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/callback"
)

// A Handler is the type of the ErrorHandler field of every Config. It is called
// with an error that a controller met in the background and recovers from. It
// is called synchronously and must not block.
type Handler func(ctx context.Context, err error, msg string)

// Again is the time after which a failure that lasts is logged again: the first line may be
// gone when an operator looks. The Handler is not called again.
const Again = time.Hour

// Tell passes an error to the handler, or to the log if there is no handler. If the
// handler panics, Tell logs the panic and the error.
func Tell(ctx context.Context, handler Handler, err error, msg string, keysAndValues ...any) {
	if handler != nil {
		panicked := callback.Contain("ErrorHandler", func() error {
			handler(ctx, err, msg)
			return nil
		})
		if panicked == nil {
			return
		}
		logError(ctx, panicked, "A callback panicked")
	}
	logError(ctx, err, msg, keysAndValues...)
}

// logError logs an error, and the stack if it is a panic.
func logError(ctx context.Context, err error, msg string, keysAndValues ...any) {
	if p, ok := errors.AsType[*callback.PanicError](err); ok {
		keysAndValues = append(keysAndValues, "stack", string(p.Stack()))
	}
	klog.FromContext(ctx).Error(err, msg, keysAndValues...)
}

// A Streak reports the failures of one activity that may fail many times in a
// row. The first failure of each class in a streak goes to the Handler, or to
// the log if there is no Handler. Repeats are logged only at V4, also if two
// classes alternate, but for one each hour. The success that ends the streak logs one line.
//
// The zero value is ready to use. A Streak belongs to the goroutine that
// carries out its activity. It is small, so that each of ten thousand nodes can
// have one.
type Streak struct {
	since   time.Time
	told    time.Time // when a failure was last reported
	classes uint32    // the classes that were reported
	msg     string
	count   int
}

// Fail records a failure. The caller defines the classes, from 0 to 31. The message must
// be constant; keysAndValues go to the log only.
func (s *Streak) Fail(ctx context.Context, class int, handler Handler, err error, msg string, keysAndValues ...any) {
	if s.count == 0 {
		s.since = time.Now()
	}
	if s.msg != msg {
		s.classes, s.msg = 0, msg
	}
	bit := uint32(1) << class
	again := s.classes&bit != 0
	s.classes |= bit
	s.count++
	if again {
		Repeated(ctx, &s.told, err, msg, append(keysAndValues, "failures", s.count)...)
		return
	}
	s.told = time.Now()
	Tell(ctx, handler, err, msg, keysAndValues...)
}

// Repeated logs a failure like one that was reported: at V0 if that was at least Again
// before now, and then it sets *told to now, and at V4 otherwise.
func Repeated(ctx context.Context, told *time.Time, err error, msg string, keysAndValues ...any) {
	if now := time.Now(); now.Sub(*told) >= Again {
		*told = now
		logError(ctx, err, msg, keysAndValues...)
		return
	}
	klog.FromContext(ctx).V(4).Info(msg, append(keysAndValues, "err", err)...)
}

// FailAfter is like Fail, but until the streak has lasted for patience, failures
// are logged only at V4.
func (s *Streak) FailAfter(ctx context.Context, patience time.Duration, class int, handler Handler, err error, msg string, keysAndValues ...any) {
	if s.count == 0 {
		s.since = time.Now()
	}
	if time.Since(s.since) >= patience {
		s.Fail(ctx, class, handler, err, msg, keysAndValues...)
		return
	}
	s.count++
	klog.FromContext(ctx).V(4).Info(msg, append(keysAndValues, "err", err, "failures", s.count)...)
}

// OK records a success. If it ends a streak of failures, OK logs msg at V0 if one
// of them was reported, and returns the duration of the streak; otherwise it
// returns 0.
func (s *Streak) OK(ctx context.Context, msg string, keysAndValues ...any) time.Duration {
	if s.count == 0 {
		return 0
	}
	outage := time.Since(s.since)
	if s.classes != 0 {
		klog.FromContext(ctx).Info(msg, append(keysAndValues, "failures", s.count, "outage", outage)...)
	}
	*s = Streak{}
	return outage
}

// Failures returns the number of failures in the current streak.
func (s *Streak) Failures() int { return s.count }
