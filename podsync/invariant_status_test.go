// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"encoding/json"
	"fmt"
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

// The invariants of writes to the API.

func TestTerminalThenDeleteForTheUID(t *testing.T) {
	bubble(t, podsynctest.Options{StopTime: 10 * time.Second, ExitCode: 3}, func(w *world) {
		w.run()
		pod := w.bind(newPod("a"))
		w.kubectlDelete("a", -1)
		pass(time.Minute)
		var order []string
		for _, r := range w.server.Requests(apitest.Match{User: nodeUser, Name: "a"}) {
			order = append(order, r.Verb)
			if r.Verb != "delete" {
				continue
			}
			obj, err := r.Object()
			opts, ok := obj.(*metav1.DeleteOptions)
			if err != nil || !ok || opts.Preconditions == nil || *opts.Preconditions.UID != pod.UID || *opts.GracePeriodSeconds != 0 {
				t.Errorf("DELETE with %+v, %v", obj, err)
			}
		}
		if fmt.Sprint(order) != "[patch patch delete]" {
			t.Errorf("%v", order)
		}
		last := w.patched("a")[1]["status"].(map[string]any)
		if last["phase"] != "Failed" {
			t.Errorf("the last status is %v", last)
		}
	})
}

func TestTerminalPhaseStays(t *testing.T) {
	// Another client fails the pod while our watch is behind and the provider
	// says that it runs.
	bubble(t, podsynctest.Options{StartTime: 10 * time.Second}, func(w *world) {
		w.run()
		pod := w.bind(newPod("a"))
		pass(5 * time.Second)
		defer w.server.LagWatches(watches, time.Minute)()
		apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason = corev1.PodFailed, "PodGC"
		})
		for range 20 {
			pass(time.Second)
			if got := w.pod("a").Status; got.Phase != corev1.PodFailed || got.Reason != "PodGC" {
				t.Fatalf("%s %s", got.Phase, got.Reason)
			}
		}
		if w.backend.Running(pod.UID) {
			t.Error("a pod with a terminal phase runs")
		}
	})
}

func TestNoSuccessWithoutExitCode(t *testing.T) {
	bubble(t, podsynctest.Options{Forgets: true}, func(w *world) {
		w.wrap = simple
		w.run()
		for _, name := range []string{"deleted", "lost"} {
			pod := w.bind(newPod(name, restart(corev1.RestartPolicyNever), func(p *corev1.Pod) { p.Finalizers = []string{"example.com/hold"} }))
			pass(time.Minute)
			w.backend.Lose(pod.UID)
		}
		w.kubectlDelete("deleted", -1)
		pass(time.Minute)
		for _, name := range []string{"deleted", "lost"} {
			got := w.expectPhase(name, corev1.PodFailed)
			end := got.Status.ContainerStatuses[0].State.Terminated
			if end == nil || end.ExitCode != 137 || end.Reason != "ContainerStatusUnknown" {
				t.Errorf("%s ended with %+v", name, end)
			}
		}
	})
}

func TestOnlyOurStatusIsWritten(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		foreign := corev1.PodCondition{Type: "example.com/theirs", Status: "Unknown", Reason: "R", Message: "M", LastTransitionTime: metav1.Now()}
		pod := w.bind(newPod("a", func(p *corev1.Pod) {
			p.Labels, p.Annotations = map[string]string{"l": "1"}, map[string]string{"a": "1"}
			p.Finalizers = []string{"example.com/hold"}
			p.Status.Conditions = append(p.Status.Conditions, foreign)
			p.Status.NominatedNodeName, p.Status.QOSClass = "other", corev1.PodQOSBestEffort
		}))
		w.backend.Edit(pod.UID, func(s *corev1.PodStatus) {
			s.QOSClass, s.NominatedNodeName = corev1.PodQOSGuaranteed, "mine"
			s.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: "False"}, {Type: "example.com/mine", Status: "True"}}
		})
		pass(time.Minute)
		apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { p.Labels["l"] = "2" })
		w.backend.Exit(pod.UID, 1)
		w.kubectlDelete("a", -1)
		pass(time.Minute)
		for _, body := range w.patched("a") {
			meta := body["metadata"].(map[string]any)
			delete(meta, "uid")
			delete(meta, "resourceVersion")
			if len(body) != 2 || len(meta) != 0 {
				t.Errorf("%v", body)
			}
		}
		got := w.pod("a")
		before, _ := json.Marshal(foreign)
		after, _ := json.Marshal(condition(got, foreign.Type))
		if string(before) != string(after) {
			t.Errorf("their condition was %s and is %s", before, after)
		}
		if c := condition(got, corev1.PodScheduled); c.Status != "True" || got.Status.NominatedNodeName != "other" || got.Status.QOSClass != corev1.PodQOSBestEffort || got.Labels["l"] != "2" {
			t.Errorf("%+v", got)
		}
		if c := condition(got, "example.com/mine"); c == nil {
			t.Error("the provider's own condition is not there")
		}
	})
}

