// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
)

// Server-side apply needs to know which manager set which field. To compute
// that for every write would make every test slower, and most tests apply
// nothing. So an object is tracked from its first apply on: until then its
// managedFields name the managers with a stub for their fields, and the server
// remembers the object as each of them left it. The first apply replays these
// states, so that it meets the conflicts that it would meet on a real server.

// typedSchemas reads client-go's schemas of all built-in types. It takes a
// while, so it waits for the first apply.
var typedSchemas = sync.OnceValue(func() managedfields.TypeConverter {
	return applyconfigurations.NewTypeConverter(scheme.Scheme)
})

// earlier is the state of an object after the last write of one of its managers.
type earlier struct {
	by  *metav1.ManagedFieldsEntry // its fields do not count
	obj runtime.Object
}

// unmanaged is the manager of Put, Edit and the server's own changes.
var unmanaged = &metav1.ManagedFieldsEntry{}

// maxEarlier bounds the states of an object that the server remembers. The
// changes of a state that it forgets count as those of the next manager.
const maxEarlier = 16

// sameManager reports whether two entries of managedFields are of one manager.
func sameManager(a, b *metav1.ManagedFieldsEntry) bool {
	return a.Manager == b.Manager && a.Operation == b.Operation && a.APIVersion == b.APIVersion && a.Subresource == b.Subresource
}

// follows records the manager by of this version, and takes over from prev the
// versions of earlier managers.
func (it *item) follows(prev *item, by *metav1.ManagedFieldsEntry) {
	it.by = by
	if prev == nil {
		return
	}
	it.tracked, it.earlier = prev.tracked, prev.earlier
	if it.tracked {
		it.earlier = nil
		return
	}
	if !sameManager(prev.by, by) {
		past := prev.earlier
		if len(past) == maxEarlier {
			past = past[1:]
		}
		it.earlier = append(slices.Clip(past), earlier{prev.by, prev.obj})
	}
}

// fieldManager returns apimachinery's field manager for a version of the kind.
func (k *kind) fieldManager(view int, subresource string) (*managedfields.FieldManager, error) {
	gv, c := k.views[view].gv, converter{k}
	if k.dynamic {
		return managedfields.NewDefaultCRDFieldManager(managedfields.NewDeducedTypeConverter(), c, c, c, gv.WithKind(k.name), gv, subresource, nil)
	}
	return managedfields.NewDefaultFieldManager(typedSchemas(), c, c, c, gv.WithKind(k.name), gv, subresource, nil)
}

// converter describes a kind to a field manager.
type converter struct{ k *kind }

// Default does nothing: the server fills in defaults itself.
func (converter) Default(runtime.Object) {}

// New returns an object without content.
func (c converter) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	for v := range c.k.views {
		if c.k.views[v].gv == gvk.GroupVersion() {
			return c.k.zero(v), nil
		}
	}
	return nil, runtime.NewNotRegisteredErrForKind("apitest", gvk)
}

// Convert and ConvertFieldLabel are not used by field managers.
func (converter) Convert(in, _, _ any) error { return fmt.Errorf("no conversion of %T", in) }

// ConvertFieldLabel implements runtime.ObjectConvertor.
func (converter) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// ConvertToVersion converts an object to another version of the kind, and one
// without a Go type to the type that it has.
func (c converter) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	gv, ok := target.(schema.GroupVersion)
	if !ok {
		return nil, fmt.Errorf("no version %v", target)
	}
	at := func(gv schema.GroupVersion) int {
		return slices.IndexFunc(c.k.views, func(v view) bool { return v.gv == gv })
	}
	from, to := at(in.GetObjectKind().GroupVersionKind().GroupVersion()), at(gv)
	if from < 0 || to < 0 {
		return nil, runtime.NewNotRegisteredErrForTarget("apitest", nil, target)
	}
	if u, ok := in.(*unstructured.Unstructured); ok && !c.k.dynamic {
		in = c.k.zero(from)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, in); err != nil {
			return nil, err
		}
	}
	if from == to {
		return in, nil
	}
	return c.k.convertTo(c.k.convertFrom(shallow(in), from), to), nil
}

