// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/nodelifecycle"
	"github.com/kubewright/kubewright/internal/statuserr"
)

func (f *fixture) stepClock(d time.Duration) {
	f.owners.mu.Lock()
	defer f.owners.mu.Unlock()
	f.step = d
}

func TestClockSteps(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, steps := range [][]time.Duration{{-time.Hour}, {year}, {-year}, {year, -year, -time.Hour, year + time.Hour}} {
		t.Run(fmt.Sprint(steps), func(t *testing.T) {
			bubble(t, nil, func(f *fixture) {
				f.start()
				watched := f.watchFreshness(50 * time.Second)
				for _, step := range steps {
					pass(3 * time.Minute)
					f.stepClock(step)
				}
				pass(10 * time.Minute)
				f.wantGrowing()
				watched.wantNeverUnknown()
				if n := len(f.server.Requests(gets)); n != 1 {
					t.Errorf("%d GETs, want only the first", n)
				}
				if len(f.told.recovered) > 0 || len(f.told.errs) > 0 {
					t.Errorf("a step of the wall clock was taken for an outage: %v %v", f.told.recovered, f.told.errs)
				}
			})
		})
	}
}

var outages = map[string]apitest.Fault{
	"500":     {Status: statuserr.InternalError("broken")},
	"503":     {Status: statuserr.Unavailable(0)},
	"Refused": {Err: apitest.ErrConnRefused},
	"Reset":   {Err: apitest.ErrConnReset},
	"Hang":    {Hang: true},
	// Writes are stored, and their answers are lost.
	"Blackhole": {HangResponse: true},
}

func TestRenewalsReturnToTheirPlacesAfterAnOutage(t *testing.T) {
	const outage = 5 * time.Minute
	for name, fault := range outages {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(f *fixture) {
				f.start()
				pass(time.Minute + 3*time.Second)
				f.server.ResetJournal()
				restore := f.server.Inject(fault)
				pass(outage)
				// What hangs when the outage ends hangs on until its deadline.
				within := 7 * time.Second
				if fault.Hang || fault.HangResponse {
					within += DefaultCallTimeout
				}
				visits := len(f.told.failed)
				if limit := 12 * int(outage/time.Minute); visits > limit {
					t.Errorf("%d visits in %v, want %d at most", visits, outage, limit)
				}
				if n := len(f.server.Requests(apitest.Match{})); n > 3*visits+10 {
					t.Errorf("%d requests in %d visits", n, visits)
				}
				restore()
				end := time.Now()
				for f.status().Failures > 0 && time.Since(end) < time.Minute {
					pass(10 * time.Millisecond)
				}
				if took := time.Since(end); took > within {
					t.Errorf("renewed %v after the end of the outage, want %v at most", took, within)
				}
				pass(10 * time.Minute)
				if len(f.told.recovered) != 1 || f.told.recovered[0].Outage < outage {
					t.Errorf("recoveries: %+v, want one", f.told.recovered)
				}
				if len(f.told.errs) == 0 || len(f.told.errs) > 2 {
					t.Errorf("%d errors were reported for one outage: %v", len(f.told.errs), f.told.errs)
				}
				if len(f.told.contended) > 0 {
					t.Error("contended by ourselves")
				}
				f.wantGrowing()
			})
		})
	}
}

// TestOutageWithinTheGracePeriod is the promise of the package comment: 25 s
// of anything, begun at any time between two renewals, and the node is never
// Unknown. The API server is back after it; a longer outage is Unknown.
func TestOutageWithinTheGracePeriod(t *testing.T) {
	const grace = 50 * time.Second
	step := 700 * time.Millisecond
	if testing.Short() {
		step *= 3
	}
	for name, fault := range outages {
		t.Run(name, func(t *testing.T) {
			for offset := time.Duration(0); offset < 10*time.Second; offset += step {
				bubble(t, nil, func(f *fixture) {
					f.start()
					watched := f.watchFreshness(grace)
					pass(time.Minute + offset)
					restore := f.server.Inject(fault)
					pass(25 * time.Second)
					restore()
					pass(2 * time.Minute)
					watched.wantNeverUnknown()
				})
			}
			bubble(t, nil, func(f *fixture) {
				f.start()
				watched := f.watchFreshness(grace)
				pass(time.Minute)
				apitestFault := fault
				apitestFault.HangResponse, apitestFault.Hang = false, fault.Hang || fault.HangResponse // nothing is stored
				defer f.server.Inject(apitestFault)()
				pass(2 * time.Minute)
				watched.wantUnknown()
			})
		})
	}
}

