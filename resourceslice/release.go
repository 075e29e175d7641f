// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/klog/v2"
)

// versionInterval is the least time between two looks at the API server's
// version.
const versionInterval = 10 * time.Minute

// release follows the release of the API server, but only once it has dropped
// or refused something: another one may take it.
type release struct {
	// get is nil where the client can't tell.
	get func(ctx context.Context) (string, error)

	mu        sync.Mutex
	needed    bool   // something was dropped or refused
	restarted bool   // a watch was started since the last look
	known     string // the release then
	looked    time.Time
}

// newRelease asks the client for its discovery client, which clientsets have.
func newRelease(c Client) release {
	with, ok := c.(interface {
		Discovery() discovery.DiscoveryInterfaces
	})
	if !ok {
		return release{}
	}
	return release{get: func(ctx context.Context) (string, error) {
		info, err := with.Discovery().ServerVersionWithContext(ctx)
		if err != nil {
			return "", err
		}
		return info.GitVersion, nil
	}}
}

// need says that something was dropped or refused.
func (r *release) need() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.needed = true
}

// watched says that a watch was started, as after a restart of the API server.
func (r *release) watched() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restarted = true
}

func (r *release) due() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.get != nil && r.needed && (r.known == "" || r.restarted && time.Since(r.looked) >= versionInterval)
}

// look asks for the release, and reports whether it is another one.
func (r *release) look(ctx context.Context) (changed bool, now string) {
	now, err := r.get(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looked = time.Now()
	if err != nil {
		return false, ""
	}
	changed = r.known != "" && r.known != now
	r.known, r.restarted = now, false
	return changed, now
}

// lookAtRelease has all pools sent whole again when the API server has become
// another one.
func (c *Controller) lookAtRelease(ctx context.Context) {
	if !c.release.due() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	changed, now := c.release.look(ctx)
	if !changed {
		return
	}
	klog.FromContext(ctx).V(2).Info("The API server was upgraded or downgraded; what it dropped or refused is sent again", "version", now)
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, p := range c.pools {
		p.anew = true
		c.enqueue(id, 0)
	}
}

// anew forgets what another API server made of the pool.
func (w *work) anew() {
	clear(w.accepted)
	w.forgetRefusals()
	clear(w.faults)
	clear(w.reported)
	w.dropped, w.blocked = nil, nil
}
