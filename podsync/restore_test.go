// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// The API server is restored from a backup while a call is under way. The result of the call is
// about a generation that no longer exists, so the next one of the same number is handed over.
func TestARestoreDuringACall(t *testing.T) {
	for name, tc := range map[string]struct {
		op   podsync.Op
		fail error // what the call that is under way returns
	}{
		"Update":            {podsync.OpUpdate, nil},
		"Update is refused": {podsync.OpUpdate, podsync.Reject("Bad", "no such image")},
		"Start":             {podsync.OpStart, nil},
		"Start is rejected": {podsync.OpStart, podsync.Reject("Bad", "no such image")},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				w.run()
				image := func(tag string) {
					apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "registry.example/app:" + tag })
				}
				if tc.op == podsync.OpStart {
					w.backend.Inject(podsynctest.Fault{Op: tc.op, Err: errors.New("busy"), Times: 1})
				}
				w.bind(newPod("a"))
				pass(500 * time.Millisecond)
				restore := w.server.Backup()
				w.backend.Inject(podsynctest.Fault{Op: tc.op, Delay: 20 * time.Second, Err: tc.fail, Times: 1})
				image("2")
				pass(5 * time.Second)
				restore()
				pass(5 * time.Minute)
				for _, tag := range []string{"1", "3"} {
					if tag == "3" {
						image(tag)
						pass(5 * time.Minute)
					}
					p := w.expectPhase("a", corev1.PodRunning)
					calls := w.backend.Calls(podsync.OpUpdate)
					if p.Status.ObservedGeneration != p.Generation {
						t.Errorf("image %s: observed generation %d of %d", tag, p.Status.ObservedGeneration, p.Generation)
					}
					if n := map[string]int{"1": 1, "3": 2}[tag]; len(calls) < n && tc.fail == nil || tag == "3" && len(calls) == 0 {
						t.Errorf("image %s: Update was called %d times", tag, len(calls))
					}
				}
			})
		})
	}
}

// The API server is restored to before the deletion of a pod whose DELETE was sent, and the watch
// lags. The pod that lives again has the UID that the DELETE names: none is sent without a look.
func TestADeleteIsNotRepeatedAfterARestore(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.bind(newPod("a"))
		pass(5 * time.Second)
		restore := w.server.Backup()
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStop, Delay: 10 * time.Second, Times: 1})
		w.kubectlDelete("a", 30)
		pass(5 * time.Second)
		defer w.server.LagWatches(watches, 5*time.Minute)()
		pass(10 * time.Second)
		w.expectRequests(2, 1, 0)
		restore()
		pass(2 * time.Minute)
		w.expectRequests(3, 1, 1) // the end is written again
	})
}

// The API server is restored between the answer to the final status and the DELETE. The pod of the
// backup has not ended, and has the UID that the DELETE names: it stays until its end is stored again.
func TestTheFirstDeleteMeetsARestore(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.bind(newPod("a"))
		pass(5 * time.Second)
		restore := w.server.Backup()
		w.server.Inject(apitest.Fault{Match: deletes, Times: 1, Latency: 5 * time.Second})
		w.kubectlDelete("a", 30)
		pass(2 * time.Second)
		w.expectPhase("a", corev1.PodSucceeded)
		restore()
		pass(2 * time.Minute)
		w.expectPhase("a", corev1.PodSucceeded)
		w.expectRequests(3, 1, 1) // the end is written again, and nobody deletes the pod of the backup
	})
}

// Another client changes the pod before each DELETE arrives, and the watch lags. A DELETE that finds
// another version is repeated after a look, and after three of them any version is deleted.
func TestTheFirstDeleteMeetsAnotherClient(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.bind(newPod("a"))
		pass(5 * time.Second)
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStop, Delay: 10 * time.Second, Times: 1})
		w.kubectlDelete("a", 30)
		pass(5 * time.Second)
		defer w.server.LagWatches(watches, 5*time.Minute)()
		change := func(apitest.Request) {
			apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { p.Labels = map[string]string{"after": p.ResourceVersion} })
		}
		for _, match := range []apitest.Match{patches, gets} {
			w.server.Inject(apitest.Fault{Match: match, Served: change})
		}
		pass(20 * time.Second)
		w.expectGone("a")
		w.expectRequests(2, 4, 3)
		if told := w.told(); len(told) > 0 {
			t.Errorf("a lost race is reported: %q", told)
		}
	})
}

// A conflict with nobody, as of an API server that answers each write so, is reported.
func TestAConflictWithoutARivalIsReported(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.server.Inject(apitest.Fault{Match: patches, Status: statuserr.New(http.StatusConflict, metav1.StatusReasonConflict, "no")})
		w.bind(newPod("a"))
		pass(5 * time.Second)
		if told := w.told(); len(told) != 0 {
			t.Errorf("errors for the first conflicts: %q", told)
		}
		pass(5 * time.Minute)
		if told := w.told(); len(told) != 1 {
			t.Errorf("errors %q", told)
		}
	})
}
