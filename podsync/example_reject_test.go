// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"context"
	"fmt"
	"iter"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// onePod admits one pod at a time. It embeds the interface and not the type of
// the provider it decorates, so it has no other capability.
type onePod struct{ podsync.Provider }

func (onePod) Admit(_ context.Context, _ *corev1.Pod, active iter.Seq[*corev1.Pod]) error {
	for other := range active {
		return podsync.Reject("OutOfpods", "the node is taken by "+other.Name)
	}
	return nil
}

// A pod that can't run here is Failed with a reason, and its owner makes
// another one.
func ExampleReject() {
	server := apitest.New(apitest.Options{}) // in place of a cluster
	stored := make(chan string, 10)
	controller, err := podsync.New(podsync.Config{
		Client:   server.Client(apitest.User{}).CoreV1(),
		Provider: onePod{podsynctest.NewBackend(podsynctest.Options{}).Connect()},
		NodeName: "node-1",
		Hooks: podsync.Hooks{APICall: func(call podsync.APICall) {
			if call.Op == podsync.OpPatch {
				stored <- call.Ref.Name
			}
		}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- controller.Run(ctx) }()

	for _, name := range []string{"first", "second"} {
		server.Put(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "app", Image: "app:1"}}},
			Status:     corev1.PodStatus{Phase: corev1.PodPending},
		})
		status := apitest.Get[*corev1.Pod](server, "default", <-stored).Status
		fmt.Printf("%s: %s %q %q\n", name, status.Phase, status.Reason, status.Message)
	}
	cancel()
	fmt.Println(<-done)
	// Output:
	// first: Running "" ""
	// second: Failed "OutOfpods" "Pod was rejected: the node is taken by first"
	// <nil>
}
