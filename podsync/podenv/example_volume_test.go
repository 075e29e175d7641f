// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv_test

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kubewright/kubewright/podsync/podenv"
)

// The files of a pod's volumes of API data; other volumes are the provider's.
func ExamplePod_Volume() {
	core := fake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "nginx"},
		Data:       map[string]string{"nginx.conf": "worker_processes 1;", "mime.types": "types {}"},
	}).CoreV1()
	resolver, err := podenv.New(podenv.Config{ConfigMaps: core, Secrets: core})
	if err != nil {
		fmt.Println(err)
		return
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{
			{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "nginx"}}}},
		}},
	}
	data := resolver.Pod(pod)
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if !podenv.IsData(v) {
			fmt.Println(v.Name, "is not of the API")
			continue
		}
		files, err := data.Volume(context.Background(), v.Name)
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, path := range slices.Sorted(maps.Keys(files)) {
			fmt.Printf("%s/%s %o %q\n", v.Name, path, files[path].Mode, files[path].Data)
		}
	}
	// Output:
	// scratch is not of the API
	// config/mime.types 644 "types {}"
	// config/nginx.conf 644 "worker_processes 1;"
}
