// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsim_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/podsync/podsim"
)

// A pod whose image takes as long as you like.
func Example() {
	provider, err := podsim.New(podsim.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1", Annotations: map[string]string{podsim.StartAfter: "2m"}},
		Spec:       corev1.PodSpec{NodeName: "fleet-0", Containers: []corev1.Container{{Name: "main", Image: "web:1"}}},
	}
	state, err := provider.Start(context.Background(), pod)
	fmt.Println(state.Status.ContainerStatuses[0].State.Waiting.Reason, err)
	// Output: ContainerCreating <nil>
}
