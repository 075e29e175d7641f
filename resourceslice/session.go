// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/callback"
	"github.com/kubewright/kubewright/resourceslice/internal/core"
)

const (
	// beatInterval is the time between two reports of progress of the main loop.
	beatInterval = 15 * time.Second
	// reportAfter is the time that the API must fail before that is reported.
	reportAfter = 30 * time.Second
	// shortestWatch is the shortest time for which client-go asks for a watch. A
	// watch that ends earlier was ended by an outage or a restart.
	shortestWatch = 5 * time.Minute
	// keepGone is the time for which the state of a removed pool is kept for Wait.
	keepGone = 10 * time.Minute
)

// unavailableBackoff is for an API server that does not serve ResourceSlices.
var unavailableBackoff = backoff.Policy{Base: 30 * time.Second, Cap: 5 * time.Minute}

// youngBackoff is for sessions that end before shortestWatch, for example because a
// proxy serves the list and not the watch.
var youngBackoff = backoff.Policy{Base: time.Second, Cap: 5 * time.Minute}

// session is a time during which the API server serves ResourceSlices.
type session struct {
	c       *Controller
	ctx     context.Context
	cancel  context.CancelFunc
	wake    chan struct{} // work for run
	mirrors sync.WaitGroup
	// orphans has, by driver, the slices without a node that were listed and
	// not claimed yet. Only run uses it.
	orphans map[string][]*record
	// relist is set when this process has taken a pool over: the newer instance may have
	// published slices without a node.
	relist atomic.Bool
	// owning reports panics of Owner that no pool reports. Only run uses it.
	owning apierr.Streak

	noPool  atomic.Bool   // the API server can't select by the name of a pool
	known   atomic.Bool   // a mirror has synced: ResourceSlices are served
	gone    atomic.Bool   // they are not served
	trusted atomic.Uint32 // restrictions that the API server stores

	mu     sync.Mutex // of failed
	streak apierr.Streak
}

// serve runs sessions until ctx is done.
func (c *Controller) serve(ctx context.Context) {
	var streak apierr.Streak
	failures, young := 0, 0 // sessions without a list, and sessions that ended early
	for ctx.Err() == nil {
		s := &session{c: c, wake: make(chan struct{}, 1), orphans: map[string][]*record{}}
		s.ctx, s.cancel = context.WithCancel(ctx)
		c.mu.Lock()
		c.session = s
		c.mu.Unlock()
		c.view.begin(false)
		begin := time.Now()
		s.run()
		switch {
		case ctx.Err() != nil:
			return
		case s.known.Load():
			if young++; time.Since(begin) >= shortestWatch {
				young = 0
			}
			failures, streak = 0, apierr.Streak{}
			c.idle(ctx, youngBackoff.Delay(young))
		default:
			failures++
			streak.Fail(ctx, c.cfg.ErrorHandler, &UnavailableError{}, "ResourceSlices are not served")
			c.idle(ctx, unavailableBackoff.Delay(failures))
		}
	}
}

// idle waits between two sessions and reports that the main loop lives.
func (c *Controller) idle(ctx context.Context, d time.Duration) {
	_ = wait.PollUntilContextTimeout(ctx, beatInterval, d, true, func(context.Context) (bool, error) {
		c.progress.Beat()
		return false, nil
	})
}

// run watches until the API server no longer serves ResourceSlices, or ctx is done.
func (s *session) run() {
	defer s.mirrors.Wait()
	defer s.cancel()
	beat := time.NewTicker(beatInterval)
	defer beat.Stop()
	for s.ctx.Err() == nil && !s.gone.Load() {
		s.c.purge()
		s.watch()
		s.removeUnnamed()
		s.c.progress.Beat()
		select {
		case <-s.ctx.Done():
		case <-s.wake:
		case <-beat.C:
		}
	}
}

// poke wakes run.
func (s *session) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// watch starts the watches that pools need, and ends those that none needs.
func (s *session) watch() {
	needed := s.needed()
	v := &s.c.view
	v.mu.Lock()
	defer v.mu.Unlock()
	for sc, m := range v.mirrors {
		if !slices.Contains(needed, sc) {
			m.stop()
			v.forget(sc)
		}
	}
	for _, sc := range needed {
		if v.mirrors[sc] == nil {
			m := s.mirror(sc)
			var ctx context.Context
			ctx, m.stop = context.WithCancel(s.ctx)
			v.mirrors[sc] = m
			s.mirrors.Go(func() { m.run(ctx) })
		}
	}
}

