// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// The requests of a pod's life, exactly.

func TestBudgetRunAndDelete(t *testing.T) { synctest.Test(t, testBudgetRunAndDelete) }

func testBudgetRunAndDelete(t *testing.T) {
	w := newWorld(t, podsynctest.Options{StopTime: 500 * time.Millisecond})
	w.run()
	pod := w.bind(newPod("a"))
	pass(0)
	if !isReady(w.expectPhase("a", corev1.PodRunning)) {
		t.Error("the pod is not ready")
	}
	pass(time.Hour)
	w.expectRequests(1, 0, 0)
	w.kubectlDelete("a", -1)
	pass(5 * time.Second)
	w.expectGone("a")
	w.expectRequests(2, 1, 0)
	w.expectCalls("start a", "stop a 30s Deleted", "release a")
	if w.known() != 0 || w.backend.Running(pod.UID) {
		t.Errorf("%d pods known", w.known())
	}
}

// A pod that takes five seconds to run and to stop costs no more if PendingAfter is longer. An image
// that can't be pulled is written before that.
func TestBudgetSlowStart(t *testing.T) { synctest.Test(t, testBudgetSlowStart) }

func testBudgetSlowStart(t *testing.T) {
	w := newWorld(t, podsynctest.Options{StartTime: 5 * time.Second, StopTime: 5 * time.Second})
	w.cfg.PendingAfter = 10 * time.Second
	w.run()
	pod := w.bind(newPod("a"))
	pass(3 * time.Second)
	w.backend.Edit(pod.UID, func(st *corev1.PodStatus) { st.PodIP = "192.0.2.7" })
	pass(time.Second)
	w.expectRequests(0, 0, 0)
	pass(time.Hour)
	w.expectPhase("a", corev1.PodRunning)
	w.expectRequests(1, 0, 0)
	w.kubectlDelete("a", -1)
	pass(time.Minute)
	w.expectGone("a")
	w.expectRequests(2, 1, 0)

	held := w.bind(newPod("b"))
	pass(time.Second)
	w.backend.Edit(held.UID, func(st *corev1.PodStatus) {
		st.ContainerStatuses[0].State.Waiting = &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}
	})
	pass(0)
	w.expectRequests(3, 1, 0)
}

func TestBudgetJob(t *testing.T) { synctest.Test(t, testBudgetJob) }

func testBudgetJob(t *testing.T) {
	w := newWorld(t, podsynctest.Options{})
	w.run()
	pod := w.bind(newPod("job", restart(corev1.RestartPolicyNever)))
	pass(time.Minute)
	w.backend.Exit(pod.UID, 0)
	pass(time.Hour)
	w.expectPhase("job", corev1.PodSucceeded)
	w.expectRequests(2, 0, 0)
}

func TestBudgetDeletedBeforeStart(t *testing.T) { synctest.Test(t, testBudgetDeletedBeforeStart) }

func testBudgetDeletedBeforeStart(t *testing.T) {
	w := newWorld(t, podsynctest.Options{})
	w.bind(newPod("a"))
	w.kubectlDelete("a", -1)
	w.run()
	pass(time.Minute)
	w.expectGone("a")
	w.expectRequests(1, 1, 0)
	w.expectCalls()
}

func TestDetailsOfAPodWaitForTheNextStatus(t *testing.T) {
	synctest.Test(t, testDetailsOfAPodWaitForTheNextStatus)
}

func testDetailsOfAPodWaitForTheNextStatus(t *testing.T) {
	w := newWorld(t, podsynctest.Options{StopTime: 10 * time.Second})
	w.run()
	pod := w.bind(newPod("a"))
	pass(0)
	w.expectRequests(1, 0, 0)
	w.backend.Edit(pod.UID, func(s *corev1.PodStatus) { s.PodIP, s.PodIPs = "10.9.9.9", nil })
	pass(500 * time.Millisecond)
	w.backend.Edit(pod.UID, func(s *corev1.PodStatus) {
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue})
		s.ContainerStatuses[0].ContainerID = "x://1"
	})
	pass(499 * time.Millisecond)
	w.expectRequests(1, 0, 0)
	pass(time.Millisecond) // a second after the first one
	w.expectRequests(2, 0, 0)
	if got := w.pod("a").Status; got.PodIP != "10.9.9.9" || got.ContainerStatuses[0].ContainerID != "x://1" {
		t.Errorf("the details are not stored: %+v", got)
	}

	w.backend.Edit(pod.UID, func(s *corev1.PodStatus) { s.ContainerStatuses[0].ContainerID = "x://2" })
	pass(time.Millisecond)
	w.backend.Edit(pod.UID, func(s *corev1.PodStatus) { s.ContainerStatuses[0].Ready = false })
	pass(0)
	w.expectRequests(3, 0, 0)
	if got := w.pod("a").Status.ContainerStatuses[0]; got.Ready || got.ContainerID != "x://2" {
		t.Errorf("a readiness that has changed is not stored at once, with the details: %+v", got)
	}
	w.backend.Edit(pod.UID, func(s *corev1.PodStatus) { s.ContainerStatuses[0].Ready = true })
	pass(0)
	w.expectRequests(4, 0, 0)
	// A detail after the news does not hold it up, even if the API server is slow.
	w.backend.Edit(pod.UID, func(s *corev1.PodStatus) { s.ContainerStatuses[0].Ready = false })
	w.backend.Edit(pod.UID, func(s *corev1.PodStatus) { s.ContainerStatuses[0].ContainerID = "x://3" })
	pass(0)
	if got := w.pod("a").Status.ContainerStatuses[0]; got.Ready {
		t.Errorf("a detail held a changed readiness up: %+v", got)
	}
}

// The final status follows when the sandbox has been torn down, for example.
func TestTheEndOfTheLastContainerWaitsForTheFinalStatus(t *testing.T) {
	synctest.Test(t, testTheEndOfTheLastContainerWaitsForTheFinalStatus)
}

func testTheEndOfTheLastContainerWaitsForTheFinalStatus(t *testing.T) {
	for _, tt := range []struct {
		end     time.Duration // of the container; the pod stops after 10 seconds
		patches int
	}{{9500 * time.Millisecond, 2}, {8 * time.Second, 3}} {
		w := newWorld(t, podsynctest.Options{StopTime: 10 * time.Second})
		w.run()
		pod := w.bind(newPod("a"))
		pass(0)
		w.kubectlDelete("a", -1)
		pass(tt.end)
		w.backend.Edit(pod.UID, func(s *corev1.PodStatus) {
			s.ContainerStatuses[0].Ready = false
			s.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
		})
		pass(time.Minute)
		w.expectGone("a")
		w.expectRequests(tt.patches, 1, 0)
		w.stop()
	}
}