// The bound of the package comment: 23 s of any failures in any order.
func TestNodesAreRenewedWithinTheBoundAfterAnyOutage(t *testing.T) {
	var faults []apitest.Fault
	for _, name := range slices.Sorted(maps.Keys(outages)) {
		faults = append(faults, outages[name])
	}
	seeds := uint64(200)
	if testing.Short() {
		seeds = 40
	}
	for seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 1))
		bubble(t, nil, func(f *fixture) {
			f.start()
			watched := f.watchFreshness(50 * time.Second)
			pass(time.Minute + time.Duration(random.Int64N(int64(10*time.Second))))
			for left := 23 * time.Second; left > 0; {
				part := min(left, time.Duration(random.Int64N(int64(15*time.Second))))
				restore := f.server.Inject(faults[random.IntN(len(faults))])
				pass(part)
				restore()
				left -= part
			}
			pass(2 * time.Minute)
			watched.wantNeverUnknown()
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func TestCancelAtAnyTime(t *testing.T) {
	stuck := func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
	for name, mutate := range map[string]func(*fixture, *Config){
		"MidRequest":  func(f *fixture, _ *Config) { f.server.Inject(apitest.Fault{Hang: true}) },
		"MidLatency":  func(f *fixture, _ *Config) { f.server.Inject(apitest.Fault{Latency: 5 * time.Second}) },
		"MidBackoff":  func(f *fixture, _ *Config) { f.server.Inject(apitest.Fault{Err: apitest.ErrConnRefused}) },
		"MidRetry":    func(f *fixture, _ *Config) { f.server.Inject(apitest.Fault{Status: statuserr.TooManyRequests(5)}) },
		"MidGate":     func(_ *fixture, cfg *Config) { cfg.Gate = stuck },
		"MidInterval": nil,
		"MidOwner": func(_ *fixture, cfg *Config) {
			cfg.Owner = func(ctx context.Context, n string) (metav1.OwnerReference, error) {
				return metav1.OwnerReference{}, stuck(ctx, n)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, after := range []time.Duration{0, 37 * time.Millisecond, 2*time.Second + time.Millisecond, 31 * time.Second} {
				bubble(t, mutate, func(f *fixture) {
					f.start()
					pass(after)
					f.stop() // checks that it returns at once, without an error
					before := len(f.server.Requests(apitest.Match{}))
					pass(time.Hour)
					if n := len(f.server.Requests(apitest.Match{})) - before; n > 0 {
						t.Errorf("%d requests after Run", n)
					}
				})
			}
		})
	}
}

func TestRefusalsAreNotHot(t *testing.T) {
	for name, status := range map[string]*fault{
		"401":    {apitest.Fault{Status: statuserr.Unauthorized()}, 13},
		"403":    {apitest.Fault{Status: statuserr.Forbidden("leases", nodeName, "no")}, 13},
		"422":    {apitest.Fault{Status: statuserr.New(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "no")}, 26},
		"422PUT": {apitest.Fault{Match: puts, Status: statuserr.New(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "no")}, 26},
		"429":    {apitest.Fault{Status: statuserr.TooManyRequests(0)}, 18},
		// client-go obeys the server: once a second.
		"429RetryAfter": {apitest.Fault{Status: statuserr.TooManyRequests(1)}, 61},
		"409":           {apitest.Fault{Match: puts, Status: statuserr.New(http.StatusConflict, metav1.StatusReasonConflict, "no")}, 100},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(f *fixture) {
				f.start()
				pass(15 * time.Second)
				f.server.ResetJournal()
				f.server.Inject(status.Fault)
				for minute := range 10 {
					before := len(f.server.Requests(apitest.Match{}))
					pass(time.Minute)
					if n := len(f.server.Requests(apitest.Match{})) - before; n > status.perMinute {
						t.Errorf("%d requests in minute %d, want %d at most", n, minute, status.perMinute)
					}
				}
				if len(f.told.errs) == 0 || len(f.told.errs) > 2 {
					t.Errorf("%d errors reported: %v", len(f.told.errs), f.told.errs)
				}
			})
		})
	}
}

type fault struct {
	apitest.Fault
	perMinute int
}

