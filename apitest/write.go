// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// write describes a write to the hooks of a kind.
type write struct {
	s    *Server
	r    *Request
	kind *kind
	view int
	by   *metav1.ManagedFieldsEntry // the writer, once manage has been called
	// applied is set for a server-side apply, which brings its managedFields.
	applied bool
	exact   bool        // the managedFields are exact
	now     metav1.Time // truncated to seconds, as the API stores times
}

func (c *call) newWrite() *write {
	return &write{s: c.s, r: c.r, kind: c.kind, by: unmanaged, view: c.view, now: metav1.Now().Rfc3339Copy()}
}

// gate reports whether a feature gate of the API is on.
func (w *write) gate(g Gate) bool { return w.s.gate(g) }

// matchNamespace sets the namespace of obj to that of the request. It returns an
// error if obj has another namespace.
func (c *call) matchNamespace(obj runtime.Object) error {
	want := ""
	if c.kind.namespaced {
		want = c.r.Namespace
	}
	m := metaOf(obj)
	switch got := m.GetNamespace(); {
	case got == want:
	case got == "" || want == "":
		m.SetNamespace(want)
	default:
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	return nil
}

// checkOptions validates the options of a write in the query.
func (c *call) checkOptions(kind string) error {
	if len(c.query) == 0 {
		return nil
	}
	opts := &metav1.PatchOptions{DryRun: c.query["dryRun"], FieldManager: c.r.FieldManager, FieldValidation: c.query.Get("fieldValidation")}
	if force := isSet(c.query, "force"); kind == "PatchOptions" && c.query.Has("force") {
		opts.Force = &force
	}
	if errs := metav1validation.ValidatePatchOptions(opts, types.MergePatchType); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
	}
	return nil
}

// matchName returns an error if the body names another object than the path.
func (c *call) matchName(obj runtime.Object) error {
	if err := c.matchNamespace(obj); err != nil {
		return err
	}
	switch name := metaOf(obj).GetName(); name {
	case c.r.Name:
		return nil
	case "":
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must be provided", c.r.Name))
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, c.r.Name))
	}
}

func (c *call) create() (*answer, error) {
	if c.r.named {
		return nil, methodNotAllowed()
	}
	if err := c.checkOptions("CreateOptions"); err != nil {
		return nil, err
	}
	obj, err := c.decode()
	if err != nil {
		return nil, err
	}
	if err := c.matchNamespace(obj); err != nil {
		return nil, err
	}
	m := metaOf(obj)
	if rv, err := strconv.ParseUint(m.GetResourceVersion(), 10, 64); err == nil && rv > 0 {
		return nil, errors.New("resourceVersion should not be set on objects to be created")
	}
	c.dedupOwners(m)
	w := c.newWrite()
	if m.GetName() == "" && m.GetGenerateName() != "" {
		m.SetName(c.s.generateName(m.GetGenerateName()))
	}
	c.s.store.begin()
	it, err := c.insert(w, obj)
	c.s.store.commit()
	if err != nil {
		return nil, err
	}
	return c.object(http.StatusCreated, it)
}

// insert prepares, validates and stores a new object. store.mu must be held.
func (c *call) insert(w *write, obj runtime.Object) (*item, error) {
	k, t, m := c.kind, c.table(), metaOf(obj)
	if k.defaults != nil {
		k.defaults(obj)
	}
	if k.namespaced {
		if err := c.s.namespaceOpen(k, m); err != nil {
			return nil, err
		}
	}
	if err := c.s.admit(c, obj, nil); err != nil {
		return nil, err
	}
	w.s.prepareCreate(w, obj)
	if errs := k.check(w, obj, nil); len(errs) > 0 {
		return nil, apierrors.NewInvalid(k.groupKind(), m.GetName(), errs)
	}
	if prev := t.items[key{m.GetNamespace(), m.GetName()}]; prev != nil {
		err := apierrors.NewAlreadyExists(c.resource(), m.GetName())
		if metaOf(prev.obj).GetDeletionTimestamp() != nil {
			err.ErrStatus.Message = "object is being deleted: " + err.ErrStatus.Message
		}
		return nil, err
	}
	if c.r.DryRun {
		return newItem(obj, 0), nil
	}
	if err := checkSize(obj); err != nil {
		return nil, err
	}
	return c.s.store.write(w, t, obj, nil), nil
}

