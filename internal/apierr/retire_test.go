// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apierr

import (
	"context"
	"errors"
	"sync"
	"testing"
)

func TestGroupRetiredMemberCountsForNothing(t *testing.T) {
	told := 0
	handler := func(context.Context, error, string) { told++ }
	var g Group
	var gone, here Member
	g.Fail(t.Context(), handler, &gone, errors.New("refused"), "Renewing failed")
	g.Retire(&gone)
	// This call was in progress when the member was removed.
	g.Fail(t.Context(), handler, &gone, errors.New("refused"), "Renewing failed")
	if told != 1 {
		t.Errorf("reported %d times, want 1: a retired member does not count", told)
	}
	g.Fail(t.Context(), handler, &here, errors.New("refused"), "Renewing failed")
	if told != 2 {
		t.Errorf("reported %d times, want 2: the next failure is the first of those that count", told)
	}
	if g.now != 1 {
		t.Errorf("%d members fail, want only the one that is not retired", g.now)
	}
}

// A failure concurrent with Retire counts before it or not at all.
func TestGroupRetireMeetsFail(t *testing.T) {
	var g Group
	handler := func(context.Context, error, string) {}
	members := make([]Member, 20_000)
	var all sync.WaitGroup
	for range 4 { // each fails all members while Retire removes them
		all.Go(func() {
			for i := range members {
				g.Fail(t.Context(), handler, &members[i], errors.New("refused"), "Renewing failed")
			}
		})
	}
	for i := range members {
		g.Retire(&members[i])
	}
	all.Wait()
	if g.now != 0 || g.class != [len(g.class)]int{} {
		t.Errorf("%d members fail, by class %v, want none: all have retired", g.now, g.class)
	}
}
