// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
)

// leaders are Nodes that a lease follows.
type leaders struct {
	owners
	mu    sync.Mutex
	stuck error
	heard []string
}

func (l *leaders) OwnerReference(ctx context.Context, name string) (metav1.OwnerReference, error) {
	return l.get(ctx, name)
}

func (l *leaders) Live(context.Context, string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stuck
}

func (l *leaders) Trigger(name string) { l.hear("trigger " + name) }
func (l *leaders) Resync(name string)  { l.hear("resync " + name) }

func (l *leaders) hear(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard = append(l.heard, what)
}

// got returns what was heard since the last call.
func (l *leaders) got() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.heard = nil }()
	return strings.Join(l.heard, ", ")
}

func (l *leaders) hang(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stuck = err
}

// following makes a Config without an owner.
func following(_ *fixture, cfg *Config) { cfg.Owner = nil }

func (f *fixture) follow() *leaders {
	l := &leaders{owners: owners{server: f.server}}
	if err := f.controller.Follow(l); err != nil {
		f.Fatal(err)
	}
	return l
}

func TestALeaseFollowsItsNode(t *testing.T) {
	bubble(t, following, func(f *fixture) {
		nodes := f.follow()
		f.start()
		pass(time.Minute)
		f.wantPhase(PhaseHeld)
		if got := nodes.got(); got != "trigger "+nodeName {
			t.Errorf("the lease is held, and the node heard %q", got)
		}
		if refs := f.lease().OwnerReferences; len(refs) != 1 || refs[0].UID != apitest.Get[*corev1.Node](f.server, "", nodeName).UID {
			t.Errorf("the owners are %+v", refs)
		}

		nodes.hang(errors.New("a round hangs"))
		pass(time.Minute)
		f.wantPhase(PhaseGateClosed)
		if got := nodes.got(); got != "trigger "+nodeName {
			t.Errorf("the node is not alive, and heard %q", got)
		}
		nodes.hang(nil)
		pass(time.Minute)
		f.wantPhase(PhaseHeld)
		if got := nodes.got(); !strings.Contains(got, "trigger") || !strings.Contains(got, "resync") {
			t.Errorf("the lease had expired, and the node heard %q", got)
		}

		apitest.Remove[*coordinationv1.Lease](f.server, corev1.NamespaceNodeLease, nodeName)
		pass(time.Minute)
		if got := nodes.got(); !strings.Contains(got, "resync") {
			t.Errorf("the lease was deleted, and the node heard %q", got)
		}
	})
}

// A lease that follows a node has its own Gate and Owner, too.
func TestALeaseWithAGateOfItsOwnFollows(t *testing.T) {
	var closed error
	bubble(t, func(_ *fixture, cfg *Config) {
		cfg.Gate = func(context.Context, string) error { return closed }
		cfg.Owner = NoOwner
	}, func(f *fixture) {
		nodes := f.follow()
		closed = errors.New("closed")
		f.start()
		pass(time.Minute)
		f.wantPhase(PhaseGateClosed)
		f.stop()
		nodes.owners.mu.Lock()
		defer nodes.owners.mu.Unlock()
		if nodes.owners.calls > 0 {
			t.Error("the owner of the nodes was called, and Config has one")
		}
	})
}

func TestFollowIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(f *fixture) error
		want string
	}{
		"nil":        {func(f *fixture) error { return f.controller.Follow(nil) }, "no nodes"},
		"a nil":      {func(f *fixture) error { return f.controller.Follow((*leaders)(nil)) }, "no nodes"},
		"twice":      {func(f *fixture) error { f.follow(); return f.controller.Follow(&leaders{}) }, "follow other nodes"},
		"after Run":  {func(f *fixture) error { f.start(); return f.controller.Follow(&leaders{}) }, "Run was called"},
		"after both": {func(f *fixture) error { f.follow(); f.start(); return f.controller.Follow(&leaders{}) }, "Run was called"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(f *fixture) {
				if err := c.do(f); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
			})
		})
	}
}

func TestALeaseWithoutAnOwnerDoesNotRun(t *testing.T) {
	bubble(t, following, func(f *fixture) {
		err := f.controller.Run(t.Context())
		for _, way := range []string{"nodestatus.Config.Lease", "NodeOwner", "NoOwner"} {
			if !errors.Is(err, ErrNoOwner) || !strings.Contains(fmt.Sprint(err), way) {
				t.Errorf("%v does not name %s", err, way)
			}
		}
		if f.controller.Check(nil) == nil {
			t.Error("it is well")
		}
		if err := f.controller.Run(t.Context()); !errors.Is(err, ErrAlreadyRun) {
			t.Errorf("second Run: %v", err)
		}
		if err := f.controller.Add("other"); !errors.Is(err, ErrStopped) {
			t.Errorf("Add: %v", err)
		}
		if n := len(f.server.Requests(apitest.Match{})); n > 0 {
			t.Errorf("%d requests", n)
		}
	})
}
