// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// Defects that this package has had itself, in its handling of a provider. Those of
// the other side are in regression_api_test.go.

// A bending provider changes what another one says.
type bending struct {
	podsync.Provider
	stop func(*podsync.State)
	list func([]podsync.State) []podsync.State
}

func (p bending) Stop(ctx context.Context, ref podsync.Ref, opts podsync.StopOptions) (podsync.State, error) {
	st, err := p.Provider.Stop(ctx, ref, opts)
	if p.stop != nil {
		p.stop(&st)
	}
	return st, err
}

func (p bending) List(ctx context.Context) ([]podsync.State, error) {
	states, err := p.Provider.List(ctx)
	if p.list != nil {
		states = p.list(states)
	}
	return states, err
}

// anonymous hides the UIDs.
func anonymous(states []podsync.State) []podsync.State {
	for i := range states {
		states[i].UID = ""
	}
	return states
}

// A Stop that says no more than that the pod has stopped took away the exit
// codes that had just been reported.
func TestStateWithoutStatusKeepsTheLastReport(t *testing.T) {
	bubble(t, podsynctest.Options{Forgets: true}, func(w *world) {
		w.wrap = func(p *podsynctest.Provider) podsync.Provider {
			return bending{Provider: p, stop: func(st *podsync.State) { st.Status = corev1.PodStatus{} }}
		}
		w.run()
		pod := w.bind(newPod("a", restart(corev1.RestartPolicyNever)))
		pass(time.Second)
		w.backend.Exit(pod.UID, 0)
		w.c.Report(w.backend.Held()[0])
		synctest.Wait()
		got := w.expectPhase("a", corev1.PodSucceeded)
		if end := got.Status.ContainerStatuses[0].State.Terminated; end == nil || end.Reason != "Completed" {
			t.Errorf("its container: %+v", got.Status.ContainerStatuses[0].State)
		}
	})
}

// A report that was not stored yet kept all states of the List that it came with.
func TestAReportThatIsKeptDoesNotKeepTheWholeList(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.bind(newPod("a"))
		w.bind(newPod("b"))
		pass(5 * time.Second)
		w.server.Inject(apitest.Fault{Match: patches, Hang: true})
		list := w.backend.Held()
		list[0].Status.Message = "changed" // so it waits for a write
		rest := weak.Make(&list[1])
		w.c.ListWith(listed(list))
		list = nil
		pass(time.Second)
		runtime.GC()
		if rest.Value() != nil {
			t.Error("the List is still in memory")
		}
		if got := w.pod("a").Status.Message + w.pod("b").Status.Message; got != "" {
			t.Errorf("the report was stored: %q", got)
		}
	})
}

// Times that mean no limit overflow a time.Duration: they came out negative,
// and the pod was killed at once, or called for without a pause.
func TestTimesBeyondADuration(t *testing.T) {
	for _, seconds := range []int64{10_000_000_000, math.MaxInt64 / 2, math.MaxInt64} {
		t.Run(fmt.Sprint("grace of ", seconds, " s"), func(t *testing.T) {
			bubble(t, podsynctest.Options{StopTime: time.Hour}, func(w *world) {
				w.run()
				w.bind(newPod("a", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &seconds }))
				w.server.ResetJournal()
				apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) {
					p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now().Add(time.Hour)}, &seconds
				})
				pass(59 * time.Minute)
				calls := w.backend.Calls(podsync.OpStop)
				if len(calls) != 1 || calls[0].Grace < 50*365*24*time.Hour {
					t.Fatalf("calls of Stop: %+v", calls)
				}
				pass(2 * time.Minute)
				w.expectGone("a")
			})
		})
	}
	t.Run("delay of a provider", func(t *testing.T) {
		bubble(t, podsynctest.Options{}, func(w *world) {
			w.run()
			w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Err: podsync.RetryAfter(errDown, math.MaxInt64), Times: 50})
			w.bind(newPod("a"))
			pass(24 * time.Hour)
			w.expectCalls("start a")
		})
	})
	t.Run("Relist", func(t *testing.T) {
		bubble(t, podsynctest.Options{StopTime: time.Hour}, func(w *world) {
			var lists atomic.Int32
			w.cfg.Relist, w.cfg.PendingAfter = math.MaxInt64, math.MaxInt64
			w.wrap = func(p *podsynctest.Provider) podsync.Provider {
				return bending{Provider: p, list: func(s []podsync.State) []podsync.State {
					if lists.Add(1) > 50 {
						time.Sleep(time.Hour) // or the test would not end
					}
					return s
				}}
			}
			w.run()
			w.bind(newPod("a"))
			w.kubectlDelete("a", 3000)
			pass(2 * time.Hour)
			if n := lists.Load(); n != 1 {
				t.Errorf("%d calls of List", n)
			}
			if n := len(w.backend.Calls(podsync.OpStop)); n != 2 { // and once after the grace period
				t.Errorf("%d calls of Stop", n)
			}
		})
	})
	t.Run("startTime", func(t *testing.T) {
		bubble(t, podsynctest.Options{}, func(w *world) {
			w.run()
			w.bind(newPod("a", func(p *corev1.Pod) {
				p.Spec.ActiveDeadlineSeconds = new(int64(math.MaxInt32))
				p.Status.StartTime = &metav1.Time{Time: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}
			}))
			pass(time.Minute)
			w.expectPhase("a", corev1.PodRunning)
		})
	})
}

