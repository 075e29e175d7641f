// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/report"
	"github.com/kubewright/kubewright/resourceslice/claimstore/internal/journal"
)

// retries are the pauses after a pass that failed.
var retries = backoff.Policy{Base: time.Second, Cap: time.Minute}

// errDamaged is the error of damaged lines that stand for no entry.
var errDamaged = errors.New("the file of the claims is damaged")

// Run unprepares claims for which no call will come, until ctx is done:
//
//   - At its start, all claims of an earlier boot (Rebooted). A kubelet prepares
//     again what Pods need.
//   - A claim whose preparation was cut off (Preparing), if it no longer exists, has
//     another allocation, or no Pod uses it.
//   - Any other claim that does not exist, or has another allocation, for
//     Config.Interval, so that a kubelet has had that time to stop the containers and to
//     call Unprepare itself.
//
// When a pass has done this, it calls Config.Restore for each prepared claim, once.
//
// A pass begins at the start, after each Interval, and when Prepare met a device
// that another claim holds. An error concerns one claim; the pass goes on, and the
// next one comes within a minute. An API server that does not answer never ends a
// claim.
//
// Run returns nil when ctx is done, after all calls that it began have returned,
// and ErrAlreadyRun at the second call. Several processes may run it at once.
func (s *Store[S]) Run(ctx context.Context) error {
	if !s.once.Begin() {
		return ErrAlreadyRun
	}
	defer s.progress.Stop()
	defer s.restores.Wait() // for calls that were left
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName(s.cfg.Name))
	var streak apierr.Streak
	seen := newSightings()
	for failures := 0; ; {
		s.progress.Beat()
		err := s.pass(ctx, time.Now, seen)
		pause := s.cfg.Interval
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			failures++
			pause = min(pause, retries.Delay(failures))
			streak.Fail(ctx, s.cfg.ErrorHandler, err, "Could not reconcile all prepared claims")
		default:
			failures = 0
			streak.OK(ctx, "All prepared claims are reconciled again")
			s.ready.Mark()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
			// One pass a second at most, however often calls meet a held device.
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return nil
			}
		case <-time.After(pause):
		}
	}
}

// sightings is what Run remembers from pass to pass.
type sightings struct {
	gone       map[types.UID]absence // claims that do not need their devices
	unreadable map[types.UID]bool    // claims that were reported
	restored   map[types.UID]bool    // claims for which Config.Restore has succeeded
}

// An absence shows since when a claim does not need what was done for it. Another
// preparation of the claim has another record, and nothing is known about it.
type absence struct {
	record string // its ID
	since  time.Time
}

func newSightings() sightings {
	return sightings{gone: map[types.UID]absence{}, unreadable: map[types.UID]bool{}, restored: map[types.UID]bool{}}
}

// forget drops the claims that have no record any longer.
func (s sightings) forget(present map[types.UID]bool) {
	maps.DeleteFunc(s.gone, func(uid types.UID, _ absence) bool { return !present[uid] })
	for _, claims := range []map[types.UID]bool{s.unreadable, s.restored} {
		maps.DeleteFunc(claims, func(uid types.UID, _ bool) bool { return !present[uid] })
	}
}

// pass looks at each claim once, and then restores the prepared ones that it has not restored
// yet. It updates seen.
func (s *Store[S]) pass(ctx context.Context, now func() time.Time, seen sightings) error {
	entries, err := s.entries(ctx)
	if err != nil {
		return fmt.Errorf("claimstore: %w", err)
	}
	for _, line := range s.disk.takeLost() {
		report.Tell(ctx, s.cfg.ErrorHandler, fmt.Errorf("claimstore: %w: %.200q", errDamaged, line), "A damaged record was put aside")
	}
	present := map[types.UID]bool{}
	var errs []error
	for _, e := range entries {
		s.progress.Beat() // a pass over many claims may last for long
		claim, _, phase, why := s.decode(e)
		present[claim.UID] = true
		if phase == Unreadable && !seen.unreadable[claim.UID] {
			seen.unreadable[claim.UID] = true
			err := &UnreadableError{Claim: claim.Claim, Err: why}
			report.Tell(ctx, s.cfg.ErrorHandler, fmt.Errorf("claimstore: %w", err), "A record can't be read")
		}
		if err := s.reconcile(ctx, claim, e.ID, phase, now, seen.gone); err != nil {
			errs = append(errs, fmt.Errorf("claimstore: ResourceClaim %s: %w", claim, err))
		}
		if ctx.Err() != nil {
			return errors.Join(errs...)
		}
	}
	seen.forget(present)
	return errors.Join(append(errs, s.restoreAll(ctx, entries, seen)...)...)
}

