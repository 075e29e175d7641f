// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

const jobKey = "example.com/job"

// says reports the pod as the backend has it, with annotations.
func (w *world) says(annotations map[string]string, edit ...func(*podsync.State)) {
	w.t.Helper()
	for _, st := range w.backend.Held() {
		st.Annotations = annotations
		for _, f := range edit {
			f(&st)
		}
		w.c.Report(st)
	}
	synctest.Wait()
}

// annotated is a provider whose Start returns annotations.
type annotated struct {
	*podsynctest.Provider
	with map[string]string
}

func (p annotated) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	st, err := p.Provider.Start(ctx, pod)
	st.Annotations = p.with
	return st, err
}

func TestAnnotationsOfAStateAreStoredWithTheStatus(t *testing.T) {
	bubble(t, podsynctest.Options{StartTime: time.Hour}, func(w *world) {
		w.wrap = func(p *podsynctest.Provider) podsync.Provider { return annotated{p, map[string]string{jobKey: "7"}} }
		w.run()
		w.bind(newPod("a", func(p *corev1.Pod) { p.Annotations = map[string]string{"other": "x"} }))
		if got := w.pod("a").Annotations; got[jobKey] != "7" || got["other"] != "x" {
			t.Errorf("annotations %v: they wait", got)
		}
		w.expectRequests(1, 0, 0)
		pass(time.Minute)
		w.server.ResetJournal()

		// Repeated, they cost nothing. Another client's change of one stays.
		apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { p.Annotations[jobKey] = "mine" })
		w.says(map[string]string{jobKey: "7"})
		pass(time.Minute)
		if got := w.pod("a").Annotations[jobKey]; got != "mine" {
			t.Errorf("another client's annotation became %q", got)
		}
		w.expectRequests(0, 0, 0)

		// A new value and a new key are written; one that is left out stays.
		w.says(map[string]string{jobKey: "8"})
		w.says(map[string]string{"example.com/b": "1"})
		if got := w.pod("a").Annotations; got[jobKey] != "8" || got["example.com/b"] != "1" {
			t.Errorf("annotations %v", got)
		}
		w.expectRequests(2, 0, 0)
		w.server.ResetJournal()

		// The next process reads that the API has them.
		w.crash()
		w.run()
		w.says(map[string]string{jobKey: "8"})
		pass(time.Minute)
		w.expectRequests(0, 0, 0)
	})
}

// Annotations that the API refuses must not keep the status from being written.
func TestInvalidAnnotationsAreDropped(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.server.Inject(apitest.Fault{
			Match: apitest.Match{Verb: "patch", Func: func(r apitest.Request) bool { return bytes.Contains(r.Body, []byte(`"annotations"`)) }},
			Status: apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", field.ErrorList{
				field.Invalid(field.NewPath("metadata", "annotations"), "not valid!", "must be a qualified name"),
			}),
		})
		w.wrap = func(p *podsynctest.Provider) podsync.Provider {
			return annotated{p, map[string]string{"not valid!": "7"}}
		}
		w.run()
		w.bind(newPod("a"))
		pass(time.Minute)
		w.expectPhase("a", corev1.PodRunning)
		if len(w.dropped) != 1 || w.dropped[0].Reason != podsync.DroppedInvalid {
			t.Errorf("dropped %v", w.dropped)
		}
		if n := len(w.server.Requests(patches)); n > 3 {
			t.Errorf("%d patches", n)
		}
	})
}

// An annotator stores a key before Start.
type annotator struct {
	*podsynctest.Provider
	annotate func(*corev1.Pod) (map[string]string, error)
	t        *testing.T
}

func (p annotator) Annotate(_ context.Context, pod *corev1.Pod) (map[string]string, error) {
	return p.annotate(pod)
}

func (p annotator) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	if pod.Annotations[jobKey] == "" {
		p.t.Errorf("%s starts without its key", pod.Name)
	}
	return p.Provider.Start(ctx, pod)
}

func TestAnAnnotatorsKeyIsStoredBeforeStart(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		calls := 0
		w.wrap = func(p *podsynctest.Provider) podsync.Provider {
			return annotator{p, func(pod *corev1.Pod) (map[string]string, error) {
				calls++
				switch {
				case pod.Name == "bad":
					return nil, podsync.Reject("NoQuota", "no place for it")
				case calls == 1:
					return nil, errors.New("the queue is full")
				case pod.Annotations[jobKey] != "":
					return map[string]string{jobKey: pod.Annotations[jobKey]}, nil
				}
				return map[string]string{jobKey: "7"}, nil
			}, t}
		}
		w.run()
		fail := w.server.Inject(apitest.Fault{Match: patches, Err: apitest.ErrConnRefused})
		w.bind(newPod("a"))
		pass(time.Minute)
		if n := w.callsOf(podsync.OpStart); n > 0 {
			t.Errorf("%d calls of Start before the key was stored", n)
		}
		if calls != 2 {
			t.Errorf("%d calls of Annotate, want 2: one failed", calls)
		}
		// The next process has nothing to store.
		fail()
		pass(time.Minute)
		w.expectPhase("a", corev1.PodRunning)
		w.bind(newPod("bad"))
		pass(time.Minute)
		if got := w.expectPhase("bad", corev1.PodFailed).Status.Reason; got != "NoQuota" {
			t.Errorf("reason %q", got)
		}
	})
}

func ownedBy(controller bool) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "r", Controller: &controller}}
	}
}

// A job that was removed in the backend takes its pod along, but only if a controller makes
// another one.
func TestAProviderDeletesPodsThatHaveAController(t *testing.T) {
	for name, tc := range map[string]struct {
		pod     *corev1.Pod
		stopped bool
		deleted bool
	}{
		"with a controller":              {newPod("a", ownedBy(true)), true, true},
		"with an owner, no controller":   {newPod("a", ownedBy(false)), true, false},
		"without an owner":               {newPod("a"), true, false},
		"with a controller, not stopped": {newPod("a", ownedBy(true)), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				w.run()
				pod := w.bind(tc.pod)
				pass(time.Minute)
				w.server.ResetJournal()
				if tc.stopped {
					w.backend.Finish(pod.UID, 137)
				}
				w.says(nil, func(st *podsync.State) { st.Delete = true })
				pass(time.Minute)
				switch {
				case tc.deleted:
					w.expectGone("a")
					w.expectRequests(1, 1, 0)
					if w.known() != 0 {
						t.Error("the pod is not forgotten")
					}
				case tc.stopped:
					w.expectPhase("a", corev1.PodFailed)
				default:
					w.expectPhase("a", corev1.PodRunning)
				}
			})
		})
	}
}
