// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/report"
)

const (
	// beatInterval is how often the main loop says that it lives.
	beatInterval = 15 * time.Second
	// upgradeInterval is how often a newer version of the API is looked for.
	upgradeInterval = time.Hour
	// reportAfter is how long the API must fail before that is reported: it
	// restarts every now and then.
	reportAfter = 30 * time.Second
)

// unavailableBackoff is for an API server that serves no version at all.
var unavailableBackoff = backoff.Policy{Base: 30 * time.Second, Cap: 5 * time.Minute}

// session is the time during which one version of the API is used.
type session struct {
	c       *Controller
	version version
	ctx     context.Context
	cancel  context.CancelFunc
	wake    chan struct{} // another scope may be needed
	mirrors sync.WaitGroup

	mu     sync.Mutex
	scopes map[scope]*mirror
	noPool bool // the API server can't select by the name of a pool
	known  bool // a scope was synced: the version is served
	gone   bool // the version is not served, any longer
	streak report.Streak
	since  time.Time // the watch fails since
}

// serve runs sessions until ctx is done: the newest version that is served.
func (c *Controller) serve(ctx context.Context) {
	var streak report.Streak
	failures := 0
	for next := 0; ctx.Err() == nil; {
		s := c.newSession(ctx, c.versions[next])
		s.run()
		switch {
		case ctx.Err() != nil:
			return
		case s.known:
			next, failures = 0, 0
			streak = report.Streak{}
			continue
		case next+1 < len(c.versions):
			next++
			continue
		}
		next = 0
		failures++
		streak.Fail(ctx, c.cfg.ErrorHandler, &UnavailableError{Versions: versionNames}, "ResourceSlices are not served")
		c.sleep(ctx, unavailableBackoff.Delay(failures))
	}
}

// sleep waits, and says that the loop lives while it does.
func (c *Controller) sleep(ctx context.Context, d time.Duration) {
	for end := time.Now().Add(d); ctx.Err() == nil && time.Until(end) > 0; {
		c.progress.Beat()
		select {
		case <-ctx.Done():
		case <-time.After(min(beatInterval, time.Until(end))):
		}
	}
}

func (c *Controller) newSession(ctx context.Context, v version) *session {
	s := &session{c: c, version: v, wake: make(chan struct{}, 1), scopes: map[scope]*mirror{}}
	s.ctx, s.cancel = context.WithCancel(ctx)
	c.mu.Lock()
	c.session = s
	c.mu.Unlock()
	return s
}

// run watches until the version is gone, a newer one is there, or the context
// is done. What was watched can be read after that.
func (s *session) run() {
	defer s.mirrors.Wait()
	defer s.cancel()
	beat := time.NewTicker(beatInterval)
	defer beat.Stop()
	upgrade := time.NewTicker(upgradeInterval)
	defer upgrade.Stop()
	unclaimed, due := make(<-chan time.Time), false
	if s.c.cfg.UnclaimedGrace > 0 {
		unclaimed = time.After(s.c.cfg.UnclaimedGrace)
	}
	for s.ctx.Err() == nil && !s.isGone() {
		s.watch()
		s.c.lookAtRelease(s.ctx)
		due = due && !s.removeUnclaimed()
		s.c.progress.Beat()
		select {
		case <-s.ctx.Done():
		case <-s.wake:
		case <-beat.C:
		case <-unclaimed:
			due = true
		case <-upgrade.C:
			if s.upgradable() {
				return
			}
		}
	}
}

func (s *session) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// watch starts the watches that are needed and not there, and ends those that
// no pool needs any longer.
func (s *session) watch() {
	needed := s.needed()
	for sc, m := range s.watched() {
		if !slices.Contains(needed, sc) {
			m.stop()
			s.mu.Lock()
			delete(s.scopes, sc)
			s.mu.Unlock()
		}
	}
	for _, sc := range needed {
		s.mu.Lock()
		_, ok := s.scopes[sc]
		s.mu.Unlock()
		if ok {
			continue
		}
		m, err := s.c.newMirror(sc, s.version, events{changed: s.c.changed, deleted: s.c.deleted, failed: s.failed})
		if err != nil {
			// The informer is new: it refuses nothing.
			klog.FromContext(s.ctx).Error(err, "Watch of ResourceSlices was not set up")
			continue
		}
		ctx, cancel := context.WithCancel(s.ctx)
		m.stop = cancel
		s.mu.Lock()
		s.scopes[sc] = m
		s.mu.Unlock()
		s.mirrors.Go(func() {
			defer cancel()
			m.informer.RunWithContext(ctx)
		})
		s.mirrors.Go(func() {
			select {
			case <-ctx.Done():
			case <-m.informer.HasSyncedChecker().Done():
				s.synced()
			}
		})
	}
}

// needed returns what has to be watched for the pools that there are.
func (s *session) needed() (scopes []scope) {
	byPool := s.selectsByPool()
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	seen := make(map[scope]bool)
	add := func(sc scope) {
		if !seen[sc] {
			seen[sc] = true
			scopes = append(scopes, sc)
		}
	}
	if s.c.cfg.NodeName != "" || s.c.cfg.Driver != "" {
		add(scope{nodeName: s.c.cfg.NodeName, driver: s.c.cfg.Driver})
	}
	for id, p := range s.c.pools {
		if p.isGone() {
			continue
		}
		for _, sc := range s.c.scopesOf(id, p.cluster, byPool) {
			add(sc)
		}
	}
	return scopes
}

