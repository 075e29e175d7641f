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
