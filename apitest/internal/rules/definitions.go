// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"maps"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/apitest/internal/codec"
)

// DynamicKind returns a kind whose objects have no Go type in this module. The
// first version is the stored version.
func DynamicKind(name, resource string, namespaced, status bool, versions ...schema.GroupVersion) *Kind {
	k := &Kind{
		Name: name, Resource: resource, Namespaced: namespaced, Status: status, Dynamic: true,
		validName: apivalidation.NameIsDNSSubdomain,
	}
	for i, gv := range versions {
		v := View{GV: gv}
		if i > 0 {
			v.toStored, v.fromStored = codec.Shallow, codec.Shallow
		}
		k.Views = append(k.Views, v)
	}
	k.Spec = func(obj runtime.Object) any {
		m := maps.Clone(contentOf(obj))
		delete(m, "metadata")
		delete(m, "apiVersion")
		if status {
			delete(m, "status")
		}
		return m
	}
	if !status {
		return k
	}
	k.OnCreate = func(_ *Write, obj runtime.Object) { delete(contentOf(obj), "status") }
	k.OnUpdate = func(w *Write, obj, old runtime.Object) {
		m, o := contentOf(obj), contentOf(old)
		if w.Subresource == "" {
			setOrDelete(m, "status", o)
			return
		}
		changed := maps.Clone(m)
		clear(m)
		maps.Copy(m, o)
		setOrDelete(m, "status", changed)
		metadata := maps.Clone(o["metadata"].(map[string]any))
		if sent, ok := changed["metadata"].(map[string]any); ok {
			// A status write changes no metadata but the server's own.
			setOrDelete(metadata, "resourceVersion", sent)
			setOrDelete(metadata, "managedFields", sent)
		}
		m["metadata"] = metadata
	}
	return k
}

// setOrDelete gives m the field of from, or removes it if from has none.
func setOrDelete(m map[string]any, field string, from map[string]any) {
	if v, ok := from[field]; ok {
		m[field] = v
	} else {
		delete(m, field)
	}
}

// DefinitionVersion is the version of CustomResourceDefinitions.
var DefinitionVersion = schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}

// customResourceDefinitions are served without the types of
// apiextensions-apiserver, which this module does not require.
var customResourceDefinitions = func() *Kind {
	k := DynamicKind("CustomResourceDefinition", "customresourcedefinitions", false, true, DefinitionVersion)
	k.Unconditional = true
	k.OnCreate = func(w *Write, obj runtime.Object) { contentOf(obj)["status"] = acceptedStatus(obj, w.Now) }
	k.validate = func(w *Write, obj, _ runtime.Object) field.ErrorList {
		if w.Schemas != nil {
			if _, errs := w.Schemas(obj.(*unstructured.Unstructured).DeepCopy()); len(errs) > 0 {
				return errs
			}
		}
		_, errs := DefinitionOf(obj)
		return errs
	}
	return k
}()

// definitionTypes has the types of the fields of a CustomResourceDefinition that
// the server reads.
type definitionTypes struct {
	Spec struct {
		Group string `json:"group"`
		Scope string `json:"scope"`
		Names struct {
			Plural     string   `json:"plural"`
			Singular   string   `json:"singular"`
			Kind       string   `json:"kind"`
			ListKind   string   `json:"listKind"`
			ShortNames []string `json:"shortNames"`
			Categories []string `json:"categories"`
		} `json:"names"`
		Versions []struct {
			Name    string `json:"name"`
			Served  bool   `json:"served"`
			Storage bool   `json:"storage"`
		} `json:"versions"`
	} `json:"spec"`
}

// definition is the content of a CustomResourceDefinition.
type definition struct {
	Kind   *Kind
	names  map[string]any
	stored string
}

