// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package request

import "context"

type trialKey struct{}

// Trial returns a context for a request that asks how the server would answer a write now. The
// server stores nothing, and the request is not in the journal and has no faults.
func Trial(ctx context.Context) context.Context {
	return context.WithValue(ctx, trialKey{}, true)
}

// IsTrial reports whether ctx is from Trial.
func IsTrial(ctx context.Context) bool { return ctx.Value(trialKey{}) != nil }
