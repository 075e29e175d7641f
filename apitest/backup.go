// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"maps"

	"github.com/kubewright/kubewright/apitest/internal/store"
)

// Backup remembers all objects. The function that it returns restores them, as from
// a backup of etcd: with their old resourceVersions, from which later writes go on.
// It breaks all watches, and Observe does not report it. Many versions lie between the backup and the next write, so
// a resourceVersion does not soon stand for two states.
func (s *Server) Backup() (restore func()) {
	const busy = 1_000_000
	s.core.Store.Lock()
	defer s.core.Store.Unlock()
	backup, rv := map[*store.Table]map[store.Key]*store.Item{}, s.core.Store.RV
	for _, t := range s.core.Store.Tables {
		backup[t] = maps.Clone(t.Items)
	}
	s.core.Store.RV += busy
	return func() {
		s.core.Store.Begin()
		for _, t := range s.core.Store.Tables {
			t.Items = maps.Clone(backup[t])
			if t.Items == nil {
				t.Items = map[store.Key]*store.Item{}
			}
			t.Forget(0)
		}
		s.core.Store.RV = rv
		s.core.Store.Commit()
		s.BreakWatches(Match{})
	}
}