// A generation that the pod never had was written as observed, and no update
// was handed over any more. It is that of before a restore, or a mistake.
func TestGenerationOfTheFuture(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.wrap = func(p *podsynctest.Provider) podsync.Provider {
			return struct {
				bending
				podsync.Updater
			}{bending{Provider: p, list: func(states []podsync.State) []podsync.State {
				for i := range states {
					states[i].Generation = 99
				}
				return states
			}}, p}
		}
		pod := w.bind(newPod("a"))
		w.backend.Plant(pod)
		w.run()
		pass(time.Minute)
		if got := w.expectPhase("a", corev1.PodRunning); got.Status.ObservedGeneration != got.Generation {
			t.Errorf("it has observed %d of %d", got.Status.ObservedGeneration, got.Generation)
		}
		apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "registry.example/app:2" })
		pass(time.Second)
		w.expectCalls("update a", "update a") // nothing is known of the first one
	})
}

// Of a backend that keeps no UIDs a List had an instance of the name, and since
// two pods had the name it was taken for neither's: the old pod counted as
// stopped, and the new one started beside it.
func TestAmbiguousNameIsNotAbsence(t *testing.T) {
	bubble(t, podsynctest.Options{StopTime: time.Hour, Forgets: true}, func(w *world) {
		w.cfg.Relist = 100 * time.Millisecond
		w.wrap = func(p *podsynctest.Provider) podsync.Provider { return bending{Provider: p, list: anonymous} }
		w.run()
		old := w.bind(newPod("a"))
		pass(time.Second)
		w.kubectlDelete("a", 0)
		next := w.bind(newPod("a"))
		pass(900 * time.Millisecond)
		if !w.backend.Running(old.UID) || w.backend.Running(next.UID) {
			t.Errorf("the old one runs: %v, the new one: %v", w.backend.Running(old.UID), w.backend.Running(next.UID))
		}
		pass(time.Second)
		if w.backend.Running(old.UID) || !w.backend.Running(next.UID) {
			t.Errorf("the old one runs: %v, the new one: %v", w.backend.Running(old.UID), w.backend.Running(next.UID))
		}
	})
}

// And as long as the old one could not be released, the new one was lost again
// and again.
func TestAmbiguousNameIsNotLost(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.wrap = func(p *podsynctest.Provider) podsync.Provider {
			return struct {
				bending
				podsync.Releaser
			}{bending{Provider: p, list: anonymous}, p}
		}
		w.run()
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpRelease, Err: errDown})
		w.bind(newPod("a"))
		pass(time.Second)
		w.kubectlDelete("a", 0)
		w.bind(newPod("a"))
		pass(time.Minute)
		w.backend.ResetCalls()
		pass(time.Hour)
		if got := w.expectPhase("a", corev1.PodRunning); got.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("it was restarted: %+v", got.Status.ContainerStatuses[0])
		}
		if n := len(w.backend.Calls(podsync.OpStart)); n > 0 {
			t.Errorf("%d calls of Start", n)
		}
	})
}

