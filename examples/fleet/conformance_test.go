// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

func TestConformance(t *testing.T) {
	podsynctest.TestProvider(t, podsynctest.Suite{
		New: func(testing.TB) podsync.Provider { return newSimulator(10 * time.Millisecond) },
		Completes: func() *corev1.Pod {
			return &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Image: "none"}}}}
		},
		SecondNode:    func(_ testing.TB, p podsync.Provider) podsync.Provider { return p }, // one simulator has all nodes
		NeverRestarts: true,                                                                 // only pods that need not be restarted end
	})
}
