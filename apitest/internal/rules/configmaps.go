// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// fixed is why a field of an immutable object may not change.
const fixed = "field is immutable when `immutable` is set"

var configMaps = &Kind{
	Name: "ConfigMap", Resource: "configmaps", Views: []View{{GV: corev1.SchemeGroupVersion}},
	Namespaced: true, validName: apivalidation.NameIsDNSSubdomain, Unconditional: true,
	validate: func(_ *Write, obj, old runtime.Object) (errs field.ErrorList) {
		cm := obj.(*corev1.ConfigMap)
		size := 0
		for k, v := range cm.Data {
			errs = append(errs, validateDataKey(k, field.NewPath("data").Key(k))...)
			if _, twice := cm.BinaryData[k]; twice {
				errs = append(errs, field.Invalid(field.NewPath("data").Key(k), k, "duplicate of key present in binaryData"))
			}
			size += len(v)
		}
		for k, v := range cm.BinaryData {
			errs = append(errs, validateDataKey(k, field.NewPath("binaryData").Key(k))...)
			size += len(v)
		}
		if size > corev1.MaxSecretSize {
			errs = append(errs, field.TooLong(field.NewPath(""), "", corev1.MaxSecretSize))
		}
		if old == nil {
			return errs
		}
		if o := old.(*corev1.ConfigMap); o.Immutable != nil && *o.Immutable {
			if cm.Immutable == nil || !*cm.Immutable {
				errs = append(errs, field.Forbidden(field.NewPath("immutable"), fixed))
			}
			if !equality.Semantic.DeepEqual(cm.Data, o.Data) {
				errs = append(errs, field.Forbidden(field.NewPath("data"), fixed))
			}
			if !equality.Semantic.DeepEqual(cm.BinaryData, o.BinaryData) {
				errs = append(errs, field.Forbidden(field.NewPath("binaryData"), fixed))
			}
		}
		return errs
	},
}

func validateDataKey(k string, path *field.Path) (errs field.ErrorList) {
	for _, msg := range utilvalidation.IsConfigMapKey(k) {
		errs = append(errs, field.Invalid(path, k, msg))
	}
	return errs
}