// If a provider is no Releaser and lists its ended pods without limit, each of them
// was stopped as an orphan, over and over.
func TestStoppedPodsThatStayListedCostNothing(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.wrap = simple
		w.run()
		w.bind(newPod("a"))
		w.kubectlDelete("a", -1)
		pass(10 * time.Minute)
		w.expectGone("a")
		w.server.ResetJournal()
		w.backend.ResetCalls()
		pass(24 * time.Hour)
		w.expectCalls()
		w.expectRequests(0, 0, 0)
		if n := w.known(); n > 1 {
			t.Errorf("%d pods known", n)
		}
	})
}

// The ways back that the comment of Stage names, and no others.
func TestStagesGoBack(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.cfg.Relist = 10 * time.Second
		var back []string
		w.cfg.Hooks.StageChanged = func(s podsync.StageChanged) {
			if s.To < s.From {
				back = append(back, fmt.Sprint(s.From, " to ", s.To))
			}
		}
		w.run()
		lost := w.bind(newPod("lost"))
		ended := w.bind(newPod("ended", restart(corev1.RestartPolicyNever)))
		pass(time.Second)
		w.backend.Lose(lost.UID)
		pass(time.Minute)
		w.backend.Finish(ended.UID, 1)
		pass(time.Second)
		apitest.Edit(w.server, "default", "ended", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
		pass(time.Minute)
		w.backend.Lose(ended.UID)
		w.backend.Plant(ended)
		pass(time.Minute)
		if want := []string{"Running to Starting", "Released to Stopped", "Released to Terminating"}; !slices.Equal(back, want) {
			t.Errorf("%q, want %q", back, want)
		}
		if w.backend.Running(ended.UID) {
			t.Error("a pod that its provider brought back to life runs")
		}
	})
}

// What a provider says of a pod that the informer has not shown yet, because the API is away, is
// often its exit code, and nothing else may remember it.
func TestAnExitCodeThatIsReportedBeforeThePodIsSeen(t *testing.T) {
	for name, tc := range map[string]struct{ nameless, checkpoint bool }{
		"by UID":                     {},
		"by name":                    {nameless: true},
		"by UID, with a checkpoint":  {checkpoint: true},
		"by name, with a checkpoint": {nameless: true, checkpoint: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				w.wrap = func(p *podsynctest.Provider) podsync.Provider {
					if tc.nameless {
						return bending{Provider: simple(p), list: anonymous}
					}
					return simple(p)
				}
				w.cfg.Relist = 10 * time.Second
				if tc.checkpoint {
					w.cfg.Checkpoint = &records{all: map[types.UID][]byte{}}
				}
				w.run()
				pod := w.bind(newPod("job", restart(corev1.RestartPolicyNever)))
				pass(time.Minute)
				w.expectPhase("job", corev1.PodRunning)
				w.crash()
				back := w.away(apitest.Fault{Err: apitest.ErrConnRefused})
				w.backend.ResetCalls()
				w.start()
				st := w.exitAndForget(pod)
				if tc.nameless {
					st.UID = ""
				}
				w.c.Report(st)
				pass(time.Minute)
				back()
				pass(3 * time.Minute)
				w.expectPhase("job", corev1.PodSucceeded)
				if n := w.callsOf(podsync.OpStart); n != 0 {
					t.Errorf("%d calls of Start", n)
				}
			})
		})
	}
}

// exitAndForget ends the only instance of the backend, which keeps nothing of it. It returns the
// last state.
func (w *world) exitAndForget(pod *corev1.Pod) podsync.State {
	w.backend.Exit(pod.UID, 0)
	defer w.backend.Lose(pod.UID)
	return w.backend.Held()[0]
}

