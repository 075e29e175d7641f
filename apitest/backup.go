// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import "maps"

// Backup remembers all objects. The function that it returns restores them, as from
// a backup of etcd: with their old resourceVersions, from which later writes go on.
// It breaks all watches, and Observe does not report it. Many versions lie between the backup and the next write, so
// a resourceVersion does not soon stand for two states.
func (s *Server) Backup() (restore func()) {
	const busy = 1_000_000
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	backup, rv := map[*table]map[key]*item{}, s.store.rv
	for _, t := range s.store.tables {
		backup[t] = maps.Clone(t.items)
	}
	s.store.rv += busy
	return func() {
		s.store.begin()
		for _, t := range s.store.tables {
			t.items = maps.Clone(backup[t])
			if t.items == nil {
				t.items = map[key]*item{}
			}
			t.forget(0)
		}
		s.store.rv = rv
		s.store.commit()
		s.BreakWatches(Match{})
	}
}
