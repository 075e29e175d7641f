// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubewright/kubewright/apitest/internal/rules"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// success returns the answer to a create that stores no object.
func (c *Call) success() (*Answer, error) {
	return &Answer{Code: http.StatusCreated, ContentType: c.accept.Name, Body: encodeStatus(c.accept.Media, metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated})}, nil
}

// onPod calls do with the pod in the path. name, from the object in the body, must
// be the name of the pod. do is called with the store locked.
func (c *Call) onPod(kind, name string, do func(old *store.Item, pod *corev1.Pod) error) (*Answer, error) {
	if name != c.r.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in " + kind + " object")
	}
	c.s.Store.Begin()
	defer c.s.Store.Commit()
	old := c.table().Items[c.key()]
	if old == nil {
		return nil, apierrors.NewNotFound(c.resource(), c.r.Name)
	}
	if err := do(old, old.Obj.DeepCopyObject().(*corev1.Pod)); err != nil {
		return nil, err
	}
	return c.success()
}

// bind is pods/binding: it assigns a pod to a node, once.
func bind(c *Call) (*Answer, error) {
	obj, err := c.decodeAs(corev1.SchemeGroupVersion.WithKind("Binding"))
	if err != nil {
		return nil, err
	}
	b := obj.(*corev1.Binding)
	if b.Target.Name == "" || b.Target.Kind != "" && b.Target.Kind != "Node" {
		return nil, errors.New("target.name: Required value")
	}
	return c.onPod("Binding", b.Name, func(old *store.Item, pod *corev1.Pod) error { return c.bindTo(b, old, pod) })
}

func (c *Call) bindTo(b *corev1.Binding, old *store.Item, pod *corev1.Pod) error {
	conflict := func(format string, args ...any) error {
		return apierrors.NewConflict(schema.GroupResource{Resource: "pods/binding"}, c.r.Name, fmt.Errorf(format, args...))
	}
	switch {
	case b.UID != "" && b.UID != pod.UID:
		return apierrors.NewConflict(c.resource(), c.r.Name, c.preconditionFailed(b.UID, pod.UID))
	case b.ResourceVersion != "" && b.ResourceVersion != pod.ResourceVersion:
		return apierrors.NewConflict(c.resource(), c.r.Name, errors.New(optimisticLock))
	case pod.DeletionTimestamp != nil:
		return conflict("pod %s is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return conflict("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	case len(pod.Spec.SchedulingGates) > 0:
		return conflict("pod %v has non-empty .spec.schedulingGates", pod.Name)
	}
	pod.Spec.NodeName = b.Target.Name
	pod.Status.NominatedNodeName = ""
	if pod.Annotations == nil && len(b.Annotations) > 0 {
		pod.Annotations = map[string]string{}
	}
	for k, v := range b.Annotations {
		pod.Annotations[k] = v
	}
	rules.SetPodCondition(pod, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
	if !c.r.DryRun {
		c.s.Store.Put(c.table(), pod, old)
	}
	return nil
}
