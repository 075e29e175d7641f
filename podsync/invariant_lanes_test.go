// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// The invariants of calls, their times and their number. The backend
// checks them in every test, and TestSoak everything that can be seen
// from outside in every order of events.

var errDown = errors.New("the backend is down")

func bubble(t *testing.T, opts podsynctest.Options, test func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newWorld(t, opts)) })
}

func TestOneCallAndOneWriteAtATime(t *testing.T) {
	bubble(t, podsynctest.Options{StopTime: 3 * time.Second}, func(w *world) {
		w.backend.Inject(podsynctest.Fault{Delay: 700 * time.Millisecond})
		w.server.Inject(apitest.Fault{Match: patches, Latency: 900 * time.Millisecond})
		w.run2(2 * time.Second)
		pod := w.bind(newPod("a"))
		for i := range 40 {
			pass(300 * time.Millisecond)
			w.backend.Edit(pod.UID, func(s *corev1.PodStatus) { s.Message = fmt.Sprint(i) })
			apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { p.Spec.Containers[0].Image = fmt.Sprint("i:", i) })
		}
		w.kubectlDelete("a", -1)
		pass(time.Minute)
		w.expectGone("a")
		var last time.Time
		for _, r := range w.server.Requests(apitest.Match{User: nodeUser, Name: "a"}) {
			if r.Time.Before(last) {
				t.Errorf("%v began during the one before", r)
			}
			last = r.Time.Add(r.Duration)
		}
	})
}

func TestNeverStartedAfterItsEnd(t *testing.T) {
	for _, end := range []string{"deleted", "evicted", "failed by somebody", "deleted before the process came", "failed before the process came"} {
		t.Run(end, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				// Every Start fails, so that it is being retried when the end comes.
				w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Err: errDown})
				pod := w.bind(newPod("a"))
				fail := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
				wantStarts := 0
				switch end {
				case "deleted before the process came":
					w.kubectlDelete("a", -1)
					w.run()
				case "failed before the process came":
					apitest.Edit(w.server, "default", "a", fail)
					w.run()
				default:
					w.run()
					pass(10 * time.Second)
					wantStarts = len(w.backend.Calls(podsync.OpStart))
				}
				switch end {
				case "deleted":
					w.kubectlDelete("a", -1)
				case "evicted":
					if err := w.c.Evict(podsync.RefOf(pod), podsync.Eviction{}); err != nil {
						t.Fatal(err)
					}
				case "failed by somebody":
					apitest.Edit(w.server, "default", "a", fail)
				}
				pass(time.Hour)
				if n := len(w.backend.Calls(podsync.OpStart)); n != wantStarts {
					t.Errorf("%d calls of Start, want %d", n, wantStarts)
				}
			})
		})
	}
}

func TestOneInstanceOfAName(t *testing.T) {
	bubble(t, podsynctest.Options{StopTime: 20 * time.Second}, func(w *world) {
		w.run()
		old := w.bind(newPod("a"))
		pass(time.Second)
		w.kubectlDelete("a", 0)
		next := w.bind(newPod("a"))
		pass(500 * time.Millisecond)
		if w.backend.Running(next.UID) || !w.backend.Running(old.UID) || w.stage(next.UID) != "Waiting" {
			t.Errorf("the next pod is %s while the old one stops", w.stage(next.UID))
		}
		pass(time.Second) // the grace period of a forced deletion is a second
		if !w.backend.Running(next.UID) || w.backend.Running(old.UID) {
			t.Errorf("the next pod is %s", w.stage(next.UID))
		}
		pass(time.Second)
		w.expectPhase("a", corev1.PodRunning)
	})
}

func TestStoppedUntilItHasStopped(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		// The answer of Start is lost, so that podsync does not know whether it runs.
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, ErrAfter: errDown})
		heal := w.backend.Inject(podsynctest.Fault{Op: podsync.OpStop, Err: errDown})
		w.run()
		pod := w.bind(newPod("a"))
		w.kubectlDelete("a", -1)
		pass(3 * time.Hour)
		if !w.backend.Running(pod.UID) {
			t.Fatal("it should still run")
		}
		if n := len(w.backend.Calls(podsync.OpStop)); n < 30 || n > 100 {
			t.Errorf("%d calls of Stop in three hours", n)
		}
		w.expectPhase("a", corev1.PodRunning) // as the backend has reported
		heal()
		pass(6 * time.Minute)
		w.expectGone("a")
		if w.backend.Running(pod.UID) {
			t.Error("it runs")
		}
	})
}

func TestSpontaneousEndIsReleasedWithTheObject(t *testing.T) {
	for _, wrap := range []func(*podsynctest.Provider) podsync.Provider{simple, releasing} {
		_, releases := wrap(nil).(podsync.Releaser)
		bubble(t, podsynctest.Options{Forgets: !releases}, func(w *world) {
			w.wrap = wrap
			w.run()
			pod := w.bind(newPod("a"))
			w.backend.Finish(pod.UID, 0)
			pass(time.Hour)
			w.expectPhase("a", corev1.PodSucceeded)
			if len(w.backend.Held()) != 1 {
				t.Error("its logs went before the object")
			}
			apitest.Remove[*corev1.Pod](w.server, "default", "a")
			pass(time.Minute)
			if w.known() != 0 {
				t.Errorf("it is %s", w.stage(pod.UID))
			}
			if releases {
				w.expectCalls("start a", "release a")
			} else {
				w.expectCalls("start a", "stop a 1s Completed")
			}
		})
	}
}

