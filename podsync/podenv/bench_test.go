// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// typical is a container with twelve variables of each kind.
func typical() corev1.Container {
	c := corev1.Container{Args: []string{"--name=$(NAME)", "--dsn=$(DSN)"}, EnvFrom: []corev1.EnvFromSource{fromConfigMap("", "settings", false)}}
	c.Env = []corev1.EnvVar{
		fieldRef("NAME", "metadata.name"), fieldRef("IP", "status.podIP"), fieldRef("NODE", "spec.nodeName"),
		secretRef("USER", "login", "user", false), secretRef("PASSWORD", "login", "password", false),
		value("DSN", "db://$(USER):$(PASSWORD)@db/$(NAME)"), value("MODE", "fast"), value("EMPTY", ""),
		{Name: "CPU", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}},
	}
	return c
}

func typicalWorld(b *testing.B) *world {
	w := newWorld(b, nil, configMap("settings", map[string]string{"A": "1", "B": "2", "C": "3"}), secret("login", map[string]string{"user": "u", "password": "p"}),
		service("default", "kubernetes", "10.96.0.1", corev1.ServicePort{Name: "https", Port: 443}))
	for i := range 10 {
		w.server.Put(service(ns, fmt.Sprintf("svc-%d", i), "10.0.0.1", corev1.ServicePort{Port: 80}))
	}
	return w
}

// BenchmarkContainer is the second container of a pod: all is read already.
func BenchmarkContainer(b *testing.B) {
	p := typicalWorld(b).pod(podOf(typical()))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Container(b.Context(), "app", Addresses{PodIPs: []string{"10.0.0.7"}}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkNewPod is a pod from nothing, with its two requests to the in-memory API
// server; the Services are kept.
func BenchmarkNewPod(b *testing.B) {
	w := typicalWorld(b)
	pod := w.pod(podOf(typical())).pod
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.resolver.Pod(pod).Container(b.Context(), "app", Addresses{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkExpand(b *testing.B) {
	lookup := func(name string) (string, bool) { return "value", name == "NAME" }
	b.ReportAllocs()
	for b.Loop() {
		Expand("--flag=$(NAME) $$(LITERAL) and $(NONE) of it", lookup)
	}
}
