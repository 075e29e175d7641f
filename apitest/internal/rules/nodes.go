// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var nodes = &Kind{
	Name: "Node", Resource: "nodes", Views: []View{{GV: corev1.SchemeGroupVersion}},
	Status: true, validName: apivalidation.NameIsDNSSubdomain, Unconditional: true,
	Fields: func(obj runtime.Object, path string) (string, bool) {
		if path == "spec.unschedulable" {
			return strconv.FormatBool(obj.(*corev1.Node).Spec.Unschedulable), true
		}
		return "", false
	},
	Defaults: func(obj runtime.Object) {
		// Allocatable defaults to capacity.
		if n := obj.(*corev1.Node); n.Status.Allocatable == nil && n.Status.Capacity != nil {
			n.Status.Allocatable = n.Status.Capacity.DeepCopy()
		}
	},
	OnCreate: func(w *Write, obj runtime.Object) {
		n := obj.(*corev1.Node)
		n.Spec.ConfigSource, n.Status.Config = nil, nil
		if !w.On("NodeDeclaredFeatures") {
			n.Status.DeclaredFeatures = nil
		}
		// The admission plugin TaintNodesByCondition.
		taint := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
		if !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
			n.Spec.Taints = append(n.Spec.Taints, taint)
		}
	},
	OnUpdate: func(w *Write, obj, old runtime.Object) {
		n, o := obj.(*corev1.Node), old.(*corev1.Node)
		if w.Subresource == "status" {
			n.Spec = o.Spec
		} else {
			n.Status = o.Status
		}
		if o.Spec.ConfigSource == nil {
			n.Spec.ConfigSource = nil
		}
		if o.Status.Config == nil {
			n.Status.Config = nil
		}
		if !w.On("NodeDeclaredFeatures") && o.Status.DeclaredFeatures == nil {
			n.Status.DeclaredFeatures = nil
		}
	},
	validate: validateNode,
}

func validateNode(w *Write, obj, old runtime.Object) (errs field.ErrorList) {
	n := obj.(*corev1.Node)
	errs = append(errs, validateTaints(n.Spec.Taints, field.NewPath("metadata", "taints"))...)
	errs = append(errs, validateDeclaredFeatures(n.Status.DeclaredFeatures, field.NewPath("status", "declaredFeatures"))...)
	if old == nil {
		return errs
	}
	// The real server checks only updates: a creation may repeat an address.
	for i, a := range n.Status.Addresses {
		if slices.Contains(n.Status.Addresses[:i], a) {
			errs = append(errs, field.Duplicate(field.NewPath("status", "addresses").Index(i), internalAddress{a.Type, a.Address}))
		}
	}
	o, spec := old.(*corev1.Node), field.NewPath("spec")
	if len(o.Spec.PodCIDRs) > 0 && !slices.Equal(n.Spec.PodCIDRs, o.Spec.PodCIDRs) {
		errs = append(errs, field.Forbidden(spec.Child("podCIDRs"), "node updates may not change podCIDR except from \"\" to valid"))
	}
	if was, is := o.Spec.ProviderID, n.Spec.ProviderID; was != "" && is == "" {
		errs = append(errs, field.Invalid(spec.Child("providerID"), nil, "field cannot be cleared once set"))
	} else if was != "" && is != was {
		errs = append(errs, field.Invalid(spec.Child("providerID"), nil, "field cannot be modified once set"))
	}
	if n.Spec.DoNotUseExternalID != o.Spec.DoNotUseExternalID {
		errs = append(errs, field.Forbidden(spec.Child("externalID"), "may not be updated"))
	}
	return errs
}

// internalAddress is an address in the internal type of the real server, which
// error messages quote.
type internalAddress struct {
	Type    corev1.NodeAddressType
	Address string
}

// declaredFeature is the form of the name of a declared feature.
var declaredFeature = regexp.MustCompile(`^[A-Z][a-zA-Z0-9]*(/[a-zA-Z][a-zA-Z0-9]*)*$`)

// validateDeclaredFeatures requires names of that form, sorted and unique.
func validateDeclaredFeatures(names []string, path *field.Path) (errs field.ErrorList) {
	for i, name := range names {
		switch {
		case len(name) > utilvalidation.DNS1123SubdomainMaxLength:
			errs = append(errs, field.Invalid(path.Index(i), name, fmt.Sprintf("invalid feature name %q: must be no more than %d characters", name, utilvalidation.DNS1123SubdomainMaxLength)))
		case !declaredFeature.MatchString(name):
			errs = append(errs, field.Invalid(path.Index(i), name, fmt.Sprintf("invalid feature name %q: must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes", name)))
		}
		switch {
		case i == 0:
		case name == names[i-1]:
			errs = append(errs, field.Duplicate(path.Index(i), name))
		case name < names[i-1]:
			errs = append(errs, field.Invalid(path.Index(i), name, "list must be sorted alphabetically"))
		}
	}
	return errs
}

// internalTaint is a taint in the internal type of the real server, which error
// messages quote.
type internalTaint struct {
	Key, Value string
	Effect     corev1.TaintEffect
	TimeAdded  *metav1.Time
}

func validateTaints(taints []corev1.Taint, path *field.Path) (errs field.ErrorList) {
	seen := map[corev1.Taint]bool{} // keys and effects
	for i, t := range taints {
		p := path.Index(i)
		if t.Key == "" {
			errs = append(errs, field.Required(p.Child("key"), ""))
		}
		errs = append(errs, requireOneOf(p.Child("effect"), t.Effect,
			corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)...)
		pair := corev1.Taint{Key: t.Key, Effect: t.Effect}
		if seen[pair] {
			e := field.Duplicate(p, internalTaint{t.Key, t.Value, t.Effect, t.TimeAdded})
			e.Detail = "taints must be unique by key and effect pair"
			errs = append(errs, e)
		}
		seen[pair] = true
	}
	return errs
}
