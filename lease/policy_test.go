// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
)

// steal writes the lease as another holder would, whose clock is off by skew.
func (f *fixture) steal(holder string, skew time.Duration) {
	f.editLease(func(l *coordinationv1.Lease) {
		l.Spec.HolderIdentity = &holder
		l.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.Now().Add(skew)))
	})
}

func TestForeignWaitExpiredWaits(t *testing.T) {
	for _, skew := range []time.Duration{0, time.Hour, -time.Hour} {
		t.Run(skew.String(), func(t *testing.T) {
			recorder := events.NewFakeRecorder(100)
			bubble(t, func(_ *fixture, cfg *Config) { cfg.EventRecorder = recorder }, func(f *fixture) {
				f.putLease("other", time.Now().Add(skew), nil)
				f.start()
				// As long as the other one renews, nothing is written.
				for range 30 {
					pass(10 * time.Second)
					f.steal("other", skew)
				}
				if n := len(f.server.Requests(gets)); n != len(f.server.Requests(apitest.Match{})) || n > 32 {
					t.Errorf("%d GETs of %d requests in 30 intervals", n, len(f.server.Requests(apitest.Match{})))
				}
				s := f.status()
				if s.Phase != PhaseForeign || s.Holder != "other" {
					t.Errorf("status is %+v", s)
				}
				// It stops. Its lease says 40 s.
				last := time.Now()
				for f.status().Phase != PhaseHeld {
					pass(time.Second)
				}
				if took := time.Since(last); took < 40*time.Second || took > 51*time.Second {
					t.Errorf("taken over %v after the last renewal, want 40 s and an interval at most", took)
				}
				if l := f.lease(); *l.Spec.LeaseTransitions != 1 || *l.Spec.HolderIdentity != nodeName || l.Spec.AcquireTime == nil {
					t.Errorf("lease is %+v", l.Spec)
				}
				if len(f.told.takenOver) != 1 || f.told.takenOver[0].Holder != "other" {
					t.Errorf("TakenOver: %+v", f.told.takenOver)
				}
				f.wantGrowing()
				pass(time.Hour)
				if f.told.contended != nil {
					t.Errorf("Contended: %+v", f.told.contended)
				}
				if *f.lease().Spec.LeaseTransitions != 1 {
					t.Error("taken over again")
				}
			})
			if got, want := drain(recorder), "LeaseHeldByOther LeaseTakenOver"; got != want {
				t.Errorf("events are %q, want %q", got, want)
			}
		})
	}
}

// drain returns the reasons of the events that were recorded.
// The API server refuses a negative number of transitions. The largest one was followed by
// that, so the lease could not be taken over.
func TestTakeOverAfterTheLargestNumberOfTransitions(t *testing.T) {
	bubble(t, nil, func(f *fixture) {
		f.putLease("other", time.Now(), func(l *coordinationv1.Lease) { l.Spec.LeaseTransitions = ptr.To[int32](math.MaxInt32) })
		f.start()
		pass(time.Minute)
		if s := f.status(); s.Phase != PhaseHeld || *f.lease().Spec.LeaseTransitions != 0 {
			t.Errorf("status is %+v", s)
		}
	})
}

func drain(r *events.FakeRecorder) string {
	var reasons []string
	for len(r.Events) > 0 {
		reasons = append(reasons, strings.Fields(<-r.Events)[1])
	}
	return strings.Join(reasons, " ")
}

// TestATakeOverThatWasNotStoredIsNotReleased: the write was cut off by the end of Run,
// which then gave up the lease of the other holder.
func TestATakeOverThatWasNotStoredIsNotReleased(t *testing.T) {
	for _, policy := range []ShutdownPolicy{ShutdownDelete, ShutdownExpire} {
		for name, fault := range map[string]apitest.Fault{
			"not stored": {Match: puts, Times: 1, Hang: true},
			"stored":     {Match: puts, Times: 1, HangResponse: true},
		} {
			t.Run(fmt.Sprint(policy, " ", name), func(t *testing.T) {
				bubble(t, func(_ *fixture, cfg *Config) { cfg.OnShutdown = policy }, func(f *fixture) {
					f.putLease("other", time.Now(), nil)
					f.server.Inject(fault)
					f.start()
					pass(43 * time.Second) // it is taken after 40 s
					f.stop()
					l := f.lease()
					others := l != nil && ptr.Deref(l.Spec.HolderIdentity, "") == "other"
					if others != (name == "not stored") {
						t.Errorf("the lease is %+v after %s", l, f.calls())
					}
				})
			})
		}
	}
}

