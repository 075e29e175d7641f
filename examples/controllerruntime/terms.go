// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/kubewright/kubewright/election"
)

// managerPerTerm returns a LeadFunc that runs a new manager in each term. A
// manager cannot be started twice, and its own leader election ends the process
// when the lease is lost. With this adapter the process becomes a candidate
// again instead.
//
// The options of the manager need three settings: LeaderElection off, a
// GracefulShutdownTimeout of at most Timing.Drain, and
// Controller.SkipNameValidation, because names of controllers are unique in a
// process. Servers for metrics and probes belong to a manager that outlives the
// terms.
func managerPerTerm(newManager func(election.Term) (manager.Manager, error)) election.LeadFunc {
	return func(ctx context.Context, term election.Term) error {
		mgr, err := newManager(term)
		if err != nil {
			return err
		}
		return mgr.Start(ctx)
	}
}
