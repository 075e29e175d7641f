// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/request"
	"github.com/kubewright/kubewright/apitest/internal/rules"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// write describes a write to the hooks of a kind.
type write struct {
	s    *Server
	r    *request.Request
	kind *rules.Kind
	view int
	by   *metav1.ManagedFieldsEntry // the writer, once manage has been called
	// applied is set for a server-side apply, which brings its managedFields.
	applied bool
	exact   bool // the managedFields are exact
	rules   rules.Write
}

func (c *Call) newWrite() *write {
	return &write{s: c.s, r: c.r, kind: c.kind, by: store.Unmanaged, view: c.view, rules: rules.Write{
		Group: c.kind.Views[c.view].GV.Group, Subresource: c.r.Subresource, View: c.view, Minor: c.s.Minor, Now: metav1.Now().Rfc3339Copy(),
		On:      c.s.gate,
		Objects: c.s.objects,
		Schemas: c.s.Schemas,
	}}
}

// objects returns the objects of a built-in kind. The store must be locked.
func (s *Server) objects(gk schema.GroupKind) (out []runtime.Object) {
	for _, it := range s.Store.Table(s.builtin.ByGroupKind[gk]).Sorted("") {
		out = append(out, it.Obj)
	}
	return out
}

// matchNamespace sets the namespace of obj to that of the request. It returns an
// error if obj has another namespace.
func (c *Call) matchNamespace(obj runtime.Object) error {
	want := ""
	if c.kind.Namespaced {
		want = c.r.Namespace
	}
	m := codec.MetaOf(obj)
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
func (c *Call) checkOptions(kind string) error {
	if len(c.query) == 0 {
		return nil
	}
	opts := &metav1.PatchOptions{DryRun: c.query["dryRun"], FieldManager: c.r.FieldManager, FieldValidation: c.query.Get("fieldValidation")}
	if force := request.IsSet(c.query, "force"); kind == "PatchOptions" && c.query.Has("force") {
		opts.Force = &force
	}
	if errs := metav1validation.ValidatePatchOptions(opts, types.MergePatchType); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
	}
	return nil
}

// matchName returns an error if the body names another object than the path.
func (c *Call) matchName(obj runtime.Object) error {
	if err := c.matchNamespace(obj); err != nil {
		return err
	}
	switch name := codec.MetaOf(obj).GetName(); name {
	case c.r.Name:
		return nil
	case "":
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must be provided", c.r.Name))
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, c.r.Name))
	}
}

