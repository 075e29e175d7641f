// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"bytes"
	"context"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/callback"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/lease/internal/plan"
)

// The tests of this file are about defects that other implementations have or had:
// virtual-kubelet, component-helpers and the kubelet, kwok, client-go.

// The pace of retries. The first ones are neither doubled nor sent
// at once.
func TestPaceOfRetries(t *testing.T) {
	bubble(t, nil, func(f *fixture) {
		f.start()
		pass(time.Minute)
		f.server.ResetJournal()
		f.server.Inject(apitest.Fault{Err: apitest.ErrConnRefused})
		pass(time.Minute)
		tries := f.server.Requests(leases)
		for i, want := range []time.Duration{200, 400, 800, 1600, 3200, 6400, 7000, 7000} {
			want *= time.Millisecond
			got := tries[i+1].Time.Sub(tries[i].Time)
			if got > want || got < want*5/7-time.Millisecond {
				t.Errorf("wait %d is %v, want %v or up to two sevenths less", i, got, want)
			}
		}
	})
}

// An outage must not pile up timers or goroutines.
func TestLongOutageKeepsNothing(t *testing.T) {
	outage := 24 * time.Hour
	if testing.Short() {
		outage = 2 * time.Hour
	}
	bubble(t, nil, func(f *fixture) {
		f.start()
		pass(time.Minute)
		restore := f.server.Inject(apitest.Fault{Err: apitest.ErrConnRefused})
		pass(outage)
		restore()
		pass(5 * time.Minute)
		n, _ := f.controller.served(nodeName)
		if !n.lease.Quiet() || n.asked != (callback.Line[plan.Consent]{}) {
			t.Errorf("kept of an outage that is over: %+v", n)
		}
	})
}

// An administrator deletes the Node, the garbage collector the lease, and Owner does
// not learn of it for a long time, or ever.
func TestNoChurnWithTheGarbageCollector(t *testing.T) {
	bubble(t, func(f *fixture, cfg *Config) {
		stale := NodeOwner(&f.owners)
		ref, _ := stale(context.Background(), nodeName)
		cfg.Owner = func(context.Context, string) (metav1.OwnerReference, error) { return ref, nil }
	}, func(f *fixture) {
		ctx, cancel := context.WithCancel(f.Context())
		go f.collectGarbage(ctx, 100*time.Millisecond)
		defer cancel()
		f.start()
		pass(time.Minute)
		apitest.Remove[*corev1.Node](f.server, "", nodeName)
		f.server.ResetJournal()
		pass(10 * time.Minute)
		if n := len(f.server.Requests(apitest.Match{Resource: "leases", Verb: "create,update"})); n > 2*31 {
			t.Errorf("%d writes in 60 intervals", n)
		}
		if n := len(f.told.deleted); n == 0 {
			t.Error("nobody was told that the lease vanishes")
		}
		cancel()
	})
	// The same with an Owner that knows: nothing is sent at all.
	bubble(t, nil, func(f *fixture) {
		ctx, cancel := context.WithCancel(f.Context())
		go f.collectGarbage(ctx, 100*time.Millisecond)
		f.start()
		pass(time.Minute)
		apitest.Remove[*corev1.Node](f.server, "", nodeName)
		f.server.ResetJournal()
		pass(10 * time.Minute)
		f.wantCalls("")
		// And when it is back, the old lease is no obstacle.
		f.putNode(nodeName)
		pass(10 * time.Second)
		f.wantPhase(PhaseHeld)
		pass(time.Minute)
		if f.lease() == nil || len(f.server.Requests(posts)) != 1 {
			t.Errorf("after the Node is back: lease %v, calls %s", f.lease(), f.calls())
		}
		cancel()
	})
}

// collectGarbage runs the garbage collector every period until ctx is done.
func (f *fixture) collectGarbage(ctx context.Context, period time.Duration) {
	for ticker := time.NewTicker(period); ; {
		select {
		case <-ticker.C:
			f.server.CollectGarbage()
		case <-ctx.Done():
			return
		}
	}
}

// The Node is replaced, and the garbage collector is at the lease's heels.
func TestReplacedNodeKeepsItsLease(t *testing.T) {
	bubble(t, nil, func(f *fixture) {
		f.start()
		watched := f.watchFreshness(50 * time.Second)
		ctx, cancel := context.WithCancel(f.Context())
		go f.collectGarbage(ctx, 3*time.Second)
		for range 20 {
			pass(25 * time.Second)
			apitest.Remove[*corev1.Node](f.server, "", nodeName)
			node := f.putNode(nodeName)
			pass(15 * time.Second)
			if l := f.lease(); l == nil || l.OwnerReferences[0].UID != node.UID {
				t.Fatalf("lease is %+v, want the owner %s", l, node.UID)
			}
		}
		watched.wantNeverUnknown()
		cancel()
	})
}

// Durations that other implementations divide to zero.
func TestShortDurations(t *testing.T) {
	for _, seconds := range []int{1, 2, 3, 5} {
		duration := time.Duration(seconds) * time.Second
		bubble(t, func(_ *fixture, cfg *Config) { cfg.Duration = duration }, func(f *fixture) {
			f.start()
			pass(duration)
			f.server.ResetJournal()
			pass(100 * duration)
			if n := len(f.server.Requests(puts)); math.Abs(float64(n-400)) > 1 {
				t.Errorf("%v: %d renewals in 100 durations, want four each", duration, n)
			}
			// Failures are no faster than renewals, and no slower.
			f.server.ResetJournal()
			f.server.Inject(apitest.Fault{Err: apitest.ErrConnRefused})
			pass(100 * duration)
			if n := len(f.server.Requests(leases)); n < 390 || n > 700 {
				t.Errorf("%v: %d tries in 100 durations", duration, n)
			}
		})
	}
}

