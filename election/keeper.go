// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/report"
)

// keeper keeps the LeaseCandidate of a candidate, beside the loop that keeps
// the Lease: neither waits for the other.
type keeper struct {
	*Candidate
	upkeep  upkeep
	trouble report.Streak
	watch   *watcher[*coordinationv1beta1.LeaseCandidate]
	gone    int // watches in a row that have brought nothing but the loss of their place
	wg      sync.WaitGroup

	mu      sync.Mutex
	wanted  candidacy
	changed chan struct{}
	abort   context.CancelFunc // of the request under way
}

func newKeeper(c *Candidate) *keeper {
	return &keeper{
		Candidate: c,
		upkeep: upkeep{
			namespace: c.cfg.Lease.Namespace, name: c.identity, lease: c.cfg.Lease.Name, strategy: c.cfg.Strategy.Name(),
			shutdownTimeout: c.cfg.ShutdownTimeout, poll: c.cfg.Timing.RenewInterval, random: rand.Float64,
		},
		wanted:  candidacy{self: c.cfg.Self},
		changed: make(chan struct{}, 1),
	}
}

// want says what the LeaseCandidate should be.
func (k *keeper) want(w candidacy) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if reflect.DeepEqual(k.wanted, w) {
		return
	}
	if w.stopping && !k.wanted.stopping && k.abort != nil {
		k.abort() // there is little time left
	}
	k.wanted = w
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// run returns when it was told to stop and the LeaseCandidate is gone, or can't
// be deleted.
func (k *keeper) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer k.wg.Wait()
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		k.mu.Lock()
		k.upkeep.want = k.wanted
		k.mu.Unlock()
		now := k.clock.now()
		s := k.upkeep.next(now)
		switch s.op {
		case upkeepEnd:
			return
		case upkeepWait:
		default:
			k.carryOut(ctx, s)
			continue
		}
		k.tendWatch(ctx)
		timer.Reset(k.clock.span(s.wake - now.mono))
		select {
		case <-timer.C:
		case <-k.changed:
		case seen := <-k.watch.sights():
			k.sighted(ctx, seen)
		}
	}
}

// carryOut sends a request and takes in its answer.
func (k *keeper) carryOut(ctx context.Context, s upkeepStep) {
	timeout := k.cfg.CallTimeout
	if k.upkeep.stopBy != 0 {
		timeout = max(time.Millisecond, min(timeout, k.upkeep.stopBy-k.clock.now().mono))
	}
	ctx, cancel := context.WithTimeout(ctx, k.clock.span(timeout))
	defer cancel()
	k.mu.Lock()
	stale := k.wanted.stopping != k.upkeep.want.stopping
	k.abort = cancel
	k.mu.Unlock()
	if stale {
		return
	}
	o, err := k.do(ctx, s)
	k.mu.Lock()
	k.abort = nil
	k.mu.Unlock()
	k.upkeep.done(k.clock.now(), s, o, err)
	k.report(ctx, s, err)
}

func (k *keeper) do(ctx context.Context, s upkeepStep) (*coordinationv1beta1.LeaseCandidate, error) {
	candidates := k.cfg.Registry.candidates.LeaseCandidates(k.cfg.Lease.Namespace)
	switch s.op {
	case upkeepRead:
		return candidates.Get(ctx, k.identity, metav1.GetOptions{})
	case upkeepCreate:
		return candidates.Create(ctx, s.object, metav1.CreateOptions{FieldManager: fieldManager})
	case upkeepUpdate:
		return candidates.Update(ctx, s.object, metav1.UpdateOptions{FieldManager: fieldManager})
	default:
		return nil, candidates.Delete(ctx, k.identity, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.object.UID}})
	}
}

// report says what came of a request. The hook of the loop is not called: it is
// told of what concerns the Lease.
func (k *keeper) report(ctx context.Context, s upkeepStep, err error) {
	switch class := apierr.Classify(err); {
	case class == apierr.None:
		k.trouble.OK(ctx, "Requests about the LeaseCandidate succeed again")
		return
	case class == apierr.Canceled, class == apierr.Conflict, class == apierr.NotFound && s.op != upkeepCreate:
		return
	case class == apierr.NotFound && !missingNamespace(err):
		err = fmt.Errorf("%w: %w", ErrNoCandidateAPI, err)
	}
	k.trouble.Fail(ctx, k.cfg.ErrorHandler, fmt.Errorf("election: LeaseCandidate: %w", err), "Request about the LeaseCandidate failed")
}

// missingNamespace reports whether something was not created because its
// namespace does not exist.
func missingNamespace(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces"
}

// tendWatch starts the watch where there is none.
func (k *keeper) tendWatch(ctx context.Context) {
	if k.upkeep.watchStale {
		k.watch.stop()
		k.watch, k.upkeep.watchStale = nil, false
	}
	if k.watch != nil || !k.upkeep.known || k.upkeep.reread || k.upkeep.polling || k.upkeep.stopBy != 0 {
		return
	}
	from := ""
	if k.upkeep.object != nil {
		from = k.upkeep.object.ResourceVersion
	}
	k.watch = startWatch[*coordinationv1beta1.LeaseCandidate](ctx, &k.wg, k.identity, from,
		k.cfg.CallTimeout, k.cfg.Registry.candidates.LeaseCandidates(k.cfg.Lease.Namespace).Watch)
}

// sighted takes in what the watch has brought.
func (k *keeper) sighted(ctx context.Context, s sight[*coordinationv1beta1.LeaseCandidate]) {
	switch {
	case s.gone:
		k.watch.stop()
		k.watch, k.upkeep.reread = nil, true
		if k.gone++; k.gone >= patientGone {
			k.gone = 0
			k.refused(ctx, s.err)
		}
	case s.refused:
		k.watch.stop()
		k.watch = nil
		k.refused(ctx, s.err)
	case s.err == nil:
		k.gone = 0
		k.upkeep.observe(s.object, s.deleted)
	}
}

// refused makes do without a watch for a while.
func (k *keeper) refused(ctx context.Context, err error) {
	k.upkeep.watchRefused(k.clock.now().mono)
	k.trouble.Fail(ctx, k.cfg.ErrorHandler, fmt.Errorf("election: watch LeaseCandidate: %w", err), "The LeaseCandidate can't be watched")
}
