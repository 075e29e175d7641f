// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsynctest_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// A process that dies, and its pod that ends in the meantime: the next process finds
// the exit code, because the backend outlives both.
func ExampleProvider_Crash() {
	ctx := context.Background()
	backend := podsynctest.NewBackend(podsynctest.Options{})
	provider := backend.Connect()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "job", UID: "1"},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "job", Image: "registry.example/job:1"}},
		},
	}
	if _, err := provider.Start(ctx, pod); err != nil {
		fmt.Println(err)
		return
	}
	provider.Crash()
	backend.Exit(pod.UID, 3)

	states, err := backend.Connect().List(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, st := range states {
		fmt.Println(st.Name, "exit code", st.Status.ContainerStatuses[0].State.Terminated.ExitCode)
	}
	// Output:
	// job exit code 3
}
