// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// Defects that this package has had itself, in its handling of an API server and
// its cache.

// A pod of another node that the provider lists, and that was left alone at
// first, was run from the first change of it on.
func TestForeignPodStaysForeignWhenItChanges(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.cfg.Informer = w.informer("", nil)
		w.cfg.NodeName = node
		w.server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
		w.backend.Plant(w.bind(newPod("a", func(p *corev1.Pod) { p.Spec.NodeName = "n2" })))
		w.run()
		for range 10 {
			pass(time.Minute)
			apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { p.Labels = map[string]string{"at": time.Now().String()} })
		}
		apitest.Remove[*corev1.Pod](w.server, "default", "a")
		pass(0)
		w.expectCalls() // it is an orphan now, and the next List must verify it
		w.expectRequests(0, 0, 0)
	})
}

// A DELETE that was answered with "no such pod" was repeated for as long as the
// watch lagged.
func TestNothingFollowsADeletionOfNothing(t *testing.T) {
	bubble(t, podsynctest.Options{StopTime: 2 * time.Second}, func(w *world) {
		w.run()
		w.bind(newPod("a"))
		pass(time.Minute)
		w.server.ResetJournal()
		w.kubectlDelete("a", -1)
		fresh := w.server.LagWatches(watches, 24*time.Hour)
		pass(10 * time.Hour)
		// The DELETE that counts, and two questions whether the pod is still there, because one
		// "no such pod" proves nothing.
		w.expectRequests(1, 1, 2)
		fresh()
		pass(25 * time.Hour)
		if n := w.c.Kept(); n != 0 {
			t.Errorf("%d entries are kept", n)
		}
	})
}

// The exit code of a pod that ended while the process was ending was lost if another
// client had written the pod in the meantime.
func TestConflictDuringShutdown(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		pod := w.bind(newPod("a", restart(corev1.RestartPolicyNever)))
		pass(time.Second)
		w.server.LagWatches(watches, time.Hour)
		apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} })
		w.server.Inject(apitest.Fault{Match: patches, Latency: time.Second})
		w.backend.Finish(pod.UID, 0)
		pass(500 * time.Millisecond)
		begin := time.Now()
		w.stop()
		if took := time.Since(begin); took > 3*time.Second {
			t.Errorf("Run took %v to return", took)
		}
		w.expectPhase("a", corev1.PodSucceeded)
	})
}

// Writes that shutdown cuts short were reported as errors.
func TestShutdownIsNoError(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.server.Inject(apitest.Fault{Match: patches, Latency: 5 * time.Second})
		w.bind(newPod("a"))
		pass(time.Second)
		w.stop()
		if told := w.told(); len(told) > 0 {
			t.Errorf("errors %q", told)
		}
	})
}

// The list with which a process begins may have been that of an API server
// that is behind: it shows pods that are gone for long, and they were started
// (k/k #59848).
func TestFirstListIsNotOld(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.server = apitest.New(apitest.Options{Gates: map[apitest.Gate]bool{apitest.WatchList: false}})
		w.server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
		w.run()
		lists := w.server.Requests(apitest.Match{Verb: "list", Resource: "pods"})
		if len(lists) == 0 {
			t.Fatal("no list")
		}
		for _, r := range lists {
			if strings.Contains(r.Query, "resourceVersion=0") {
				t.Errorf("%s may be answered from any state of the past", r.Query)
			}
		}
	})
}

