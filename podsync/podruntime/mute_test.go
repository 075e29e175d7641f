// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime_test

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/podsync/podruntime"
)

// setMute makes the runtime not know a pod, or know it again.
func (m *machine) setMute(pod types.UID, list, boxes bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mute, m.muteList, m.muteBoxes = pod, list, boxes
}

// TestAPodThatTheRuntimeDoesNotKnowConcernsItselfOnly: nothing is decided about the pod, and nothing
// is said that was not seen. The other pods go on, also in the next process.
func TestAPodThatTheRuntimeDoesNotKnowConcernsItselfOnly(t *testing.T) {
	for name, mute := range map[string]struct{ list, boxes bool }{
		"its containers": {list: true}, "its sandbox": {boxes: true}, "nothing of it": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorldWith(t, func(w *world) { w.boxed = true }, func(w *world) {
				mutePod, other := podOf(corev1.RestartPolicyAlways, command("app", "exit 3 1h")), podOf(corev1.RestartPolicyAlways, command("app", "exit 3 1h"))
				other.UID, other.Name = "uid-2", "other"
				a, b := w.start(mutePod), w.start(other)
				before := w.state(a)
				w.setMute(a.UID, mute.list, mute.boxes)
				time.Sleep(time.Hour + time.Minute)
				if after := w.state(a); !apiequality.Semantic.DeepEqual(before, after) {
					t.Errorf("it was %+v, and is %+v", before, after)
				}
				if c := w.container(b, "app"); c.RestartCount != 1 || c.State.Running == nil {
					t.Errorf("the other pod: %+v", c)
				}

				w.shutdown()
				w.boot()
				ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
				defer cancel()
				if all, err := w.p.List(ctx); err != nil || len(all) != 2 {
					t.Fatalf("the next process lists %+v, %v", all, err)
				}
				if s := w.state(a); s.Stopped || s.Generation != 1 || !apiequality.Semantic.DeepEqual(s.Status, corev1.PodStatus{}) {
					t.Errorf("in the next process: %+v", s)
				}
				if c := w.container(b, "app"); c.RestartCount != 1 || c.State.Running == nil {
					t.Errorf("the other pod in the next process: %+v", c)
				}
				w.stop(b, time.Second)
				w.stop(a, time.Second)
				time.Sleep(time.Minute)
				if s := w.state(b); !s.Stopped {
					t.Errorf("the other pod has not stopped: %+v", s)
				}
				if s := w.state(a); s.Stopped {
					t.Error("it has stopped, and nobody has seen that")
				}

				w.setMute("", false, false)
				time.Sleep(5 * time.Second)
				if s := w.state(a); !s.Stopped || s.Status.ContainerStatuses[0].State.Terminated == nil || s.Status.ContainerStatuses[0].State.Terminated.ExitCode != 3 {
					t.Errorf("after the runtime knows it again: %+v", s)
				}
			})
		})
	}
}

// TestAStrayThatTheRuntimeDoesNotKnowStays: it is removed when its containers are known.
func TestAStrayThatTheRuntimeDoesNotKnowStays(t *testing.T) {
	inWorldWith(t, func(w *world) { w.boxed = true }, func(w *world) {
		stray := podOf(corev1.RestartPolicyAlways, command("app", "forever"))
		spec := podruntime.ContainerSpec{ID: podruntime.ContainerID{Pod: stray.UID, Name: "app"}}
		spec.Environment.Command = []string{"forever"}
		if err := w.memory.Start(w.Context(), spec); err != nil {
			t.Fatal(err)
		}
		w.setMute(stray.UID, true, false)
		time.Sleep(10 * time.Minute)
		w.expect()
		w.setMute("", false, false)
		time.Sleep(10 * time.Minute)
		if left, err := w.memory.List(w.Context(), stray.UID); err != nil || len(left) > 0 {
			t.Errorf("%v is left, %v", left, err)
		}
	})
}

func TestAListErrorNamesItsPods(t *testing.T) {
	cause := errors.New("the shim hangs")
	err := error(&podruntime.ListError{Pods: map[types.UID]error{"b": cause, "a": errors.New("no answer")}})
	if got, want := err.Error(), "pod a: no answer; pod b: the shim hangs"; got != want || !errors.Is(err, cause) {
		t.Errorf("%q, want %q with the cause", got, want)
	}
}
