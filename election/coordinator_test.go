// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election_test

import (
	"context"

	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/coordinator"
)

func init() {
	election.NewCoordinator = func(clients kubernetes.Interface) (election.Runner, error) {
		return coordinator.New(coordinator.Config{
			Client: clients.CoordinationV1(), Candidates: clients.CoordinationV1beta1(),
			ErrorHandler: func(context.Context, error, string) {},
		})
	}
}