// An instance may end, and the provider may forget it, before its pod is seen. It must not start
// again.
func TestTheExitCodeOfAForgottenOrphanIsKept(t *testing.T) {
	for name, end := range map[string]func(b *podsynctest.Backend, uid types.UID, code int32) bool{
		"exits": (*podsynctest.Backend).Exit, "stops": (*podsynctest.Backend).Finish,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				w.wrap = simple
				w.cfg.Relist = 10 * time.Second
				w.run()
				fresh := w.server.LagWatches(watches, time.Hour)
				pod := w.bind(newPod("job", restart(corev1.RestartPolicyNever)))
				w.backend.Plant(pod)
				end(w.backend, pod.UID, 0)
				pass(12 * time.Second) // a List shows it
				w.backend.Lose(pod.UID)
				pass(12 * time.Second) // and the next one does not
				fresh()
				pass(time.Minute)
				w.expectPhase("job", corev1.PodSucceeded)
				if n := w.callsOf(podsync.OpStart); n != 0 {
					t.Errorf("%d calls of Start", n)
				}
			})
		})
	}
}

// A report without a UID says nothing of a pod that is new.
func TestANewPodDoesNotTakeTheReportOfAnEarlierOne(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.wrap = simple
		w.run()
		w.c.Report(podsync.State{Ref: podsync.Ref{Namespace: "default", Name: "a"}, Stopped: true})
		w.bind(newPod("a"))
		pass(time.Minute)
		w.expectPhase("a", corev1.PodRunning)
		if len(w.dropped) != 1 || w.dropped[0].Reason != podsync.DroppedAmbiguous {
			t.Errorf("dropped: %+v", w.dropped)
		}
	})
}

// watchWith is a provider with another Watch.
type watchWith struct {
	*podsynctest.Provider
	watch func() error
}

func (p watchWith) Watch(context.Context, func(podsync.State)) error { return p.watch() }

// A report that a stopped pod runs counts for nothing, and a hook says so.
func TestAReportAfterTheEndIsDropped(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		pod := w.bind(newPod("job", restart(corev1.RestartPolicyNever)))
		pass(time.Minute)
		w.backend.Finish(pod.UID, 0)
		pass(time.Minute)
		w.expectPhase("job", corev1.PodSucceeded)
		w.c.Report(podsync.State{Ref: podsync.RefOf(pod), Status: corev1.PodStatus{Phase: corev1.PodRunning}})
		pass(time.Minute)
		w.expectPhase("job", corev1.PodSucceeded)
		if len(w.dropped) != 1 || w.dropped[0].Reason != podsync.DroppedAfterStop || w.dropped[0].Ref.UID != pod.UID {
			t.Errorf("dropped: %+v", w.dropped)
		}
	})
}

// A handing provider keeps the context of Start, as one that starts a goroutine with it does.
type handing struct {
	podsync.Provider
	ctx context.Context
}

func (p *handing) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	p.ctx = ctx
	return p.Provider.Start(ctx, pod)
}

// What was kept for the context of a call would otherwise be kept until Run returns.
func TestTheContextOfACallEndsWithIt(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		p := &handing{}
		w.wrap = func(inner *podsynctest.Provider) podsync.Provider { p.Provider = simple(inner); return p }
		w.run()
		w.bind(newPod("a"))
		pass(time.Second)
		w.expectPhase("a", corev1.PodRunning)
		if p.ctx.Err() == nil {
			t.Error("the context of Start is not done")
		}
	})
}

// A late provider needs three seconds for Stop, whatever its context says.
type late struct{ podsync.Provider }

func (p late) Stop(ctx context.Context, ref podsync.Ref, opts podsync.StopOptions) (podsync.State, error) {
	time.Sleep(3 * time.Second)
	return p.Provider.Stop(context.WithoutCancel(ctx), ref, opts)
}

// What a call returns while Run returns is stored.
func TestShutdownStoresWhatALateCallReturns(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.wrap = func(p *podsynctest.Provider) podsync.Provider { return late{simple(p)} }
		w.run()
		w.bind(newPod("a"))
		pass(time.Minute)
		w.kubectlDelete("a", -1)
		pass(time.Second)
		w.stop()
		w.expectGone("a")
	})
}
