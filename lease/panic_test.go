// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/callback/callbacktest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// A panic in a callback that returns nothing changes nothing: the nodes go through the
// same phases as without it.
func TestAPanicInAHookChangesNothing(t *testing.T) {
	for name, mutate := range map[string]func(*Config){
		"":                   func(*Config) {},
		"Hooks.Renewed":      func(cfg *Config) { cfg.Hooks.Renewed = callbacktest.ThenPanic(cfg.Hooks.Renewed) },
		"Hooks.Failed":       func(cfg *Config) { cfg.Hooks.Failed = callbacktest.ThenPanic(cfg.Hooks.Failed) },
		"Hooks.Recovered":    func(cfg *Config) { cfg.Hooks.Recovered = callbacktest.ThenPanic(cfg.Hooks.Recovered) },
		"Hooks.PhaseChanged": func(cfg *Config) { cfg.Hooks.PhaseChanged = callbacktest.ThenPanic(cfg.Hooks.PhaseChanged) },
		"Hooks.Deleted":      func(cfg *Config) { cfg.Hooks.Deleted = callbacktest.ThenPanic(cfg.Hooks.Deleted) },
		"Hooks.Contended":    func(cfg *Config) { cfg.Hooks.Contended = callbacktest.ThenPanic(cfg.Hooks.Contended) },
		"Hooks.TakenOver":    func(cfg *Config) { cfg.Hooks.TakenOver = callbacktest.ThenPanic(cfg.Hooks.TakenOver) },
		"EventRecorder":      func(cfg *Config) { cfg.EventRecorder = callbacktest.Recorder{} },
		"ResetConnections":   func(cfg *Config) { cfg.ResetConnections = func() { panic("boom") } },
		"ErrorHandler": func(cfg *Config) {
			handler := cfg.ErrorHandler
			cfg.ErrorHandler = func(ctx context.Context, err error, msg string) {
				handler(ctx, err, msg)
				panic("boom")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			fleetBubble(t, 3, mutate, func(f *fleet) {
				const subject = "node-00000"
				edit := func(change func(*coordinationv1.Lease)) {
					apitest.Edit(f.server, corev1.NamespaceNodeLease, subject, change)
				}
				about := apitest.Match{Resource: "leases", Name: subject}
				f.start()
				pass(25 * time.Second)
				restore := f.server.Inject(apitest.Fault{Match: about, Status: statuserr.InternalError("broken")})
				pass(time.Minute)
				restore()
				pass(20 * time.Second)
				restore = f.server.Inject(apitest.Fault{Hang: true}) // an answer about another node would show that the connection lives
				pass(time.Minute)
				restore()
				pass(time.Minute)
				apitest.Remove[*coordinationv1.Lease](f.server, corev1.NamespaceNodeLease, subject)
				pass(30 * time.Second)
				for range 3 {
					edit(func(l *coordinationv1.Lease) { l.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.Now())) })
					pass(10 * time.Second)
				}
				pass(2 * time.Minute)
				edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = ptr.To("other") })
				pass(2 * time.Minute)

				h := &f.told
				for hook, calls := range map[string]int{
					"Renewed": len(h.renewed), "Failed": len(h.failed), "Recovered": len(h.recovered),
					"Deleted": len(h.deleted), "Contended": len(h.contended), "TakenOver": len(h.takenOver),
				} {
					if calls == 0 {
						t.Errorf("the scenario has no call of %s", hook)
					}
				}
				var phases []Phase
				for _, c := range h.changes {
					if c.NodeName == subject {
						phases = append(phases, c.To)
					}
				}
				want := []Phase{PhaseHeld, PhasePending, PhaseHeld, PhaseForeign, PhaseHeld}
				if !slices.Equal(phases, want) {
					t.Errorf("phases %v, want %v", phases, want)
				}
				for i := range 3 {
					if s, _ := f.controller.Status(fmt.Sprintf("node-%05d", i)); s.Phase != PhaseHeld || time.Since(s.LastRenewal) > 11*time.Second {
						t.Errorf("status of node %d: %+v", i, s)
					}
				}
				if err := f.controller.Check(nil); err != nil {
					t.Errorf("Check = %v", err)
				}
				if len(f.told.errs) == 0 {
					t.Error("the scenario has no error")
				}
				if name != "" && name != "ErrorHandler" {
					callbacktest.WantPanic(t, f.told.errs, name)
				}
			})
		})
	}
}

// A panic in Gate is a no, and one in Owner an error, for one node and until it ends.
func TestAPanicInGateOrOwnerConcernsOneNode(t *testing.T) {
	const bad = "node-00001"
	var broken atomic.Bool
	fail := func(node string) {
		if broken.Load() && node == bad {
			panic("boom")
		}
	}
	for name, c := range map[string]struct {
		mutate func(*Config)
		during Phase
	}{
		"Gate": {func(cfg *Config) {
			cfg.Gate = func(_ context.Context, node string) error {
				fail(node)
				return nil
			}
		}, PhaseGateClosed},
		"Owner": {func(cfg *Config) {
			cfg.Owner = func(ctx context.Context, node string) (metav1.OwnerReference, error) {
				fail(node)
				return ownerOf(ctx, node)
			}
		}, PhasePending},
	} {
		t.Run(name, func(t *testing.T) {
			broken.Store(true)
			fleetBubble(t, 3, c.mutate, func(f *fleet) {
				f.start()
				pass(10 * time.Minute)
				if s, _ := f.controller.Status(bad); s.Phase != c.during {
					t.Errorf("phase %v while %s panics, want %v", s.Phase, name, c.during)
				}
				for _, r := range f.server.Requests(apitest.Match{Resource: "leases", Verb: "create,update"}) {
					if r.Name == bad {
						t.Fatalf("the lease of the bad node was written: %v", r)
					}
				}
				if n := len(f.server.Requests(puts)); n < 2*58 || n > 2*61 {
					t.Errorf("%d renewals of two good nodes in 60 intervals", n)
				}
				if len(f.told.errs) != 1 || !strings.Contains(f.told.errs[0].Error(), bad) {
					t.Errorf("reported %v, want one error about the node", f.told.errs)
				}
				callbacktest.WantPanic(t, f.told.errs, name)
				broken.Store(false)
				pass(11 * time.Second)
				if s, _ := f.controller.Status(bad); s.Phase != PhaseHeld {
					t.Errorf("phase %v after that, want Held", s.Phase)
				}
			})
		})
	}
}

// An error that Owner panics with is no answer: the Node may exist.
func TestOwnerPanicsWithNotFound(t *testing.T) {
	var f *fixture
	bubble(t, func(fx *fixture, cfg *Config) {
		f = fx
		owner := cfg.Owner
		cfg.Owner = func(ctx context.Context, name string) (metav1.OwnerReference, error) {
			ref, err := owner(ctx, name)
			if err != nil {
				panic(err)
			}
			return ref, nil
		}
	}, func(*fixture) {
		f.start()
		pass(25 * time.Second)
		apitest.Remove[*corev1.Node](f.server, "", nodeName)
		pass(25 * time.Second)
		f.wantPhase(PhaseHeld)
	})
}
