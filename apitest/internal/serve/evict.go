// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest/internal/request"
	"github.com/kubewright/kubewright/apitest/internal/rules"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// evict is pods/eviction: a deletion with a reason, if the PodDisruptionBudget of the pod
// allows it.
func evict(c *Call) (*Answer, error) {
	obj, err := c.decodeAs(policyv1.SchemeGroupVersion.WithKind("Eviction"))
	if err != nil {
		return nil, err
	}
	e := obj.(*policyv1.Eviction)
	return c.onPod("Eviction", e.Name, func(old *store.Item, pod *corev1.Pod) error {
		return c.evictPod(ptr.Deref(e.DeleteOptions, metav1.DeleteOptions{}), old, pod)
	})
}

func (c *Call) evictPod(opts metav1.DeleteOptions, old *store.Item, pod *corev1.Pod) error {
	if err := c.restrict(nil, old.Obj); err != nil {
		return err
	}
	dryRun := c.r.DryRun || len(opts.DryRun) > 0
	if err := c.disrupt(pod, dryRun); err != nil {
		return err
	}
	if err := c.preconditions(opts.Preconditions, pod); err != nil {
		return err
	}
	opts.Preconditions = nil
	if dryRun {
		return nil
	}
	if rules.SetPodCondition(pod, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting"}) {
		old = c.s.Store.Put(c.table(), pod, old)
	}
	// The server deletes the pod itself: NodeRestriction has admitted the eviction.
	own := *c
	req := *c.r
	req.User = request.Admin
	own.r = &req
	_, _, err := own.removeOne(old, opts)
	return err
}

// maxDisrupted is the number of evictions that a budget's controller may not have
// confirmed yet.
const maxDisrupted = 2000

// disrupt counts an eviction against the budget of the pod, or returns why the budget does
// not allow it. The store must be locked.
func (c *Call) disrupt(pod *corev1.Pod, dryRun bool) error {
	switch {
	case pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed, pod.Status.Phase == corev1.PodPending, pod.DeletionTimestamp != nil:
		return nil // no disruption
	}
	t := c.s.Store.Table(c.s.builtin.ByGroupKind[schema.GroupKind{Group: policyv1.GroupName, Kind: "PodDisruptionBudget"}])
	var guards []*store.Item
	for _, it := range t.Sorted(pod.Namespace) {
		selector, err := metav1.LabelSelectorAsSelector(it.Obj.(*policyv1.PodDisruptionBudget).Spec.Selector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			guards = append(guards, it)
		}
	}
	switch len(guards) {
	case 0:
		return nil
	case 1:
	default:
		return statusError(500, "", "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")
	}
	b := guards[0].Obj.DeepCopyObject().(*policyv1.PodDisruptionBudget)
	if !podReady(pod) {
		if ptr.Deref(b.Spec.UnhealthyPodEvictionPolicy, "") == policyv1.AlwaysAllow ||
			b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0 {
			return nil
		}
	}
	if err := decrement(b, pod.Name); err != nil {
		return err
	}
	if !dryRun {
		c.s.Store.Put(t, b, guards[0])
	}
	return nil
}

// decrement takes one disruption from a budget, or returns why there is none.
func decrement(b *policyv1.PodDisruptionBudget, pod string) error {
	s := &b.Status
	violates := func(retry int, format string, args ...any) error {
		e := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", retry)
		e.ErrStatus.Details.Causes = append(e.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: fmt.Sprintf(format, args...)})
		return e
	}
	forbidden := func(why string) error {
		return apierrors.NewForbidden(schema.GroupResource{Group: policyv1.GroupName, Resource: "poddisruptionbudget"}, b.Name, errors.New(why))
	}
	switch condition := meta.FindStatusCondition(s.Conditions, policyv1.DisruptionAllowedCondition); {
	case s.ObservedGeneration < b.Generation:
		return violates(10, "The disruption budget %s is still being processed by the server.", b.Name)
	case s.DisruptionsAllowed < 0:
		return forbidden("pdb disruptions allowed is negative")
	case len(s.DisruptedPods) > maxDisrupted:
		return forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller")
	case s.DisruptionsAllowed == 0 && condition != nil && condition.Reason == policyv1.SyncFailedReason:
		return violates(0, "The disruption budget %s does not allow evicting pods currently because it failed sync: %v", b.Name, condition.Message)
	case s.DisruptionsAllowed == 0 && s.CurrentHealthy > s.DesiredHealthy:
		return violates(0, "The disruption budget %s does not allow evicting pods currently", b.Name)
	case s.DisruptionsAllowed == 0:
		return violates(0, "The disruption budget %s needs %d healthy pods and has %d currently", b.Name, s.DesiredHealthy, s.CurrentHealthy)
	}
	if s.DisruptionsAllowed--; s.DisruptionsAllowed == 0 {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: policyv1.DisruptionAllowedCondition, Reason: policyv1.InsufficientPodsReason, Status: metav1.ConditionFalse, ObservedGeneration: s.ObservedGeneration})
	}
	if s.DisruptedPods == nil {
		s.DisruptedPods = map[string]metav1.Time{}
	}
	s.DisruptedPods[pod] = metav1.Now().Rfc3339Copy()
	return nil
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
