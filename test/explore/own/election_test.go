// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest/explore"
	"github.com/kubewright/kubewright/election"
)

// TestElection explores two candidates, of which the better one starts to be eligible
// later and takes over.
func TestElection(t *testing.T) {
	cfg := config(testing.Short())
	// A backup can free a Lease that a leader holds. Package election says so.
	cfg.Faults = slices.DeleteFunc(explore.Faults(), func(f explore.Fault) bool { return f.Name == "restore" })
	cfg.Ignore = []string{"Lease.spec.holderIdentity", "Lease.metadata.annotations", "Lease.metadata.labels"}
	explore.Run(t, cfg, func(w *explore.World) explore.Scenario {
		var mu sync.Mutex
		leaders := map[string]uint64{}
		priority := map[string]int32{"a": 1, "b": 0}
		highest := uint64(0)
		leading := func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Sorted(maps.Keys(leaders))
		}
		candidate := func(name string) explore.Program {
			return explore.Program{Name: name, Run: func(ctx context.Context, p *explore.Process) error {
				identity := fmt.Sprintf("%s-%s-%d", name, p.Host, p.Start)
				stopLeading := func() {
					mu.Lock()
					defer mu.Unlock()
					delete(leaders, identity)
				}
				p.OnCrash(stopLeading)
				rank := func() int32 {
					mu.Lock()
					defer mu.Unlock()
					return priority[name]
				}
				c, err := election.New(election.Config{
					Client: kubernetes.NewForConfigOrDie(p.Config).CoordinationV1(), Lease: types.NamespacedName{Namespace: "default", Name: "work"},
					Self: election.Peer{Identity: identity, Priority: rank()}, Strategy: election.HighestPriority(election.First()),
					Lead: func(ctx context.Context, term election.Term) error {
						fenced := false
						if err := p.Call("lead", func() {
							mu.Lock()
							defer mu.Unlock()
							// As a system that is fenced must, because a call can come late.
							if fenced = term.Token() < highest; !fenced {
								leaders[identity], highest = term.Token(), term.Token()
							}
						}); err != nil || fenced {
							return err
						}
						<-ctx.Done()
						stopLeading()
						return nil
					},
				})
				if err != nil {
					return err
				}
				go func() {
					for now := rank(); ctx.Err() == nil; {
						select {
						case <-ctx.Done():
							return
						case <-time.After(time.Second):
						}
						if r := rank(); r != now {
							now = r
							_ = c.Update(func(self *election.Peer) { self.Priority = r })
						}
					}
				}()
				return c.Run(ctx)
			}}
		}
		return explore.Scenario{
			Programs: []explore.Program{candidate("a"), candidate("b")},
			Steps: []explore.Step{
				{Name: "a leader", Until: func() bool { return len(leading()) == 1 }},
				{Name: "b is better", Do: func() error {
					mu.Lock()
					defer mu.Unlock()
					priority["b"] = 2
					return nil
				}, Until: func() bool { l := leading(); return len(l) == 1 && l[0][0] == 'b' }},
			},
			Always: []explore.Invariant{{Name: "one leader", Holds: func() error {
				if l := leading(); len(l) > 1 {
					return fmt.Errorf("%v", l)
				}
				return nil
			}}},
			Finally: func() error {
				if l := leading(); len(l) != 1 || l[0][0] != 'b' {
					return fmt.Errorf("%v leads", l)
				}
				return nil
			},
		}
	})
}
