// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package public

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/kubernetes/pkg/controller/job"
	"k8s.io/kubernetes/pkg/controller/replicaset"
	"k8s.io/kubernetes/pkg/controller/statefulset"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
)

// worker is a controller of kube-controller-manager.
type worker interface {
	Run(ctx context.Context, workers int)
}

// manage runs controllers as kube-controller-manager does, with a client and informers.
func manage(ctx context.Context, cfg *rest.Config, controllers func(ctx context.Context, client kubernetes.Interface, f informers.SharedInformerFactory) ([]worker, error)) error {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	all, err := controllers(ctx, client, factory)
	if err != nil {
		return err
	}
	factory.StartWithContext(ctx)
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(func() { c.Run(ctx, 5) })
	}
	wg.Wait()
	factory.Shutdown()
	return nil
}

func newStatefulSet(ctx context.Context, client kubernetes.Interface, f informers.SharedInformerFactory) ([]worker, error) {
	return []worker{statefulset.NewStatefulSetController(ctx, f.Core().V1().Pods(), f.Apps().V1().StatefulSets(),
		f.Core().V1().PersistentVolumeClaims(), f.Apps().V1().ControllerRevisions(), client)}, nil
}

func newJob(ctx context.Context, client kubernetes.Interface, f informers.SharedInformerFactory) ([]worker, error) {
	c, err := job.NewController(ctx, client, f.Core().V1().Pods(), f.Batch().V1().Jobs(), nil, nil)
	return []worker{c}, err
}

func newDeployment(ctx context.Context, client kubernetes.Interface, f informers.SharedInformerFactory) ([]worker, error) {
	d, err := deployment.NewDeploymentController(ctx, f.Apps().V1().Deployments(), f.Apps().V1().ReplicaSets(), f.Core().V1().Pods(), client)
	if err != nil {
		return nil, err
	}
	r := replicaset.NewReplicaSetController(ctx, f.Apps().V1().ReplicaSets(), f.Core().V1().Pods(), client, replicaset.BurstReplicas)
	return []worker{d, r}, nil
}

// kubelet stands in for a kubelet: pods become ready, those of Jobs end after ten seconds,
// and deleted ones go. It also runs the garbage collector.
func kubelet(w *explore.World) explore.Program {
	return explore.Program{Name: "kubelet", Undisturbed: true, Run: func(ctx context.Context, p *explore.Process) error {
		return serveAll(ctx, w.Server, p.Config)
	}}
}

func serveAll(ctx context.Context, s *apitest.Server, cfg *rest.Config) error {
	pods := kubernetes.NewForConfigOrDie(cfg).CoreV1().Pods("default")
	for ctx.Err() == nil {
		for _, pod := range apitest.List[*corev1.Pod](s, "default") {
			if err := serve(ctx, pods, pod); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
				return fmt.Errorf("pod %s: %w", pod.Name, err)
			}
		}
		s.CollectGarbage()
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return nil
}

type podClient interface {
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
	UpdateStatus(ctx context.Context, pod *corev1.Pod, opts metav1.UpdateOptions) (*corev1.Pod, error)
}

func serve(ctx context.Context, pods podClient, pod *corev1.Pod) error {
	owner := metav1.GetControllerOf(pod)
	switch {
	case pod.Status.Phase == corev1.PodSucceeded:
		return nil
	case pod.DeletionTimestamp != nil:
		now := int64(0)
		return pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	case pod.Status.Phase == corev1.PodRunning && owner != nil && owner.Kind == "Job" && time.Since(pod.Status.StartTime.Time) > 10*time.Second:
		pod.Status.Phase = corev1.PodSucceeded
		pod.Status.Conditions = nil
	case pod.Status.Phase != corev1.PodRunning:
		now := metav1.Now()
		pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, &now
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now}}
	default:
		return nil
	}
	_, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}
