// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package public

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"github.com/kubewright/kubewright/apitest/explore"
)

// runVirtualKubelet runs the node and pod controllers of virtual-kubelet, over backend.
func runVirtualKubelet(ctx context.Context, p *explore.Process, b *backend) error {
	client, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		return err
	}
	own := informers.NewSharedInformerFactoryWithOptions(client, time.Minute, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", "n1").String()
	}))
	all := informers.NewSharedInformerFactory(client, time.Minute)
	pods, err := node.NewPodController(node.PodControllerConfig{
		PodClient: client.CoreV1(), PodInformer: own.Core().V1().Pods(), EventRecorder: &record.FakeRecorder{}, Provider: &provider{b: b, p: p},
		ConfigMapInformer: all.Core().V1().ConfigMaps(), SecretInformer: all.Core().V1().Secrets(), ServiceInformer: all.Core().V1().Services(),
	})
	if err != nil {
		return err
	}
	nodes, err := node.NewNodeController(node.NewNaiveNodeProvider(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}, client.CoreV1().Nodes(), node.WithNodeEnableLeaseV1(client.CoordinationV1().Leases(corev1.NamespaceNodeLease), node.DefaultLeaseDuration))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	own.StartWithContext(ctx)
	all.StartWithContext(ctx)
	var work sync.WaitGroup
	var errs [2]error
	work.Go(func() { defer cancel(); errs[0] = pods.Run(ctx, 5) })
	work.Go(func() { defer cancel(); errs[1] = nodes.Run(ctx) })
	work.Wait()
	own.Shutdown()
	all.Shutdown()
	return errors.Join(errs[:]...)
}

// backend runs pods in memory. It outlives the processes that use it.
type backend struct {
	mu      sync.Mutex
	pods    map[types.UID]*corev1.Pod
	started map[types.UID]int
	changed chan struct{} // closed at each change
}

func newBackend() *backend {
	return &backend{pods: map[types.UID]*corev1.Pod{}, started: map[types.UID]int{}, changed: make(chan struct{})}
}

func (b *backend) update(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *backend) start(pod *corev1.Pod) {
	b.update(func() {
		if _, ok := b.pods[pod.UID]; ok {
			return
		}
		b.started[pod.UID]++
		pod = pod.DeepCopy()
		now := metav1.Now()
		running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "c", Image: "i:1", Ready: true, State: running}}}
		b.pods[pod.UID] = pod
	})
}

// end ends the containers of a pod.
func (b *backend) end(uid types.UID) {
	b.update(func() {
		pod := b.pods[uid]
		if pod == nil || pod.Status.Phase != corev1.PodRunning {
			return
		}
		pod = pod.DeepCopy()
		pod.Status.Phase = corev1.PodSucceeded
		pod.Status.Conditions = nil
		pod.Status.ContainerStatuses[0].Ready = false
		pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.Now()}}
		b.pods[uid] = pod
	})
}

func (b *backend) running(uid types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	pod := b.pods[uid]
	return pod != nil && pod.Status.Phase == corev1.PodRunning
}

// list returns all pods, and a channel that is closed at the next change.
func (b *backend) list() (pods []*corev1.Pod, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.pods {
		pods = append(pods, p.DeepCopy())
	}
	return pods, b.changed
}

// provider is the connection of one process to the backend. Its calls are places for faults.
type provider struct {
	b *backend
	p *explore.Process
}

var _ node.PodNotifier = (*provider)(nil)

// CreatePod implements node.PodLifecycleHandler.
func (c *provider) CreatePod(_ context.Context, pod *corev1.Pod) error {
	return c.p.Call("create "+pod.Name, func() { c.b.start(pod) })
}

// UpdatePod implements node.PodLifecycleHandler.
func (c *provider) UpdatePod(context.Context, *corev1.Pod) error { return nil }

// DeletePod implements node.PodLifecycleHandler.
func (c *provider) DeletePod(_ context.Context, pod *corev1.Pod) error {
	return c.p.Call("delete "+pod.Name, func() { c.b.end(pod.UID) })
}

// GetPod implements node.PodLifecycleHandler.
func (c *provider) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	pods, _ := c.b.list()
	var found *corev1.Pod
	for _, pod := range pods {
		if pod.Namespace == namespace && pod.Name == name && (found == nil || pod.Status.Phase == corev1.PodRunning) {
			found = pod
		}
	}
	if found == nil {
		return nil, errdefs.NotFoundf("pod %s/%s", namespace, name)
	}
	return found, nil
}

// GetPodStatus implements node.PodLifecycleHandler.
func (c *provider) GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error) {
	pod, err := c.GetPod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return &pod.Status, nil
}

// GetPods implements node.PodLifecycleHandler.
func (c *provider) GetPods(context.Context) ([]*corev1.Pod, error) {
	pods, _ := c.b.list()
	return pods, nil
}

// NotifyPods implements node.PodNotifier.
func (c *provider) NotifyPods(ctx context.Context, f func(*corev1.Pod)) {
	go func() {
		for {
			pods, changed := c.b.list()
			for _, pod := range pods {
				f(pod)
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
}
