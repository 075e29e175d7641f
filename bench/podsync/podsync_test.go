// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"encoding/pem"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubewright/kubewright/bench/internal/child"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

// order is the order of the cases in a run.
var order = []string{"kubewright", "virtual-kubelet", "virtual-kubelet-unlimited", "kwok"}

func newPod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"bench": node}},
		Spec: corev1.PodSpec{
			NodeName:                     node,
			AutomountServiceAccountToken: new(false),
			Containers:                   []corev1.Container{{Name: "c", Image: "example.com/none:1"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending}, // as an API server stores it; kwok requires it
	}
}

// BenchmarkStub binds 10,000 pods to a node of a server that takes 10 ms for
// every request, and measures the first ten seconds.
func BenchmarkStub(b *testing.B) {
	const pods, latency, window = 10_000, 10 * time.Millisecond, 10 * time.Second
	for _, peer := range order {
		b.Run(peer, func(b *testing.B) {
			for b.Loop() {
				const node = "bench-node"
				server := child.Start(b, "server", fmt.Sprint("BENCH_PODS=", pods), "BENCH_LATENCY="+latency.String(), "BENCH_NODE="+node)
				var endpoint struct {
					URL  string
					Cert []byte
				}
				server.Read(&endpoint)
				controller := child.Start(b, peer, "BENCH_KUBECONFIG="+kubeconfig(b, endpoint.URL, endpoint.Cert), "BENCH_NODE="+node)
				handed(b, controller, peer, pods)
				var before, after int
				server.Ask("writes", &before)
				begin := time.Now()
				time.Sleep(window)
				server.Ask("writes", &after)
				b.ReportMetric(float64(after-before)/time.Since(begin).Seconds(), "status-writes/s")
				controller.Stop()
				server.Stop()
				b.ReportMetric(0, "ns/op") // the duration of a run is fixed
			}
		})
	}
}

// handed reports the time from the first to the last pod that a provider gets,
// at most ten seconds. kwok has no provider.
func handed(b *testing.B, controller *child.Process, peer string, pods int64) {
	if peer == "kwok" {
		time.Sleep(3 * time.Second) // its list and first writes
		return
	}
	var s state
	for s.Started < pods && s.SinceFirst < 10*time.Second {
		time.Sleep(20 * time.Millisecond)
		controller.Ask("state", &s)
	}
	b.ReportMetric(float64(s.Started), "handed-over")
	b.ReportMetric(s.SinceFirst.Seconds(), "s-to-hand-over")
}

func kubeconfig(b *testing.B, url string, cert []byte) string {
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["b"] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})}
	cfg.Contexts["b"] = &clientcmdapi.Context{Cluster: "b"}
	cfg.CurrentContext = "b"
	path := filepath.Join(b.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		b.Fatal(err)
	}
	return path
}

