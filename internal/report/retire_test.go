// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"testing"
)

func TestGroupRetiredMemberCountsForNothing(t *testing.T) {
	told := 0
	handler := func(context.Context, error, string) { told++ }
	var g Group
	var gone, here Member
	g.Fail(t.Context(), handler, &gone, errors.New("refused"), "Renewing failed")
	g.Retire(&gone)
	// The call that was under way when it was removed.
	g.Fail(t.Context(), handler, &gone, errors.New("refused"), "Renewing failed")
	if told != 1 {
		t.Errorf("told %d times, want 1: a retired member fails for nobody", told)
	}
	g.Fail(t.Context(), handler, &here, errors.New("refused"), "Renewing failed")
	if told != 2 {
		t.Errorf("told %d times, want 2: the next failure is the first of those that count", told)
	}
	if g.now != 1 {
		t.Errorf("%d members fail, want only the one that is not retired", g.now)
	}
}