func (s *session) mirror(sc scope) *mirror {
	return &mirror{to: s, view: &s.c.view, hasher: s.c.hasher, client: s.c.client, name: s.c.cfg.Name, scope: sc}
}

// onForeign implements listener.
func (s *session) onForeign(rec *record, deleted bool) { s.c.onForeign(rec, deleted) }

// needed returns the scopes of all pools.
func (s *session) needed() (scopes []scope) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.c.cfg.NodeName != "" || s.c.cfg.Driver != "" {
		scopes = append(scopes, scope{nodeName: s.c.cfg.NodeName, driver: s.c.cfg.Driver})
	}
	for driver := range s.c.named {
		scopes = append(scopes, s.c.scopesOf(PoolID{Driver: driver}, false, false)...)
	}
	for id, p := range s.c.pools {
		// Those that are gone too, until purge: an older instance may create them again.
		scopes = append(scopes, s.c.scopesOf(id, p.cluster, !s.noPool.Load())...)
	}
	return scopes
}

// scopesOf returns the scopes that have a pool's slices. A controller of a node
// watches its cluster pools by name, from Kubernetes 1.37 on: every node may have
// one, and a watch of the driver would deliver all of them to each. A
// controller without a node publishes all pools of its drivers.
func (c *Controller) scopesOf(id PoolID, cluster, byPool bool) []scope {
	if c.cfg.NodeName == "" {
		return []scope{{driver: id.Driver}}
	}
	scopes := []scope{{nodeName: c.cfg.NodeName, driver: c.cfg.Driver}}
	if c.isOthers(id.Driver) {
		scopes[0].driver = id.Driver
	}
	switch {
	case cluster && byPool:
		scopes = append(scopes, scope{driver: id.Driver, pool: id.Name})
	case cluster:
		scopes = append(scopes, scope{driver: id.Driver})
	}
	return scopes
}

// synced implements listener: it starts the reconciliation of all pools.
func (s *session) synced(list []*record, at string) {
	s.known.Store(true)
	klog.FromContext(s.ctx).V(2).Info("Watching ResourceSlices")
	s.c.mu.Lock()
	if s.c.since == "" || newer(s.c.since, at) { // the latter if a backup was restored
		s.c.since = at
	}
	s.c.follow(list)
	for id, p := range s.c.pools {
		s.c.apply(p, core.Restarted{}) // another client may have changed its slices since the last session
		s.c.enqueue(id, 0)
	}
	s.c.mu.Unlock()
	s.c.ready.Mark()
	s.poke()
}

// failed implements listener.
func (s *session) failed(m *mirror, err error) {
	if s.judge(m, err) && s.c.cfg.Hooks.WatchFailed != nil {
		s.c.cfg.Hooks.WatchFailed(WatchFailed{Err: err})
	}
}

// judge does what follows from the result of a list or watch. It reports whether the error
// is reported.
func (s *session) judge(m *mirror, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	class := apierr.Classify(err)
	switch {
	case s.ctx.Err() != nil:
	case m.scope.pool != "" && apierrors.IsBadRequest(err): // the API server is too old for this selector
		s.noPool.Store(true)
		s.poke()
	case class == apierr.None && m.lists: // a watch follows, which may be refused
	case class == apierr.None:
		if time.Since(m.started) < shortestWatch || s.streak.Failures() > 0 {
			s.c.resendAll() // the API server may be another one
			s.trusted.Store(0)
		}
		m.started = time.Now()
		s.streak.OK(s.ctx, "Watch of ResourceSlices works again")
	case notServed(err, ""):
		s.end()
	case class == apierr.Invalid || class == apierr.Gone:
		// The API server has no WatchList, or not the resource version. The
		// informer lists instead.
	case class == apierr.Forbidden:
		s.leaveOut(m.scope)
		s.streak.Fail(s.ctx, s.c.cfg.ErrorHandler, &ForbiddenError{Verb: "list", Err: err}, "Failed to list and watch ResourceSlices")
		return true
	default:
		s.streak.FailAfter(s.ctx, reportAfter, s.c.cfg.ErrorHandler, fmt.Errorf("resourceslice: list and watch: %w", err), "Failed to list and watch ResourceSlices")
		return true
	}
	return false
}

