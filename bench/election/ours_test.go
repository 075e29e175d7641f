// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/coordinator"
)

// onLease is this library without any other component.
func onLease() *system {
	return &system{name: "OnLease", ours: true, prefers: true, candidate: func(ctx context.Context, p *process) {
		p.stand(ctx, election.OnLease())
	}}
}

// controlled is this library's Controller with this library's candidates.
func controlled() *system {
	return &system{name: "Controller", ours: true, prefers: true, coordinator: control, candidate: func(ctx context.Context, p *process) {
		p.stand(ctx, election.LeaseCandidates(p.client(0).CoordinationV1beta1()))
	}}
}

// controlledElectors is this library's Controller with candidates such as kube-scheduler.
func controlledElectors() *system {
	s := builtIn(true)
	s.name, s.ours, s.coordinator = "Controller, client-go", true, control
	return s
}

// builtInWithOurs is the API server's controller with this library's candidates. Its
// random choice among equal candidates must cost them no term.
func builtInWithOurs() *system {
	s := controlled()
	s.only = "ties"
	s.name, s.coordinator = "API server, our candidates", coordinate
	return s
}

// stand stands for election until ctx is done.
func (p *process) stand(ctx context.Context, registry election.Registry) {
	candidate, err := election.New(election.Config{
		Client:   p.client(0).CoordinationV1(),
		Lease:    types.NamespacedName{Namespace: namespace, Name: leaseName},
		Self:     election.Peer{Identity: p.name, BinaryVersion: p.version},
		Strategy: election.OldestEmulationVersion(),
		Registry: registry,
		Lead: func(ctx context.Context, _ election.Term) error {
			p.lead(ctx)
			return nil
		},
		ErrorHandler: func(context.Context, error, string) {}, // the candidate recovers on its own
	})
	if err == nil {
		err = candidate.Run(ctx)
	}
	if err != nil {
		p.w.t.Error(err)
	}
}

func control(ctx context.Context, p *process) {
	client := p.client(0)
	controller, err := coordinator.New(coordinator.Config{
		Client: client.CoordinationV1(), Candidates: client.CoordinationV1beta1(),
		ErrorHandler: func(context.Context, error, string) {},
	})
	if err == nil {
		err = controller.Run(ctx)
	}
	if err != nil {
		p.w.t.Error(err)
	}
}
