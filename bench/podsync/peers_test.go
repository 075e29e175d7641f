// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	podfast "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	"sigs.k8s.io/kwok/pkg/apis/internalversion"
	"sigs.k8s.io/kwok/pkg/config"
	"sigs.k8s.io/kwok/pkg/config/resources"
	kwok "sigs.k8s.io/kwok/pkg/kwok/controllers"
	"sigs.k8s.io/kwok/pkg/utils/informer"
	"sigs.k8s.io/kwok/pkg/utils/lifecycle"
	"sigs.k8s.io/kwok/pkg/utils/slices"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// started counts the pods that a provider was asked to start.
var started atomic.Int64

// firstStart is the time of the first start, in Unix nanoseconds.
var firstStart atomic.Int64

func countStart() {
	firstStart.CompareAndSwap(0, time.Now().UnixNano())
	started.Add(1)
}

// peers start to run the pods of nodeName until ctx is done.
var peers = map[string]func(ctx context.Context, client kubernetes.Interface, nodeName string) error{
	"kubewright":      startKubewright,
	"virtual-kubelet": startVirtualKubelet(func() workqueue.TypedRateLimiter[any] { return nil }, 10),
	"virtual-kubelet-unlimited": startVirtualKubelet(func() workqueue.TypedRateLimiter[any] {
		return workqueue.NewTypedItemExponentialFailureRateLimiter[any](5*time.Millisecond, 10*time.Second)
	}, 50),
	"kwok":          startKwok(podfast.DefaultPodDelete),
	"kwok-terminal": startKwok(terminateFirst, deleteTerminal),
	bareClient:      startBareClient(false),
	watchingClient:  startBareClient(true),
}

const (
	bareClient     = "bare-client"
	watchingClient = "bare-client-watching"
)

// startBareClient lists the pods of a node and patches the status of each once,
// with the status that this library would write. It does nothing else, except
// that it watches the pods if watching is true, as every controller must.
func startBareClient(watching bool) func(context.Context, kubernetes.Interface, string) error {
	return func(ctx context.Context, client kubernetes.Interface, nodeName string) error {
		selector := fields.OneTermEqualSelector("spec.nodeName", nodeName).String()
		if watching {
			own := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = selector }))
			own.Core().V1().Pods().Informer()
			own.Start(ctx.Done())
			own.WaitForCacheSync(ctx.Done())
		}
		pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			return err
		}
		type write struct {
			pod   *corev1.Pod
			patch []byte
		}
		work := make(chan write, len(pods.Items))
		for i := range pods.Items {
			pod := &pods.Items[i]
			next, problems := podstatus.Next(pod, podstatus.Update{Observed: running(pod), Generation: pod.Generation, Now: time.Now()})
			if len(problems) > 0 {
				return problems.ToAggregate()
			}
			work <- write{pod, podstatus.Patch(pod, &next)}
		}
		close(work)
		for range 32 { // as many as podsync has
			go func() {
				for w := range work {
					if _, err := client.CoreV1().Pods(w.pod.Namespace).Patch(ctx, w.pod.Name, podstatus.PatchType, w.patch, metav1.PatchOptions{}, "status"); err != nil {
						fmt.Fprintln(os.Stderr, "bare client:", err)
					}
				}
			}()
		}
		return nil
	}
}

func startKubewright(ctx context.Context, client kubernetes.Interface, nodeName string) error {
	controller, err := podsync.New(podsync.Config{
		Client:   client.CoreV1(),
		NodeName: nodeName,
		Provider: newNothing(),
	})
	if err != nil {
		return err
	}
	go controller.Run(ctx)
	return nil
}