func TestAClosedGateStopsRenewals(t *testing.T) {
	var closed error
	var stuck bool
	bubble(t, func(f *fixture, cfg *Config) {
		cfg.Gate = func(ctx context.Context, name string) error {
			f.owners.mu.Lock()
			err, wait := closed, stuck
			f.owners.mu.Unlock()
			if wait {
				<-ctx.Done()
			}
			return err
		}
	}, func(f *fixture) {
		set := func(err error, s bool) {
			f.owners.mu.Lock()
			closed, stuck = err, s
			f.owners.mu.Unlock()
		}
		f.start()
		pass(time.Minute)
		set(errors.New("unwell"), false)
		f.server.ResetJournal()
		pass(10 * time.Minute)
		f.wantCalls("")
		f.wantPhase(PhaseGateClosed)
		if n := len(f.told.phases); n != 2 {
			t.Errorf("phases are %v: not only the edge", f.told.phases)
		}
		set(nil, false)
		f.controller.Trigger(nodeName)
		synctest.Wait()
		f.wantCalls("PUT")
		f.wantPhase(PhaseHeld)
		if len(f.told.recovered) != 1 {
			t.Errorf("recovered: %+v: the lease had expired", f.told.recovered)
		}
		// Flaps.
		f.server.ResetJournal()
		for range 100 {
			set(errors.New("unwell"), false)
			f.controller.Trigger(nodeName)
			pass(50 * time.Millisecond)
			set(nil, false)
			f.controller.Trigger(nodeName)
			pass(50 * time.Millisecond)
		}
		if n := len(f.server.Requests(apitest.Match{})); n > 110 {
			t.Errorf("%d requests in 10 s of flapping", n)
		}
		// A gate that hangs is a closed gate.
		set(nil, true)
		pass(11 * time.Second)
		f.server.ResetJournal()
		pass(5 * time.Minute)
		f.wantCalls("")
		f.wantPhase(PhaseGateClosed)
		if len(f.told.failed) > 0 || len(f.told.errs) != 1 || !strings.Contains(f.told.errs[0].Error(), "no answer within 2.5s") {
			t.Errorf("a closed gate is no error, and one that does not answer is one: %v %v", f.told.failed, f.told.errs)
		}
	})
}

// A node with a closed gate does not fail: the failure after that is a new one.
func TestAClosedGateEndsFailures(t *testing.T) {
	var closed atomic.Bool
	bubble(t, func(f *fixture, cfg *Config) {
		cfg.Gate = func(context.Context, string) error {
			if closed.Load() {
				return errors.New("unwell")
			}
			return nil
		}
	}, func(f *fixture) {
		f.server.Inject(apitest.Fault{Err: apitest.ErrConnRefused})
		f.start()
		for range 3 {
			pass(time.Minute)
			closed.Store(true)
			pass(time.Minute)
			if s := f.status(); s.Phase != PhaseGateClosed || s.Failures != 0 || s.LastError != nil {
				t.Errorf("status is %+v", s)
			}
			closed.Store(false)
		}
		if n := len(f.told.errs); n != 3 {
			t.Errorf("%d errors were reported, want one before each time", n)
		}
	})
}

