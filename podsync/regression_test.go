// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// Defects of virtual-kubelet's first pod controller and of kwok, and traps that the
// kubelet avoids, each a test that fails with it.

// Failed pods were created again even if they had succeeded.
func TestEndedPodsStayEnded(t *testing.T) {
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		bubble(t, podsynctest.Options{}, func(w *world) {
			for _, policy := range []corev1.RestartPolicy{corev1.RestartPolicyNever, corev1.RestartPolicyAlways} {
				w.bind(newPod("a-"+string(policy[0]+32), restart(policy), func(p *corev1.Pod) { p.Status.Phase = phase }))
			}
			w.run()
			pass(time.Hour)
			w.expectCalls()
			w.expectRequests(0, 0, 0)
		})
	}
}

// An error of a look-up was taken for absence: a second instance, or one
// that was never stopped.
func TestLookupErrorIsNotAbsence(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.cfg.Relist = 10 * time.Second
		w.run()
		pod := w.bind(newPod("a"))
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpInspect, Err: errDown})
		heal := w.backend.Inject(podsynctest.Fault{Op: podsync.OpList, Err: errDown})
		pass(time.Hour)
		heal()
		pass(time.Hour)
		w.expectCalls("start a")
		w.kubectlDelete("a", -1)
		pass(time.Second)
		if w.backend.Running(pod.UID) {
			t.Error("it was never stopped")
		}
	})
}

// After 20 failures a pod was forgotten.
func TestRetriesNeverEnd(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Err: errDown, Times: 100})
		w.bind(newPod("a"))
		pass(9 * time.Hour)
		w.expectPhase("a", corev1.PodRunning)
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStop, Err: errDown, Times: 100})
		w.kubectlDelete("a", -1)
		pass(9 * time.Hour)
		w.expectGone("a")
	})
}

// The delay that a provider asks for is kept.
func TestRetryAfterIsKept(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Err: podsync.RetryAfter(errDown, time.Hour), Times: 2})
		w.bind(newPod("a"))
		pass(2*time.Hour - time.Second)
		w.expectCalls("start a", "start a")
		pass(time.Second)
		w.expectPhase("a", corev1.PodRunning)
	})
}

// Of a thousand pods bound at once the last one waited for 90 seconds.
func TestABurstIsNotRateLimited(t *testing.T) {
	pods := 1000
	if testing.Short() {
		pods = 200
	}
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		for i := range pods {
			w.server.Put(newPod(fmt.Sprint("p", i)))
		}
		pass(0)
		calls := w.backend.Calls(podsync.OpStart)
		if len(calls) != pods || time.Since(w.began) != 0 {
			t.Errorf("%d calls of Start in %v", len(calls), time.Since(w.began))
		}
		w.expectPatches(pods)
	})
}

// Run returned while its workers went on.
func TestRunWaitsForItsCalls(t *testing.T) {
	for _, call := range []string{"Admit", "Watch"} {
		bubble(t, podsynctest.Options{}, func(w *world) {
			slow := make(chan struct{})
			if call == "Watch" {
				w.wrap = func(p *podsynctest.Provider) podsync.Provider {
					return watchWith{p, func() error {
						<-slow
						return nil
					}}
				}
			}
			w.run()
			if call == "Admit" {
				w.provider.OnAdmit(func(context.Context, *corev1.Pod, iter.Seq[*corev1.Pod]) error {
					<-slow
					return nil
				})
			}
			w.bind(newPod("a"))
			w.cancel()
			pass(time.Hour)
			select {
			case <-w.done:
				t.Errorf("Run has returned during a call of %s", call)
			default:
			}
			close(slow)
			<-w.done
		})
	}
}

// An informer that others use goes on after Run. It must not call Owns then.
func TestOwnsIsNotCalledAfterRun(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		calls := 0
		w.cfg.Informer = w.informer("", nil)
		w.cfg.Owns = func(*corev1.Pod) bool {
			calls++
			return true
		}
		w.run()
		w.bind(newPod("a"))
		w.stop()
		w.bind(newPod("b"))
		if calls != 1 {
			t.Errorf("Owns was called %d times", calls)
		}
	})
}

