// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"time"

	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"

	"github.com/kubewright/kubewright/election/internal/machine"
)

// keeper keeps the LeaseCandidate of a candidate. The zero value has nothing to keep.
type keeper struct {
	lane[*coordinationv1beta1.LeaseCandidate]
	upkeep  *machine.Upkeep
	leaving bool // Run waits for the deletion
}

// ended reports whether nothing is left to do.
func (k *keeper) ended() bool { return k.upkeep == nil || k.upkeep.Ended() }

// step does the next thing about the LeaseCandidate. It returns when to decide again.
func (k *keeper) step(want machine.Candidacy) time.Duration {
	now := k.clock.now()
	if want.Stopping() && !k.leaving {
		k.leaving = true
		k.cancel() // little time is left
	}
	k.upkeep.Apply(now, machine.Wanted{Candidacy: want})
	if k.abort != nil {
		return machine.Never
	}
	k.upkeep.Apply(now, machine.Tick{})
	a := k.upkeep.Next(now)
	k.take(a)
	return a.Wake
}

// answered passes the answer to a request to the upkeep.
func (k *keeper) answered(a answer[*coordinationv1beta1.LeaseCandidate]) {
	k.abort = nil
	k.upkeep.Apply(k.clock.now(), a.event())
}

// saw passes an observation of the watch to the upkeep.
func (k *keeper) saw(s sight[*coordinationv1beta1.LeaseCandidate]) {
	if s.began {
		return
	}
	now := k.clock.now()
	seen := k.sighted(s, func() { k.upkeep.Apply(now, machine.WatchWorks{}) }, func(gone bool) bool {
		k.upkeep.Apply(now, machine.WatchLost{Gone: gone})
		return k.upkeep.Polling()
	})
	if seen {
		k.upkeep.Apply(now, machine.Seen[*coordinationv1beta1.LeaseCandidate]{Object: s.object, Deleted: s.deleted})
	}
}
