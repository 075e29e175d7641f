// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

// Kept returns how many entries of all maps and queues there are.
func (c *Controller) Kept() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.tracks) + len(c.names) + len(c.early) + len(c.dirty) + len(c.wakes)
	for q := range c.queues {
		n += c.queues[q].len()
	}
	return n
}
