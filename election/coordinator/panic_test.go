// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/coordinator/internal/contest"
	"github.com/kubewright/kubewright/internal/callback/callbacktest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// A panic in a callback that returns nothing changes nothing: the controller elects, and
// replaces, the same holders as without it.
func TestAPanicInAHookChangesNothing(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"":                func(*Config) {},
		"Hooks.Elected":   func(cfg *Config) { cfg.Hooks.Elected = callbacktest.ThenPanic(cfg.Hooks.Elected) },
		"Hooks.Preferred": func(cfg *Config) { cfg.Hooks.Preferred = callbacktest.ThenPanic(cfg.Hooks.Preferred) },
		"Hooks.Silent":    func(cfg *Config) { cfg.Hooks.Silent = callbacktest.ThenPanic(cfg.Hooks.Silent) },
		"Hooks.Collected": func(cfg *Config) { cfg.Hooks.Collected = callbacktest.ThenPanic(cfg.Hooks.Collected) },
		"Hooks.RequestFailed": func(cfg *Config) {
			cfg.Hooks.RequestFailed = callbacktest.ThenPanic(func(RequestFailed) {})
		},
		"ErrorHandler": func(cfg *Config) {
			handler := cfg.ErrorHandler
			cfg.ErrorHandler = func(ctx context.Context, err error, msg string) {
				handler(ctx, err, msg)
				panic("boom")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newCtlRig(t, apitest.Options{})
				change(&r.cfg)
				c := r.start()
				r.stub("a", "1.36.0", "1.37.0").set(func(s *ctlStub) { s.obedient = true }).start()
				r.advance(time.Minute)
				r.want("holder", r.holder(), "a")
				r.server.Inject(apitest.Fault{Match: apitest.Match{User: ctlUser, Resource: "leases"}, Status: statuserr.InternalError("broken"), Times: 1})
				b := r.stub("b", "1.35.0", "1.37.0").start()
				r.advance(2 * time.Minute)
				r.want("holder", r.holder(), "b")
				b.stop()
				r.advance(35 * time.Minute) // its record does not answer, and is deleted
				if told := r.told(); !slices.Contains(told, "elected a") || !slices.Contains(told, "preferred b") ||
					!slices.Contains(told, "silent b") || !slices.Contains(told, "collected b") {
					t.Errorf("the scenario has told %q", told)
				}
				r.want("holder", r.holder(), "a")
				if err := c.Check(nil); err != nil {
					t.Errorf("Check = %v", err)
				}
				r.stop()
				switch errs := r.errors(); {
				case len(errs) == 0:
					t.Error("the scenario has no error")
				case name != "" && name != "ErrorHandler":
					callbacktest.WantPanic(t, errs, name)
				}
			})
		})
	}
}

// A strategy that panics holds up its Lease and no other, and until it no longer panics.
func TestAPanicInAStrategyConcernsOneLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const strategy = "example.com/panicky"
		r := newCtlRig(t, apitest.Options{})
		var broken atomic.Bool
		broken.Store(true)
		r.cfg.Strategies = []election.Strategy{election.StrategyFunc(strategy, func(a, b election.Peer) int {
			if broken.Load() {
				panic("boom")
			}
			return 0
		})}
		for _, name := range []string{"a", "b"} {
			r.stub(name, "1.36.0", "1.37.0").set(func(s *ctlStub) { s.strat = strategy }).start()
		}
		c := r.start()
		r.advance(time.Minute)
		other := r.stub("other", "1.36.0", "1.37.0").record()
		other.Spec.LeaseName = "other"
		r.server.Put(other)
		r.advance(time.Minute)
		if apitest.Get[*coordinationv1.Lease](r.server, ctlNamespace, "other") == nil {
			t.Error("another Lease has no leader")
		}
		r.want("holder", r.holder(), "")
		if errs := r.errors(); len(errs) != 1 || !strings.Contains(errs[0].Error(), ctlNamespace+"/"+ctlLease) {
			t.Errorf("reported %v, want one error about the Lease", errs)
		}
		callbacktest.WantPanic(t, r.errors(), "Strategies")
		if err := c.Check(nil); err != nil {
			t.Errorf("Check = %v", err)
		}
		broken.Store(false)
		r.advance(contest.FailedRetry + time.Second)
		if r.holder() == "" {
			t.Error("no leader after that")
		}
	})
}
