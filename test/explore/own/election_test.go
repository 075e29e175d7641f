// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/transport"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
	"github.com/kubewright/kubewright/election"
)

// TestElection explores two candidates, of which the better one starts to be eligible
// later and takes over.
func TestElection(t *testing.T) {
	cfg := config(testing.Short())
	// A backup can free a Lease that a leader holds. Package election says so.
	cfg.Faults = slices.DeleteFunc(explore.Faults(), func(f explore.Fault) bool { return f.Name == "restore" })
	exploreElection(t, cfg, anyLag, false)
}

// TestElectionInASharedWatch is TestElection with candidates that follow the Lease in a watch
// of the namespace.
func TestElectionInASharedWatch(t *testing.T) {
	cfg := config(testing.Short())
	cfg.Faults = slices.DeleteFunc(explore.Faults(), func(f explore.Fault) bool { return f.Name == "restore" })
	exploreElection(t, cfg, anyLag, true)
}

// TestElectionTellsTheTimes explores crashes and pauses while each answer to a write comes
// after the event that shows its effect. No event is late, so what candidates say about
// times must be exact.
func TestElectionTellsTheTimes(t *testing.T) {
	cfg := config(testing.Short())
	cfg.Faults = slices.DeleteFunc(explore.Faults(), func(f explore.Fault) bool {
		return !strings.HasPrefix(f.Name, "crash") && f.Name != "takeover"
	})
	exploreElection(t, cfg, 500*time.Millisecond, false, lateAnswers)
}

// lateAnswers delays the answers to writes until the watches have delivered the effects.
func lateAnswers(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(q *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(q)
		if q.Method == http.MethodPut {
			time.Sleep(100 * time.Millisecond)
		}
		return answer, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

// anyLag is the longest time by which a fault makes an observation late.
const anyLag = 16 * time.Second

func exploreElection(t *testing.T, cfg explore.Config, lag time.Duration, shared bool, wrap ...transport.WrapperFunc) {
	cfg.Ignore = []string{"Lease.spec.holderIdentity", "Lease.metadata.annotations", "Lease.metadata.labels"}
	explore.Run(t, cfg, func(w *explore.World) explore.Scenario {
		var mu sync.Mutex
		leaders := map[string]uint64{}
		begun := map[string]time.Time{} // when processes began
		priority := map[string]int32{"a": 1, "b": 0}
		highest := uint64(0)
		told := story{mu: &mu, lag: lag}
		w.Server.Observe(told.lease)
		leading := func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Sorted(maps.Keys(leaders))
		}
		candidate := func(name string) explore.Program {
			return explore.Program{Name: name, Run: func(ctx context.Context, p *explore.Process) error {
				identity := fmt.Sprintf("%s-%s-%d", name, p.Host, p.Start)
				mu.Lock()
				begun[identity] = time.Now()
				mu.Unlock()
				stopLeading := func() {
					mu.Lock()
					defer mu.Unlock()
					if _, led := leaders[identity]; led {
						delete(leaders, identity)
						told.ended = time.Now()
					}
				}
				p.OnCrash(stopLeading)
				rank := func() int32 {
					mu.Lock()
					defer mu.Unlock()
					return priority[name]
				}
				for _, w := range wrap {
					p.Config.Wrap(w)
				}
				client := kubernetes.NewForConfigOrDie(p.Config).CoordinationV1()
				var watch *election.SharedWatch
				if shared {
					var err error
					if watch, err = election.NewSharedWatch(client, "default"); err != nil {
						return err
					}
				}
				c, err := election.New(election.Config{
					Client: client, Watch: watch, Lease: types.NamespacedName{Namespace: "default", Name: "work"},
					Self: election.Peer{Identity: identity, Priority: rank()}, Strategy: election.HighestPriority(election.First()), Hooks: told.hooks(p),
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
				l := leading()
				mu.Lock()
				defer mu.Unlock()
				if time.Since(told.deleted) < election.DefaultRenewDeadline {
					// Who began after the deletion can't know that another one leads. It may take a moment to look.
					l = slices.DeleteFunc(l, func(id string) bool { return begun[id].After(told.deleted.Add(-time.Second)) })
				}
				if len(l) > 1 {
					return fmt.Errorf("%v", l)
				}
				return nil
			}}, told.true()},
			Finally: func() error {
				if l := leading(); len(l) != 1 || l[0][0] != 'b' {
					return fmt.Errorf("%v leads", l)
				}
				return nil
			},
		}
	})
}

// story compares what candidates say with what has happened.
type story struct {
	mu    *sync.Mutex
	lag   time.Duration // by which observations may be late
	ended time.Time     // when the work of a leader last came to its end
	// The holder of the Lease, the time of its last renewal, and that of the holder before. A
	// process that has claimed the Lease and dies before its work begins was its holder.
	holder          string
	renewed, before time.Time
	wrong           error
	deleted         time.Time // when another client last deleted the Lease
}

// lease takes note of the holder of the Lease.
func (s *story) lease(c apitest.Change) {
	l, ok := c.Object.(*coordinationv1.Lease)
	if !ok || l.Spec.RenewTime == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Type == watch.Deleted {
		s.deleted = time.Now()
	}
	if holder := ptr.Deref(l.Spec.HolderIdentity, ""); holder != s.holder {
		s.holder, s.before = holder, s.renewed
	}
	s.renewed = l.Spec.RenewTime.Time // candidates write the Lease too
}

// hooks returns the hooks of a candidate of a process.
func (s *story) hooks(p *explore.Process) election.Hooks {
	return election.Hooks{TermStarted: func(e election.TermStarted) {
		s.mu.Lock()
		defer s.mu.Unlock()
		// A candidate that started later has seen no leader, and says so. The work goes on
		// for RenewDeadline after the last renewal.
		from := s.ended
		if s.before.After(from) {
			from = s.before
		}
		if gap := time.Since(from); !s.ended.IsZero() && e.Vacant != 0 && (e.Vacant < gap-s.lag || e.Vacant > gap+election.DefaultRenewDeadline+s.lag) {
			s.wrong = fmt.Errorf("%s says that there was no leader for %v, and there was none for %v", p.Host, e.Vacant, gap)
		}
	}}
}

// true is the invariant that what candidates say is true.
func (s *story) true() explore.Invariant {
	return explore.Invariant{Name: "candidates say what has happened", Holds: func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.wrong
	}}
}