func TestShutdownPolicies(t *testing.T) {
	for _, test := range []struct {
		name   string
		policy ShutdownPolicy
		before func(*fixture)
		after  func(*fixture, *coordinationv1.Lease)
		want   string // calls at shutdown
	}{
		{"Leave", ShutdownLeave, nil, wantHolder(nodeName), ""},
		{"Delete", ShutdownDelete, nil, wantNone, "DELETE"},
		{"Expire", ShutdownExpire, nil, func(f *fixture, l *coordinationv1.Lease) {
			if l.Spec.HolderIdentity != nil || *l.Spec.LeaseDurationSeconds != 1 || len(l.OwnerReferences) != 1 {
				f.Errorf("lease is %+v", l)
			}
			if renewed := f.status().LastRenewal; !l.Spec.RenewTime.Equal(ptr.To(metav1.NewMicroTime(renewed.Truncate(time.Microsecond)))) {
				f.Errorf("renewTime %v is not that of the last renewal, %v", l.Spec.RenewTime, renewed)
			}
		}, "PUT"},
		{"DeleteLabelled", ShutdownDelete, func(f *fixture) {
			f.editLease(func(l *coordinationv1.Lease) { l.Labels = map[string]string{"a": "b"} })
		}, wantNone, "DELETE GET DELETE"},
		{"DeleteForeign", ShutdownDelete, func(f *fixture) { f.steal("other", 0) }, wantHolder("other"), "DELETE GET"},
		{"ExpireForeign", ShutdownExpire, func(f *fixture) { f.steal("other", 0) }, wantHolder("other"), "PUT GET"},
		{"DeleteOfASecondProcess", ShutdownDelete, func(f *fixture) { f.steal(nodeName, time.Second) }, wantHolder(nodeName), "DELETE GET"},
		{"DeleteSuccessor", ShutdownDelete, func(f *fixture) {
			apitest.Remove[*coordinationv1.Lease](f.server, corev1.NamespaceNodeLease, nodeName)
			f.putLease(nodeName, time.Now(), nil)
		}, wantHolder(nodeName), "DELETE GET"},
		{"DeleteGone", ShutdownDelete, func(f *fixture) {
			apitest.Remove[*coordinationv1.Lease](f.server, corev1.NamespaceNodeLease, nodeName)
		}, wantNone, "DELETE"},
		{"ExpireGone", ShutdownExpire, func(f *fixture) {
			apitest.Remove[*coordinationv1.Lease](f.server, corev1.NamespaceNodeLease, nodeName)
		}, wantNone, "PUT GET"},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(_ *fixture, cfg *Config) { cfg.OnShutdown = test.policy }, func(f *fixture) {
				f.start()
				pass(15 * time.Second)
				if test.before != nil {
					test.before(f)
				}
				f.server.ResetJournal()
				f.stop()
				f.wantCalls(test.want)
				test.after(f, f.lease())
				if len(f.told.errs) > 0 {
					t.Errorf("reported %v", f.told.errs)
				}
			})
		})
	}
}

func wantHolder(holder string) func(*fixture, *coordinationv1.Lease) {
	return func(f *fixture, l *coordinationv1.Lease) {
		f.Helper()
		if l == nil || *l.Spec.HolderIdentity != holder {
			f.Errorf("lease is %+v, want one that %q holds", l, holder)
		}
	}
}

func wantNone(f *fixture, l *coordinationv1.Lease) {
	f.Helper()
	if l != nil {
		f.Errorf("lease is %+v, want none", l)
	}
}

// A write that was under way when Run ended is found and released too.
func TestWriteUnderWay(t *testing.T) {
	for when, match := range map[time.Duration]apitest.Match{13 * time.Second: puts, 5 * time.Second: posts} {
		bubble(t, func(_ *fixture, cfg *Config) { cfg.OnShutdown = ShutdownDelete }, func(f *fixture) {
			f.server.Inject(apitest.Fault{Match: match, HangResponse: true})
			f.start()
			pass(when)
			if n := len(f.server.Requests(match)); n != 1 {
				t.Fatalf("%d requests are under way, want 1", n)
			}
			f.stop()
			wantNone(f, f.lease())
		})
	}
}

// An API server that does not answer holds up the end for ShutdownTimeout.
func TestShutdownEndsWhileTheAPIServerHangs(t *testing.T) {
	bubble(t, func(_ *fixture, cfg *Config) { cfg.OnShutdown = ShutdownDelete }, func(f *fixture) {
		f.start()
		pass(time.Minute)
		f.server.Inject(apitest.Fault{Hang: true})
		begin := time.Now()
		f.cancel()
		if err := <-f.done; err != nil {
			t.Errorf("Run = %v", err)
		}
		f.cancel = nil
		if took := time.Since(begin); took != DefaultShutdownTimeout {
			t.Errorf("Run returned after %v, want %v", took, DefaultShutdownTimeout)
		}
		if len(f.told.errs) != 1 {
			t.Errorf("reported %v", f.told.errs)
		}
	})
}

