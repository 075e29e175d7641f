// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// The admission plugin Priority, and the rules of PriorityClasses.

// highestPriority is the highest value of a class that is not part of Kubernetes.
const highestPriority = 1_000_000_000

// SystemClasses are the classes that every server has.
func SystemClasses() []*schedulingv1.PriorityClass {
	class := func(name string, value int32, description string) *schedulingv1.PriorityClass {
		return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, Description: description}
	}
	return []*schedulingv1.PriorityClass{
		class("system-cluster-critical", 2*highestPriority, "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."),
		class("system-node-critical", 2*highestPriority+1000, "Used for system critical pods that must not be moved from their current node."),
	}
}

// priorityClasses returns the stored classes.
func priorityClasses(w *Write) (classes []*schedulingv1.PriorityClass) {
	for _, obj := range w.Objects(schema.GroupKind{Group: schedulingv1.GroupName, Kind: "PriorityClass"}) {
		classes = append(classes, obj.(*schedulingv1.PriorityClass))
	}
	return classes
}

// prioritize sets the priority of a new pod from its class.
func prioritize(w *Write, p *corev1.Pod) error {
	class := &schedulingv1.PriorityClass{PreemptionPolicy: ptr.To(corev1.PreemptLowerPriority)}
	found := p.Spec.PriorityClassName == ""
	for _, c := range priorityClasses(w) {
		if c.Name == p.Spec.PriorityClassName || found && c.GlobalDefault {
			class, found, p.Spec.PriorityClassName = c, true, c.Name
			break
		}
	}
	if !found {
		return refusedPod(p, "no PriorityClass with name %v was found", p.Spec.PriorityClassName)
	}
	if have := p.Spec.Priority; have != nil && *have != class.Value {
		return refusedPod(p, "the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *have, class.Value)
	}
	p.Spec.Priority = ptr.To(class.Value)
	if class.PreemptionPolicy == nil {
		return nil
	}
	if have := p.Spec.PreemptionPolicy; have != nil && *have != *class.PreemptionPolicy {
		return refusedPod(p, "the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name", *have, *class.PreemptionPolicy)
	}
	p.Spec.PreemptionPolicy = ptr.To(*class.PreemptionPolicy)
	return nil
}

// refusedPod is the error of an admission plugin.
func refusedPod(p *corev1.Pod, format string, args ...any) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, p.Name, fmt.Errorf(format, args...))
}

func defaultClass(obj runtime.Object) {
	if class := obj.(*schedulingv1.PriorityClass); class.PreemptionPolicy == nil {
		class.PreemptionPolicy = ptr.To(corev1.PreemptLowerPriority)
	}
}

// admitClass refuses a second default.
func admitClass(w *Write, obj, _ runtime.Object) error {
	class := obj.(*schedulingv1.PriorityClass)
	for _, c := range priorityClasses(w) {
		if class.GlobalDefault && c.GlobalDefault && c.Name != class.Name {
			return apierrors.NewForbidden(schema.GroupResource{Group: schedulingv1.GroupName, Resource: "priorityclasses"}, class.Name,
				fmt.Errorf("PriorityClass %v is already marked as default. Only one default can exist", c.Name))
		}
	}
	return nil
}

func validateClass(_ *Write, obj, old runtime.Object) (errs field.ErrorList) {
	class := obj.(*schedulingv1.PriorityClass)
	if old != nil {
		o := old.(*schedulingv1.PriorityClass)
		if class.Value != o.Value {
			errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
		}
		return append(errs, apivalidation.ValidateImmutableField(class.PreemptionPolicy, o.PreemptionPolicy, field.NewPath("preemptionPolicy"))...)
	}
	if strings.HasPrefix(class.Name, "system-") {
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"), "priority class names with 'system-' prefix are reserved for system use only. error: "+class.Name+" is not a known system priority class"))
	} else if class.Value > highestPriority {
		errs = append(errs, field.Forbidden(field.NewPath("value"), fmt.Sprintf("maximum allowed value of a user defined priority is %v", highestPriority)))
	}
	return errs
}