// prepareCreate sets the fields of a new object that the server provides.
func (s *Server) prepareCreate(w *write, obj runtime.Object) {
	k, m := w.kind, metaOf(obj)
	obj.GetObjectKind().SetGroupVersionKind(k.stored().WithKind(k.name))
	m.SetUID(s.newUID())
	m.SetCreationTimestamp(w.now)
	m.SetDeletionTimestamp(nil)
	m.SetDeletionGracePeriodSeconds(nil)
	m.SetSelfLink("")
	if k.spec != nil {
		m.SetGeneration(1)
	}
	if k.onCreate != nil {
		k.onCreate(w, obj)
	}
	if !w.applied {
		m.SetManagedFields(nil)
	}
	w.manage(obj, nil)
}

// namespaceOpen returns an error if the namespace does not exist or is being
// deleted. store.mu must be held.
func (s *Server) namespaceOpen(k *kind, m metav1.Object) error {
	it := s.store.named["namespaces"].items[key{name: m.GetNamespace()}]
	if it == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, m.GetNamespace())
	}
	if metaOf(it.obj).GetDeletionTimestamp() != nil {
		err := apierrors.NewForbidden(k.groupResource(0), m.GetName(),
			fmt.Errorf("unable to create new content in namespace %s because it is being terminated", m.GetNamespace()))
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: "NamespaceTerminating", Message: fmt.Sprintf("namespace %s is being terminated", m.GetNamespace()), Field: "metadata.namespace"})
		return err
	}
	return nil
}

func (c *call) update() (*answer, error) {
	if !c.r.named {
		return nil, methodNotAllowed()
	}
	if err := c.checkOptions("UpdateOptions"); err != nil {
		return nil, err
	}
	obj, err := c.decode()
	if err != nil {
		return nil, err
	}
	if err := c.matchName(obj); err != nil {
		return nil, err
	}
	mayCreate := c.kind.createOnUpdate && c.r.Subresource == ""
	if _, err := c.lookup(); err != nil && mayCreate {
		if err := c.s.authorizeCreate(c); err != nil {
			return nil, err
		}
	}
	it, code, err := c.put(obj, mayCreate)
	if err != nil {
		return nil, err
	}
	return c.object(code, it)
}

// put replaces the object of the path by obj, or creates it.
func (c *call) put(obj runtime.Object, mayCreate bool) (*item, int, error) {
	c.s.store.begin()
	defer c.s.store.commit()
	w := c.newWrite()
	old := c.table().items[c.key()]
	if old == nil && !mayCreate {
		return nil, 0, apierrors.NewNotFound(c.resource(), c.r.Name)
	}
	if uid := metaOf(obj).GetUID(); uid != "" {
		// A UID in the body is a precondition, also of an object that no
		// longer exists.
		var have types.UID
		if old != nil {
			have = metaOf(old.obj).GetUID()
		}
		if have != uid {
			return nil, 0, apierrors.NewConflict(c.resource(), c.r.Name, c.preconditionFailed(uid, have))
		}
	}
	if old == nil {
		metaOf(obj).SetResourceVersion("")
		it, err := c.insert(w, obj)
		return it, http.StatusCreated, err
	}
	it, err := c.replace(w, obj, old)
	return it, http.StatusOK, err
}

func (c *call) preconditionFailed(want, have types.UID) error {
	path := "/registry/" + c.kind.resource + "/"
	if k := c.key(); k.namespace != "" {
		path += k.namespace + "/"
	}
	return fmt.Errorf("StorageError: invalid object, Code: 4, Key: %s%s, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: %s, UID in object meta: %s",
		path, c.r.Name, want, have)
}

// optimisticLock is the message of the real server for a stale write.
const optimisticLock = "the object has been modified; please apply your changes to the latest version and try again"

