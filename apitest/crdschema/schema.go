// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package crdschema

import (
	"context"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	definitionvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"

	"github.com/kubewright/kubewright/apitest"
)

// Compile validates a CustomResourceDefinition of apiextensions.k8s.io/v1 and returns the
// schemas of its versions by name. It does not keep or change the definition. Use it as
// apitest.Options.Schemas.
func Compile(definition *unstructured.Unstructured) (map[string]apitest.Schema, field.ErrorList) {
	var v1 apiextensionsv1.CustomResourceDefinition
	var crd apiextensions.CustomResourceDefinition
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(definition.Object, &v1)
	if err == nil {
		apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(&v1)
		err = apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&v1, &crd, nil)
	}
	if err != nil {
		return nil, field.ErrorList{field.Invalid(field.NewPath("spec"), definition.GetName(), err.Error())}
	}
	if errs := definitionvalidation.ValidateCustomResourceDefinition(context.Background(), &crd); len(errs) > 0 {
		return nil, errs
	}
	schemas := make(map[string]apitest.Schema, len(crd.Spec.Versions))
	for i, v := range crd.Spec.Versions {
		content, err := apiextensions.GetSchemaForVersion(&crd, v.Name)
		if err == nil {
			schemas[v.Name], err = newSchema(content.OpenAPIV3Schema)
		}
		if err != nil {
			return nil, field.ErrorList{field.InternalError(field.NewPath("spec", "versions").Index(i).Child("schema"), err)}
		}
	}
	return schemas, nil
}

// schema implements apitest.Schema.
type schema struct {
	structure   *structural.Structural
	all, status validation.SchemaValidator // status is nil if the schema has no status
	rules       *cel.Validator             // nil if there are none
}

func newSchema(props *apiextensions.JSONSchemaProps) (*schema, error) {
	s := &schema{}
	var err error
	if s.structure, err = structural.NewStructural(props); err != nil {
		return nil, err
	}
	if s.all, _, err = validation.NewSchemaValidator(props); err != nil {
		return nil, err
	}
	if status, ok := props.Properties["status"]; ok {
		if s.status, _, err = validation.NewSchemaValidator(&status); err != nil {
			return nil, err
		}
	}
	s.rules = cel.NewValidator(s.structure, true, celconfig.PerCallLimit)
	return s, nil
}

// Prune implements apitest.Schema.
func (s *schema) Prune(obj map[string]any) ([]string, error) {
	unknown := pruning.PruneWithOptions(obj, s.structure, true, structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	defaulting.PruneNonNullableNullsWithoutDefaults(obj, s.structure)
	invalid, embedded := objectmeta.CoerceWithOptions(nil, obj, s.structure, false, objectmeta.CoerceOptions{ReturnUnknownFieldPaths: true})
	if invalid != nil {
		return nil, invalid
	}
	return slices.Concat(unknown, embedded), nil
}

// Default implements apitest.Schema.
func (s *schema) Default(obj map[string]any) { defaulting.Default(obj, s.structure) }

// Validate implements apitest.Schema.
func (s *schema) Validate(obj, old map[string]any, subresource string) field.ErrorList {
	var errs field.ErrorList
	var was any // not a nil map, for rules that use oldSelf
	var ratchet []cel.Option
	if old == nil {
		errs = validation.ValidateCustomResource(nil, obj, s.all)
	} else {
		was = old
		changes := common.NewCorrelatedObject(obj, old, &model.Structural{Structural: s.structure})
		ratchet = append(ratchet, cel.WithRatcheting(changes))
		if subresource == "" {
			errs = validation.ValidateCustomResourceUpdate(nil, obj, old, s.all, validation.WithRatcheting(changes))
		} else if status, ok := obj["status"]; ok && s.status != nil {
			errs = validation.ValidateCustomResourceUpdate(field.NewPath("status"), status, old["status"], s.status, validation.WithRatcheting(changes.Key("status")))
		}
	}
	if subresource == "" {
		errs = append(errs, objectmeta.Validate(context.Background(), nil, obj, s.structure, false)...)
	}
	if old == nil || len(listtype.ValidateListSetsAndMaps(nil, s.structure, old)) == 0 {
		errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structure, obj)...)
	}
	if s.rules == nil {
		return errs
	}
	if slices.ContainsFunc(errs, keepsFromRules) {
		return append(errs, field.Invalid(nil, nil, "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"))
	}
	broken, _ := s.rules.Validate(context.Background(), nil, s.structure, obj, was, celconfig.RuntimeCELCostBudget, ratchet...)
	return append(errs, broken...)
}

// keepsFromRules reports whether CEL rules can't be evaluated on an object with the error.
func keepsFromRules(err *field.Error) bool {
	switch err.Type {
	case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
		return true
	}
	return false
}
