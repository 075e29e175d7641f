// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

// subresource is a part of a kind with a path of its own.
type subresource struct {
	name string
	// create, if set, handles a POST of gvk. Without it the subresource is a
	// view of the object that can be read, updated and patched.
	create func(c *call) (*answer, error)
	gvk    schema.GroupVersionKind
	// updateOnly is set for a view that can only be written by PUT.
	updateOnly bool
}

func (s subresource) verbs() metav1.Verbs {
	if s.create != nil {
		return metav1.Verbs{"create"}
	}
	if s.updateOnly {
		return metav1.Verbs{"update"}
	}
	return metav1.Verbs{"get", "patch", "update"}
}

// special serves the subresources that are created.
func (c *call) special(sub subresource) (*answer, error) {
	if c.r.Verb != "create" {
		return nil, methodNotAllowed()
	}
	return sub.create(c)
}

// success is the answer to a create that creates nothing.
func (c *call) success() (*answer, error) {
	return &answer{code: http.StatusCreated, contentType: c.accept.name, body: encodeStatus(c.accept.media, metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated})}, nil
}

// onPod does something to the pod of the path on behalf of an object of
// another kind, which has to have its name. The lock of the store is held.
func (c *call) onPod(kind, name string, do func(old *item, pod *corev1.Pod) error) (*answer, error) {
	if name != c.r.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in " + kind + " object")
	}
	c.s.store.mu.Lock()
	defer c.s.store.mu.Unlock()
	old := c.table().items[c.key()]
	if old == nil {
		return nil, apierrors.NewNotFound(c.resource(), c.r.Name)
	}
	if err := do(old, old.obj.DeepCopyObject().(*corev1.Pod)); err != nil {
		return nil, err
	}
	return c.success()
}

// bind is pods/binding: it assigns a pod to a node, once.
func bind(c *call) (*answer, error) {
	obj, err := c.decodeAs(corev1.SchemeGroupVersion.WithKind("Binding"))
	if err != nil {
		return nil, err
	}
	b := obj.(*corev1.Binding)
	if b.Target.Name == "" || b.Target.Kind != "" && b.Target.Kind != "Node" {
		return nil, errors.New("target.name: Required value")
	}
	return c.onPod("Binding", b.Name, func(old *item, pod *corev1.Pod) error { return c.bindTo(b, old, pod) })
}

func (c *call) bindTo(b *corev1.Binding, old *item, pod *corev1.Pod) error {
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
	setPodCondition(pod, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
	if !c.r.DryRun {
		c.s.store.put(c.table(), pod, old)
	}
	return nil
}

// evict is pods/eviction: a deletion with a reason. There are no disruption
// budgets.
func evict(c *call) (*answer, error) {
	obj, err := c.decodeAs(policyv1.SchemeGroupVersion.WithKind("Eviction"))
	if err != nil {
		return nil, err
	}
	e := obj.(*policyv1.Eviction)
	return c.onPod("Eviction", e.Name, func(old *item, pod *corev1.Pod) error {
		return c.evictPod(ptr.Deref(e.DeleteOptions, metav1.DeleteOptions{}), old, pod)
	})
}

func (c *call) evictPod(opts metav1.DeleteOptions, old *item, pod *corev1.Pod) error {
	if err := c.s.nodeRestriction(c, nil, old.obj); err != nil {
		return err
	}
	if err := c.preconditions(opts.Preconditions, pod); err != nil {
		return err
	}
	opts.Preconditions = nil
	if c.r.DryRun || len(opts.DryRun) > 0 {
		return nil
	}
	if setPodCondition(pod, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting"}) {
		old = c.s.store.put(c.table(), pod, old)
	}
	// The deletion is the server's own: NodeRestriction has had its say.
	own := *c
	req := *c.r
	req.User = admin
	own.r = &req
	_, _, err := own.removeOne(old, opts)
	return err
}
