// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/coordinator"
)

// TestCoordinator explores a coordinator, which is elected itself, and two candidates, of
// which the older version comes later and takes over.
func TestCoordinator(t *testing.T) {
	cfg := config(testing.Short())
	cfg.Options = apitest.Options{Serve: []schema.GroupVersion{coordinationv1beta1.SchemeGroupVersion}, Gates: map[apitest.Gate]bool{apitest.CoordinatedLeaderElection: true}}
	// A backup can free a Lease that a leader holds. Package election says so.
	cfg.Faults = slices.DeleteFunc(explore.Faults(), func(f explore.Fault) bool { return f.Name == "restore" })
	// A candidate that has waited too long for a coordinator makes the Lease itself, without a strategy.
	cfg.Ignore = []string{"Lease.spec.holderIdentity", "Lease.spec.strategy", "Lease.metadata.annotations", "Lease.metadata.labels", "LeaseCandidate"}
	explore.Run(t, cfg, func(w *explore.World) explore.Scenario {
		var mu sync.Mutex
		leaders := map[string]bool{}
		told := story{mu: &mu, lag: anyLag}
		late := make(chan struct{})
		leading := func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Sorted(maps.Keys(leaders))
		}
		identity := func(name string, p *explore.Process) string { return fmt.Sprintf("%s-%s-%d", name, p.Host, p.Start) }
		candidate := func(name, version string, begin <-chan struct{}) explore.Program {
			return explore.Program{Name: name, Run: func(ctx context.Context, p *explore.Process) error {
				if begin != nil {
					select {
					case <-begin:
					case <-ctx.Done():
						return nil
					}
				}
				me := identity(name, p)
				stop := func() {
					mu.Lock()
					defer mu.Unlock()
					if leaders[me] {
						delete(leaders, me)
						told.ended = time.Now()
					}
				}
				p.OnCrash(stop)
				client := kubernetes.NewForConfigOrDie(p.Config)
				c, err := election.New(election.Config{
					Client: client.CoordinationV1(), Registry: election.LeaseCandidates(client.CoordinationV1beta1()),
					Lease:             types.NamespacedName{Namespace: "default", Name: "work"},
					Self:              election.Peer{Identity: me, BinaryVersion: version, EmulationVersion: version},
					ExclusiveIdentity: true, // each process has its own; names without a random part are places
					Hooks:             told.hooks(p),
					Lead: func(ctx context.Context, _ election.Term) error {
						if err := p.Call("lead", func() {
							if ctx.Err() != nil {
								return // a call that comes late
							}
							mu.Lock()
							defer mu.Unlock()
							leaders[me] = true
						}); err != nil {
							return err
						}
						<-ctx.Done()
						stop()
						return nil
					},
				})
				if err != nil {
					return err
				}
				return c.Run(ctx)
			}}
		}
		return explore.Scenario{
			Programs: []explore.Program{
				{Name: "coordinator", Run: func(ctx context.Context, p *explore.Process) error {
					client := kubernetes.NewForConfigOrDie(p.Config)
					c, err := election.New(election.Config{
						Client: client.CoordinationV1(), Lease: types.NamespacedName{Namespace: "kube-system", Name: coordinator.BuiltInLease},
						Self: election.Peer{Identity: identity("coordinator", p)},
						Lead: func(ctx context.Context, _ election.Term) error {
							c, err := coordinator.New(coordinator.Config{Client: client.CoordinationV1(), Candidates: client.CoordinationV1beta1()})
							if err != nil {
								return err
							}
							return c.Run(ctx)
						},
					})
					if err != nil {
						return err
					}
					return c.Run(ctx)
				}},
				candidate("a", "1.37.0", nil),
				candidate("b", "1.36.0", late),
			},
			Steps: []explore.Step{
				{Name: "a leader", Until: func() bool { return len(leading()) == 1 }},
				{Name: "b is better", Do: func() error { close(late); return nil }, Until: func() bool { l := leading(); return len(l) == 1 && l[0][0] == 'b' }},
			},
			Always: []explore.Invariant{{Name: "one leader", Holds: func() error {
				if l := leading(); len(l) > 1 {
					return fmt.Errorf("%v", l)
				}
				return nil
			}}, told.true()},
			Finally: func() error {
				if l := leading(); len(l) != 1 || l[0][0] != 'b' {
					return errors.New(fmt.Sprint(l, " leads"))
				}
				return nil
			},
		}
	})
}
