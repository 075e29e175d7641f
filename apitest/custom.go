// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"fmt"
	"maps"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Kind describes a kind that client-go's scheme does not have, for
// Server.Register and Options.Kinds. Its objects are served without schema
// validation, defaults or conversion, in JSON only.
type Kind struct {
	// GroupVersionKind is required.
	schema.GroupVersionKind
	// Resource is the plural name in paths. Empty means the name that
	// apimachinery guesses: Widget becomes widgets, Policy policies.
	Resource string
	// ClusterScoped is set for a kind without namespaces.
	ClusterScoped bool
	// NoStatus is set for a kind without the status subresource. By default a
	// write of the object leaves status alone, and a write of /status leaves
	// everything else alone.
	NoStatus bool
	// Type is an object of the kind's Go type, so that Put, Get, List, Edit and
	// Delete take the type. If it is nil, these functions take none; Put takes
	// an *unstructured.Unstructured in any case.
	Type runtime.Object
}

// Register makes the server serve a kind. Registering a kind again replaces the
// kind and keeps its objects. Register panics if every server has the kind.
func (s *Server) Register(k Kind) {
	if k.Kind == "" || k.Version == "" {
		panic("apitest: Register: a kind without a version or a name: " + k.GroupVersionKind.String())
	}
	if k.Resource == "" {
		plural, _ := meta.UnsafeGuessKindToResource(k.GroupVersionKind)
		k.Resource = plural.Resource
	}
	c := dynamicKind(k.Kind, k.Resource, !k.ClusterScoped, !k.NoStatus, k.GroupVersion())
	if k.Type != nil {
		c.goType = reflect.TypeOf(k.Type)
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.register(c)
}

// register adds k to the server's own kinds and serves its versions. The lock
// of the store is held.
func (s *Server) register(k *kind) {
	if s.builtin.byGroupKind[k.groupKind()] != nil {
		panic("apitest: every server has the kind " + k.groupKind().String())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.own.byGroupKind[k.groupKind()]; old != nil {
		k.first = old.table()
		if k.goType == nil {
			k.goType = old.goType
		}
		s.own.remove(old)
	}
	s.own.add(k)
	for _, v := range k.views {
		s.served[v.gv] = true
	}
}

// unregister removes a kind of the server's own with all its objects. The lock
// of the store is held.
func (s *Server) unregister(k *kind) {
	t := s.store.table(k)
	for _, it := range t.sorted("") {
		s.store.remove(t, it)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own.remove(k)
}

// dynamicKind returns a kind whose objects have no Go type in this module. The
// first version is the stored version.
func dynamicKind(name, resource string, namespaced, status bool, versions ...schema.GroupVersion) *kind {
	k := &kind{
		name: name, resource: resource, namespaced: namespaced, status: status, dynamic: true,
		validName: apivalidation.NameIsDNSSubdomain,
	}
	for i, gv := range versions {
		v := view{gv: gv}
		if i > 0 {
			v.toStored, v.fromStored = shallow, shallow
		}
		k.views = append(k.views, v)
	}
	k.spec = func(obj runtime.Object) any {
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
	k.onCreate = func(_ *write, obj runtime.Object) { delete(contentOf(obj), "status") }
	k.onUpdate = func(w *write, obj, old runtime.Object) {
		m, o := contentOf(obj), contentOf(old)
		if w.r.Subresource == "" {
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

// contentOf is the content of an object without a Go type.
func contentOf(obj runtime.Object) map[string]any { return obj.(*unstructured.Unstructured).Object }

var crdGroupVersion = schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}

// customResourceDefinitions are served without the types of
// apiextensions-apiserver, which this module does not require.
var customResourceDefinitions = func() *kind {
	k := dynamicKind("CustomResourceDefinition", "customresourcedefinitions", false, true, crdGroupVersion)
	k.unconditional = true
	k.onCreate = func(w *write, obj runtime.Object) { contentOf(obj)["status"] = acceptedStatus(obj, w.now) }
	k.validate = func(_ *write, obj, _ runtime.Object) field.ErrorList {
		_, errs := definitionOf(obj)
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
	kind   *kind
	names  map[string]any
	stored string
}

// definitionOf reads a CustomResourceDefinition.
func definitionOf(obj runtime.Object) (d definition, errs field.ErrorList) {
	m, spec := contentOf(obj), field.NewPath("spec")
	text := func(fields ...string) string {
		v, _, _ := unstructured.NestedString(m, fields...)
		if v == "" {
			errs = append(errs, field.Required(field.NewPath(fields[0], fields[1:]...), ""))
		}
		return v
	}
	group, plural, name, scope := text("spec", "group"), text("spec", "names", "plural"), text("spec", "names", "kind"), text("spec", "scope")
	if want := plural + "." + group; metaOf(obj).GetName() != want && len(errs) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), metaOf(obj).GetName(), "must be spec.names.plural+\".\"+spec.group"))
	}
	if msgs := validation.IsDNS1035Label(plural); plural != "" && len(msgs) > 0 {
		errs = append(errs, field.Invalid(spec.Child("names", "plural"), plural, strings.Join(msgs, ",")))
	}
	if scope != "" && scope != "Cluster" && scope != "Namespaced" {
		errs = append(errs, field.NotSupported(spec.Child("scope"), scope, []string{"Cluster", "Namespaced"}))
	}
	d.names, _, _ = unstructured.NestedMap(m, "spec", "names")
	var served []schema.GroupVersion
	status, fields := false, map[string]bool{}
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
	d.kind = dynamicKind(name, plural, scope == "Namespaced", status, served...)
	if len(fields) > 0 {
		d.kind.fields = func(obj runtime.Object, path string) (string, bool) {
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
	d, errs := definitionOf(obj)
	if len(errs) > 0 {
		return map[string]any{} // validation refuses it
	}
	condition := func(typ, reason, message string) any {
		return map[string]any{"type": typ, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now.UTC().Format("2006-01-02T15:04:05Z")}
	}
	names := maps.Clone(d.names)
	if names["listKind"] == nil {
		names["listKind"] = d.kind.name + "List"
	}
	if names["singular"] == nil {
		names["singular"] = strings.ToLower(d.kind.name)
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

// defined updates the kinds of the server after a change of a
// CustomResourceDefinition. store.mu must be held.
func (s *Server) defined(ev event) {
	d, errs := definitionOf(ev.cur.obj)
	if len(errs) > 0 || s.builtin.byGroupKind[d.kind.groupKind()] != nil {
		return
	}
	if ev.cur != nil && ev.typ != "DELETED" {
		s.register(d.kind)
		return
	}
	if k := s.kindNamed(d.kind.groupKind()); k != nil {
		s.unregister(k)
	}
}
