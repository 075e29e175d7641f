// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// newPod returns pod i. A hundredth of the pods has the same label and node.
func newPod(i int) *corev1.Pod {
	group := fmt.Sprint("g", i%100)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("p", i), Labels: map[string]string{"group": group}},
		Spec:       corev1.PodSpec{NodeName: group, AutomountServiceAccountToken: new(false), Containers: []corev1.Container{{Name: "c", Image: "example.com/none:1"}}},
	}
}

func mustSelect(s string) labels.Selector {
	sel, err := labels.Parse(s)
	if err != nil {
		panic(err)
	}
	return sel
}

func mustSelectFields(s string) fields.Selector { return fields.ParseSelectorOrDie(s) }

// create creates n pods.
func create(b *testing.B, s server, n int) {
	b.Helper()
	for i := range n {
		if _, err := s.create(b.Context(), newPod(i)); err != nil {
			b.Fatal(err)
		}
	}
}

// each runs a benchmark for every server.
func each(b *testing.B, run func(b *testing.B, s server)) {
	for _, c := range contenders {
		b.Run(c.name, func(b *testing.B) {
			s, _ := c.make(b)
			run(b, s)
		})
	}
}

// BenchmarkCreate creates pods.
func BenchmarkCreate(b *testing.B) {
	each(b, func(b *testing.B, s server) {
		for i := 0; b.Loop(); i++ {
			if _, err := s.create(b.Context(), newPod(i)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkUpdate changes the labels of one of a thousand pods.
func BenchmarkUpdate(b *testing.B) {
	each(b, func(b *testing.B, s server) {
		create(b, s, 1000)
		pod, err := s.create(b.Context(), newPod(1000))
		if err != nil {
			b.Fatal(err)
		}
		for i := 0; b.Loop(); i++ {
			pod.Labels = map[string]string{"i": fmt.Sprint(i)}
			if pod, err = s.update(b.Context(), pod); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkList lists ten of a thousand pods: by their label, and by their node.
// The metric items is the number of pods in the answer.
func BenchmarkList(b *testing.B) {
	for _, sel := range []struct {
		name string
		opts metav1.ListOptions
	}{
		{"label", metav1.ListOptions{LabelSelector: "group=g7"}},
		{"field", metav1.ListOptions{FieldSelector: "spec.nodeName=g7"}},
	} {
		b.Run(sel.name, func(b *testing.B) {
			each(b, func(b *testing.B, s server) {
				create(b, s, 1000)
				items := 0
				for b.Loop() {
					list, err := s.list(b.Context(), sel.opts)
					if err != nil {
						b.Fatal(err)
					}
					items = len(list.Items)
				}
				b.ReportMetric(float64(items), "items")
			})
		})
	}
}

// BenchmarkFanOut creates and deletes a pod, and waits until ten watches have
// received both events.
func BenchmarkFanOut(b *testing.B) {
	const watches = 10
	each(b, func(b *testing.B, s server) {
		var streams []watch.Interface
		for range watches {
			w, err := s.watch(b.Context(), metav1.ListOptions{})
			if err != nil {
				b.Fatal(err)
			}
			defer w.Stop()
			streams = append(streams, w)
		}
		for b.Loop() {
			if _, err := s.create(b.Context(), newPod(0)); err != nil {
				b.Fatal(err)
			}
			if err := s.remove(b.Context(), "p0"); err != nil {
				b.Fatal(err)
			}
			for _, w := range streams {
				await(b, w, watch.Added)
				await(b, w, watch.Deleted)
			}
		}
		b.ReportMetric(2*watches*float64(b.N)/b.Elapsed().Seconds(), "events/s")
	})
}

// await receives events until one has the given type.
func await(b *testing.B, w watch.Interface, typ watch.EventType) {
	b.Helper()
	for e := range w.ResultChan() {
		if e.Type == typ {
			return
		}
	}
	b.Fatal("the watch ended")
}

// BenchmarkThousandPods creates a thousand pods, which ten informers watch, and
// deletes them, on a server that has no pods. The informers keep up: the watches
// of the fakes hold 100 events and panic at the next.
func BenchmarkThousandPods(b *testing.B) {
	const pods, informers, batch = 1000, 10, 50
	each(b, func(b *testing.B, s server) {
		for b.Loop() {
			ctx, stop := context.WithCancel(b.Context())
			var events, running sync.WaitGroup
			for range informers {
				inf := s.informer()
				if _, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
					AddFunc:    func(any) { events.Done() },
					DeleteFunc: func(any) { events.Done() },
				}); err != nil {
					b.Fatal(err)
				}
				running.Go(func() { inf.RunWithContext(ctx) })
				if !cache.WaitForCacheSync(ctx.Done(), inf.HasSynced) {
					b.Fatal("the informer has no list")
				}
			}
			inBatches := func(do func(i int) error) {
				for i := range pods {
					if i%batch == 0 {
						events.Wait()
						events.Add(batch * informers)
					}
					if err := do(i); err != nil {
						b.Fatal(err)
					}
				}
				events.Wait()
			}
			inBatches(func(i int) error { _, err := s.create(ctx, newPod(i)); return err })
			inBatches(func(i int) error { return s.remove(ctx, fmt.Sprint("p", i)) })
			stop()
			running.Wait()
		}
	})
}

// BenchmarkMemory stores 10,000 pods and reports the memory that each takes in
// the server: live heap, and of the control plane the growth of the processes.
// empty-MB is the memory of a control plane without pods, or of a server in this
// process.
func BenchmarkMemory(b *testing.B) {
	const pods = 10_000
	for _, c := range contenders {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				start := heap()
				s, memory := c.make(b)
				empty := memory()
				create(b, s, pods)
				b.ReportMetric((memory()-empty)/pods, "B/pod")
				if c.name != "control-plane" {
					empty -= start
				}
				b.ReportMetric(empty/1e6, "empty-MB")
				if _, err := s.list(b.Context(), metav1.ListOptions{LabelSelector: "group=g7"}); err != nil { // keeps the server
					b.Fatal(err)
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
