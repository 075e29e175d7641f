// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	controlplane "k8s.io/kubernetes/pkg/controlplane/controller/leaderelection"
)

// The defaults of kube-scheduler, kube-controller-manager and most other
// programs.
const (
	electorDuration = 15 * time.Second
	electorDeadline = 10 * time.Second
	electorPeriod   = 2 * time.Second
)

func electors(release bool) *system {
	s := &system{name: "client-go", electors: true, releases: release, candidate: func(ctx context.Context, p *process) {
		p.restarting(ctx, func(ctx context.Context, id string) { elect(ctx, p, id, release, false) })
	}}
	if release {
		s.name = "client-go, release"
	}
	return s
}

// builtIn is the API server's controller with candidates such as
// kube-scheduler.
func builtIn(release bool) *system {
	s := &system{name: "API server", electors: true, releases: release, prefers: true, coordinator: coordinate, candidate: func(ctx context.Context, p *process) {
		p.restarting(ctx, func(ctx context.Context, id string) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			candidate, factory, err := leaderelection.NewCandidate(p.client(0), namespace, id, leaseName, p.version, p.version, coordinationv1.OldestEmulationVersion)
			if err != nil {
				p.w.t.Error(err)
				return
			}
			var wg sync.WaitGroup
			wg.Go(func() { candidate.Run(ctx) })
			elect(ctx, p, id, release, true)
			cancel()
			wg.Wait()
			factory.(informers.SharedInformerFactory).Shutdown()
		})
	}}
	if release {
		s.name = "API server, release"
	}
	return s
}

// restarting runs a program repeatedly until ctx is done, each time with
// another identity.
func (p *process) restarting(ctx context.Context, run func(ctx context.Context, identity string)) {
	for ctx.Err() == nil {
		run(ctx, p.identity())
		_ = sleep(ctx, restartDelay)
	}
}

// elect runs an elector once.
func elect(ctx context.Context, p *process, id string, release, coordinated bool) {
	var work sync.WaitGroup
	defer work.Wait()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: leaseName},
			Client:     p.client(electorDeadline / 2).CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: id},
		},
		LeaseDuration: electorDuration, RenewDeadline: electorDeadline, RetryPeriod: electorPeriod,
		ReleaseOnCancel: release, Coordinated: coordinated, Name: leaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				work.Add(1)
				defer work.Done()
				p.lead(ctx)
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		p.w.t.Error(err)
		return
	}
	elector.Run(ctx)
}

// coordinate runs the controllers of an API server that holds
// kube-system/leader-election-controller.
func coordinate(ctx context.Context, p *process) {
	client := p.client(0)
	factory := informers.NewSharedInformerFactory(client, 10*time.Minute)
	leases, candidates := factory.Coordination().V1().Leases(), factory.Coordination().V1beta1().LeaseCandidates()
	controller, err := controlplane.NewController(leases, candidates, client.CoordinationV1(), client.CoordinationV1beta1())
	if err != nil {
		p.w.t.Error(err)
		return
	}
	collector := controlplane.NewLeaseCandidateGC(client, 30*time.Minute, candidates)
	factory.StartWithContext(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { controller.Run(ctx, 1) })
	wg.Go(func() { collector.Run(ctx) })
	wg.Wait()
	factory.Shutdown()
}