func (c *Call) create() (*Answer, error) {
	if c.r.Named {
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
	m := codec.MetaOf(obj)
	if rv, err := strconv.ParseUint(m.GetResourceVersion(), 10, 64); err == nil && rv > 0 {
		return nil, errors.New("resourceVersion should not be set on objects to be created")
	}
	c.dedupOwners(m)
	w := c.newWrite()
	if m.GetName() == "" && m.GetGenerateName() != "" {
		m.SetName(c.s.generateName(m.GetGenerateName()))
	}
	c.s.Store.Begin()
	it, err := c.insert(w, obj)
	c.s.Store.Commit()
	if err != nil {
		return nil, err
	}
	return c.object(http.StatusCreated, it)
}

// advises reports whether no warning has named the namespace. A controller that tries again
// and again would repeat it.
func (s *Server) advises(namespace string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.advised[namespace]
	s.advised[namespace] = true
	return !known
}

// insert prepares, validates and stores a new object. The store must be locked.
func (c *Call) insert(w *write, obj runtime.Object) (*store.Item, error) {
	k, t, m := c.kind, c.table(), codec.MetaOf(obj)
	k.SetDefaults(obj, c.view)
	if k.Namespaced {
		if err := c.s.namespaceOpen(k, m); err != nil {
			if apierrors.IsNotFound(err) && c.s.advises(m.GetNamespace()) {
				c.warnings = append(c.warnings, fmt.Sprintf("apitest: name the namespace %q in Options.Namespaces, or create it", m.GetNamespace()))
			}
			return nil, err
		}
	}
	if err := c.admit(w, obj, nil); err != nil {
		return nil, err
	}
	w.s.prepareCreate(w, obj)
	if errs := k.Check(&w.rules, obj, nil); len(errs) > 0 {
		return nil, apierrors.NewInvalid(k.GroupKind(), m.GetName(), errs)
	}
	k.SetDefaults(obj, c.view) // of the status, which was reset
	if prev := t.Items[store.Key{Namespace: m.GetNamespace(), Name: m.GetName()}]; prev != nil {
		err := apierrors.NewAlreadyExists(c.resource(), m.GetName())
		if codec.MetaOf(prev.Obj).GetDeletionTimestamp() != nil {
			err.ErrStatus.Message = "object is being deleted: " + err.ErrStatus.Message
		}
		return nil, err
	}
	if c.r.DryRun {
		return store.NewItem(obj, 0), nil
	}
	if err := checkSize(obj); err != nil {
		return nil, err
	}
	return c.s.Store.Write(w.by, w.applied || w.exact, t, obj, nil), nil
}

// prepareCreate sets the fields of a new object that the server provides.
func (s *Server) prepareCreate(w *write, obj runtime.Object) {
	k, m := w.kind, codec.MetaOf(obj)
	obj.GetObjectKind().SetGroupVersionKind(k.Stored().WithKind(k.Name))
	m.SetUID(s.NewUID())
	m.SetCreationTimestamp(w.rules.Now)
	m.SetDeletionTimestamp(nil)
	m.SetDeletionGracePeriodSeconds(nil)
	m.SetSelfLink("")
	if k.Spec != nil {
		m.SetGeneration(1)
	}
	if k.OnCreate != nil {
		k.OnCreate(&w.rules, obj)
	}
	if !w.applied {
		m.SetManagedFields(nil)
	}
	w.manage(obj, nil)
}

// namespaceOpen returns an error if the namespace does not exist or is being
// deleted. The store must be locked.
func (s *Server) namespaceOpen(k *rules.Kind, m metav1.Object) error {
	it := s.Store.Named["namespaces"].Items[store.Key{Name: m.GetNamespace()}]
	if it == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, m.GetNamespace())
	}
	if codec.MetaOf(it.Obj).GetDeletionTimestamp() != nil {
		err := apierrors.NewForbidden(k.GroupResource(0), m.GetName(),
			fmt.Errorf("unable to create new content in namespace %s because it is being terminated", m.GetNamespace()))
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: "NamespaceTerminating", Message: fmt.Sprintf("namespace %s is being terminated", m.GetNamespace()), Field: "metadata.namespace"})
		return err
	}
	return nil
}