// DefinitionOf reads a CustomResourceDefinition.
func DefinitionOf(obj runtime.Object) (d definition, errs field.ErrorList) {
	m, spec := contentOf(obj), field.NewPath("spec")
	text := func(fields ...string) string {
		v, _, _ := unstructured.NestedString(m, fields...)
		if v == "" {
			errs = append(errs, field.Required(field.NewPath(fields[0], fields[1:]...), ""))
		}
		return v
	}
	group, plural, name, scope := text("spec", "group"), text("spec", "names", "plural"), text("spec", "names", "kind"), text("spec", "scope")
	if want := plural + "." + group; codec.MetaOf(obj).GetName() != want && len(errs) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), codec.MetaOf(obj).GetName(), "must be spec.names.plural+\".\"+spec.group"))
	}
	if msgs := validation.IsDNS1035Label(plural); plural != "" && len(msgs) > 0 {
		errs = append(errs, field.Invalid(spec.Child("names", "plural"), plural, strings.Join(msgs, ",")))
	}
	if scope != "" && scope != "Cluster" && scope != "Namespaced" {
		errs = append(errs, field.NotSupported(spec.Child("scope"), scope, []string{"Cluster", "Namespaced"}))
	}
	d.names, _, _ = unstructured.NestedMap(m, "spec", "names")
	var served []schema.GroupVersion
	status, fields, scale := false, map[string]bool{}, (*scalePaths)(nil)
	versions, _, _ := unstructured.NestedSlice(m, "spec", "versions")
	for i, v := range versions {
		version, ok := v.(map[string]any)
		if !ok {
			errs = append(errs, field.TypeInvalid(spec.Child("versions").Index(i), v, "must be an object"))
			continue
		}
		name, _, _ := unstructured.NestedString(version, "name")
		if name == "" {
			errs = append(errs, field.Required(spec.Child("versions").Index(i).Child("name"), ""))
		} else if msgs := validation.IsDNS1035Label(name); len(msgs) > 0 {
			errs = append(errs, field.Invalid(spec.Child("versions").Index(i).Child("name"), name, strings.Join(msgs, ",")))
		}
		if _, ok, _ := unstructured.NestedMap(version, "subresources", "status"); ok {
			status = true
		}
		if paths, ok := pathsOf(version); ok {
			scale = &paths
		}
		selectable, _, _ := unstructured.NestedSlice(version, "selectableFields")
		for _, f := range selectable {
			if f, ok := f.(map[string]any); ok {
				p, _, _ := unstructured.NestedString(f, "jsonPath")
				fields[strings.TrimPrefix(p, ".")] = true
			}
		}
		gv := schema.GroupVersion{Group: group, Version: name}
		if on, _, _ := unstructured.NestedBool(version, "storage"); on {
			if d.stored != "" {
				errs = append(errs, field.Invalid(spec.Child("versions"), "", "must have exactly one version marked as storage version"))
			}
			d.stored = name
			served = append([]schema.GroupVersion{gv}, served...)
		} else if on, _, _ := unstructured.NestedBool(version, "served"); on {
			served = append(served, gv)
		}
	}
	if d.stored == "" && len(errs) == 0 {
		errs = append(errs, field.Invalid(spec.Child("versions"), "", "must have exactly one version marked as storage version"))
	}
	if len(errs) > 0 {
		return d, errs
	}
	d.Kind = DynamicKind(name, plural, scope == "Namespaced", status, served...)
	if scale != nil {
		d.Kind.scale = *scale
		d.Kind.subresources = append(d.Kind.subresources, scaleSubresource)
	}
	if len(fields) > 0 {
		d.Kind.Fields = func(obj runtime.Object, path string) (string, bool) {
			v, ok, _ := unstructured.NestedFieldNoCopy(contentOf(obj), strings.Split(path, ".")...)
			if !ok {
				return "", fields[path]
			}
			return fmt.Sprint(v), fields[path]
		}
	}
	return d, nil
}

// acceptedStatus is the status of a CustomResourceDefinition whose kind is
// served.
func acceptedStatus(obj runtime.Object, now metav1.Time) map[string]any {
	d, errs := DefinitionOf(obj)
	if len(errs) > 0 {
		return map[string]any{} // validation refuses it
	}
	condition := func(typ, reason, message string) any {
		return map[string]any{"type": typ, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now.UTC().Format("2006-01-02T15:04:05Z")}
	}
	names := maps.Clone(d.names)
	if names["listKind"] == nil {
		names["listKind"] = d.Kind.Name + "List"
	}
	if names["singular"] == nil {
		names["singular"] = strings.ToLower(d.Kind.Name)
	}
	return map[string]any{
		"acceptedNames":  names,
		"storedVersions": []any{d.stored},
		"conditions": []any{
			condition("NamesAccepted", "NoConflicts", "no conflicts found"),
			condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
		},
	}
}
