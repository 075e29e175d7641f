// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/request"
	"github.com/kubewright/kubewright/apitest/internal/rules"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// Server-side apply needs to know which manager set which field. To compute
// that for every write would make every test slower, and most tests apply
// nothing. So an object is tracked from its first apply on: until then its
// managedFields name the managers with a stub for their fields, and the server
// remembers the object as each of them left it. The first apply replays these
// states, so that it meets the conflicts that it would meet on a real server.

// resolve returns a copy of a stored object in view v with exact managedFields.
func resolve(k *rules.Kind, it *store.Item, v int) (runtime.Object, error) {
	if it.Tracked {
		return k.ConvertTo(it.Obj, v).DeepCopyObject(), nil
	}
	live := k.Zero(0)
	for _, e := range slices.Concat(it.Earlier, []store.Earlier{{By: it.By, Obj: it.Obj}}) {
		obj := e.Obj.DeepCopyObject()
		codec.MetaOf(obj).SetManagedFields(codec.MetaOf(live).GetManagedFields())
		if e.By.Manager != "" {
			fm, err := k.FieldManager(0, e.By.Subresource)
			if err != nil {
				return nil, err
			}
			if obj, err = fm.Update(live, obj, e.By.Manager); err != nil {
				return nil, err
			}
		}
		live = obj
	}
	// The times are those of the writes, not of the replay.
	entries := codec.MetaOf(live).GetManagedFields()
	for i := range entries {
		for _, was := range codec.MetaOf(it.Obj).GetManagedFields() {
			if entries[i].Manager == was.Manager && entries[i].Operation == was.Operation && entries[i].Subresource == was.Subresource {
				entries[i].Time = was.Time
			}
		}
	}
	codec.MetaOf(live).SetManagedFields(entries)
	return k.ConvertTo(live, v), nil
}

// apply serves a PATCH that is a server-side apply.
func (c *Call) apply() (*Answer, error) {
	if !c.r.Named {
		return nil, methodNotAllowed()
	}
	force := request.IsSet(c.query, "force")
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
	gvk := c.kind.Views[c.view].GV.WithKind(c.kind.Name)
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
	if err := c.kind.CheckFields(patch, c.view); err != nil {
		return nil, err
	}
	c.keepTo(patch)
	_, err = c.lookup()
	if mayCreate := err != nil && c.r.Subresource == ""; mayCreate {
		if err := c.authorizeCreate(); err != nil {
			return nil, err
		}
	}
	c.s.Store.Begin()
	it, code, err := c.merge(patch, force)
	c.s.Store.Commit()
	if err != nil {
		return nil, err
	}
	return c.object(code, it)
}

// checkMetaTypes returns an error if the metadata in the apply of a custom resource
// does not have the types of ObjectMeta. The real server answers 500 too.
func (c *Call) checkMetaTypes(patch *unstructured.Unstructured) error {
	if !c.kind.Dynamic {
		return nil
	}
	obj := patch.DeepCopy()
	unstructured.RemoveNestedField(obj.Object, "metadata", "creationTimestamp")
	unknown, err := rules.CoerceMeta(obj, true)
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
func (c *Call) keepTo(patch *unstructured.Unstructured) {
	if !c.kind.Status {
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

// merge merges an apply into the stored object. The store must be locked.
func (c *Call) merge(patch *unstructured.Unstructured, force bool) (*store.Item, int, error) {
	k := c.kind
	fm, err := k.FieldManager(c.view, c.r.Subresource)
	if err != nil {
		return nil, 0, err
	}
	old := c.table().Items[c.key()]
	if old == nil && c.r.Subresource != "" {
		return nil, 0, apierrors.NewNotFound(c.resource(), c.r.Name)
	}
	live := k.Zero(c.view)
	if old == nil {
		codec.MetaOf(live).SetName(c.r.Name)
		codec.MetaOf(live).SetNamespace(c.key().Namespace)
		if uid := patch.GetUID(); uid != "" {
			return nil, 0, apierrors.NewConflict(c.resource(), c.r.Name, fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
		}
	} else if live, err = resolve(k, old, c.view); err != nil {
		return nil, 0, err
	}
	merged, err := fm.Apply(live, patch, c.r.FieldManager, force)
	if err != nil {
		return nil, 0, err // not always a Status: the real server answers 500 to a field of a wrong type
	}
	obj := k.ConvertFrom(merged, c.view)
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
func (w *write) manage(obj runtime.Object, old *store.Item) (changed bool) {
	m := codec.MetaOf(obj)
	if w.applied {
		return old == nil || !sameManagers(m.GetManagedFields(), codec.MetaOf(old.Obj).GetManagedFields())
	}
	if w.s.ManagedFields || old != nil && old.Tracked {
		w.exact = true
		return w.track(obj, old)
	}
	entries := m.GetManagedFields()
	if old != nil {
		was := codec.MetaOf(old.Obj).GetManagedFields()
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
		APIVersion: w.kind.Views[w.view].GV.String(), Time: &w.rules.Now,
		FieldsType: "FieldsV1", FieldsV1: stub, Subresource: w.r.Subresource,
	}
	i := slices.IndexFunc(entries, func(x metav1.ManagedFieldsEntry) bool { return store.SameManager(&x, &e) })
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
func (w *write) track(obj runtime.Object, old *store.Item) (changed bool) {
	live := w.kind.Zero(0)
	var was []metav1.ManagedFieldsEntry
	if old != nil {
		was = codec.MetaOf(old.Obj).GetManagedFields()
	}
	fm, err := w.kind.FieldManager(0, w.r.Subresource)
	if err == nil && old != nil {
		live, err = resolve(w.kind, old, 0) // a copy: the field manager changes its arguments
	}
	if err != nil {
		codec.MetaOf(obj).SetManagedFields(was)
		return false
	}
	fm.UpdateNoErrors(live, obj, w.manager())
	return !sameManagers(codec.MetaOf(obj).GetManagedFields(), was)
}

// sameManagers reports whether managedFields differ only in their times.
func sameManagers(a, b []metav1.ManagedFieldsEntry) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.ManagedFieldsEntry) bool {
		return store.SameManager(&x, &y) && x.FieldsV1.String() == y.FieldsV1.String()
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
