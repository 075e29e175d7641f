// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv_test

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kubewright/kubewright/podsync/podenv"
)

// A pod that names what doesn't exist yet: the error names all of it, and says that
// it is worth waiting.
func ExampleCanWait() {
	core := fake.NewClientset().CoreV1()
	resolver, err := podenv.New(podenv.Config{ConfigMaps: core, Secrets: core})
	if err != nil {
		fmt.Println(err)
		return
	}
	object := corev1.LocalObjectReference{Name: "settings"}
	pod := resolver.Pod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name:    "web",
			EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: object}}},
			Env: []corev1.EnvVar{{Name: "MODE", ValueFrom: &corev1.EnvVarSource{
				ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: object, Key: "mode"}}}},
		}}},
	})

	_, err = pod.Container(context.Background(), "web", podenv.Addresses{})
	fmt.Println(err)
	fmt.Println(errors.Is(err, podenv.ErrMissing), podenv.CanWait(err))
	// Output:
	// podenv: container web: envFrom[0]: Secret shop/settings: missing
	// podenv: container web: env MODE: key "mode" of ConfigMap shop/settings: missing
	// true true
}
