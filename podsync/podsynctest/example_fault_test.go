// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsynctest_test

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// A start whose answer is lost: the pod runs, and only List shows it.
func ExampleBackend_Inject() {
	ctx := context.Background()
	backend := podsynctest.NewBackend(podsynctest.Options{})
	provider := backend.Connect()
	backend.Inject(podsynctest.Fault{Op: podsync.OpStart, ErrAfter: errors.New("connection reset"), Times: 1})

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.example/web:1"}}},
	}
	_, err := provider.Start(ctx, pod)
	fmt.Println("start:", err)
	states, err := provider.List(ctx)
	fmt.Println("held:", len(states), err)
	_, err = provider.Start(ctx, pod)
	fmt.Println("start:", err)
	for _, call := range backend.Calls(podsync.OpStart) {
		fmt.Println(call.Op, call.Ref.Name, call.Err)
	}
	// Output:
	// start: connection reset
	// held: 1 <nil>
	// start: <nil>
	// start web connection reset
	// start web <nil>
}
