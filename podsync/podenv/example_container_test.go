// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kubewright/kubewright/podsync/podenv"
)

// The environment of a container, first before the pod has an address and then with
// one. The second call makes no request.
func ExamplePod_Container() {
	core := fake.NewClientset(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"},
		Data:       map[string][]byte{"password": []byte("s3cret")},
	}).CoreV1()
	resolver, err := podenv.New(podenv.Config{ConfigMaps: core, Secrets: core})
	if err != nil {
		fmt.Println(err)
		return
	}
	pod := resolver.Pod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "web",
			Args: []string{"--listen=$(POD_IP):8080"},
			Env: []corev1.EnvVar{
				{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
				{Name: "PASSWORD", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
					LocalObjectReference: corev1.LocalObjectReference{Name: "db"}, Key: "password"}}},
				{Name: "DSN", Value: "db://web:$(PASSWORD)@db"},
			},
		}}},
	})

	for _, addresses := range []podenv.Addresses{{}, {PodIPs: []string{"10.0.0.7"}}} {
		env, err := pod.Container(context.Background(), "web", addresses)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(env.Strings(), env.Args, env.Late)
	}
	// Output:
	// [PASSWORD=s3cret DSN=db://web:s3cret@db] [--listen=$(POD_IP):8080] [POD_IP]
	// [POD_IP=10.0.0.7 PASSWORD=s3cret DSN=db://web:s3cret@db] [--listen=10.0.0.7:8080] []
}
