// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/internal/testlog"
	"github.com/kubewright/kubewright/resourceslice/internal/core"
)

// newWatching makes a session whose watch has just started, and a pool whose content
// the API server refused.
func newWatching(t *testing.T) (*session, *mirror, *pool) {
	p := newPool(testID, core.New(new(core.Instance), 0))
	for _, e := range []core.Event{core.Set{}, core.Begin{}, core.Published{Fault: time.Now().Add(2 * retryFaults)}} {
		if err := p.state.Apply(time.Now(), e); err != nil {
			t.Fatal(err)
		}
	}
	c := &Controller{pools: map[PoolID]*pool{testID: p}}
	c.cfg.ErrorHandler = func(context.Context, error, string) {}
	s := &session{c: c, ctx: testlog.New(t).Context(), wake: make(chan struct{}, 1)}
	m := s.mirror(scope{nodeName: "n1"})
	s.failed(m, nil)
	s.trust(byTaint)
	return s, m, p
}

// TestContentIsSentAgainIfTheWatchEndedByAnOutage: the watch ended early, or it
// could not be started again at once. Then the API server may have other features.
// A watch that ends in time and starts again says nothing.
func TestContentIsSentAgainIfTheWatchEndedByAnOutage(t *testing.T) {
	for name, tc := range map[string]struct {
		lasted time.Duration
		errs   []error // until the watch starts again
		outage bool
	}{
		"it ended early":                          {shortestWatch - time.Second, nil, true},
		"it ended in time":                        {shortestWatch, nil, false},
		"one failed start after a long watch":     {time.Hour, []error{syscall.ECONNREFUSED}, true},
		"many failed starts after a long watch":   {time.Hour, []error{statuserr.InternalError("x"), syscall.ECONNRESET, statuserr.TooManyRequests(1)}, true},
		"a forbidden start after a long watch":    {time.Hour, []error{statuserr.Forbidden("resourceslices", "", "no")}, true},
		"the resource version is gone":            {time.Hour, []error{statuserr.Gone()}, false},
		"a watch can't begin with a list":         {time.Hour, []error{statuserr.New(422, metav1.StatusReasonInvalid, "sendInitialEvents")}, false},
		"a failed start, and then another answer": {time.Hour, []error{syscall.ECONNREFUSED, statuserr.Gone()}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, m, p := newWatching(t)
				time.Sleep(tc.lasted)
				for _, err := range tc.errs {
					s.failed(m, err)
				}
				if p.resendAll || !s.trusts(byTaint) {
					t.Error("the answers are forgotten before the API server is there")
				}
				due := time.Now().Add(p.wait())
				s.failed(m, nil)
				if p.resendAll != tc.outage || s.trusts(byTaint) == tc.outage || time.Now().Add(p.wait()).Equal(due) == tc.outage {
					t.Errorf("resend %v, at %v, trust %v after the start, want an outage: %v", p.resendAll, p.wait(), s.trusts(byTaint), tc.outage)
				}

				p.resendAll = false
				s.trust(byTaint)
				time.Sleep(shortestWatch)
				s.failed(m, nil)
				if p.resendAll || !s.trusts(byTaint) {
					t.Error("the same outage counts twice")
				}
			})
		})
	}
}

// TestAnEndedSessionLearnsNothing: its last answers may come after the first of the
// next session.
func TestAnEndedSessionLearnsNothing(t *testing.T) {
	s, _, p := newWatching(t)
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithCancel(s.ctx)
	reported := 0
	s.c.cfg.ErrorHandler = func(context.Context, error, string) { reported++ }
	cancel()
	byPool := s.mirror(scope{driver: testID.Driver, pool: testID.Name})
	for _, err := range []error{
		nil, statuserr.Forbidden("resourceslices", "", "no"),
		statuserr.New(400, metav1.StatusReasonBadRequest, "no"), statuserr.New(404, metav1.StatusReasonNotFound, "no"),
	} {
		s.failed(byPool, err)
	}
	if p.resendAll || s.noPool.Load() || s.gone.Load() || reported != 0 {
		t.Errorf("resend %v, no selection by pool %v, gone %v, %d reports", p.resendAll, s.noPool.Load(), s.gone.Load(), reported)
	}
}