// A server that hangs does not get the same request five times before
// anything else is tried: Gate and Owner are asked before each.
func TestHangIsNotRepeatedBlindly(t *testing.T) {
	bubble(t, nil, func(f *fixture) {
		f.start()
		pass(time.Minute)
		f.server.ResetJournal()
		f.owners.mu.Lock()
		before := f.owners.calls
		f.owners.mu.Unlock()
		f.server.Inject(apitest.Fault{Hang: true})
		pass(10 * time.Minute)
		f.owners.mu.Lock()
		asked := f.owners.calls - before
		f.owners.mu.Unlock()
		if n := len(f.server.Requests(leases)); n > asked || n > 62 {
			t.Errorf("%d requests in ten minutes, Owner was asked %d times", n, asked)
		}
	})
}

// A proxy answers 503 with Retry-After to every PUT, although the API server has stored
// it, and client-go sends it again. The lease was contended by itself, and not held for
// two minutes, although every renewal landed.
func TestAWriteThatAProxyMakesClientGoRepeatIsOurs(t *testing.T) {
	bubble(t, func(f *fixture, cfg *Config) {
		config := f.server.Config(apitest.NodeUser(nodeName))
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			repeated := map[string]bool{}
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodGet {
					return next.RoundTrip(r)
				}
				body, err := io.ReadAll(r.Body)
				if err != nil {
					return nil, err
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
				resp, err := next.RoundTrip(r)
				if err == nil && !repeated[string(body)] {
					repeated[string(body)] = true
					resp.StatusCode, resp.Status = http.StatusServiceUnavailable, "503 Service Unavailable"
					resp.Header.Set("Retry-After", "1")
				}
				return resp, err
			})
		})
		cfg.Client = kubernetes.NewForConfigOrDie(config).CoordinationV1()
	}, func(f *fixture) {
		f.start()
		pass(5 * time.Second)
		f.server.ResetJournal()
		for range 300 {
			pass(time.Second)
			if err := f.controller.Holds(f.Context(), nodeName); err != nil && !strings.Contains(err.Error(), "not written yet") {
				t.Fatal(err)
			}
		}
		if len(f.told.contended) > 0 || f.status().Contended {
			t.Errorf("contended by itself: %+v", f.told.contended)
		}
		if n := len(f.server.Requests(puts)); n != 2*30 || len(f.server.Requests(gets)) != 30 {
			t.Errorf("%d PUTs and %d GETs in 30 intervals", n, len(f.server.Requests(gets)))
		}
	})
}

// TestA404OfAProxyIsNoDeletion: the lease counted as deleted.
func TestA404OfAProxyIsNoDeletion(t *testing.T) {
	bubble(t, nil, func(f *fixture) {
		f.start()
		pass(time.Minute)
		f.server.Inject(apitest.Fault{Match: puts, Times: 1, Status: statuserr.New(404, metav1.StatusReasonNotFound, "default backend - 404")})
		for range 150 {
			pass(100 * time.Millisecond)
			if err := f.controller.Holds(f.Context(), nodeName); err != nil || len(f.told.deleted) > 0 {
				t.Fatalf("%v, deleted %v", err, f.told.deleted)
			}
		}
	})
}

// Trigger, Add, Remove and Status never block: not before Run, not while a turn
// is stuck, not after Run.
func TestNothingBlocksButRun(t *testing.T) {
	bubble(t, func(_ *fixture, cfg *Config) {
		cfg.Gate = func(ctx context.Context, _ string) error { <-ctx.Done(); return nil }
	}, func(f *fixture) {
		all := func() {
			begin := time.Now()
			for range 1000 {
				f.controller.Trigger(nodeName)
				f.controller.Trigger("unknown")
				f.controller.Remove("unknown")
				_ = f.controller.Add("node-2")
				f.controller.Remove("node-2")
				f.controller.Status(nodeName)
			}
			if took := time.Since(begin); took > 0 {
				t.Errorf("blocked for %v", took)
			}
		}
		all()
		f.start()
		all()
		synctest.Wait()
		f.stop()
		all()
	})
}

// An answer that can be decoded and is empty was reported as a renewal.
func TestEmptyAnswerIsNoRenewal(t *testing.T) {
	for _, verb := range []string{"create", "update", "get"} {
		t.Run(verb, func(t *testing.T) {
			bubble(t, nil, func(f *fixture) {
				fault := apitest.Fault{
					Name: "empty", Match: apitest.Match{Verb: verb, Resource: "leases"}, Times: 3,
					Answer: func(apitest.Request) (*http.Response, error) {
						body := strings.NewReader(`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1"}`)
						return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(body)}, nil
					},
				}
				f.server.Inject(fault)
				f.start()
				watched := f.watchFreshness(50 * time.Second)
				pass(10 * time.Minute)
				watched.wantNeverUnknown()
				f.wantGrowing()
				stored := 0
				for _, r := range f.server.Requests(apitest.Match{Verb: "create,update", Resource: "leases"}) {
					if r.Fault == "" {
						stored++
					}
				}
				if n := len(f.told.renewed); n != stored {
					t.Errorf("told of %d renewals, want %d", n, stored)
				}
			})
		})
	}
}