// Every other error than 429 and timeouts left the pod as it was.
func TestEveryAPIErrorIsRetried(t *testing.T) {
	faults := map[string]apitest.Fault{
		"409":   {Status: statuserr.New(http.StatusConflict, metav1.StatusReasonConflict, "changed")},
		"403":   {Status: statuserr.Forbidden("pods", "a", "by a webhook")},
		"400":   {Status: statuserr.New(http.StatusBadRequest, metav1.StatusReasonBadRequest, "<html>of a proxy</html>")},
		"422":   {Status: statuserr.New(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "ValidatingAdmissionPolicy denied request")},
		"500":   {Status: statuserr.InternalError("broken")},
		"reset": {Err: apitest.ErrConnReset},
		"EOF":   {Err: apitest.ErrEOF},
		"lost":  {LoseResponse: true},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				w.run()
				fault.Match, fault.Times = apitest.Match{User: nodeUser, Verb: "patch,delete"}, 15
				w.server.Inject(fault)
				w.bind(newPod("a"))
				pass(2 * time.Hour)
				w.expectPhase("a", corev1.PodRunning)
				w.kubectlDelete("a", -1)
				pass(2 * time.Hour)
				w.expectGone("a")
			})
		})
	}
}

// Pods were deleted without a terminal phase and before their time, and
// were made ready whatever their gates said.
func TestReadinessGatesOfOthersDecide(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.bind(newPod("a", func(p *corev1.Pod) {
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}}
		}))
		pass(time.Hour)
		if got := w.expectPhase("a", corev1.PodRunning); isReady(got) || condition(got, "example.com/gate") != nil {
			t.Error("ready without its gate")
		}
		// The gate flips and the provider has nothing to say.
		for _, status := range []corev1.ConditionStatus{"True", "False", "True"} {
			apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { setCondition(p, "example.com/gate", status) })
			synctest.Wait()
			if isReady(w.pod("a")) != (status == "True") {
				t.Errorf("Ready does not follow the gate to %s", status)
			}
		}
		w.expectPatches(4)
	})
}

// Statuses were written one after another.
func TestStatusesAreWrittenSideBySide(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.server.Inject(apitest.Fault{Match: patches, Latency: 20 * time.Millisecond})
		for i := range 96 {
			w.server.Put(newPod(fmt.Sprint("p", i)))
		}
		// 96 patches of 20 ms by 32 writers; one after another took 1.92 s.
		pass(96 / 32 * 20 * time.Millisecond)
		for i := range 96 {
			w.expectPhase(fmt.Sprint("p", i), corev1.PodRunning)
		}
	})
}

// Each transition waited for a poll.
func TestReportsAreWrittenAtOnce(t *testing.T) {
	bubble(t, podsynctest.Options{StartTime: 700 * time.Millisecond}, func(w *world) {
		w.run()
		w.bind(newPod("a"))
		pass(700 * time.Millisecond)
		w.expectPhase("a", corev1.PodRunning)
		w.expectPatches(1) // and Pending was not written before
	})
}

// Each idle pod had a goroutine.
func TestIdlePodsCostNoGoroutine(t *testing.T) {
	pods := 1000
	if testing.Short() {
		pods = 200
	}
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		before := runtime.NumGoroutine()
		for i := range pods {
			w.server.Put(newPod(fmt.Sprint("p", i)))
		}
		pass(time.Minute)
		if n := runtime.NumGoroutine() - before; n > 10 {
			t.Errorf("%d goroutines more for %d idle pods", n, pods)
		}
	})
}

