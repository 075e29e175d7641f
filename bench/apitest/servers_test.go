// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

const namespace = "default"

// server is a server with a client, whose methods concern pods of one namespace.
type server interface {
	create(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error)
	update(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error)
	remove(ctx context.Context, name string) error
	list(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error)
	watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
	informer() cache.SharedIndexInformer
}

// contenders are the servers in the order of the results. make returns a new
// server without pods, and the bytes of memory that it holds.
var contenders = []struct {
	name string
	make func(b *testing.B) (s server, memory func() float64)
}{
	{"apitest", func(*testing.B) (server, func() float64) {
		return clientset{apitest.New(apitest.Options{}).Client(apitest.User{})}, heap
	}},
	{"client-go-fake", func(*testing.B) (server, func() float64) {
		return clientset{fake.NewClientset()}, heap
	}},
	{"controller-runtime-fake", func(*testing.B) (server, func() float64) {
		nodeName := func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }
		return controllerRuntime{crfake.NewClientBuilder().WithIndex(&corev1.Pod{}, "spec.nodeName", nodeName).Build()}, heap
	}},
	{"control-plane", func(b *testing.B) (server, func() float64) {
		c := harness.Start(b, harness.Options{Without: []string{harness.ControllerManager, harness.Scheduler}})
		return clientset{kubernetes.NewForConfigOrDie(c.AdminConfig())}, func() float64 { return residentMemory(b, c) }
	}},
}

// heap returns the bytes of live objects of this process.
func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// residentMemory returns the memory of the processes of a control plane.
func residentMemory(b *testing.B, c *harness.Cluster) (total float64) {
	b.Helper()
	for _, component := range c.Components(b) {
		if component.PID == 0 {
			continue
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", component.PID))
		if err != nil {
			b.Fatal(err)
		}
		_, rest, _ := bytes.Cut(status, []byte("VmRSS:"))
		kb, err := strconv.ParseFloat(string(bytes.Fields(rest)[0]), 64)
		if err != nil {
			b.Fatal(err)
		}
		total += kb * 1024
	}
	return total
}

// clientset is a server behind client-go's clientset.
type clientset struct{ kubernetes.Interface }

func (c clientset) pods() corev1client.PodInterface { return c.CoreV1().Pods(namespace) }

func (c clientset) create(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	return c.pods().Create(ctx, pod, metav1.CreateOptions{})
}

func (c clientset) update(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	return c.pods().Update(ctx, pod, metav1.UpdateOptions{})
}

func (c clientset) remove(ctx context.Context, name string) error {
	return c.pods().Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
}

func (c clientset) list(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error) {
	return c.pods().List(ctx, opts)
}

func (c clientset) watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return c.pods().Watch(ctx, opts)
}

func (c clientset) informer() cache.SharedIndexInformer { return informerOf(c, c.Interface) }

// controllerRuntime is a server behind the client of controller-runtime.
type controllerRuntime struct{ client.WithWatch }

func (c controllerRuntime) create(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	return pod, c.Create(ctx, pod)
}

func (c controllerRuntime) update(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	return pod, c.Update(ctx, pod)
}

func (c controllerRuntime) remove(ctx context.Context, name string) error {
	return c.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}, client.GracePeriodSeconds(0))
}

func (c controllerRuntime) options(opts metav1.ListOptions) *client.ListOptions {
	out := &client.ListOptions{Namespace: namespace}
	if opts.LabelSelector != "" {
		out.LabelSelector = mustSelect(opts.LabelSelector)
	}
	if opts.FieldSelector != "" {
		out.FieldSelector = mustSelectFields(opts.FieldSelector)
	}
	return out
}

func (c controllerRuntime) list(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error) {
	list := &corev1.PodList{}
	return list, c.List(ctx, list, c.options(opts))
}

func (c controllerRuntime) watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return c.Watch(ctx, &corev1.PodList{}, c.options(opts))
}

func (c controllerRuntime) informer() cache.SharedIndexInformer { return informerOf(c, noWatchList{}) }

// noWatchList makes reflectors list before they watch.
type noWatchList struct{}

// IsWatchListSemanticsUnSupported is the method that reflectors look for.
func (noWatchList) IsWatchListSemanticsUnSupported() bool { return true }

func informerOf(s server, watchLister any) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (apiruntime.Object, error) {
			return s.list(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return s.watch(ctx, opts)
		},
	}, watchLister), &corev1.Pod{}, 0, nil)
}