func (c *Call) update() (*Answer, error) {
	if !c.r.Named {
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
	mayCreate := c.kind.CreateOnUpdate && c.r.Subresource == ""
	if _, err := c.lookup(); err != nil && mayCreate {
		if err := c.authorizeCreate(); err != nil {
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
func (c *Call) put(obj runtime.Object, mayCreate bool) (*store.Item, int, error) {
	c.s.Store.Begin()
	defer c.s.Store.Commit()
	w := c.newWrite()
	old := c.table().Items[c.key()]
	if old == nil && !mayCreate {
		return nil, 0, apierrors.NewNotFound(c.resource(), c.r.Name)
	}
	if uid := codec.MetaOf(obj).GetUID(); uid != "" {
		// A UID in the body is a precondition, also of an object that no
		// longer exists.
		var have types.UID
		if old != nil {
			have = codec.MetaOf(old.Obj).GetUID()
		}
		if have != uid {
			return nil, 0, apierrors.NewConflict(c.resource(), c.r.Name, c.preconditionFailed(uid, have))
		}
	}
	if old == nil {
		codec.MetaOf(obj).SetResourceVersion("")
		it, err := c.insert(w, obj)
		return it, http.StatusCreated, err
	}
	it, err := c.replace(w, obj, old)
	return it, http.StatusOK, err
}

func (c *Call) preconditionFailed(want, have types.UID) error {
	path := "/registry/" + cmp.Or(storageNames[c.kind.Resource], c.kind.Resource) + "/"
	if k := c.key(); k.Namespace != "" {
		path += k.Namespace + "/"
	}
	return fmt.Errorf("StorageError: invalid object, Code: 4, Key: %s%s, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: %s, UID in object meta: %s",
		path, c.r.Name, want, have)
}

// storageNames are the names of resources in the keys of etcd, where they differ.
var storageNames = map[string]string{"replicationcontrollers": "controllers", "nodes": "minions", "services": "services/specs", "endpoints": "services/endpoints"}

// optimisticLock is the message of the real server for a stale write.
const optimisticLock = "the object has been modified; please apply your changes to the latest version and try again"

// replace prepares and validates obj and stores it in place of old. The store must
// be locked.
func (c *Call) replace(w *write, obj runtime.Object, old *store.Item) (*store.Item, error) {
	k, t, m, om := c.kind, c.table(), codec.MetaOf(obj), codec.MetaOf(old.Obj)
	obj.GetObjectKind().SetGroupVersionKind(k.Stored().WithKind(k.Name))
	k.SetDefaults(obj, c.view)
	if err := c.admit(w, obj, old.Obj); err != nil {
		return nil, err
	}
	switch rv, err := strconv.ParseUint(cmp.Or(m.GetResourceVersion(), "0"), 10, 64); {
	case err != nil:
		return nil, err
	case rv == 0 && !k.Unconditional:
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: c.resource().Group, Kind: k.Resource}, c.r.Name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update")})
	case rv != 0 && rv != old.RV:
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
	if k.OnUpdate != nil {
		k.OnUpdate(&w.rules, obj, old.Obj)
	}
	if k.Spec != nil && w.r.Subresource != "status" && !k.SameSpec(obj, old.Obj) {
		m.SetGeneration(om.GetGeneration() + 1)
	}
	changed := w.manage(obj, old)
	if errs := k.Check(&w.rules, obj, old.Obj); len(errs) > 0 {
		return nil, apierrors.NewInvalid(k.GroupKind(), c.r.Name, errs)
	}
	if !changed && w.same(obj, old.Obj) {
		return old, nil
	}
	if c.r.DryRun {
		return store.NewItem(obj, old.RV), nil
	}
	if om.GetDeletionTimestamp() != nil && len(m.GetFinalizers()) == 0 &&
		(om.GetDeletionGracePeriodSeconds() == nil || *om.GetDeletionGracePeriodSeconds() == 0) {
		// The last finalizer is gone, and nothing else keeps the object.
		c.s.Store.Remove(t, old)
		return store.NewItem(obj, old.RV), nil
	}
	if err := checkSize(obj); err != nil {
		return nil, err
	}
	return c.s.Store.Write(w.by, w.applied || w.exact, t, obj, old), nil
}

// same reports whether two versions differ only in their managedFields. It
// compares the fields of an object from last to first, so that it finds a change
// of status or spec before it compares the metadata.
func (w *write) same(obj, old runtime.Object) bool {
	m := codec.MetaOf(obj)
	mf := m.GetManagedFields()
	m.SetManagedFields(codec.MetaOf(old).GetManagedFields())
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
func (c *Call) dedupOwners(m metav1.Object) {
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

// maxStored is the size of a request, in bytes, that etcd accepts.
const maxStored = 3 << 19

// maxMessage is the size of a request that the API server sends to etcd at all.
const maxMessage = 2 << 20

// checkSize returns an error if an object can't be stored because of its size.
func checkSize(obj runtime.Object) error {
	o, ok := obj.(interface{ Size() int })
	if !ok {
		return nil // an object without a Go type: at most as large as a request
	}
	const aroundIt = 200 // the key, and the rest of the request
	if size := o.Size() + aroundIt; size > maxMessage {
		return fmt.Errorf("rpc error: code = ResourceExhausted desc = trying to send message larger than max (%d vs. %d)", size, maxMessage)
	} else if size > maxStored {
		return errors.New("etcdserver: request is too large")
	}
	return nil
}
