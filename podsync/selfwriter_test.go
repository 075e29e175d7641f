// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// A selfWriter has no status of its pods until it has written one to the API itself. From then on
// it returns the status that it has read from there.
type selfWriter struct {
	podsync.Provider
	read sync.Map // of the name of a pod: its corev1.PodStatus
}

func (p *selfWriter) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	_, err := p.Provider.Start(ctx, pod)
	return podsync.State{}, err
}

func (p *selfWriter) List(ctx context.Context) ([]podsync.State, error) {
	states, err := p.Provider.List(ctx)
	for i := range states {
		status, _ := p.read.Load(states[i].Name)
		states[i].Status, _ = status.(corev1.PodStatus)
	}
	return states, err
}

// A status that the provider has written to the API itself is not overwritten with what the
// provider said before.
func TestAProviderThatWritesTheStatusItself(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		p := &selfWriter{}
		w.wrap = func(inner *podsynctest.Provider) podsync.Provider { p.Provider = simple(inner); return p }
		w.run()
		w.bind(newPod("a"))
		pass(30 * time.Second)
		written := apitest.Edit(w.server, "default", "a", func(pod *corev1.Pod) {
			pod.Status.Phase = corev1.PodRunning
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "of-my-own", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
			setCondition(pod, corev1.ContainersReady, corev1.ConditionTrue)
			setCondition(pod, corev1.PodReady, corev1.ConditionTrue)
		})
		pass(15 * time.Second) // List has no status of it yet
		if !isReady(w.pod("a")) {
			t.Error("overwritten by an older view")
		}
		p.read.Store("a", written.Status)
		pass(time.Minute)
		apitest.Edit(w.server, "default", "a", func(pod *corev1.Pod) { pod.Labels = map[string]string{"l": "1"} })
		pass(time.Hour)
		if !isReady(w.pod("a")) {
			t.Error("not ready after a label was changed")
		}
	})
}

// A List that was made just before costs no more than its gap.
func TestMarkedNotReadyIsRepairedWithinASecond(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.bind(newPod("a"))
		pass(time.Minute)
		for range 2 {
			apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { setCondition(p, corev1.PodReady, corev1.ConditionFalse) })
			pass(time.Second)
			if !isReady(w.pod("a")) {
				t.Error("not repaired")
			}
		}
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpList, Hang: true})
		apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { setCondition(p, corev1.PodReady, corev1.ConditionFalse) })
		synctest.Wait()
		pass(time.Minute)
		if isReady(w.pod("a")) {
			t.Error("repaired without a report that is newer")
		}
		w.c.Report(w.backend.Held()[0])
		if synctest.Wait(); !isReady(w.pod("a")) {
			t.Error("not repaired when the provider says the same again")
		}
	})
}

// A GET may show the status of another client before the watch does. A report from before the GET
// does not contradict it.
func TestAStatusThatAGetShowsIsNotOverwrittenByAnOlderReport(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		pod := w.bind(newPod("a"))
		pass(time.Minute)
		hangs := w.backend.Inject(podsynctest.Fault{Op: podsync.OpList, Hang: true})
		w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser, Verb: "list,watch"}, Err: apitest.ErrConnRefused})
		w.server.BreakWatches(watches)
		w.server.Inject(apitest.Fault{Match: patches, Err: apitest.ErrConnReset, Times: 1}) // it may be stored, so a GET comes next
		apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { setCondition(p, corev1.PodReady, corev1.ConditionFalse) })
		w.backend.Edit(pod.UID, func(st *corev1.PodStatus) { st.ContainerStatuses[0].RestartCount++ })
		pass(time.Minute)
		if got := w.pod("a"); isReady(got) || got.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("ready %v after %d restarts: written without a report that is newer", isReady(got), got.Status.ContainerStatuses[0].RestartCount)
		}
		hangs()
		pass(time.Minute)
		if got := w.pod("a"); !isReady(got) || got.Status.ContainerStatuses[0].RestartCount != 1 {
			t.Errorf("ready %v after %d restarts, with a report that is newer", isReady(got), got.Status.ContainerStatuses[0].RestartCount)
		}
	})
}