// restoreAll calls Config.Restore for the prepared claims for which it has not succeeded
// yet, except for those that have lost their devices. The calls run concurrently, so that
// those which hang take the time of one. A node has some hundred claims at most.
func (s *Store[S]) restoreAll(ctx context.Context, entries []journal.Entry, seen sightings) (errs []error) {
	if s.cfg.Restore == nil {
		return nil
	}
	var mu sync.Mutex // guards errs and seen.restored
	var calls sync.WaitGroup
	for _, e := range entries {
		c, _, phase, _ := s.decode(e)
		_, gone := seen.gone[c.UID]
		mu.Lock()
		restored := seen.restored[c.UID]
		mu.Unlock()
		if phase != Prepared || gone || restored {
			continue
		}
		calls.Go(func() {
			err := s.restoreAgain(ctx, &s.restores, c, e.ID)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("claimstore: restore ResourceClaim %s: %w", c, err))
			} else {
				seen.restored[c.UID] = true
			}
		})
	}
	calls.Wait()
	return errs
}

// reconcile unprepares a claim if no call will come for it. record is the ID of its
// record.
func (s *Store[S]) reconcile(ctx context.Context, c heldClaim, record string, phase Phase, now func() time.Time, gone map[types.UID]absence) error {
	if phase == Rebooted {
		return s.endAs(ctx, c, record, Rebooted, gone)
	}
	if c.Name == "" || !c.trusted {
		return nil // the claim that exists may have another name: only a call can end it
	}
	claim, err := s.read(ctx, c.Claim)
	if err != nil {
		return err
	}
	was, known := gone[c.UID]
	known = known && was.record == record
	switch {
	case s.needs(claim, c, phase):
		delete(gone, c.UID)
	case phase == Preparing, known && now().Sub(was.since) >= s.cfg.Interval: // no container has the devices
		return s.endAs(ctx, c, record, phase, gone)
	case !known:
		gone[c.UID] = absence{record, now()} // the pass may have begun long before
	}
	return nil
}

// needs reports whether a claim may need what was done for it. claim is that of the API
// server, or nil if it does not exist.
func (s *Store[S]) needs(claim *resourcev1.ResourceClaim, c heldClaim, phase Phase) bool {
	switch {
	case claim == nil:
		return false
	case phase == Preparing:
		return s.inUse(claim, c)
	case phase == Prepared:
		return s.holds(claim, c)
	}
	return true // its devices are not known
}

// endAs unprepares a claim unless its record or its phase has changed. It waits for a
// call for the claim that is under way. That call may have found the claim prepared, and
// written nothing. So the API server is asked again while no call can begin.
func (s *Store[S]) endAs(ctx context.Context, c heldClaim, record string, phase Phase, gone map[types.UID]absence) error {
	unlock, err := s.lockForRun(ctx, c)
	if err != nil {
		return err
	}
	defer unlock()
	entry, exists, _, err := s.look(ctx, c.UID)
	if err != nil || !exists || entry.Ended {
		return err
	}
	held, state, current, _ := s.decode(entry)
	if entry.ID != record || current != phase {
		return nil
	}
	if phase != Rebooted {
		claim, err := s.read(ctx, c.Claim)
		if err != nil {
			return err
		}
		if s.needs(claim, held, phase) {
			delete(gone, c.UID)
			return nil
		}
	}
	return s.undo(ctx, held, state, phase)
}

// Ready is done when a pass of Run has succeeded for the first time.
func (s *Store[S]) Ready() cache.DoneChecker { return s.ready }

// Name returns Config.Name.
func (s *Store[S]) Name() string { return s.cfg.Name }

// Check returns an error if Run makes no progress or has returned. Each claim that a pass
// looks at is progress, even if the API server does not answer. Check fits
// healthz.HealthChecker of k8s.io/apiserver.
func (s *Store[S]) Check(*http.Request) error { return s.progress.Check() }
