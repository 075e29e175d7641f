// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
)

// BenchmarkLeasePUT is the steady state of 10,000 nodes: a renewal through the
// real clientset, encoding and decoding on both sides included.
func BenchmarkLeasePUT(b *testing.B) {
	s := apitest.New(apitest.Options{})
	leases := s.Client(apitest.User{}).CoordinationV1().Leases("kube-node-lease")
	ctx := context.Background()
	objs := make([]*coordinationv1.Lease, 10000)
	for i := range objs {
		name := fmt.Sprintf("node-%05d", i)
		objs[i] = s.Put(&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-node-lease", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: "u"}}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: ptr.To[int32](40), RenewTime: &metav1.MicroTime{Time: time.Now()}},
		}).(*coordinationv1.Lease)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		l := objs[i%len(objs)]
		l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		l.ManagedFields = nil
		l, err := leases.Update(ctx, l, metav1.UpdateOptions{})
		if err != nil {
			b.Fatal(err)
		}
		objs[i%len(objs)] = l
		i++
	}
}

// clients are apitest and its alternative, for the benchmarks that compare them.
var clients = []struct {
	name string
	make func(objects ...runtime.Object) kubernetes.Interface
}{
	{"apitest", func(objects ...runtime.Object) kubernetes.Interface {
		s := apitest.New(apitest.Options{})
		for _, o := range objects {
			s.Put(o)
		}
		return s.Client(apitest.User{})
	}},
	{"client-go-fake", func(objects ...runtime.Object) kubernetes.Interface { return fake.NewClientset(objects...) }},
}

// BenchmarkThousandPods creates a thousand pods, which ten informers watch, and
// deletes them. The informers keep up: the watches of client-go's fake hold 100
// events and panic at the next.
func BenchmarkThousandPods(b *testing.B) {
	const pods, informerCount, batch = 1000, 10, 50
	for _, c := range clients {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				client := c.make()
				ctx, stop := context.WithCancel(context.Background())
				var events sync.WaitGroup
				var running []informers.SharedInformerFactory
				for range informerCount {
					f := informers.NewSharedInformerFactory(client, 0)
					inf := f.Core().V1().Pods().Informer()
					if _, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
						AddFunc:    func(any) { events.Done() },
						DeleteFunc: func(any) { events.Done() },
					}); err != nil {
						b.Fatal(err)
					}
					f.StartWithContext(ctx)
					cache.WaitForCacheSync(ctx.Done(), inf.HasSynced)
					running = append(running, f)
				}
				each := func(do func(name string) error) {
					for i := range pods {
						if i%batch == 0 {
							events.Wait()
							events.Add(batch * informerCount)
						}
						if err := do(fmt.Sprint("p", i)); err != nil {
							b.Fatal(err)
						}
					}
					events.Wait()
				}
				each(func(name string) error {
					_, err := client.CoreV1().Pods("default").Create(ctx, podOn(name, ""), metav1.CreateOptions{})
					return err
				})
				each(func(name string) error {
					return client.CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{})
				})
				stop()
				for _, f := range running {
					f.Shutdown()
				}
			}
		})
	}
}

// BenchmarkListByLabel lists ten of a thousand pods.
func BenchmarkListByLabel(b *testing.B) {
	var objects []runtime.Object
	for i := range 1000 {
		p := podOn(fmt.Sprint("p", i), "n")
		p.Labels = map[string]string{"group": fmt.Sprint(i % 100)}
		objects = append(objects, p)
	}
	for _, c := range clients {
		b.Run(c.name, func(b *testing.B) {
			client := c.make(objects...)
			b.ReportAllocs()
			for b.Loop() {
				list, err := client.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{LabelSelector: "group=7"})
				if err != nil || len(list.Items) != 10 {
					b.Fatal(err, len(list.Items))
				}
			}
		})
	}
}

// BenchmarkUpdatePod writes the labels of one pod.
func BenchmarkUpdatePod(b *testing.B) {
	for _, c := range clients {
		b.Run(c.name, func(b *testing.B) {
			pods := c.make(podOn("p", "n")).CoreV1().Pods("default")
			p, err := pods.Get(context.Background(), "p", metav1.GetOptions{})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				p.Labels = map[string]string{"i": fmt.Sprint(i)}
				if p, err = pods.Update(context.Background(), p, metav1.UpdateOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
