// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// echo is a client whose server accepts everything and keeps nothing.
type echo struct{ corev1client.NodeInterface }

func (e echo) Nodes() corev1client.NodeInterface { return e }

func (echo) Create(_ context.Context, node *corev1.Node, _ metav1.CreateOptions) (*corev1.Node, error) {
	node = node.DeepCopy()
	node.UID, node.ResourceVersion = types.UID("00000000-0000-0000-0000-"+fmt.Sprintf("%012d", len(node.Name))), "123456789"
	node.CreationTimestamp = metav1.Now()
	return node, nil
}

// benchConfig describes a virtual node as one finds them: five labels, a taint,
// three setters and a health check.
func benchConfig() Config {
	return Config{
		Client: echo{}, Fleet: true, Template: template(),
		Setters: []Setter{StandardLabels(), Capacity(template().Status.Capacity, nil), func(_ context.Context, n *corev1.Node) error {
			n.Spec.ProviderID = "example://" + n.Name
			n.Status.NodeInfo = corev1.NodeSystemInfo{KubeletVersion: "v1.37.2", ContainerRuntimeVersion: "example://1.2.3", OperatingSystem: "linux", Architecture: "amd64"}
			return nil
		}},
		HealthChecks: []HealthCheck{func(context.Context, string) error { return nil }},
	}
}

// registered returns a controller whose nodes are registered with an echo.
func registered(b *testing.B, n int) (*Controller, []string) {
	b.Helper()
	c, err := New(benchConfig())
	if err != nil {
		b.Fatal(err)
	}
	c.life = b.Context()
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("virtual-node-%05d.example.com", i)
		if err := c.Add(names[i]); err != nil {
			b.Fatal(err)
		}
		st, _ := c.nodes.Get(names[i])
		c.round(b.Context(), names[i], st)
		c.act(b.Context(), names[i])
		if s, _ := c.Status(names[i]); s.Phase != PhaseRegistered {
			b.Fatalf("%s is not registered", names[i])
		}
	}
	return c, names
}

// BenchmarkRoundUnchanged is a round of a node that has nothing to say: what
// 10,000 nodes cost 1,000 times a second.
func BenchmarkRoundUnchanged(b *testing.B) {
	c, names := registered(b, 1)
	st, _ := c.nodes.Get(names[0])
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		c.round(ctx, names[0], st)
	}
}

// BenchmarkIdleNodes is the memory of registered nodes between rounds.
func BenchmarkIdleNodes(b *testing.B) {
	const n = 10000
	for b.Loop() {
		before := heap()
		goroutines := runtime.NumGoroutine()
		c, _ := registered(b, n)
		b.ReportMetric((heap()-before)/n, "B/node")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines")
		runtime.KeepAlive(c)
	}
}

// heap returns the bytes of live objects.
func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
