// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

var secrets = &Kind{
	Name: "Secret", Resource: "secrets", Views: []View{{GV: corev1.SchemeGroupVersion}},
	Namespaced: true, validName: apivalidation.NameIsDNSSubdomain, Unconditional: true,
	Fields: func(obj runtime.Object, path string) (string, bool) {
		return string(obj.(*corev1.Secret).Type), path == "type"
	},
	Defaults: func(obj runtime.Object) {
		s := obj.(*corev1.Secret)
		if s.Type == "" {
			s.Type = corev1.SecretTypeOpaque
		}
		if len(s.StringData) > 0 {
			s.Data = maps.Clone(s.Data)
			if s.Data == nil {
				s.Data = map[string][]byte{}
			}
			for k, v := range s.StringData {
				s.Data[k] = []byte(v)
			}
			s.StringData = nil
		}
	},
	validate: validateSecret,
	OnUpdate: func(_ *Write, obj, old runtime.Object) {
		if s := obj.(*corev1.Secret); s.Type == "" {
			s.Type = old.(*corev1.Secret).Type
		}
	},
}

// validateSecret checks the values that each type of Secret requires.
func validateSecret(_ *Write, obj, old runtime.Object) (errs field.ErrorList) {
	s, data := obj.(*corev1.Secret), field.NewPath("data")
	if old != nil {
		o := old.(*corev1.Secret)
		errs = append(errs, apivalidation.ValidateImmutableField(s.Type, o.Type, field.NewPath("type"))...)
		if ptr.Deref(o.Immutable, false) {
			if !ptr.Deref(s.Immutable, false) {
				errs = append(errs, field.Forbidden(field.NewPath("immutable"), fixed))
			}
			if !equality.Semantic.DeepEqual(s.Data, o.Data) {
				errs = append(errs, field.Forbidden(data, fixed))
			}
		}
	}
	size := 0
	for _, k := range slices.Sorted(maps.Keys(s.Data)) {
		errs = append(errs, validateDataKey(k, data.Key(k))...)
		size += len(s.Data[k])
	}
	if size > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(data, "", corev1.MaxSecretSize))
	}
	require := func(keys ...string) {
		for _, k := range keys {
			if _, ok := s.Data[k]; !ok {
				errs = append(errs, field.Required(data.Key(k), ""))
			}
		}
	}
	switch s.Type {
	case corev1.SecretTypeServiceAccountToken:
		if s.Annotations[corev1.ServiceAccountNameKey] == "" {
			errs = append(errs, field.Required(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), ""))
		}
	case corev1.SecretTypeDockercfg, corev1.SecretTypeDockerConfigJson:
		k := corev1.DockerConfigKey
		if s.Type == corev1.SecretTypeDockerConfigJson {
			k = corev1.DockerConfigJsonKey
		}
		require(k)
		if v, ok := s.Data[k]; ok {
			if err := json.Unmarshal(v, &map[string]any{}); err != nil {
				errs = append(errs, field.Invalid(data.Key(k), "<secret contents redacted>", err.Error()))
			}
		}
	case corev1.SecretTypeBasicAuth:
		_, name := s.Data[corev1.BasicAuthUsernameKey]
		if _, password := s.Data[corev1.BasicAuthPasswordKey]; !name && !password {
			require(corev1.BasicAuthUsernameKey, corev1.BasicAuthPasswordKey)
		}
	case corev1.SecretTypeSSHAuth:
		if len(s.Data[corev1.SSHAuthPrivateKey]) == 0 {
			errs = append(errs, field.Required(data.Key(corev1.SSHAuthPrivateKey), ""))
		}
	case corev1.SecretTypeTLS:
		require(corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
	return errs
}
