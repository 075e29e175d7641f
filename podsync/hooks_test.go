// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/reference"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// recorder keeps events as text.
type recorder struct {
	t      *testing.T
	mu     sync.Mutex
	events []string
}

func (r *recorder) Eventf(regarding, _ runtime.Object, eventtype, reason, action, note string, args ...any) {
	ref, err := reference.GetReference(scheme.Scheme, regarding)
	if err != nil || ref.Kind != "Pod" || ref.UID == "" {
		r.t.Errorf("event about %v: %v", ref, err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf("%s %s %s %s: %s", ref.Name, eventtype, reason, action, fmt.Sprintf(note, args...)))
}

func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

func TestEvents(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		r := &recorder{t: t}
		w.cfg.EventRecorder = r
		w.cfg.Relist = 10 * time.Second
		w.run()
		expect := func(what string, want ...string) {
			t.Helper()
			if got := r.take(); !slices.Equal(got, want) {
				t.Errorf("%s:\n got  %q\n want %q", what, got, want)
			}
		}
		w.bind(newPod("a"))
		pass(time.Hour)
		w.kubectlDelete("a", -1)
		pass(time.Minute)
		expect("a pod without trouble")

		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Err: errDown, Times: 5})
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStop, Err: errDown, Times: 5})
		pod := w.bind(newPod("a"))
		pass(time.Hour)
		expect("failing starts", "a Warning FailedStart Starting: the backend is down")
		if err := w.c.Evict(podsync.RefOf(pod), podsync.Eviction{Message: "out of memory"}); err != nil {
			t.Fatal(err)
		}
		pass(time.Hour)
		expect("eviction with failing stops", "a Warning Evicted Stopping: out of memory", "a Warning FailedStop Stopping: the backend is down")
		apitest.Remove[*corev1.Pod](w.server, "default", "a")

		w.bind(newPod("late", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(1)) }))
		pass(2 * time.Second)
		expect("deadline", "late Warning DeadlineExceeded Stopping: the pod was active for longer than spec.activeDeadlineSeconds")

		pod = w.bind(newPod("lost", restart(corev1.RestartPolicyNever)))
		w.backend.Lose(pod.UID)
		pass(time.Minute)
		expect("loss", "lost Warning Lost SyncingStatus: the provider no longer holds the pod")

		w.provider.OnAdmit(func(context.Context, *corev1.Pod, iter.Seq[*corev1.Pod]) error {
			return podsync.Reject("NoGPU", "there is none")
		})
		w.bind(newPod("rejected"))
		pass(time.Second)
		expect("rejection", "rejected Warning NoGPU Admitting: there is none")

		w.plant(1)
		pass(time.Minute)
		expect("orphan", "orphan0 Warning OrphanRemoved Stopping: the API server has no such pod; its instance is being stopped")
	})
}

// A hook that does not return stops the loop, which has nothing to do for hours at other times.
func TestCheckSaysThatAHookDoesNotReturn(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		returns := make(chan struct{})
		w.cfg.Hooks.StageChanged = func(podsync.StageChanged) { <-returns }
		w.cfg.Relist = 24 * time.Hour
		w.blocked = true
		w.run()
		expect := func(when string, stuck bool) {
			t.Helper()
			if err := w.c.Check(nil); (err != nil) != stuck {
				t.Errorf("%s: %v", when, err)
			}
		}
		pass(12 * time.Hour)
		expect("idle", false)
		w.bind(newPod("a"))
		pass(time.Minute)
		expect("after a minute", false)
		pass(2 * time.Minute)
		expect("after three minutes", true)
		close(returns)
		pass(time.Second)
		expect("after it", false)
	})
}

// With a complete List the first one that leaves out a pod decides that it is lost.
func TestALossThatTheFirstListShowsIsAnEvent(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		r := &recorder{t: t}
		w.cfg.EventRecorder = r
		w.cfg.Policy.CompleteList = true
		w.run()
		pod := w.bind(newPod("a", restart(corev1.RestartPolicyNever)))
		pass(time.Minute)
		w.crash()
		w.backend.Lose(pod.UID)
		w.run()
		if got, want := r.take(), []string{"a Warning Lost SyncingStatus: the provider no longer holds the pod"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestHooks(t *testing.T) {
	bubble(t, podsynctest.Options{StopTime: time.Second}, func(w *world) {
		var (
			mu  sync.Mutex
			got []string
		)
		add := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, fmt.Sprintf(format, args...))
		}
		w.cfg.Hooks = podsync.Hooks{
			ProviderCall: func(c podsync.ProviderCall) {
				if c.Op != podsync.OpList {
					add("%s %v %v", c.Op, c.Latency, c.Err)
				}
			},
			APICall:      func(c podsync.APICall) { add("%s %v %v", c.Op, c.Latency, c.Err) },
			StatusStored: func(s podsync.StatusStored) { add("stored after %v", s.Lag) },
			StageChanged: func(s podsync.StageChanged) {
				if s.Forgotten {
					add("forgotten at %v", s.To)
				} else {
					add("%v to %v", s.From, s.To)
				}
				for range w.c.All() { // a hook may call every method
				}
			},
		}
		w.server.Inject(apitest.Fault{Match: patches, Latency: 5 * time.Millisecond})
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Delay: 3 * time.Millisecond})
		w.run()
		w.bind(newPod("a"))
		pass(time.Minute)
		w.kubectlDelete("a", -1)
		pass(time.Minute)
		slices.Sort(got) // calls of one moment come from several goroutines
		want := []string{
			"admit 0s <nil>", "start 3ms <nil>", "stop 0s <nil>", "release 0s <nil>",
			"patch 5ms <nil>", "patch 5ms <nil>", "delete 0s <nil>", "watch 0s <nil>",
			"stored after 5ms", "stored after 5ms",
			"Unsynced to Waiting", "Waiting to Starting", "Starting to Running", "Running to Terminating",
			"Terminating to Stopped", "Stopped to Final", "Final to Released", "forgotten at Released",
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("hooks:\n got  %q\n want %q", got, want)
		}
	})
}

// One controller runs the pods of many nodes.
func TestManyNodes(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.cfg.Informer = w.informer("", nil)
		w.cfg.Owns = func(p *corev1.Pod) bool { return p.Spec.NodeName != "" && p.Spec.NodeName != "foreign" }
		w.admin = true
		w.run()
		for i := range 20 {
			name := fmt.Sprint("node", i)
			w.server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
			w.server.Put(newPod(name, func(p *corev1.Pod) { p.Spec.NodeName = name }))
		}
		w.bind(newPod("foreign", func(p *corev1.Pod) { p.Spec.NodeName = "foreign" }))
		unbound := w.bind(newPod("unbound", func(p *corev1.Pod) { p.Spec.NodeName = "" }))
		pass(time.Minute)
		for i := range 20 {
			w.expectPhase(fmt.Sprint("node", i), corev1.PodRunning)
		}
		w.expectPhase("foreign", corev1.PodPending)
		if w.known() != 20 {
			t.Errorf("%d pods known", w.known())
		}
		apitest.Edit(w.server, "default", "unbound", func(p *corev1.Pod) { p.Spec.NodeName = "node1" })
		pass(time.Second)
		if !w.backend.Running(unbound.UID) {
			t.Error("a pod that was bound later does not run")
		}
	})
}