// Rejected pods that were deleted while the kubelet was down stayed.
func TestRejectedPodDeletedAcrossARestart(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.provider.OnAdmit(func(context.Context, *corev1.Pod, iter.Seq[*corev1.Pod]) error {
			return podsync.Reject("OutOfcpu", "no CPU left")
		})
		w.bind(newPod("a", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/hold"} }))
		w.bind(newPod("b"))
		pass(time.Minute)
		for _, name := range []string{"a", "b"} {
			if got := w.expectPhase(name, corev1.PodFailed); got.Status.Reason != "OutOfcpu" || got.Status.Message != "Pod was rejected: no CPU left" {
				t.Errorf("%q %q", got.Status.Reason, got.Status.Message)
			}
		}
		w.expectCalls()
		w.stop()
		w.kubectlDelete("a", -1)
		w.kubectlDelete("b", -1)
		w.run()
		pass(time.Minute)
		w.expectGone("b")
		apitest.Remove[*corev1.Pod](w.server, "default", "a")
		pass(time.Minute)
		if w.known() != 0 {
			t.Error("a rejected pod is kept")
		}
	})
}

// A pod that had ended was started again under its UID.
func TestEndedUIDIsNotStartedAgain(t *testing.T) {
	bubble(t, podsynctest.Options{Forgets: true}, func(w *world) {
		w.wrap = simple
		w.run()
		pod := w.bind(newPod("a"))
		if err := w.c.Evict(podsync.RefOf(pod), podsync.Eviction{Message: "memory"}); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		got := w.expectPhase("a", corev1.PodFailed)
		if c := condition(got, corev1.DisruptionTarget); c == nil || c.Reason != corev1.PodReasonTerminationByKubelet || got.Status.Reason != "Evicted" {
			t.Errorf("evicted: %+v", got.Status)
		}
		// Another client writes it back to Running.
		apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
		pass(time.Hour)
		w.expectPhase("a", corev1.PodFailed)
		w.expectCalls("start a", "stop a 30s Evicted")
		if err := w.c.Evict(podsync.RefOf(pod), podsync.Eviction{}); err != podsync.ErrNotFound {
			t.Errorf("evicting it again: %v", err)
		}
	})
}

func TestAPodThatExceedsItsOwnLimitIsToBlame(t *testing.T) {
	bubble(t, podsynctest.Options{Forgets: true}, func(w *world) {
		w.wrap = simple
		w.run()
		pod := w.bind(newPod("a"))
		if err := w.c.Evict(podsync.RefOf(pod), podsync.Eviction{Message: "disk", OwnLimit: true}); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		got := w.expectPhase("a", corev1.PodFailed)
		if c := condition(got, corev1.DisruptionTarget); c != nil || got.Status.Reason != "Evicted" || got.Status.Message != "disk" {
			t.Errorf("evicted: %+v", got.Status)
		}
	})
}

// A pod rejected late lost the statuses of its containers.
func TestRejectionKeepsContainerStatuses(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, ErrAfter: errDown, Times: 3})
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Err: podsync.Reject("UnexpectedAdmissionError", "the device is gone")})
		w.bind(newPod("a"))
		pass(time.Minute)
		got := w.expectPhase("a", corev1.PodFailed)
		if len(got.Status.ContainerStatuses) != 1 || got.Status.ContainerStatuses[0].State.Terminated == nil ||
			got.Status.Reason != "UnexpectedAdmissionError" || got.Status.Message != "Pod was rejected: the device is gone" {
			t.Errorf("%+v", got.Status)
		}
		if calls := w.backend.Calls(podsync.OpStop); len(calls) != 1 || calls[0].Reason != podsync.StopRejected {
			t.Errorf("calls of Stop: %+v", calls)
		}
	})
}

// Two pods are not both given the last place.
func TestAdmissionIsOneAtATime(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.provider.OnAdmit(func(_ context.Context, pod *corev1.Pod, active iter.Seq[*corev1.Pod]) error {
			time.Sleep(10 * time.Millisecond)
			if len(slices.Collect(active)) >= 5 {
				return podsync.Reject("OutOfpods", "five are enough")
			}
			return nil
		})
		for i := range 20 {
			w.server.Put(newPod(fmt.Sprint("p", i), restart(corev1.RestartPolicyNever)))
		}
		pass(time.Minute)
		running := 0
		for _, pod := range apitest.List[*corev1.Pod](w.server, "default") {
			if pod.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		if running != 5 {
			t.Errorf("%d pods run in five places", running)
		}
	})
}