func TestRemove(t *testing.T) {
	for policy, want := range map[ShutdownPolicy]string{ShutdownLeave: "", ShutdownDelete: "DELETE", ShutdownExpire: "PUT"} {
		t.Run(policy.String(), func(t *testing.T) {
			bubble(t, func(_ *fixture, cfg *Config) { cfg.OnShutdown = policy }, func(f *fixture) {
				f.start()
				pass(15 * time.Second)
				f.server.ResetJournal()
				f.controller.Remove(nodeName)
				f.controller.Remove(nodeName)
				if _, ok := f.controller.Status(nodeName); ok {
					t.Error("the node is served after Remove")
				}
				pass(time.Hour)
				f.wantCalls(want)
				if got := f.told.phases; !slices.Equal(got, []Phase{PhaseHeld, PhaseStopped}) {
					t.Errorf("the hook was told %v", got)
				}
				if err := f.controller.Check(nil); err != nil {
					t.Errorf("Check without nodes: %v", err)
				}
				if err := f.controller.Add(nodeName); err != nil {
					t.Fatal(err)
				}
				if err := f.controller.Check(nil); err != nil {
					t.Errorf("Check after Add: %v", err)
				}
				pass(time.Second)
				f.wantPhase(PhaseHeld)
			})
		})
	}
}

// Added again while its release is still to come, or under way, or refused.
func TestRemoveAndAdd(t *testing.T) {
	for _, latency := range []time.Duration{0, time.Second} {
		bubble(t, func(_ *fixture, cfg *Config) { cfg.OnShutdown = ShutdownDelete }, func(f *fixture) {
			f.server.Inject(apitest.Fault{Latency: latency})
			f.start()
			pass(15 * time.Second)
			for _, wait := range []time.Duration{0, latency / 2, latency, 3 * latency} {
				f.controller.Remove(nodeName)
				pass(wait)
				if err := f.controller.Add(nodeName); err != nil {
					t.Fatal(err)
				}
				pass(15 * time.Second)
				f.wantPhase(PhaseHeld)
				if f.lease() == nil {
					t.Error("there is no lease")
				}
			}
			f.server.ResetJournal()
			pass(10 * time.Minute)
			if n := len(f.server.Requests(apitest.Match{})); n != 60 {
				t.Errorf("%d requests in 60 intervals", n)
			}
			f.cancel() // the release of the lease takes its time
			<-f.done
			f.cancel = nil
		})
	}
}

// Run that ends while the lease of a removed node is being released begins that
// again under ShutdownTimeout.
func TestRemoveJustBeforeTheEnd(t *testing.T) {
	for _, policy := range []ShutdownPolicy{ShutdownDelete, ShutdownExpire} {
		bubble(t, func(_ *fixture, cfg *Config) { cfg.OnShutdown = policy }, func(f *fixture) {
			f.start()
			pass(15 * time.Second)
			f.server.Inject(apitest.Fault{Latency: time.Second})
			f.controller.Remove(nodeName)
			pass(500 * time.Millisecond)
			f.cancel()
			if err := <-f.done; err != nil {
				t.Errorf("Run = %v", err)
			}
			f.cancel = nil
			if lease := f.lease(); lease != nil && ptr.Deref(lease.Spec.HolderIdentity, "") != "" {
				t.Errorf("%v: the lease is still held: %v", policy, lease.Spec)
			}
			if len(f.told.errs) != 0 {
				t.Errorf("%v: told of %v", policy, f.told.errs)
			}
		})
	}
}

// TestTheLeaseOfAnotherProcessIsNotReleased: the first process was cut off, and the
// times of its lost writes span the renewals of the second one. Its end gave up their
// lease.
func TestTheLeaseOfAnotherProcessIsNotReleased(t *testing.T) {
	step := time.Second
	if testing.Short() {
		step *= 4
	}
	for _, policy := range []ShutdownPolicy{ShutdownExpire, ShutdownDelete} {
		for offset := 20 * time.Second; offset < 60*time.Second; offset += step {
			t.Run(fmt.Sprint(policy, " ", offset), func(t *testing.T) {
				cable := newCut()
				bubble(t, func(f *fixture, cfg *Config) {
					cfg.Process, cfg.OnShutdown = "host-1", policy
					config := f.server.Config(apitest.NodeUser(nodeName))
					config.Wrap(cable.wrap)
					cfg.Client = kubernetes.NewForConfigOrDie(config).CoordinationV1()
				}, func(f *fixture) {
					f.start()
					second, stop := f.process("host-2", func(cfg *Config) {
						cfg.Client = f.server.Client(apitest.NodeUser(nodeName)).CoordinationV1()
					})
					defer stop()
					pass(95 * time.Second)
					cable.cut()
					for !holds(second) {
						pass(100 * time.Millisecond)
					}
					pass(offset)
					f.cancel()
					cable.mend()
					<-f.done
					f.cancel = nil
					if l := f.lease(); l == nil || l.Spec.HolderIdentity == nil || !holds(second) {
						t.Errorf("the lease is %+v", l)
					}
				})
			})
		}
	}
}