// replace prepares and validates obj and stores it in place of old. store.mu must
// be held.
func (c *call) replace(w *write, obj runtime.Object, old *item) (*item, error) {
	k, t, m, om := c.kind, c.table(), metaOf(obj), metaOf(old.obj)
	obj.GetObjectKind().SetGroupVersionKind(k.stored().WithKind(k.name))
	if k.defaults != nil {
		k.defaults(obj)
	}
	if err := c.s.admit(c, obj, old.obj); err != nil {
		return nil, err
	}
	switch rv, err := strconv.ParseUint(cmp.Or(m.GetResourceVersion(), "0"), 10, 64); {
	case err != nil:
		return nil, err
	case rv == 0 && !k.unconditional:
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: c.resource().Group, Kind: k.resource}, c.r.Name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update")})
	case rv != 0 && rv != old.rv:
		return nil, apierrors.NewConflict(c.resource(), c.r.Name, errors.New(optimisticLock))
	}
	m.SetResourceVersion(om.GetResourceVersion())
	c.dedupOwners(m)
	m.SetGeneration(om.GetGeneration())
	if m.GetUID() == "" {
		m.SetUID(om.GetUID())
	}
	m.SetCreationTimestamp(om.GetCreationTimestamp())
	if t := om.GetDeletionTimestamp(); t != nil {
		m.SetDeletionTimestamp(t)
	}
	if g := om.GetDeletionGracePeriodSeconds(); g != nil && m.GetDeletionGracePeriodSeconds() == nil {
		m.SetDeletionGracePeriodSeconds(g)
	}
	if k.onUpdate != nil {
		k.onUpdate(w, obj, old.obj)
	}
	if k.spec != nil && w.r.Subresource != "status" && !k.sameSpec(obj, old.obj) {
		m.SetGeneration(om.GetGeneration() + 1)
	}
	changed := w.manage(obj, old)
	if errs := k.check(w, obj, old.obj); len(errs) > 0 {
		return nil, apierrors.NewInvalid(k.groupKind(), c.r.Name, errs)
	}
	if !changed && w.same(obj, old.obj) {
		return old, nil
	}
	if c.r.DryRun {
		return newItem(obj, old.rv), nil
	}
	if om.GetDeletionTimestamp() != nil && len(m.GetFinalizers()) == 0 &&
		(om.GetDeletionGracePeriodSeconds() == nil || *om.GetDeletionGracePeriodSeconds() == 0) {
		// The last finalizer is gone, and nothing else keeps the object.
		c.s.store.remove(t, old)
		return newItem(obj, old.rv), nil
	}
	if err := checkSize(obj); err != nil {
		return nil, err
	}
	return c.s.store.write(w, t, obj, old), nil
}

// same reports whether two versions differ only in their managedFields. It
// compares the fields of an object from last to first, so that it finds a change
// of status or spec before it compares the metadata.
func (w *write) same(obj, old runtime.Object) bool {
	m := metaOf(obj)
	mf := m.GetManagedFields()
	m.SetManagedFields(metaOf(old).GetManagedFields())
	defer m.SetManagedFields(mf)
	a, b := reflect.ValueOf(obj).Elem(), reflect.ValueOf(old).Elem()
	for i := a.NumField() - 1; i >= 0; i-- {
		if !apiequality.Semantic.DeepEqual(a.Field(i).Addr().Interface(), b.Field(i).Addr().Interface()) {
			return false
		}
	}
	return true
}

// dedupOwners drops owner references that occur twice, with a warning.
func (c *call) dedupOwners(m metav1.Object) {
	refs := m.GetOwnerReferences()
	if len(refs) < 2 {
		return
	}
	var out []metav1.OwnerReference
	var twice []string
	for _, ref := range refs {
		if slices.ContainsFunc(out, func(o metav1.OwnerReference) bool { return apiequality.Semantic.DeepEqual(o, ref) }) {
			twice = append(twice, string(ref.UID))
		} else {
			out = append(out, ref)
		}
	}
	if twice != nil {
		m.SetOwnerReferences(out)
		c.warnings = append(c.warnings, ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: "+strings.Join(twice, ", "))
	}
}

// check validates an object as a whole.
func (k *kind) check(w *write, obj, old runtime.Object) field.ErrorList {
	var errs field.ErrorList
	if old == nil || !metaEqual(metaOf(obj), metaOf(old)) {
		errs = k.checkMeta(w, obj, old)
	}
	if k.validate != nil {
		errs = append(errs, k.validate(w, obj, old)...)
	}
	if w.s.minor < 37 {
		return errs
	}
	return unique(errs)
}

func (k *kind) checkMeta(w *write, obj, old runtime.Object) field.ErrorList {
	path := field.NewPath("metadata")
	errs := apivalidation.ValidateObjectMetaAccessor(metaOf(obj), k.namespaced, k.validName, path)
	if old != nil {
		changes := apivalidation.ValidateObjectMetaAccessorUpdate(metaOf(obj), metaOf(old), path)
		errs = append(errs, changes...)
		if w.s.minor < 37 {
			errs = append(errs, changes...) // older servers repeat these errors
		}
	}
	if k.stored().Group != coordinationv1.GroupName && !k.dynamic {
		for i, f := range metaOf(obj).GetFinalizers() {
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
