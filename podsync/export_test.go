// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// Kept returns the number of entries of all maps and queues.
func (c *Controller) Kept() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.tracks) + len(c.names) + len(c.early) + len(c.dirty) + len(c.wakes)
	for q := range c.queues {
		n += c.queues[q].len()
	}
	return n
}

// Lag returns the number of pods that are known by an answer to a write, and not yet by
// the version of it that the informer has.
func (c *Controller) Lag() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, t := range c.names {
		obj, ok, err := c.informer.GetIndexer().GetByKey(key.String())
		if err != nil || !ok || versionOf(obj).resourceVersion() != t.api.pod.resourceVersion() || t.api.pod.compact == nil && obj != any(t.api.pod.pod) {
			n++
		}
	}
	return n
}

// DropTracks makes the controller forget everything, and returns the number of pods
// it knew.
func (c *Controller) DropTracks() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.tracks)
	c.tracks, c.names, c.dirty, c.wakes = nil, nil, nil, nil
	for q := range c.queues {
		c.queues[q] = fifo{}
	}
	return n
}

// ListWith reconciles with the List of another provider.
func (c *Controller) ListWith(p Provider) {
	own := c.cfg.Provider
	c.cfg.Provider = p
	defer func() { c.cfg.Provider = own }()
	if err := c.list(context.Background()); err != nil {
		panic(err)
	}
}

// OnPod shows a pod as the informer does.
func (c *Controller) OnPod(pod *corev1.Pod) { c.onPodUpdate(pod) }

// LimitWrites sets the number of concurrent API requests. It must be called before Run.
func (c *Controller) LimitWrites(n int) { c.breaker.trip = n }
