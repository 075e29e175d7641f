// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/report"
)

// errorStreaks report once that something fails, and once that it works again.
type errorStreaks struct{ source, store, other report.Streak }

// sourceClass tells apart the errors of the source that are each reported once: it has
// no such configuration, it does not answer, or it has another problem.
func sourceClass(err error) int {
	switch {
	case errors.Is(err, ErrSourceNotFound):
		return 1
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return 2
	}
	return 0
}

// sourceRetry is the delay after errors of the source in a row.
func sourceRetry() backoff.Policy {
	return backoff.Policy{Base: 200 * time.Millisecond, Cap: 10 * time.Second}
}

// storeRetry is the delay after failures of the store in a row.
func storeRetry() backoff.Policy {
	return backoff.Policy{Base: 10 * time.Second, Cap: 10 * time.Minute}
}

// admitRetry is the delay after errors of Admit in a row.
func admitRetry() backoff.Policy {
	return backoff.Policy{Base: 10 * time.Second, Cap: 5 * time.Minute}
}

// repairRetry is the delay before the next repair, after repairs in a row that
// did not lead to a start, in this process or in those before it. A disk that loses
// its content again and again must not restart the process, or apply a
// configuration, again and again at once.
func repairRetry() backoff.Policy {
	return backoff.Policy{Base: 10 * time.Second, Cap: 10 * time.Minute}
}