// resolve returns a copy of a stored object in view v with exact managedFields.
func (k *kind) resolve(it *item, v int) (runtime.Object, error) {
	if it.tracked {
		return k.convertTo(it.obj, v).DeepCopyObject(), nil
	}
	live := k.zero(0)
	for _, e := range slices.Concat(it.earlier, []earlier{{it.by, it.obj}}) {
		obj := e.obj.DeepCopyObject()
		metaOf(obj).SetManagedFields(metaOf(live).GetManagedFields())
		if e.by.Manager != "" {
			fm, err := k.fieldManager(0, e.by.Subresource)
			if err != nil {
				return nil, err
			}
			if obj, err = fm.Update(live, obj, e.by.Manager); err != nil {
				return nil, err
			}
		}
		live = obj
	}
	// The times are those of the writes, not of the replay.
	entries := metaOf(live).GetManagedFields()
	for i := range entries {
		for _, was := range metaOf(it.obj).GetManagedFields() {
			if entries[i].Manager == was.Manager && entries[i].Operation == was.Operation && entries[i].Subresource == was.Subresource {
				entries[i].Time = was.Time
			}
		}
	}
	metaOf(live).SetManagedFields(entries)
	return k.convertTo(live, v), nil
}

// apply serves a PATCH that is a server-side apply.
func (c *call) apply() (*answer, error) {
	if !c.r.named {
		return nil, methodNotAllowed()
	}
	force := isSet(c.query, "force")
	opts := &metav1.PatchOptions{DryRun: c.query["dryRun"], FieldManager: c.r.FieldManager, Force: &force, FieldValidation: c.query.Get("fieldValidation")}
	if errs := metav1validation.ValidatePatchOptions(opts, types.ApplyPatchType); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "PatchOptions"}, "", errs)
	}
	var content map[string]any
	body, err := yaml.ToJSON(c.r.Body)
	if err == nil {
		err = json.Unmarshal(body, &content)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error encoding patch: %v", err))
	}
	if content == nil {
		content = map[string]any{}
	}
	patch := &unstructured.Unstructured{Object: content}
	gvk := c.kind.views[c.view].gv.WithKind(c.kind.name)
	if got := patch.GroupVersionKind(); got.Kind != gvk.Kind || got.Version == "" {
		return nil, apierrors.NewBadRequest("invalid object type: " + got.String())
	}
	sent, named, err := unstructured.NestedFieldNoCopy(patch.Object, "metadata", "name")
	if _, ok := sent.(string); err != nil || sent != nil && !ok {
		return nil, errors.New("metadata.name is no string") // 500 on the real server too
	}
	if named && sent != c.r.Name {
		return nil, c.matchName(patch)
	}
	if err := c.matchNamespace(patch.DeepCopy()); err != nil {
		return nil, err
	}
	if err := c.checkMetaTypes(patch); err != nil {
		return nil, err
	}
	c.keepTo(patch)
	_, err = c.lookup()
	if mayCreate := err != nil && c.r.Subresource == ""; mayCreate {
		if err := c.s.authorizeCreate(c); err != nil {
			return nil, err
		}
	}
	c.s.store.begin()
	it, code, err := c.merge(patch, force)
	c.s.store.commit()
	if err != nil {
		return nil, err
	}
	return c.object(code, it)
}

// checkMetaTypes returns an error if the metadata in the apply of a custom resource
// does not have the types of ObjectMeta. The real server answers 500 too.
func (c *call) checkMetaTypes(patch *unstructured.Unstructured) error {
	if !c.kind.dynamic {
		return nil
	}
	obj := patch.DeepCopy()
	unstructured.RemoveNestedField(obj.Object, "metadata", "creationTimestamp")
	unknown, err := coerceMeta(obj, true)
	if err != nil || len(unknown) > 0 {
		return errors.Join(append(unknown, err)...)
	}
	finalizers := sets.New[string]()
	for _, f := range obj.GetFinalizers() {
		if f == "" || finalizers.Has(f) {
			return fmt.Errorf("metadata.finalizers: %q is no name, or is there twice", f)
		}
		finalizers.Insert(f)
	}
	owners := sets.New[types.UID]()
	for _, ref := range obj.GetOwnerReferences() {
		if owners.Has(ref.UID) {
			return fmt.Errorf("metadata.ownerReferences: %q is there twice", ref.UID)
		}
		owners.Insert(ref.UID)
	}
	return nil
}

// keepTo removes from an apply the fields that its path must not change, so that
// its manager does not own them.
func (c *call) keepTo(patch *unstructured.Unstructured) {
	if !c.kind.status {
		return
	}
	if c.r.Subresource == "" {
		delete(patch.Object, "status")
		return
	}
	for name := range patch.Object {
		if name != "apiVersion" && name != "kind" && name != "metadata" && name != "status" {
			delete(patch.Object, name)
		}
	}
}

