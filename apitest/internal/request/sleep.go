// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"context"
	"time"
)

// Sleep waits for d or the end of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
