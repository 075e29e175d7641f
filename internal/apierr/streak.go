// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apierr

import (
	"context"
	"time"

	"github.com/kubewright/kubewright/internal/report"
)

// A Streak is a [report.Streak] whose classes are those of Classify.
type Streak struct{ report.Streak }

// Fail records a failure. The message must be constant; keysAndValues go to the
// log only.
func (s *Streak) Fail(ctx context.Context, handler report.Handler, err error, msg string, keysAndValues ...any) {
	s.Streak.Fail(ctx, int(Classify(err)), handler, err, msg, keysAndValues...)
}

// FailAfter is like Fail, but until the streak has lasted for patience, failures
// are logged only at V4.
func (s *Streak) FailAfter(ctx context.Context, patience time.Duration, handler report.Handler, err error, msg string, keysAndValues ...any) {
	s.Streak.FailAfter(ctx, patience, int(Classify(err)), handler, err, msg, keysAndValues...)
}
