// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/callback/callbacktest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// A panic in a callback that returns nothing changes nothing: the candidate leads, and
// hands the lease to a better one, as without it.
func TestAPanicInAHookChangesNothing(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"":                    func(*Config) {},
		"Hooks.TermStarted":   func(cfg *Config) { cfg.Hooks.TermStarted = callbacktest.ThenPanic(cfg.Hooks.TermStarted) },
		"Hooks.TermEnded":     func(cfg *Config) { cfg.Hooks.TermEnded = callbacktest.ThenPanic(cfg.Hooks.TermEnded) },
		"Hooks.LeaderChanged": func(cfg *Config) { cfg.Hooks.LeaderChanged = callbacktest.ThenPanic(cfg.Hooks.LeaderChanged) },
		"Hooks.Renewed":       func(cfg *Config) { cfg.Hooks.Renewed = callbacktest.ThenPanic(cfg.Hooks.Renewed) },
		"Hooks.Failed":        func(cfg *Config) { cfg.Hooks.Failed = callbacktest.ThenPanic(cfg.Hooks.Failed) },
		"Hooks.Offered":       func(cfg *Config) { cfg.Hooks.Offered = callbacktest.ThenPanic(cfg.Hooks.Offered) },
		"Hooks.OfferEnded":    func(cfg *Config) { cfg.Hooks.OfferEnded = callbacktest.ThenPanic(cfg.Hooks.OfferEnded) },
		"EventRecorder":       func(cfg *Config) { cfg.EventRecorder = callbacktest.Recorder{} },
		"ErrorHandler": func(cfg *Config) {
			handler := cfg.ErrorHandler
			cfg.ErrorHandler = func(ctx context.Context, err error, msg string) {
				handler(ctx, err, msg)
				panic("boom")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(r *rig) {
				r.config = func(cfg *Config) { cfg.Strategy = HighestPriority(First()) }
				// ErrorHandler and the hooks are called by one goroutine.
				a := r.start("a", func(cfg *Config) { cfg.ExclusiveIdentity = true }, change)
				r.sleep(10 * time.Second)
				r.expectLeader(a)
				r.server.Inject(apitest.Fault{Match: apitest.Match{User: "a", Verb: "update"}, Status: statuserr.InternalError("broken"), Times: 1})
				r.sleep(10 * time.Second)
				b := r.start("b", func(cfg *Config) { cfg.ExclusiveIdentity, cfg.Self.Priority = true, 1 })
				r.sleep(10 * time.Minute)
				r.expectLeader(b)
				want := []string{
					"lead 0", `leader "a"`, "offered b", "accepted true", "ended " + ErrSuperseded.Error(), `leader "b"`,
				}
				got := slices.Clone(a.told())
				slices.Sort(got)
				slices.Sort(want)
				if !slices.Equal(got, want) {
					t.Errorf("hooks told\n%q, want\n%q", got, want)
				}
				if err := a.Check(nil); err != nil {
					t.Errorf("Check = %v", err)
				}
				if err := a.stop(); err != nil {
					t.Errorf("Run = %v", err)
				}
				switch errs := a.errors(); {
				case len(errs) == 0:
					t.Error("the scenario has no error")
				case name != "" && name != "ErrorHandler":
					callbacktest.WantPanic(t, errs, name)
				}
			})
		})
	}
}

// A panickyStrategy prefers higher priorities. A method of it panics about a candidate.
type panickyStrategy struct{ method, about string }

func (s panickyStrategy) check(method string, peers ...Peer) {
	for _, p := range peers {
		if s.method == method && strings.HasPrefix(p.Identity, s.about) {
			panic("boom")
		}
	}
}

func (panickyStrategy) Name() string { return "example.com/panicky" }

func (s panickyStrategy) Compare(a, b Peer) int {
	s.check("Compare", a, b)
	return int(b.Priority - a.Priority)
}

func (s panickyStrategy) Eligible(p Peer) bool {
	s.check("Eligible", p)
	return true
}

func (s panickyStrategy) Preempts(challenger, incumbent Peer) bool {
	s.check("Preempts", challenger, incumbent)
	return true
}

// A strategy that panics about a candidate does not prefer it. The leader stays, and is
// replaced by another candidate.
func TestAPanicInAStrategyConcernsOneCandidate(t *testing.T) {
	for _, method := range []string{"Compare", "Eligible", "Preempts"} {
		t.Run(method, func(t *testing.T) {
			inRig(t, func(r *rig) {
				r.config = func(cfg *Config) { cfg.Strategy = panickyStrategy{} }
				a := r.start("a", func(cfg *Config) { cfg.Strategy = panickyStrategy{method, "bad"} })
				r.sleep(10 * time.Second)
				bad := r.start("bad", func(cfg *Config) { cfg.Self.Priority = 1 })
				r.sleep(5 * time.Minute)
				r.expectLeader(a)
				if errs := a.errors(); len(errs) != 1 {
					t.Errorf("%d errors, want one: %v", len(errs), errs)
				}
				callbacktest.WantPanic(t, a.errors(), "Strategy."+method)
				bad.stop()
				better := r.start("better", func(cfg *Config) { cfg.Self.Priority = 2 })
				r.sleep(5 * time.Minute)
				r.expectLeader(better)
			})
		})
	}
}

// The work of a leader is half done after a panic, so the process ends.
func TestAPanicInLeadEndsTheProcess(t *testing.T) {
	const child = "ELECTION_TEST_LEAD_PANICS"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestAPanicInLeadEndsTheProcess$")
		cmd.Env = append(os.Environ(), child+"=1")
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "panic: half done") {
			t.Errorf("the process ended with %v and %s", err, out)
		}
		return
	}
	inRig(t, func(r *rig) {
		r.start("a", func(cfg *Config) { cfg.Lead = func(context.Context, Term) error { panic("half done") } })
		r.sleep(time.Minute)
	})
}