func startVirtualKubelet(limiter func() workqueue.TypedRateLimiter[any], workers int) func(context.Context, kubernetes.Interface, string) error {
	return func(ctx context.Context, client kubernetes.Interface, nodeName string) error {
		own := informers.NewSharedInformerFactoryWithOptions(client, time.Minute, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", nodeName).String()
		}))
		all := informers.NewSharedInformerFactory(client, time.Minute)
		controller, err := node.NewPodController(node.PodControllerConfig{
			PodClient:                            client.CoreV1(),
			PodInformer:                          own.Core().V1().Pods(),
			EventRecorder:                        &record.FakeRecorder{}, // without a channel it drops events; this library has no recorder here
			Provider:                             newVirtualKubeletNothing(),
			ConfigMapInformer:                    all.Core().V1().ConfigMaps(),
			SecretInformer:                       all.Core().V1().Secrets(),
			ServiceInformer:                      all.Core().V1().Services(),
			SyncPodsFromKubernetesRateLimiter:    limiter(),
			DeletePodsFromKubernetesRateLimiter:  limiter(),
			SyncPodStatusFromProviderRateLimiter: limiter(),
		})
		if err != nil {
			return err
		}
		own.Start(ctx.Done())
		all.Start(ctx.Done())
		go controller.Run(ctx, workers)
		return nil
	}
}

// These stages of kwok end a pod as a kubelet does: first the last status, then
// the object. kwok's own stage deletes a running pod.
const (
	terminateFirst = `
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-terminate}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: Exists}
    - {key: .status.phase, operator: In, values: [Running]}
  next:
    statusTemplate: |
      phase: Succeeded
      containerStatuses:
      {{ range .status.containerStatuses }}
      - name: {{ .name | Quote }}
        image: {{ .image | Quote }}
        ready: false
        restartCount: 0
        state: {terminated: {exitCode: 0, reason: Completed, finishedAt: {{ Now | Quote }}}}
      {{ end }}
`
	deleteTerminal = `
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-delete}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: Exists}
    - {key: .status.phase, operator: In, values: [Succeeded, Failed]}
  next: {delete: true}
`
)

func startKwok(end ...string) func(context.Context, kubernetes.Interface, string) error {
	return func(ctx context.Context, client kubernetes.Interface, nodeName string) error {
		return runKwok(ctx, client, nodeName, append([]string{podfast.DefaultPodReady, podfast.DefaultPodComplete}, end...))
	}
}

func runKwok(ctx context.Context, client kubernetes.Interface, nodeName string, sources []string) error {
	stages, err := slices.MapWithError(sources, config.UnmarshalWithType[*internalversion.Stage, string])
	if err != nil {
		return err
	}
	cycle, err := lifecycle.NewLifecycle(stages)
	if err != nil {
		return err
	}
	nodes, err := informer.NewInformer[*corev1.Node, *corev1.NodeList](client.CoreV1().Nodes()).WatchWithCache(ctx, informer.Option{}, make(chan informer.Event[*corev1.Node], 100))
	if err != nil {
		return err
	}
	controller, err := kwok.NewPodController(kwok.PodControllerConfig{
		TypedClient:          client,
		NodeCacheGetter:      nodes,
		NodeIP:               "10.0.0.1",
		CIDR:                 "10.0.0.0/8",
		Lifecycle:            resources.NewStaticGetter(cycle),
		NodeGetFunc:          func(name string) (*kwok.NodeInfo, bool) { return &kwok.NodeInfo{}, name == nodeName },
		PlayStageParallelism: 4, // kwok's default
		Recorder:             &record.FakeRecorder{},
	})
	if err != nil {
		return err
	}
	events := make(chan informer.Event[*corev1.Pod], 1)
	if err := informer.NewInformer[*corev1.Pod, *corev1.PodList](client.CoreV1().Pods("")).Watch(ctx, informer.Option{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", nodeName).String(),
	}, events); err != nil {
		return err
	}
	return controller.Start(ctx, events)
}

// running returns the status of a running pod.
func running(pod *corev1.Pod) (status corev1.PodStatus) {
	now := metav1.Now()
	status.Phase = corev1.PodRunning
	status.StartTime = &now
	status.PodIP = "10.0.0.1"
	status.PodIPs = []corev1.PodIP{{IP: status.PodIP}}
	status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now}}
	for _, c := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return status
}

// terminated changes a status to that of a stopped pod.
func terminated(status *corev1.PodStatus) {
	now := metav1.Now()
	status.Phase = corev1.PodSucceeded
	for i := range status.ContainerStatuses {
		c := &status.ContainerStatuses[i]
		c.Ready = false
		c.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: now}}
	}
}

// noPod is an error that virtual-kubelet recognizes as not found.
type noPod string

func (n noPod) Error() string { return fmt.Sprintf("pod %q not found", string(n)) }
func (noPod) NotFound() bool  { return true }
