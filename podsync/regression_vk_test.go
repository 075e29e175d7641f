// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// Defects of virtual-kubelet's pod controller, each a test that fails with it.

// A pod that is deleted and made again in a gap of the watch, with
// the same spec, comes as an update. The old instance was adopted as the new
// pod, and its status written to it.
func TestSameNameSameSpecAfterWatchGap(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		old := w.bind(newPod("a", restart(corev1.RestartPolicyNever)))
		pass(time.Minute)
		heal := w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser, Verb: "watch,list"}, Err: apitest.ErrConnRefused})
		w.server.BreakWatches(watches)
		w.server.Compact()
		apitest.Remove[*corev1.Pod](w.server, "default", "a")
		next := w.bind(newPod("a", restart(corev1.RestartPolicyNever)))
		w.backend.Exit(old.UID, 0)
		pass(time.Minute)
		if got := w.pod("a"); got.Status.Phase != corev1.PodPending {
			t.Errorf("the new pod is %s", got.Status.Phase)
		}
		heal()
		pass(2 * time.Minute)
		w.expectPhase("a", corev1.PodRunning)
		if w.backend.Running(old.UID) || !w.backend.Running(next.UID) {
			t.Error("the old instance runs in place of the new pod")
		}
	})
}

// Every pod that was deleted had succeeded, with exit code 0.
func TestKilledIsNotSucceeded(t *testing.T) {
	bubble(t, podsynctest.Options{ExitCode: 143}, func(w *world) {
		w.run()
		hold := func(p *corev1.Pod) { p.Finalizers = []string{"example.com/hold"} }
		w.bind(newPod("a", hold))
		w.kubectlDelete("a", -1)
		pass(time.Minute)
		got := w.expectPhase("a", corev1.PodFailed)
		if end := got.Status.ContainerStatuses[0].State; end.Terminated == nil || end.Terminated.ExitCode != 143 || end.Running != nil {
			t.Errorf("%+v", end)
		}
	})
}

// The object was deleted while the pod was being created, and when its
// grace period was over, whatever still ran.
func TestAPodIsNotReleasedWhileItRuns(t *testing.T) {
	for _, starting := range []bool{true, false} {
		bubble(t, podsynctest.Options{}, func(w *world) {
			w.run()
			if starting {
				w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, ErrAfter: errDown})
			}
			heal := w.backend.Inject(podsynctest.Fault{Op: podsync.OpStop, Hang: true})
			pod := w.bind(newPod("a"))
			w.kubectlDelete("a", 5)
			pass(24 * time.Hour)
			if w.pod("a") == nil || !w.backend.Running(pod.UID) {
				t.Error("released while it runs")
			}
			heal()
			pass(6 * time.Minute)
			w.expectGone("a")
		})
	}
}

// An error of the provider that passes made the pod Failed.
func TestTransientErrorIsNoEnd(t *testing.T) {
	for _, policy := range []corev1.RestartPolicy{corev1.RestartPolicyNever, corev1.RestartPolicyAlways} {
		bubble(t, podsynctest.Options{}, func(w *world) {
			w.run()
			heal := w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Err: errDown})
			w.bind(newPod("a", restart(policy)))
			pass(12 * time.Hour)
			got := w.expectPhase("a", corev1.PodPending)
			if got.Status.Reason != podsync.ReasonFailedStart || got.Status.Message != errDown.Error() {
				t.Errorf("the status does not say so: %q %q", got.Status.Reason, got.Status.Message)
			}
			w.expectPatches(1)
			heal()
			pass(6 * time.Minute)
			got = w.expectPhase("a", corev1.PodRunning)
			if got.Status.Reason != "" || got.Status.Message != "" {
				t.Errorf("the failure is still told: %q %q", got.Status.Reason, got.Status.Message)
			}
		})
	}
}

// A pod that had waited for more than a minute to be scheduled was marked
// Failed because the provider did not have it yet.
func TestAgeIsNoEvidence(t *testing.T) {
	bubble(t, podsynctest.Options{StartTime: 10 * time.Minute}, func(w *world) {
		w.run()
		w.bind(newPod("a", restart(corev1.RestartPolicyNever), func(p *corev1.Pod) {
			p.CreationTimestamp = metav1.NewTime(time.Now().Add(-24 * time.Hour))
		}))
		pass(5 * time.Minute)
		w.expectPhase("a", corev1.PodPending)
		w.stop()
		w.run()
		pass(6 * time.Minute)
		w.expectPhase("a", corev1.PodRunning)
		if n := len(w.backend.Calls(podsync.OpStart)); n != 1 {
			t.Errorf("%d calls of Start", n)
		}
	})
}

// A report about an unknown pod blocked the provider for seconds.
// One slow call held up a worker, of which there were two.
func TestSlowStartsRunSideBySide(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Delay: time.Minute})
		w.run()
		for i := range 200 {
			w.server.Put(newPod(fmt.Sprint("p", i)))
		}
		pass(time.Minute)
		for i := range 200 {
			w.expectPhase(fmt.Sprint("p", i), corev1.PodRunning)
		}
	})
}

// Pods of other nodes, which the provider listed and the cache did not
// have, were deleted as leftovers.
func TestPodsOfOtherNodesAreLeftAlone(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.cfg.Informer = w.informer("", nil)
		w.cfg.NodeName = node
		w.server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
		for i := range 3 {
			w.backend.Plant(w.bind(newPod(fmt.Sprint("p", i), func(p *corev1.Pod) { p.Spec.NodeName = "n2" })))
		}
		w.run()
		pass(24 * time.Hour)
		w.expectCalls()
		w.expectRequests(0, 0, 0)
	})
}

// Secrets, config maps and services of the whole cluster were watched.
func TestOnlyPodsOfTheNodeAreRead(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.bind(newPod("a"))
		pass(time.Hour)
		w.kubectlDelete("a", -1)
		pass(time.Minute)
		for _, r := range w.server.Requests(apitest.Match{User: nodeUser}) {
			if r.Resource != "pods" || (r.Verb == "list" || r.Verb == "watch") && r.FieldSelector != "spec.nodeName="+node {
				t.Errorf("%v", r)
			}
		}
	})
}

// The pod was updated at each resync, since its environment came out in
// another order. A field reference that only the provider can resolve
// failed the pod.
func TestNoUpdateWithoutAChange(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.bind(newPod("a", func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = []corev1.EnvVar{
				{Name: "IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
				{Name: "B", Value: "$(IP)"}, {Name: "A", Value: "1"},
			}
		}))
		for i := range 10 {
			apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { p.Labels = map[string]string{"l": fmt.Sprint(i)} })
			pass(time.Hour)
		}
		w.expectPhase("a", corev1.PodRunning)
		w.expectCalls("start a")
	})
}

// Issue 1257 and others: what changes during the first write is written too.
func TestChangesDuringAWriteAreWritten(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.server.Inject(apitest.Fault{Match: patches, Latency: time.Second})
		pod := w.bind(newPod("a"))
		pass(500 * time.Millisecond)
		w.backend.Edit(pod.UID, func(s *corev1.PodStatus) { s.Message = "one" })
		synctest.Wait()
		w.backend.Edit(pod.UID, func(s *corev1.PodStatus) { s.Message = "two" })
		pass(3 * time.Second)
		if got := w.pod("a").Status.Message; got != "two" {
			t.Errorf("the message is %q", got)
		}
		w.expectPatches(2)
	})
}