func TestFiveHundredUpdatesAreObservedInOrder(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpUpdate, Delay: 7 * time.Millisecond})
		w.run()
		w.bind(newPod("a"))
		var last int64
		for i := range 500 {
			got := apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { p.Spec.Containers[0].Image = fmt.Sprint("i:", i) })
			pass(3 * time.Millisecond)
			accepted := int64(1)
			for _, c := range w.backend.Calls(podsync.OpUpdate) {
				if !c.End.IsZero() {
					accepted = c.Generation
				}
			}
			observed := w.pod("a").Status.ObservedGeneration
			if observed < last || observed > accepted || observed > got.Generation {
				t.Fatalf("observed %d after %d, with %d accepted of %d", observed, last, accepted, got.Generation)
			}
			last = observed
		}
		pass(time.Second)
		got := w.pod("a")
		if got.Generation != 501 || got.Status.ObservedGeneration != 501 || condition(got, corev1.PodReady).ObservedGeneration != 501 {
			t.Errorf("observed %d of %d", got.Status.ObservedGeneration, got.Generation)
		}
		calls := w.backend.Calls(podsync.OpUpdate)
		if calls[len(calls)-1].Generation != 501 {
			t.Errorf("the last update was to %d", calls[len(calls)-1].Generation)
		}
	})
}

func TestReportsAreNotLost(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		// Before the pod is seen.
		fresh := w.server.LagWatches(watches, 30*time.Second)
		pod := w.bind(newPod("a"))
		w.backend.Plant(pod)
		w.backend.Edit(pod.UID, func(s *corev1.PodStatus) { s.Message = "early" })
		pass(40 * time.Second)
		fresh()
		if got := w.pod("a").Status.Message; got != "early" {
			t.Errorf("the message is %q", got)
		}
		// During an outage of the API, the newest counts.
		heal := w.server.Inject(apitest.Fault{Match: patches, Status: statuserr.Unavailable(0)})
		for i := range 500 {
			w.backend.Edit(pod.UID, func(s *corev1.PodStatus) { s.Message = fmt.Sprint(i) })
			pass(10 * time.Second)
		}
		heal()
		pass(5 * time.Minute)
		if got := w.pod("a").Status.Message; got != "499" {
			t.Errorf("the message is %q", got)
		}
	})
}

func TestNothingOfThePredecessor(t *testing.T) {
	bubble(t, podsynctest.Options{StopTime: 5 * time.Second, ExitCode: 7}, func(w *world) {
		w.run()
		old := w.bind(newPod("a"))
		heal := w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser, Verb: "patch,delete"}, Latency: 4 * time.Second})
		w.kubectlDelete("a", -1)
		pass(6 * time.Second) // the final status of the old one is on its way
		apitest.Remove[*corev1.Pod](w.server, "default", "a")
		next := w.bind(newPod("a"))
		w.c.Report(podsync.State{Ref: podsync.RefOf(old), Stopped: true, Status: corev1.PodStatus{Message: "old"}})
		pass(time.Minute)
		heal()
		got := w.expectPhase("a", corev1.PodRunning)
		if got.UID != next.UID || got.Status.Message == "old" || !w.backend.Running(next.UID) {
			t.Errorf("%+v", got.Status)
		}
		for _, c := range w.backend.Calls(podsync.OpStop) {
			if c.Ref.UID == next.UID {
				t.Error("the next pod was stopped")
			}
		}
	})
}

func TestNothingIsWrittenWhileNothingChanges(t *testing.T) {
	quiet := 24 * time.Hour
	if testing.Short() {
		quiet = 2 * time.Hour
	}
	for name, wrap := range map[string]func(*podsynctest.Provider) podsync.Provider{"simple": simple, "full": full} {
		t.Run(name, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				w.wrap = wrap
				w.run()
				for i := range 50 {
					pod := w.bind(newPod(fmt.Sprint("p", i), restart(corev1.RestartPolicyNever)))
					if i%5 == 0 {
						w.backend.Exit(pod.UID, 0)
					}
				}
				pass(time.Minute)
				w.server.ResetJournal()
				w.backend.ResetCalls()
				pass(quiet)
				for _, pod := range apitest.List[*corev1.Pod](w.server, "default") {
					w.backend.Repeat(pod.UID) // says nothing new
				}
				w.server.BreakWatches(watches)
				pass(time.Hour)
				w.expectRequests(0, 0, 0)
				w.expectCalls()
				// Nor does the next process write anything.
				w.stop()
				w.run()
				pass(time.Hour)
				w.expectRequests(0, 0, 0)
				w.expectCalls()
			})
		})
	}
}

func TestFinalizersCostOneDelete(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.bind(newPod("a", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/hold"} }))
		w.kubectlDelete("a", -1)
		pass(24 * time.Hour)
		w.expectPhase("a", corev1.PodSucceeded)
		w.expectRequests(2, 1, 0)
		w.stop()
		w.run()
		pass(24 * time.Hour)
		w.expectRequests(2, 1, 0)
		apitest.Remove[*corev1.Pod](w.server, "default", "a")
		synctest.Wait()
		if w.known() != 0 {
			t.Error("it is not forgotten")
		}
	})
}
