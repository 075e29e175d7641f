// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"reflect"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kubewright/kubewright/apitest/internal/codec"
)

// Properties of some kinds that their Go types don't show.
var (
	// withoutGeneration have a spec and keep no generation.
	withoutGeneration = setOf("PersistentVolume", "PersistentVolumeClaim", "CertificateSigningRequest", "VolumeAttachment", "ResourceQuota",
		"LimitRange", "CSIDriver", "CSINode", "IPAddress", "ServiceCIDR", "ClusterTrustBundle")
	// createdByUpdate are created by a PUT of an object that does not exist.
	createdByUpdate = setOf("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "Endpoints", "LimitRange", "RuntimeClass", "ComponentStatus")
	// returnedByDelete are in the answer to their deletion.
	returnedByDelete = setOf("PersistentVolume", "PersistentVolumeClaim", "PodTemplate", "ResourceQuota", "StorageClass", "CSIDriver", "CSINode", "VolumeAttachment")
)

func setOf(names ...string) map[string]bool {
	m := map[string]bool{}
	for _, n := range names {
		m[n] = true
	}
	return m
}

// generic returns the kinds of client-go's clientset that have does not have.
// The method sets of the clientset show the resource name, the scope and the
// subresources of each kind.
func generic(have *Catalog) []*Kind {
	byKind := map[schema.GroupKind]*Kind{}
	var order []*Kind
	clientset := reflect.TypeFor[kubernetes.Interface]()
	object := reflect.TypeFor[runtime.Object]()
	for i := range clientset.NumMethod() {
		group := clientset.Method(i).Type.Out(0)
		for j := range group.NumMethod() {
			getter := group.Method(j)
			if getter.Type.NumOut() != 1 || getter.Type.Out(0).Kind() != reflect.Interface {
				continue
			}
			client := getter.Type.Out(0)
			get, ok := client.MethodByName("Get")
			if _, lists := client.MethodByName("List"); !ok || !lists || !get.Type.Out(0).Implements(object) {
				continue // a review, or no resource at all
			}
			typ := get.Type.Out(0).Elem()
			gvks, _, err := scheme.Scheme.ObjectKinds(reflect.New(typ).Interface().(runtime.Object))
			if err != nil || have.covers(gvks[0]) {
				continue
			}
			gvk := gvks[0]
			k := byKind[gvk.GroupKind()]
			if k == nil {
				_, status := client.MethodByName("UpdateStatus")
				k = &Kind{
					Name: gvk.Kind, Resource: strings.ToLower(getter.Name), Namespaced: getter.Type.NumIn() == 1, Status: status,
					validName: apivalidation.NameIsDNSSubdomain, Unconditional: true,
					CreateOnUpdate: createdByUpdate[gvk.Kind], ReturnsDeleted: returnedByDelete[gvk.Kind],
				}
				if _, scale := client.MethodByName("GetScale"); scale {
					k.subresources = append(k.subresources, scaleSubresource)
				}
				if _, approval := client.MethodByName("UpdateApproval"); approval {
					k.subresources = append(k.subresources, Subresource{Name: "approval"})
				}
				byKind[gvk.GroupKind()] = k
				order = append(order, k)
			}
			k.Views = append(k.Views, View{GV: gvk.GroupVersion()})
		}
	}
	for _, k := range order {
		slices.SortFunc(k.Views, func(a, b View) int { return version.CompareKubeAwareVersionStrings(b.GV.Version, a.GV.Version) })
		for i := 1; i < len(k.Views); i++ {
			// The versions of a kind usually have the same fields. A field
			// that the stored version lacks is lost.
			k.Views[i].toStored = viaJSON(k.Zero(0), nil)
			k.Views[i].fromStored = viaJSON(k.Zero(i), nil)
		}
		k.follow(k.Zero(0))
	}
	return order
}

// follow gives a kind the rules that all kinds with a spec and a status share.
func (k *Kind) follow(stored runtime.Object) {
	typ := reflect.TypeOf(stored).Elem()
	if k.Stored().Group == rbacv1.GroupName || k.Name == "PodDisruptionBudget" { // any path segment is a valid name
		k.validName = path.ValidatePathSegmentName
	}
	if _, ok := typ.FieldByName("Spec"); ok && !withoutGeneration[k.Name] {
		k.Spec = func(obj runtime.Object) any { return part(obj, "Spec").Addr().Interface() }
	}
	if w, ok := workloads[k.GroupKind()]; ok {
		k.Defaults = w.defaults
		k.validate = func(write *Write, obj, old runtime.Object) field.ErrorList {
			if w.validate == nil || write.Subresource != "" {
				return nil
			}
			return w.validate(write, obj, old)
		}
	}
	if k.Name == "PriorityClass" {
		k.Defaults, k.Admit, k.validate = defaultClass, admitClass, validateClass
		k.Spec = func(runtime.Object) any { return nil } // its generation is always 1
	}
	if k.Name == "EndpointSlice" { // its generation counts changes of labels too
		k.Spec = func(obj runtime.Object) any {
			return []any{codec.MetaOf(obj).GetLabels(), part(obj, "Endpoints").Interface(), part(obj, "Ports").Interface()}
		}
	}
	if k.Name == "Deployment" { // so does its generation of annotations
		k.Spec = func(obj runtime.Object) any {
			return []any{codec.MetaOf(obj).GetAnnotations(), part(obj, "Spec").Interface()}
		}
	}
	switch stored.(type) {
	case *certificatesv1.CertificateSigningRequest:
		k.Fields = func(obj runtime.Object, path string) (string, bool) {
			return obj.(*certificatesv1.CertificateSigningRequest).Spec.SignerName, path == "spec.signerName"
		}
	case *certificatesv1.ClusterTrustBundle:
		k.Fields = func(obj runtime.Object, path string) (string, bool) {
			return obj.(*certificatesv1.ClusterTrustBundle).Spec.SignerName, path == "spec.signerName"
		}
	case *certificatesv1.PodCertificateRequest:
		k.Fields = func(obj runtime.Object, path string) (string, bool) {
			spec := &obj.(*certificatesv1.PodCertificateRequest).Spec
			value, ok := map[string]string{"spec.signerName": spec.SignerName, "spec.podName": spec.PodName, "spec.nodeName": string(spec.NodeName)}[path]
			return value, ok
		}
	}
	if _, ok := typ.FieldByName("Status"); !ok || !k.Status {
		return
	}
	k.OnCreate = func(w *Write, obj runtime.Object) {
		part(obj, "Status").SetZero()
		prepareWorkload(w, obj, nil)
	}
	k.OnUpdate = func(w *Write, obj, old runtime.Object) {
		if w.Subresource == "" {
			part(obj, "Status").Set(part(old, "Status"))
			prepareWorkload(w, obj, old)
			return
		}
		// A write of a subresource changes only the status, and metadata.
		if k.Name == "Deployment" {
			codec.MetaOf(obj).SetLabels(codec.MetaOf(old).GetLabels())
		}
		for _, f := range reflect.VisibleFields(typ) {
			if len(f.Index) == 1 && f.Name != "TypeMeta" && f.Name != "ObjectMeta" && f.Name != "Status" {
				part(obj, f.Name).Set(part(old, f.Name))
			}
		}
	}
}