// lasted implements listener. Time that failing requests have taken does not count.
func (s *session) lasted(m *mirror, begin time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !m.started.Before(begin) && time.Since(m.started) > watchBackoff.Cap
}

// leaveOut makes the pools of the node wait no longer for a scope that the credentials
// can't list. They can't have created a slice in it either, unless the view has one.
func (s *session) leaveOut(sc scope) {
	if s.c.view.has(sc) {
		return
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	for id, p := range s.c.pools {
		if p.cluster && p.local() && sc.covers(&record{id: id}) {
			p.cluster = false
			s.c.enqueue(id, 0)
		}
	}
}

// trusts reports whether the API server stores restrictions of these kinds.
func (s *session) trusts(kinds restrictions) bool { return uint32(kinds)&^s.trusted.Load() == 0 }

func (s *session) trust(kinds restrictions) { s.trusted.Or(uint32(kinds)) }

// end ends the session: ResourceSlices are not served, or the view is useless.
func (s *session) end() {
	s.gone.Store(true)
	s.poke()
}

// live returns all slices of a pool, or false while a mirror has not synced.
func (s *session) live(id PoolID, cluster bool) ([]*record, bool) {
	return s.c.view.pool(id, s.c.scopesOf(id, cluster, !s.noPool.Load()))
}

// removeUnnamed removes pools that SetAll did not name.
func (s *session) removeUnnamed() {
	s.c.mu.Lock()
	named, managed := maps.Clone(s.c.named), make(map[PoolID]bool)
	for id, p := range s.c.pools {
		managed[id] = !p.isGone()
	}
	s.c.mu.Unlock()
	if len(named) == 0 || !s.known.Load() {
		return
	}
	owner, err := s.c.owner.get(s.ctx, callTimeout, anyAge)
	if err != nil {
		if _, panicked := errors.AsType[*callback.PanicError](err); panicked {
			s.owning.Fail(s.ctx, s.c.cfg.ErrorHandler, fmt.Errorf("resourceslice: %w", err), "Failed to get the owner of ResourceSlices")
		}
		return // the next beat tries again
	}
	s.owning.OK(s.ctx, "Got the owner of ResourceSlices again")
	for _, rec := range s.c.view.all() {
		s.c.claim(rec, owner, managed[rec.id])
	}
	if s.c.cfg.NodeName == "" {
		return // the mirrors have all slices
	}
	if s.relist.Swap(false) {
		clear(s.orphans)
	}
	for driver := range named {
		if _, listed := s.orphans[driver]; !listed && !s.listOrphans(driver) {
			continue // the next beat tries again
		}
		s.orphans[driver] = slices.DeleteFunc(s.orphans[driver], func(rec *record) bool { return s.c.claim(rec, owner, managed[rec.id]) })
	}
}

// listOrphans lists the slices of a driver that belong to no node, once in a session and
// after each pool that was taken over: another instance may have published a cluster pool.
// The node's own credentials can't list them, and can't have created any.
func (s *session) listOrphans(driver string) bool {
	records, err := s.list(s.ctx, scope{driver: driver})
	if err != nil && apierr.Classify(err) != apierr.Forbidden {
		return false
	}
	s.orphans[driver] = records // claim has them watched, and their list makes this process newer
	return true
}

// list lists the slices of a scope.
func (s *session) list(ctx context.Context, sc scope) (records []*record, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := s.c.client.List(ctx, metav1.ListOptions{FieldSelector: sc.selector()})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		records = append(records, s.c.hasher.record(&list.Items[i]))
	}
	return records, nil
}

// notServed reports whether a request failed because the API server doesn't serve
// ResourceSlices. A 404 about a missing slice has its name. The name is empty for a list, a
// watch and a create, which are about no slice.
func notServed(err error, name string) bool {
	return apierrors.IsNotFound(err) && (name == "" || !apierr.IsMissing(err, "resourceslices", name))
}