// TestTrustInOneRestrictionIsNoTrustInAnother: each has its own feature gate.
func TestTrustInOneRestrictionIsNoTrustInAnother(t *testing.T) {
	var s session
	for _, step := range []struct {
		learned, trusted, untrusted restrictions
	}{
		{0, 0, byTaint},
		{byTaint, byTaint, byCounters},
		{0, byTaint, byTaint | byCounters},
		{byCounters, byTaint | byCounters, byGroup},
		{byGroup, byTaint | byCounters | byGroup, 0},
	} {
		s.trust(step.learned)
		if !s.trusts(step.trusted) || !s.trusts(0) || step.untrusted != 0 && s.trusts(step.untrusted) {
			t.Errorf("%+v: trusts %v, %v", step, s.trusts(step.trusted), s.trusts(step.untrusted))
		}
	}
}

// TestOnlyAWatchByPoolFindsOutThatPoolsCantBeSelected: a 400 to another watch has
// another reason.
func TestOnlyAWatchByPoolFindsOutThatPoolsCantBeSelected(t *testing.T) {
	s, m, _ := newWatching(t)
	refused := statuserr.New(400, metav1.StatusReasonBadRequest, "field label not supported")
	if s.failed(m, refused); s.noPool.Load() {
		t.Error("the watch of a node's slices turned off the selection by pool")
	}
	if s.failed(s.mirror(scope{driver: testID.Driver, pool: testID.Name}), refused); !s.noPool.Load() {
		t.Error("the selection by pool stays on")
	}
}

// TestAForbiddenScopeIsLeftOutForItsPoolsOnly: another pool of the driver may be one
// that can be listed, and has slices.
func TestAForbiddenScopeIsLeftOutForItsPoolsOnly(t *testing.T) {
	s, _, p := newWatching(t)
	other := newPool(PoolID{testID.Driver, "other"}, core.New(new(core.Instance), 0))
	s.c.pools[other.id] = other
	p.cluster, other.cluster = true, true
	s.failed(s.mirror(scope{driver: testID.Driver, pool: testID.Name}), statuserr.Forbidden("resourceslices", "", "no"))
	if p.cluster || !other.cluster {
		t.Errorf("the pool waits for the slices of the cluster: %v, the other pool: %v", p.cluster, other.cluster)
	}
}

// TestAScopeCoversWhatItsSelectorSelects, or the view has slices that no watch
// delivers, or that a pool doesn't find.
func TestAScopeCoversWhatItsSelectorSelects(t *testing.T) {
	for sc, want := range map[scope]int{
		{nodeName: "n1"}: 4, {nodeName: "n1", driver: "d1"}: 2, {driver: "d1"}: 2, {driver: "d1", pool: "p1"}: 1,
	} {
		selector, covered := fields.ParseSelectorOrDie(sc.selector()), 0
		for _, node := range []string{"", "n1", "n2"} {
			for _, driver := range []string{"d1", "d2"} {
				for _, pool := range []string{"p1", "p2"} {
					rec := &record{nodeName: node, id: PoolID{driver, pool}}
					selected := selector.Matches(fields.Set{
						resourcev1.ResourceSliceSelectorNodeName: node,
						resourcev1.ResourceSliceSelectorDriver:   driver,
						resourcev1.ResourceSliceSelectorPoolName: pool,
					})
					if sc.covers(rec) != selected {
						t.Errorf("%+v covers %q %v: %v, but %s selects it: %v", sc, node, rec.id, !selected, selector, selected)
					}
					if selected {
						covered++
					}
				}
			}
		}
		if covered != want {
			t.Errorf("%s selects %d slices, want %d", selector, covered, want)
		}
	}
}
