// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package report says that something fails, once, and that it works again.
package report

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
)

// A Handler is what every Config calls ErrorHandler: it is told of an error
// that a controller met in the background and goes on from. It is called
// synchronously and must not block.
type Handler func(ctx context.Context, err error, msg string)

// Tell hands an error to the handler, or to the log where there is none.
func Tell(ctx context.Context, handler Handler, err error, msg string, keysAndValues ...any) {
	if handler != nil {
		handler(ctx, err, msg)
		return
	}
	klog.FromContext(ctx).Error(err, msg, keysAndValues...)
}

// A Streak follows one activity that may fail many times in a row. The first
// failure of each class in a run goes to the Handler, or to the log where there
// is none; repeats are printed at V4 only, also where two classes take turns;
// the success that ends the run prints one line.
//
// The zero value is ready to use. A Streak belongs to the one goroutine that
// carries out its activity. It is small, so that ten thousand nodes can have
// one each.
type Streak struct {
	since   time.Time
	classes uint32 // those that msg was told with
	msg     string
	count   int
}

// Fail records a failure. The message is constant; keysAndValues go to the log
// only.
func (s *Streak) Fail(ctx context.Context, handler Handler, err error, msg string, keysAndValues ...any) {
	if s.count == 0 {
		s.since = time.Now()
	}
	if s.msg != msg {
		s.classes, s.msg = 0, msg
	}
	class := uint32(1) << apierr.Classify(err)
	again := s.classes&class != 0
	s.classes |= class
	s.count++
	if again {
		klog.FromContext(ctx).V(4).Info(msg, append(keysAndValues, "err", err, "failures", s.count)...)
		return
	}
	Tell(ctx, handler, err, msg, keysAndValues...)
}

// OK records a success. Where it ends a run of failures it prints msg at V0
// and returns for how long the activity failed; otherwise it returns 0.
func (s *Streak) OK(ctx context.Context, msg string, keysAndValues ...any) time.Duration {
	if s.count == 0 {
		return 0
	}
	outage := time.Since(s.since)
	klog.FromContext(ctx).Info(msg, append(keysAndValues, "failures", s.count, "outage", outage)...)
	*s = Streak{}
	return outage
}

// Failures returns how many failures the present run has.
func (s *Streak) Failures() int { return s.count }