// merge merges an apply into the stored object. store.mu must be held.
func (c *call) merge(patch *unstructured.Unstructured, force bool) (*item, int, error) {
	k := c.kind
	fm, err := k.fieldManager(c.view, c.r.Subresource)
	if err != nil {
		return nil, 0, err
	}
	old := c.table().items[c.key()]
	if old == nil && c.r.Subresource != "" {
		return nil, 0, apierrors.NewNotFound(c.resource(), c.r.Name)
	}
	live := k.zero(c.view)
	if old == nil {
		metaOf(live).SetName(c.r.Name)
		metaOf(live).SetNamespace(c.key().namespace)
		if uid := patch.GetUID(); uid != "" {
			return nil, 0, apierrors.NewConflict(c.resource(), c.r.Name, fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
		}
	} else if live, err = k.resolve(old, c.view); err != nil {
		return nil, 0, err
	}
	merged, err := fm.Apply(live, patch, c.r.FieldManager, force)
	if err != nil {
		return nil, 0, err // not always a Status: the real server answers 500 to a field of a wrong type
	}
	obj := k.convertFrom(merged, c.view)
	w := c.newWrite()
	w.applied = true
	if old == nil {
		if patch.GetName() == "" {
			return nil, 0, c.matchName(patch)
		}
		it, err := c.insert(w, obj)
		return it, http.StatusCreated, err
	}
	it, err := c.replace(w, obj, old)
	return it, http.StatusOK, err
}

// stub stands for the fields of a manager of an object that is not tracked.
var stub = &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:labels":{}},"f:spec":{}}`)}

// manage brings the managedFields of obj up to date: those of old unless the
// client sent its own, with the entry of this writer added or dated again. It
// reports whether they changed in more than their times.
func (w *write) manage(obj runtime.Object, old *item) (changed bool) {
	m := metaOf(obj)
	if w.applied {
		return old == nil || !sameManagers(m.GetManagedFields(), metaOf(old.obj).GetManagedFields())
	}
	if w.s.opts.ManagedFields || old != nil && old.tracked {
		w.exact = true
		return w.track(obj, old)
	}
	entries := m.GetManagedFields()
	if old != nil {
		was := metaOf(old.obj).GetManagedFields()
		switch {
		case len(entries) == 0:
			entries = was
		case len(entries) == 1 && entries[0].Manager == "" && entries[0].FieldsV1 == nil:
			entries, changed = nil, true // [{}] resets
		default:
			changed = len(entries) != len(was)
		}
	}
	e := metav1.ManagedFieldsEntry{
		Manager: w.manager(), Operation: metav1.ManagedFieldsOperationUpdate,
		APIVersion: w.kind.views[w.view].gv.String(), Time: &w.now,
		FieldsType: "FieldsV1", FieldsV1: stub, Subresource: w.r.Subresource,
	}
	i := slices.IndexFunc(entries, func(x metav1.ManagedFieldsEntry) bool { return sameManager(&x, &e) })
	out := make([]metav1.ManagedFieldsEntry, len(entries), len(entries)+1)
	copy(out, entries)
	if i < 0 {
		out = append(out, e)
	} else {
		out[i] = e
	}
	w.by = &out[max(i, 0)]
	if i < 0 {
		w.by = &out[len(entries)]
	}
	m.SetManagedFields(out)
	return changed
}

// track lets apimachinery's field manager bring the managedFields up to date.
func (w *write) track(obj runtime.Object, old *item) (changed bool) {
	live := w.kind.zero(0)
	var was []metav1.ManagedFieldsEntry
	if old != nil {
		was = metaOf(old.obj).GetManagedFields()
	}
	fm, err := w.kind.fieldManager(0, w.r.Subresource)
	if err == nil && old != nil {
		live, err = w.kind.resolve(old, 0) // a copy: the field manager changes its arguments
	}
	if err != nil {
		metaOf(obj).SetManagedFields(was)
		return false
	}
	fm.UpdateNoErrors(live, obj, w.manager())
	return !sameManagers(metaOf(obj).GetManagedFields(), was)
}

// sameManagers reports whether managedFields differ only in their times.
func sameManagers(a, b []metav1.ManagedFieldsEntry) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.ManagedFieldsEntry) bool {
		return sameManager(&x, &y) && x.FieldsV1.String() == y.FieldsV1.String()
	})
}

// manager returns the field manager of a request: its fieldManager parameter, or
// the first part of its user agent.
func (w *write) manager() string {
	if w.r.FieldManager != "" {
		return w.r.FieldManager
	}
	name, _, _ := strings.Cut(w.r.UserAgent, "/")
	if name == "" {
		name = "unknown"
	}
	return name
}
