// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"maps"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest/internal/codec"
)

// Check validates an object as a whole.
func (k *Kind) Check(w *Write, obj, old runtime.Object) field.ErrorList {
	var errs field.ErrorList
	if old == nil || !metaEqual(codec.MetaOf(obj), codec.MetaOf(old)) {
		errs = k.checkMeta(w, obj, old)
	}
	if k.validate != nil {
		errs = append(errs, k.validate(w, obj, old)...)
	}
	if w.Minor < 37 {
		return errs
	}
	return unique(errs)
}

func (k *Kind) checkMeta(w *Write, obj, old runtime.Object) field.ErrorList {
	path := field.NewPath("metadata")
	errs := apivalidation.ValidateObjectMetaAccessor(codec.MetaOf(obj), k.Namespaced, k.validName, path)
	if old != nil {
		changes := apivalidation.ValidateObjectMetaAccessorUpdate(codec.MetaOf(obj), codec.MetaOf(old), path)
		errs = append(errs, changes...)
		if w.Minor < 37 {
			errs = append(errs, changes...) // older servers repeat these errors
		}
	}
	if k.Stored().Group != coordinationv1.GroupName && !k.Dynamic {
		for i, f := range codec.MetaOf(obj).GetFinalizers() {
			if !strings.Contains(f, "/") && f != string(corev1.FinalizerKubernetes) && f != metav1.FinalizerOrphanDependents && f != metav1.FinalizerDeleteDependents {
				errs = append(errs, field.Invalid(path.Child("finalizers").Index(i), f, "name is neither a standard finalizer name nor is it fully qualified"))
			}
		}
	}
	return errs
}

// metaEqual reports whether the metadata that is validated is unchanged. Most
// writes are heartbeats, whose metadata need not be validated again.
func metaEqual(m, o metav1.Object) bool {
	return m.GetName() == o.GetName() && m.GetNamespace() == o.GetNamespace() && m.GetGenerateName() == o.GetGenerateName() && m.GetUID() == o.GetUID() &&
		m.GetDeletionTimestamp() == o.GetDeletionTimestamp() && ptr.Equal(m.GetDeletionGracePeriodSeconds(), o.GetDeletionGracePeriodSeconds()) &&
		maps.Equal(m.GetLabels(), o.GetLabels()) && maps.Equal(m.GetAnnotations(), o.GetAnnotations()) && slices.Equal(m.GetFinalizers(), o.GetFinalizers()) &&
		slices.EqualFunc(m.GetOwnerReferences(), o.GetOwnerReferences(), func(a, b metav1.OwnerReference) bool {
			return a.APIVersion == b.APIVersion && a.Kind == b.Kind && a.Name == b.Name && a.UID == b.UID &&
				ptr.Equal(a.Controller, b.Controller) && ptr.Equal(a.BlockOwnerDeletion, b.BlockOwnerDeletion)
		})
}

// unique drops errors that are equal to an earlier one.
func unique(errs field.ErrorList) (out field.ErrorList) {
	for _, e := range errs {
		if !slices.ContainsFunc(out, func(o *field.Error) bool { return o.Error() == e.Error() }) {
			out = append(out, e)
		}
	}
	return out
}
