// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"

	"github.com/kubewright/kubewright/podsync"
)

// The listers of a nodeutil.ProviderConfig. Pods are those that podsync knows. ConfigMaps,
// Secrets and Services are read when they are asked for: an informer would need the
// permission to list every Secret of the cluster, which the credentials of a node don't
// have.

// listTimeout is the time that a lister waits for the API server.
const listTimeout = 10 * time.Second

// errNotRunning is the error of a lister of pods outside of Run: the empty list of an informer
// that has not synced would mean to a provider that all its pods are gone.
var errNotRunning = errors.New("vkadapter: the pods are not known: Run has not begun, or has ended")

// podLister lists the pods of a Node, with the labels that the provider has written. Its calls
// wait until the pods are known.
type podLister struct {
	n         *Node
	namespace string // "": all
}

func (l podLister) List(selector labels.Selector) ([]*corev1.Pod, error) {
	return l.list("", selector)
}

func (l podLister) Pods(namespace string) corev1listers.PodNamespaceLister {
	return podNamespaceLister{podLister{l.n, namespace}}
}

// list returns the pods that have a label, and a name unless it is empty.
func (l podLister) list(name string, selector labels.Selector) (pods []*corev1.Pod, err error) {
	if err := l.n.awaitPods(); err != nil {
		return nil, err
	}
	for ref, info := range l.n.pods.All() {
		if info.Pod == nil || l.namespace != "" && ref.Namespace != l.namespace || name != "" && ref.Name != name {
			continue
		}
		if pod := withLabels(info.Pod); selector.Matches(labels.Set(pod.Labels)) {
			pods = append(pods, pod)
		}
	}
	return pods, nil
}

type podNamespaceLister struct{ podLister }

// Get returns the pod of a name. Of two, one of which is being stopped, it is the newer one,
// as in an informer.
func (l podNamespaceLister) Get(name string) (*corev1.Pod, error) {
	if err := l.n.awaitPods(); err != nil {
		return nil, err
	}
	if info, ok := l.n.pods.Get(podsync.Ref{Namespace: l.namespace, Name: name}); ok && info.Pod != nil {
		return withLabels(info.Pod), nil // the only one, and the list copies all pods
	}
	pods, err := l.list(name, labels.Everything())
	switch {
	case err != nil:
		return nil, err
	case len(pods) == 0:
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
	}
	return slices.MaxFunc(pods, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) }), nil
}

// objects reads objects of one kind from the API.
type objects[T any] struct {
	namespace string
	get       func(ctx context.Context, namespace, name string) (*T, error)
	list      func(ctx context.Context, namespace string, selector string) ([]T, error)
}

func (o objects[T]) Get(name string) (*T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), listTimeout)
	defer cancel()
	return o.get(ctx, o.namespace, name)
}

func (o objects[T]) List(selector labels.Selector) ([]*T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), listTimeout)
	defer cancel()
	items, err := o.list(ctx, o.namespace, selector.String())
	if err != nil {
		return nil, err
	}
	pointers := make([]*T, len(items))
	for i := range items {
		pointers[i] = &items[i]
	}
	return pointers, nil
}

func (o objects[T]) in(namespace string) objects[T] {
	o.namespace = namespace
	return o
}

type (
	secretLister    struct{ objects[corev1.Secret] }
	configMapLister struct{ objects[corev1.ConfigMap] }
	serviceLister   struct{ objects[corev1.Service] }
)

func (l secretLister) Secrets(namespace string) corev1listers.SecretNamespaceLister {
	return l.in(namespace)
}

func (l configMapLister) ConfigMaps(namespace string) corev1listers.ConfigMapNamespaceLister {
	return l.in(namespace)
}

func (l serviceLister) Services(namespace string) corev1listers.ServiceNamespaceLister {
	return l.in(namespace)
}

func newSecretLister(core corev1client.SecretsGetter) secretLister {
	return secretLister{objects[corev1.Secret]{
		get: func(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
			return core.Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		list: func(ctx context.Context, namespace, selector string) ([]corev1.Secret, error) {
			list, err := core.Secrets(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
			return list.Items, err
		},
	}}
}

func newConfigMapLister(core corev1client.ConfigMapsGetter) configMapLister {
	return configMapLister{objects[corev1.ConfigMap]{
		get: func(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
			return core.ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		list: func(ctx context.Context, namespace, selector string) ([]corev1.ConfigMap, error) {
			list, err := core.ConfigMaps(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
			return list.Items, err
		},
	}}
}

func newServiceLister(core corev1client.ServicesGetter) serviceLister {
	return serviceLister{objects[corev1.Service]{
		get: func(ctx context.Context, namespace, name string) (*corev1.Service, error) {
			return core.Services(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		list: func(ctx context.Context, namespace, selector string) ([]corev1.Service, error) {
			list, err := core.Services(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
			return list.Items, err
		},
	}}
}