func TestOneStuckCallDelaysNobody(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.cfg.MaxCalls = 20
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Name: "stuck-start", HangOn: true})
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStop, Name: "stuck-stop", HangOn: true})
		w.run()
		w.bind(newPod("stuck-start"))
		w.bind(newPod("stuck-stop"))
		w.kubectlDelete("stuck-stop", -1)
		w.kubectlDelete("stuck-start", -1)
		for i := range 50 {
			name := fmt.Sprint("p", i)
			pod := w.bind(newPod(name))
			w.expectPhase(name, corev1.PodRunning)
			w.backend.Edit(pod.UID, func(s *corev1.PodStatus) { s.Message = "still here" })
			synctest.Wait()
			if w.pod(name).Status.Message != "still here" {
				t.Errorf("the status of %s waits", name)
			}
			w.kubectlDelete(name, -1)
			w.expectGone(name)
		}
		if d := time.Since(w.began); d != 0 {
			t.Errorf("it took %v", d)
		}
		w.provider.Crash() // or Run would wait for them
	})
}

// A call that does not return is told once. One that takes long, but less, is not.
func TestACallThatDoesNotReturnIsTold(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		log := w.logs()
		r := &recorder{t: t}
		w.cfg.EventRecorder = r
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Name: "hangs", HangOn: true})
		pulled := w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Name: "pulls", HangOn: true})
		w.run()
		w.bind(newPod("hangs"))
		w.bind(newPod("pulls"))
		pass(5*time.Minute - time.Second)
		pulled()
		synctest.Wait()
		w.expectPhase("pulls", corev1.PodRunning)
		if got := r.take(); len(got) != 0 {
			t.Errorf("events before five minutes: %q", got)
		}
		pass(time.Hour)
		w.kubectlDelete("hangs", 30)
		pass(time.Hour)
		want := []string{"hangs Warning SlowCall Starting: start has not returned for 5m0s"}
		if got := r.take(); !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
		w.provider.Crash()
		w.stop()
		if n := strings.Count(log.String(), "A call of the provider has not returned"); n != 1 {
			t.Errorf("%d lines, want one:\n%s", n, log.String())
		}
	})
}

func TestFreshEventEndsBackoff(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		heal := w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Err: errDown})
		w.run()
		w.bind(newPod("a"))
		w.bind(newPod("b"))
		pass(time.Hour) // the delay is minutes by now
		heal()
		before := time.Now()
		apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "other" })
		synctest.Wait()
		w.expectPhase("a", corev1.PodRunning)
		w.kubectlDelete("b", -1)
		w.expectGone("b")
		if d := time.Since(before); d != 0 {
			t.Errorf("it took %v", d)
		}
	})
}

func TestNothingBeforeAllIsKnown(t *testing.T) {
	for _, unknown := range []string{"API", "provider"} {
		t.Run(unknown, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				w.bind(newPod("a"))
				gone := newPod("gone")
				gone.UID = "gone"
				w.backend.Plant(gone)
				var heal func()
				if unknown == "API" {
					heal = w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser, Verb: "list,watch"}, Status: statuserr.Unavailable(0)})
				} else {
					heal = w.backend.Inject(podsynctest.Fault{Op: podsync.OpList, Err: errDown})
				}
				w.start()
				w.c.Report(podsync.State{Ref: podsync.RefOf(gone), Stopped: true})
				pass(time.Hour)
				select {
				case <-w.c.Ready().Done():
					t.Error("ready")
				default:
				}
				w.expectCalls()
				w.expectRequests(0, 0, 0)
				heal()
				pass(time.Minute)
				w.expectPhase("a", corev1.PodRunning)
			})
		})
	}
}

func TestGraceNeverGrows(t *testing.T) {
	bubble(t, podsynctest.Options{StopTime: time.Hour}, func(w *world) {
		w.run()
		pod := w.bind(newPod("a"))
		w.kubectlDelete("a", 60)
		pass(10 * time.Second)
		w.kubectlDelete("a", 5)
		if err := w.c.Evict(podsync.RefOf(pod), podsync.Eviction{Grace: time.Hour}); err != nil {
			t.Fatal(err)
		}
		pass(4 * time.Second)
		w.expectPhase("a", corev1.PodRunning)
		pass(time.Second)
		w.expectGone("a")
		w.expectCalls("start a", "stop a 1m0s Deleted", "stop a 5s Deleted", "release a")
	})
}

func TestStuckStopIsToldOfLessGrace(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStop, Hang: true, Times: 1})
		w.run()
		w.bind(newPod("a"))
		w.kubectlDelete("a", 600)
		pass(time.Minute)
		w.kubectlDelete("a", 5)
		w.expectGone("a")
		w.expectCalls("start a", "stop a 10m0s Deleted", "stop a 5s Deleted", "release a")
	})
}
