// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"sync"
	"time"
)

// serviceLinks are the variables that name one Service.
type serviceLinks struct {
	Service string `json:"service"`
	Vars    []Var  `json:"vars"`
}

// serviceCache keeps the variables of namespaces for Config.ServiceAge.
type serviceCache struct {
	mu      sync.Mutex
	entries map[objectKey]serviceEntry
}

type serviceEntry struct {
	read  time.Time // when the request began
	links []serviceLinks
}

func (c *serviceCache) get(key objectKey, age time.Duration) ([]serviceLinks, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[key]
	if !ok || time.Since(e.read) > age {
		return nil, false
	}
	return e.links, true
}

// put keeps e and drops the entries that are too old, so that the cache holds the namespaces of
// the last few seconds and no others.
func (c *serviceCache) put(key objectKey, e serviceEntry, age time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[objectKey]serviceEntry{}
	}
	for k, old := range c.entries {
		if time.Since(old.read) > age {
			delete(c.entries, k)
		}
	}
	c.entries[key] = e
}