func TestWrongNodeNamesBoth(t *testing.T) {
	bubble(t, func(f *fixture, cfg *Config) {
		cfg.Client = f.server.Client(apitest.NodeUser("node-2")).CoordinationV1()
	}, func(f *fixture) {
		f.start()
		pass(time.Hour)
		if len(f.told.errs) != 1 {
			t.Fatalf("reported %d errors, want one: %v", len(f.told.errs), f.told.errs)
		}
		err, ok := errors.AsType[*IdentityError](f.told.errs[0])
		if !ok || err.NodeName != "node-1" || err.Identity != "system:node:node-2" {
			t.Fatalf("reported %#v", f.told.errs[0])
		}
		for _, want := range []string{`"system:node:node-2"`, `node "node-2" only`, `"node-1"`} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not contain %s", err, want)
			}
		}
		if n := len(f.server.Requests(apitest.Match{})); n > 13*60 {
			t.Errorf("%d requests in an hour", n)
		}
		if s := f.status(); s.LastError == nil || s.Failures == 0 || s.Phase != PhasePending {
			t.Errorf("status is %+v", s)
		}
	})
}

// Only silence makes a connection suspect.
func TestResetConnections(t *testing.T) {
	for name, test := range map[string]struct {
		fault apitest.Fault
		min   int
		max   int
	}{
		"Hang":    {apitest.Fault{Hang: true}, 9, 10},
		"500":     {apitest.Fault{Status: statuserr.InternalError("")}, 0, 0},
		"Refused": {apitest.Fault{Err: apitest.ErrConnRefused}, 0, 0},
		"403":     {apitest.Fault{Status: statuserr.Forbidden("leases", "", "")}, 0, 0},
		"504":     {apitest.Fault{Status: statuserr.ServerTimeout()}, 0, 0},
		// client-go sleeps for the 30 s inside the call, whose deadline comes first.
		"Throttled":  {apitest.Fault{Status: statuserr.TooManyRequests(30)}, 0, 0},
		"Overloaded": {apitest.Fault{Status: statuserr.TooManyRequests(2)}, 0, 0},
		"Sporadic":   {apitest.Fault{Hang: true, Times: 1}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			resets := 0
			bubble(t, func(_ *fixture, cfg *Config) { cfg.ResetConnections = func() { resets++ } }, func(f *fixture) {
				f.start()
				pass(time.Minute)
				f.server.Inject(test.fault)
				pass(10 * time.Minute)
			})
			if resets < test.min || resets > test.max {
				t.Errorf("%d resets in ten minutes, want %d to %d", resets, test.min, test.max)
			}
		})
	}
}

// A dead connection is replaced before the node is Unknown: the third
// request goes out on a new one.
func TestDeadConnection(t *testing.T) {
	var restore atomic.Pointer[func()]
	bubble(t, func(_ *fixture, cfg *Config) { cfg.ResetConnections = func() { (*restore.Load())() } }, func(f *fixture) {
		f.start()
		watched := f.watchFreshness(50 * time.Second)
		pass(time.Minute + time.Second)
		restore.Store(new(f.server.Inject(apitest.Fault{Hang: true})))
		pass(5 * time.Minute)
		watched.wantNeverUnknown()
		if len(f.told.recovered) != 0 {
			t.Errorf("the lease had expired: %+v", f.told.recovered)
		}
	})
}

// freshness is the judge of a node: the rule of kube-controller-manager.
type freshness struct {
	f    *fixture
	rule *nodelifecycle.Judge
}

// watchFreshness judges the node for as long as the test lasts.
func (f *fixture) watchFreshness(grace time.Duration) *freshness {
	w := &freshness{f, nodelifecycle.New(f.server, nodelifecycle.Options{GracePeriod: grace})}
	ctx, cancel := context.WithCancel(f.Context())
	f.Cleanup(cancel)
	go w.rule.Run(ctx)
	synctest.Wait()
	return w
}

func (w *freshness) wantNeverUnknown() {
	w.f.Helper()
	if outages := w.rule.Outages(nodeName); len(outages) > 0 {
		w.f.Errorf("the node was Unknown: %v", outages)
	}
}

func (w *freshness) wantUnknown() {
	w.f.Helper()
	if len(w.rule.Outages(nodeName)) == 0 {
		w.f.Error("the node was never Unknown although it could not renew its lease")
	}
}

// A wait that the API server's answer asks for is progress, however short the
// intervals are: a restart would not help.
func TestCheckDuringALongWait(t *testing.T) {
	mutate := func(_ *fixture, cfg *Config) {
		cfg.Duration, cfg.CallTimeout = 4*time.Second, 100*time.Millisecond
	}
	bubble(t, mutate, func(f *fixture) {
		f.server.Inject(apitest.Fault{Status: statuserr.Forbidden("leases", nodeName, "not yours")})
		f.start()
		for range 600 {
			pass(100 * time.Millisecond)
			if err := f.controller.Check(nil); err != nil {
				t.Fatalf("Check while the API server refuses: %v", err)
			}
		}
	})
}