// BenchmarkRealServer runs and deletes 1,000 pods on etcd and kube-apiserver.
// It counts status writes from the first pod that is seen Running to the last
// one, so that the start of the process and its first list do not count. The
// cases named bare-client are the limit: a process that lists the pods and
// patches each of them once with this library's status, with as many goroutines
// as this library's default. It does nothing else, or in one case also watches
// the pods. They come last, because the first cases find the server cold.
func BenchmarkRealServer(b *testing.B) {
	const pods = 1000
	cluster := harness.Start(b, harness.Options{Without: []string{harness.ControllerManager, harness.Scheduler}})
	client := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	for _, peer := range append(slices.Clip(order), "kwok-terminal", bareClient, watchingClient) {
		b.Run(peer, func(b *testing.B) {
			for b.Loop() {
				node := "bench-" + peer
				createPods(b, client, node, pods)
				seen := observe(b, client, node)
				controller := child.Start(b, peer, "BENCH_KUBECONFIG="+cluster.AdminKubeconfig(), "BENCH_NODE="+node)
				begin := time.Now()
				seen.until(b, pods, seen.running)
				b.ReportMetric(time.Since(begin).Seconds(), "s-to-running")
				b.ReportMetric(seen.rate(), "status-writes/s")
				grace := (*int64)(nil)
				if peer == bareClient || peer == watchingClient {
					grace = new(int64) // no kubelet ends its pods
				}
				begin = time.Now()
				if err := client.CoreV1().Pods("default").DeleteCollection(b.Context(), metav1.DeleteOptions{GracePeriodSeconds: grace}, metav1.ListOptions{LabelSelector: "bench=" + node}); err != nil {
					b.Fatal(err)
				}
				seen.until(b, pods, seen.gone)
				b.ReportMetric(time.Since(begin).Seconds(), "s-to-gone")
				var s state
				controller.Ask("state", &s)
				b.ReportMetric(s.CPU.Seconds()/pods*1e6, "CPU-µs/pod")
				controller.Stop()
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// createPods creates n pods that are bound to node.
func createPods(b *testing.B, client kubernetes.Interface, node string, n int) []*corev1.Pod {
	b.Helper()
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = newPod(fmt.Sprintf("%s-%05d", node, i), node)
	}
	parallel(b, pods, func(pod *corev1.Pod) error {
		created, err := client.CoreV1().Pods(pod.Namespace).Create(b.Context(), pod, metav1.CreateOptions{})
		if err == nil {
			*pod = *created
		}
		return err
	})
	return pods
}

// parallel calls f for each pod, 16 at a time.
func parallel(b *testing.B, pods []*corev1.Pod, f func(*corev1.Pod) error) {
	b.Helper()
	work := make(chan *corev1.Pod)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for pod := range work {
				if err := f(pod); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for _, pod := range pods {
		work <- pod
	}
	close(work)
	wg.Wait()
	if b.Failed() {
		b.FailNow()
	}
}

// progress is an informer's view of the pods of a node. It does not use a bare
// watch, because a busy server drops watches that do not keep up.
type progress struct {
	mu            sync.Mutex
	running, gone map[types.UID]bool
	first, last   time.Time // when a pod was first and last seen to start running
	changed       chan struct{}
}

func observe(b *testing.B, client kubernetes.Interface, node string) *progress {
	b.Helper()
	p := &progress{running: make(map[types.UID]bool), gone: make(map[types.UID]bool), changed: make(chan struct{}, 1)}
	lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", "default", fields.OneTermEqualSelector("spec.nodeName", node))
	informer := cache.NewSharedIndexInformerWithOptions(lw, &corev1.Pod{}, cache.SharedIndexInformerOptions{})
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { p.see(object.(*corev1.Pod)) },
		UpdateFunc: func(_, object any) { p.see(object.(*corev1.Pod)) },
		DeleteFunc: func(object any) {
			if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			p.note(p.gone, object.(*corev1.Pod).UID)
		},
	}); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	b.Cleanup(cancel)
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		b.Fatal("the pods can't be listed")
	}
	return p
}

func (p *progress) see(pod *corev1.Pod) {
	if pod.Status.Phase != corev1.PodRunning {
		return
	}
	p.mu.Lock()
	if !p.running[pod.UID] {
		p.last = time.Now()
		if p.first.IsZero() {
			p.first = p.last
		}
	}
	p.mu.Unlock()
	p.note(p.running, pod.UID)
}

// rate returns how many pods started running per second, from the first to the
// last.
func (p *progress) rate() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return float64(len(p.running)-1) / p.last.Sub(p.first).Seconds()
}

func (p *progress) note(set map[types.UID]bool, uid types.UID) {
	p.mu.Lock()
	set[uid] = true
	p.mu.Unlock()
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// until waits until set has n pods.
func (p *progress) until(b *testing.B, n int, set map[types.UID]bool) {
	b.Helper()
	deadline := time.After(5 * time.Minute)
	for {
		p.mu.Lock()
		got := len(set)
		p.mu.Unlock()
		if got >= n {
			return
		}
		select {
		case <-deadline:
			b.Fatalf("%d of %d pods after five minutes", got, n)
		case <-p.changed:
		}
	}
}