// scopesOf returns in which scopes a pool's slices are. A controller of a node
// watches by their names those pools of its that others see: each node may have
// one, and each would have to hear of all the others' (Kubernetes 1.37). One
// that has no node publishes all that its driver has, and needs one watch.
func (c *Controller) scopesOf(id PoolID, cluster, byPool bool) []scope {
	if c.cfg.NodeName == "" {
		return []scope{{driver: id.Driver}}
	}
	scopes := []scope{{nodeName: c.cfg.NodeName, driver: c.cfg.Driver}}
	switch {
	case cluster && byPool:
		scopes = append(scopes, scope{driver: id.Driver, pool: id.Name})
	case cluster:
		scopes = append(scopes, scope{driver: id.Driver})
	}
	return scopes
}

func (s *session) selectsByPool() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.noPool
}

// selectByDriver makes do without the selector that the API server is too old
// for.
func (s *session) selectByDriver() {
	s.noPool = true
	for sc, m := range s.scopes {
		if sc.pool != "" {
			m.stop()
			delete(s.scopes, sc)
		}
	}
	s.poke()
}

// synced has every pool looked at: a watch has delivered all that there is.
func (s *session) synced() {
	s.mu.Lock()
	s.known = true
	s.mu.Unlock()
	klog.FromContext(s.ctx).V(2).Info("Watching ResourceSlices", "version", s.version.name)
	s.c.mu.Lock()
	for id := range s.c.pools {
		s.c.enqueue(id, 0)
	}
	s.c.mu.Unlock()
	s.c.ready.Mark()
}

// failed is told of every list and of every start of a watch.
func (s *session) failed(sc scope, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	class := apierr.Classify(err)
	switch {
	case s.ctx.Err() != nil:
	case sc.pool != "" && apierrors.IsBadRequest(err):
		s.selectByDriver()
	case class == apierr.None:
		s.c.release.watched()
		s.poke()
		s.since = time.Time{}
		s.streak.OK(s.ctx, "Watch of ResourceSlices works again")
	case versionGone(err, true):
		s.gone = true
		s.poke()
	case class == apierr.Invalid || class == apierr.Gone:
		// How an API server says that it has no WatchList or no longer the
		// resource version; the informer knows what to do.
	case class == apierr.Forbidden:
		s.streak.Fail(s.ctx, s.c.cfg.ErrorHandler, &ForbiddenError{Verb: "list", Err: err}, "Failed to list and watch ResourceSlices")
	default:
		if s.since.IsZero() {
			s.since = time.Now()
		}
		if time.Since(s.since) >= reportAfter {
			s.streak.Fail(s.ctx, s.c.cfg.ErrorHandler, fmt.Errorf("resourceslice: list and watch: %w", err), "Failed to list and watch ResourceSlices")
		}
	}
}

// end ends the session: a write found that the version is not served.
func (s *session) end() {
	s.mu.Lock()
	s.gone = true
	s.mu.Unlock()
	s.poke()
}

func (s *session) isGone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

// upgradable reports whether a newer version is served than the one in use.
func (s *session) upgradable() bool {
	for _, v := range s.c.versions {
		if v.name == s.version.name {
			return false
		}
		for sc := range s.watched() {
			ctx, cancel := context.WithTimeout(s.ctx, s.c.cfg.CallTimeout)
			_, err := v.list(ctx, metav1.ListOptions{FieldSelector: sc.selector(), Limit: 1})
			cancel()
			if err == nil {
				klog.FromContext(s.ctx).V(2).Info("A newer version of ResourceSlices is served", "version", v.name, "inUse", s.version.name)
				return true
			}
			break // one is enough to know
		}
	}
	return false
}

func (s *session) watched() map[scope]*mirror {
	s.mu.Lock()
	defer s.mu.Unlock()
	scopes := make(map[scope]*mirror, len(s.scopes))
	for sc, m := range s.scopes {
		scopes[sc] = m
	}
	return scopes
}

// live returns all slices of a pool that there are, and false while that isn't
// known.
func (s *session) live(id PoolID, cluster bool) ([]*record, bool) {
	var mirrors []*mirror
	scopes := s.watched()
	for _, sc := range s.c.scopesOf(id, cluster, s.selectsByPool()) {
		m := scopes[sc]
		if m == nil || !m.synced() {
			return nil, false
		}
		mirrors = append(mirrors, m)
	}
	return s.c.own.apply(id, func() (all []*record, seen func(*record) string) {
		at := make([]string, len(mirrors))
		for i, m := range mirrors {
			var records []*record
			records, at[i] = m.slices(id)
			all = append(all, records...)
		}
		return all, func(rec *record) string {
			for i, m := range mirrors {
				if m.scope.covers(rec) {
					return at[i] // the others may be far behind: they need not hear of it
				}
			}
			return ""
		}
	}), true
}

// removeUnclaimed removes the pools of the node that nobody has Set. It reports
// whether it knows which there are.
func (s *session) removeUnclaimed() (known bool) {
	for sc, m := range s.watched() {
		if sc.nodeName == "" || !m.synced() {
			continue
		}
		known = true
		for _, rec := range m.all() {
			if _, claimed := s.c.Status(rec.id); !claimed {
				klog.FromContext(s.ctx).Info("Removing a pool that nobody has claimed", "driver", rec.id.Driver, "pool", rec.id.Name)
				s.c.Remove(rec.id)
			}
		}
	}
	return known || s.c.cfg.NodeName == ""
}
