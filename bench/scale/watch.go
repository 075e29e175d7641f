// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// watchPods feeds all pods to p until ctx is done. It keeps only the fields
// that podView needs. It returns when the watch has started.
func watchPods(ctx context.Context, client kubernetes.Interface, p *pods) {
	strip := func(object any) (any, error) {
		if pod, ok := object.(*corev1.Pod); ok {
			pod.ManagedFields, pod.Annotations, pod.Spec = nil, nil, corev1.PodSpec{}
			pod.Status = corev1.PodStatus{Phase: pod.Status.Phase, Conditions: pod.Status.Conditions}
		}
		return object, nil
	}
	observe := func(object any) { p.observe(time.Now(), viewPod(object.(*corev1.Pod))) }
	follow(ctx, client.CoreV1().RESTClient(), "pods", &corev1.Pod{}, strip, observe, func(object any) {
		p.gone(time.Now(), viewPod(object.(*corev1.Pod)))
	})
}

// watchNodes feeds all Nodes to n until ctx is done.
func watchNodes(ctx context.Context, client kubernetes.Interface, n *nodes) {
	keep := func(object any) (any, error) { return object, nil }
	observe := func(object any) { n.observe(time.Now(), viewNode(object.(*corev1.Node))) }
	follow(ctx, client.CoreV1().RESTClient(), "nodes", &corev1.Node{}, keep, observe, func(object any) {
		n.gone(time.Now(), viewNode(object.(*corev1.Node)))
	})
}

// follow watches a resource. It reports the events of one object in order.
func follow(ctx context.Context, client cache.Getter, resource string, of runtime.Object, transform cache.TransformFunc, observe, gone func(object any)) {
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client, resource, metav1.NamespaceAll, fields.Everything()),
		ObjectType:    of,
		Transform:     transform,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: observe,
			UpdateFunc: func(before, after any) {
				// An object that was deleted and re-created between two lists
				// appears as an update.
				if before.(metav1.Object).GetUID() != after.(metav1.Object).GetUID() {
					gone(before)
				}
				observe(after)
			},
			DeleteFunc: func(object any) {
				if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
					object = unknown.Obj
				}
				gone(object)
			},
		},
	})
	go informer.RunWithContext(ctx)
	cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
}

// viewPod returns the observed part of a pod.
func viewPod(pod *corev1.Pod) podView {
	v := podView{
		UID: string(pod.UID), Name: pod.Name,
		Ended:    pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
		Deleting: pod.DeletionTimestamp != nil,
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			v.Running = pod.Status.Phase == corev1.PodRunning
		}
	}
	return v
}

// viewNode returns the observed part of a Node.
func viewNode(node *corev1.Node) nodeView {
	v := nodeView{UID: string(node.UID), Name: node.Name}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			v.Ready = c.Status == corev1.ConditionTrue
		}
	}
	return v
}
