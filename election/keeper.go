// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"errors"
	"time"

	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubewright/kubewright/election/internal/machine"
	"github.com/kubewright/kubewright/internal/apierr"
)

// keeper keeps the LeaseCandidate of a candidate.
type keeper struct {
	lane[*coordinationv1beta1.LeaseCandidate]
	upkeep  *machine.Upkeep
	check   func(error) // tests: Candidate.check
	leaving bool        // Run waits for the deletion
}

// ended reports whether nothing is left to do.
func (k *keeper) ended() bool { return k.upkeep.Ended() }

// step does the next thing about the LeaseCandidate. It returns when to decide again.
func (k *keeper) step(want machine.Candidacy) time.Duration {
	if want.Stopping() && !k.leaving {
		k.leaving = true
		k.cancel() // little time is left
	}
	k.tell(machine.Wanted{Candidacy: want})
	if k.abort != nil {
		return machine.Never
	}
	k.tell(machine.Tick{})
	a := k.upkeep.Next(k.clock.now())
	k.take(a)
	return a.Wake
}

// answered passes the answer to a request to the upkeep.
func (k *keeper) answered(a *answer[*coordinationv1beta1.LeaseCandidate]) {
	k.abort = nil
	k.tell(k.event(a))
}

// tell passes a fact to the upkeep.
func (k *keeper) tell(e machine.Event) {
	k.upkeep.Apply(k.clock.now(), e)
	if k.check != nil {
		k.check(k.upkeep.Check())
	}
}

// missingCandidate returns the function that reports whether a 404 to a request says that
// there is no LeaseCandidate with that name. It does so also if the API server does not
// serve the API, and its answer names no object, but not if the namespace does not exist.
// The answer to a deletion must name the object, because no later request would correct it.
func missingCandidate(name string) func(machine.Op, error) bool {
	return func(op machine.Op, err error) bool {
		if op == machine.Delete {
			return apierr.IsMissing(err, "leasecandidates", name)
		}
		status, ok := errors.AsType[*apierrors.StatusError](err)
		return !ok || status.Status().Details == nil || status.Status().Details.Kind != "namespaces"
	}
}