// A proxy that does not know the path says "not found", too. By the second time a
// pod whose status it was asked to write was taken for gone, and killed.
func TestNotFoundOfAProxyIsNoPodGone(t *testing.T) {
	page := func(apitest.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{"Content-Type": {"text/plain"}}, Body: io.NopCloser(strings.NewReader("404 page not found"))}, nil
	}
	for name, fault := range map[string]apitest.Fault{
		"a page":                {Answer: page},
		"a status of no object": {Status: statuserr.New(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")},
	} {
		for _, admin := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", admin: ", admin), func(t *testing.T) {
				bubble(t, podsynctest.Options{}, func(w *world) {
					w.admin = admin
					w.run()
					pod, deleted := w.bind(newPod("a")), w.bind(newPod("b"))
					pass(time.Second)
					remove := w.server.Inject(fault)
					w.backend.Edit(pod.UID, func(s *corev1.PodStatus) { s.Message = "hello" })
					pass(time.Hour)
					if !w.backend.Running(pod.UID) {
						t.Error("it was killed")
					}
					remove()
					pass(10 * time.Minute)
					if got := w.expectPhase("a", corev1.PodRunning); got.Status.Message != "hello" {
						t.Errorf("its message is %q", got.Status.Message)
					}
					fault := fault
					fault.Match = apitest.Match{Verb: "delete", Func: func(r apitest.Request) bool { return strings.Contains(string(r.Body), string(deleted.UID)) }}
					remove = w.server.Inject(fault)
					w.kubectlDelete("b", -1)
					pass(time.Minute)
					remove()
					pass(10 * time.Minute)
					w.expectGone("b")
				})
			})
		}
	}
}

// empty is an answer that can be decoded and has nothing in it.
func empty(kind string) func(apitest.Request) (*http.Response, error) {
	return func(apitest.Request) (*http.Response, error) {
		body := strings.NewReader(`{"kind":"` + kind + `","apiVersion":"v1"}`)
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(body)}, nil
	}
}

// An answer that is no pod, but can be decoded, was taken for the pod: one without
// a spec, with which Update of the provider was called.
func TestEmptyAnswerToAPatch(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		remove := w.server.Inject(apitest.Fault{Match: patches, Answer: empty("Pod")})
		pod := w.bind(newPod("a"))
		pass(time.Hour)
		if n := len(w.server.Requests(patches)); n > 40 {
			t.Errorf("%d PATCH in an hour", n)
		}
		remove()
		pass(10 * time.Minute)
		w.expectPhase("a", corev1.PodRunning)
		w.expectCalls("start a")
		w.kubectlDelete("a", -1)
		pass(time.Minute)
		w.expectGone("a")
		if w.backend.Running(pod.UID) {
			t.Error("it runs")
		}
	})
}

// Or for an empty list, and every pod was stopped.
func TestEmptyAnswerIsNoEmptyList(t *testing.T) {
	for _, refuse := range []bool{false, true} {
		bubble(t, podsynctest.Options{}, func(w *world) {
			w.server = apitest.New(apitest.Options{Gates: map[apitest.Gate]bool{apitest.WatchList: !refuse}})
			w.server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
			w.run()
			pod := w.bind(newPod("a"))
			pass(time.Minute)
			remove := w.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "list,watch", Resource: "pods"}, Answer: empty("PodList")})
			w.server.Compact()
			w.server.ExpireWatches(watches)
			pass(time.Hour)
			if !w.backend.Running(pod.UID) {
				t.Errorf("it was stopped, without lists by watch: %v", refuse)
			}
			remove()
			pass(time.Hour)
			w.kubectlDelete("a", -1)
			pass(time.Minute)
			w.expectGone("a")
		})
	}
}

// A status whose answer was lost was computed once more from the version before
// it: the start time, and the times of the conditions, moved.
func TestLostAnswerMovesNoTimes(t *testing.T) {
	bubble(t, podsynctest.Options{StartTime: time.Hour}, func(w *world) {
		w.run()
		w.server.Inject(apitest.Fault{Match: patches, LoseResponse: true, Times: 1})
		w.bind(newPod("a"))
		w.server.LagWatches(watches, 10*time.Minute)
		pass(time.Second)
		stored := w.pod("a").Status
		if stored.StartTime == nil || !stored.StartTime.Time.Equal(time.Now()) {
			t.Fatalf("its start time is %v", stored.StartTime)
		}
		pass(5 * time.Minute)
		now := w.pod("a")
		if !now.Status.StartTime.Equal(stored.StartTime) {
			t.Errorf("its start time was %v and is %v", stored.StartTime, now.Status.StartTime)
		}
		for _, c := range stored.Conditions {
			if got := condition(now, c.Type); !got.LastTransitionTime.Equal(&c.LastTransitionTime) {
				t.Errorf("%s changed at %v, and now at %v", c.Type, c.LastTransitionTime, got.LastTransitionTime)
			}
		}
		w.expectRequests(1, 0, 1)
	})
}
