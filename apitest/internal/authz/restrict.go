// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/request"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// Restrict is the admission plugin NodeRestriction: it limits the writes of
// a node identity to its objects and their fields. obj is nil for a deletion, old
// for a creation. The store must be locked.
func (s Node) Restrict(r *request.Request, of schema.GroupResource, obj, old runtime.Object) error {
	node, ok := r.User.Node()
	if !ok {
		return nil
	}
	name := r.Name
	if obj != nil {
		name = codec.MetaOf(obj).GetName()
	}
	var err error
	switch of.Resource {
	case "nodes":
		err = restrictNode(node, name, obj, old)
	case "pods":
		err = s.restrictPod(node, r.Subresource, obj, old)
	case "leases":
		err = restrictLease(node, obj, old)
	case "csinodes":
		if name != node {
			err = errors.New("can only access CSINode with the same name as the requesting node")
		}
	case "resourceslices":
		err = restrictSlice(node, obj, old)
	case "podcertificaterequests":
		if pcr, ok := obj.(*certificatesv1.PodCertificateRequest); ok && old == nil {
			err = s.restrictCertificateRequest(node, pcr)
		}
	}
	if err == nil || apierrors.IsNotFound(err) {
		return err
	}
	return apierrors.NewForbidden(of, name, err)
}

func restrictNode(node, name string, obj, old runtime.Object) error {
	if name != node {
		return fmt.Errorf("node %q is not allowed to modify node %q", node, name)
	}
	if obj == nil {
		return nil
	}
	n := obj.(*corev1.Node)
	if old == nil {
		if n.Spec.ConfigSource != nil {
			return fmt.Errorf("node %q is not allowed to create pods with a non-nil configSource", node)
		}
		if bad := forbiddenLabels(n.Labels, nil); len(bad) > 0 {
			return fmt.Errorf("node %q is not allowed to set the following labels: %s", node, strings.Join(bad, ", "))
		}
		return nil
	}
	o := old.(*corev1.Node)
	switch {
	case n.Spec.ConfigSource != nil && !equality.Semantic.DeepEqual(n.Spec.ConfigSource, o.Spec.ConfigSource):
		return fmt.Errorf("node %q is not allowed to update configSource to a new non-nil configSource", node)
	case !equality.Semantic.DeepEqual(n.Spec.Taints, o.Spec.Taints):
		return fmt.Errorf("node %q is not allowed to modify taints", node)
	case !equality.Semantic.DeepEqual(n.OwnerReferences, o.OwnerReferences):
		return fmt.Errorf("node %q is not allowed to modify ownerReferences", node)
	}
	if bad := forbiddenLabels(n.Labels, o.Labels); len(bad) > 0 {
		return fmt.Errorf("is not allowed to modify labels: %s", strings.Join(bad, ", "))
	}
	return nil
}

// kubeletLabels are the labels under kubernetes.io that a kubelet may set.
var kubeletLabels = []string{
	corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
	corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
	corev1.LabelInstanceType, corev1.LabelInstanceTypeStable, corev1.LabelOSStable, corev1.LabelArchStable,
	"beta.kubernetes.io/os", "beta.kubernetes.io/arch",
}

// kubeletNamespaces are the label prefixes under which it may set all.
var kubeletNamespaces = []string{corev1.LabelNamespaceSuffixKubelet, corev1.LabelNamespaceSuffixNode}

// forbiddenLabels are the keys with different values in a and b that a kubelet
// may not change.
func forbiddenLabels(a, b map[string]string) (bad []string) {
	changed := map[string]bool{}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			changed[k] = true
		}
	}
	for k, v := range b {
		if w, ok := a[k]; !ok || v != w {
			changed[k] = true
		}
	}
	for _, k := range slices.Sorted(maps.Keys(changed)) {
		ns, _, ok := strings.Cut(k, "/")
		if !ok {
			continue
		}
		under := func(domain string) bool { return ns == domain || strings.HasSuffix(ns, "."+domain) }
		if under(corev1.LabelNamespaceNodeRestriction) ||
			(under("kubernetes.io") || under("k8s.io")) && !slices.Contains(kubeletLabels, k) && !slices.ContainsFunc(kubeletNamespaces, under) {
			bad = append(bad, k)
		}
	}
	return bad
}

func (s Node) restrictPod(node, subresource string, obj, old runtime.Object) error {
	var p, o *corev1.Pod
	if obj != nil {
		p = obj.(*corev1.Pod)
	}
	if old != nil {
		o = old.(*corev1.Pod)
	}
	switch subresource {
	case "":
		switch {
		case o == nil:
			return s.restrictMirrorPod(node, p)
		case p == nil:
			if o.Spec.NodeName != node {
				return fmt.Errorf("node %q can only delete pods with spec.nodeName set to itself", node)
			}
			return nil
		}
		return fmt.Errorf("unexpected operation %q, node %q can only create and delete mirror pods", "UPDATE", node)
	case "status":
		switch {
		case o.Spec.NodeName != node:
			return fmt.Errorf("node %q can only update pod status for pods with spec.nodeName set to itself", node)
		case !maps.Equal(p.Labels, o.Labels):
			return fmt.Errorf("node %q cannot update labels through pod status", node)
		case !equality.Semantic.DeepEqual(p.Status.ResourceClaimStatuses, o.Status.ResourceClaimStatuses):
			return fmt.Errorf("node %q cannot update resource claim statues", node)
		case !equality.Semantic.DeepEqual(p.Status.ExtendedResourceClaimStatus, o.Status.ExtendedResourceClaimStatus):
			return fmt.Errorf("node %q cannot update extended resource claim status", node)
		}
		return nil
	case "eviction":
		if o.Spec.NodeName != node {
			return fmt.Errorf("node %s can only evict pods with spec.nodeName set to itself", node)
		}
		return nil
	}
	return fmt.Errorf("unexpected pod subresource %q, only 'status' and 'eviction' are allowed", subresource)
}

func (s Node) restrictMirrorPod(node string, p *corev1.Pod) error {
	if _, ok := p.Annotations[corev1.MirrorPodAnnotationKey]; !ok {
		return fmt.Errorf("pod does not have %q annotation, node %q can only create mirror pods", corev1.MirrorPodAnnotationKey, node)
	}
	if p.Spec.NodeName != node {
		return fmt.Errorf("node %q can only create pods with spec.nodeName set to itself", node)
	}
	if len(p.OwnerReferences) > 1 {
		return fmt.Errorf("node %q can only create pods with a single owner reference set to itself", node)
	}
	if len(p.OwnerReferences) == 0 {
		return fmt.Errorf("node %q can only create pods with an owner reference set to itself", node)
	}
	owner := p.OwnerReferences[0]
	switch {
	case owner.APIVersion != "v1" || owner.Kind != "Node" || owner.Name != node:
		return fmt.Errorf("node %q can only create pods with an owner reference set to itself", node)
	case owner.Controller == nil || !*owner.Controller:
		return fmt.Errorf("node %q can only create pods with a controller owner reference set to itself", node)
	case owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion:
		return fmt.Errorf("node %q must not set blockOwnerDeletion on an owner reference", node)
	}
	it := s.Store.Named["nodes"].Items[store.Key{Name: node}]
	if it == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, node)
	}
	if uid := codec.MetaOf(it.Obj).GetUID(); owner.UID != uid {
		return fmt.Errorf("node %s UID mismatch: expected %s got %s", node, owner.UID, uid)
	}
	for _, resource := range []string{"serviceaccounts", "secrets", "configmaps", "resourceclaims"} {
		if len(references(p, resource)) > 0 {
			return fmt.Errorf("node %q can not create pods that reference %s", node, resource)
		}
	}
	return nil
}

func restrictLease(node string, obj, old runtime.Object) error {
	l := obj
	if l == nil {
		l = old
	}
	if lease := l.(*coordinationv1.Lease); lease.Namespace != corev1.NamespaceNodeLease {
		return fmt.Errorf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	} else if lease.Name != node {
		return errors.New("can only access node lease with the same name as the requesting node")
	}
	return nil
}

// restrictCertificateRequest checks that the pod of a request runs on the node, with
// the service account of the request and with a volume that asks for this signer.
func (s Node) restrictCertificateRequest(node string, r *certificatesv1.PodCertificateRequest) error {
	spec := &r.Spec
	if string(spec.NodeName) != node {
		return fmt.Errorf("PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q", spec.NodeName, node)
	}
	owner := s.Store.Named["nodes"].Items[store.Key{Name: node}]
	if owner == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, node)
	}
	if uid := codec.MetaOf(owner.Obj).GetUID(); uid != spec.NodeUID {
		return fmt.Errorf("PodCertificateRequest for pod %q names node UID %q, inconsistent with the running node (%q)", r.Namespace+"/"+spec.PodName, spec.NodeUID, uid)
	}
	it := s.Store.Named["pods"].Items[store.Key{Namespace: r.Namespace, Name: spec.PodName}]
	if it == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, spec.PodName)
	}
	pod := it.Obj.(*corev1.Pod)
	switch {
	case pod.UID != spec.PodUID:
		return fmt.Errorf("PodCertificateRequest for pod %q contains pod UID (%q) which differs from running pod %q", r.Namespace+"/"+spec.PodName, spec.PodUID, pod.UID)
	case pod.Spec.NodeName != node:
		return fmt.Errorf("pod %q is not running on node %q named in the PodCertificateRequest", r.Namespace+"/"+spec.PodName, node)
	case pod.Spec.ServiceAccountName != spec.ServiceAccountName:
		return fmt.Errorf("PodCertificateRequest for pod %q contains serviceAccountName (%q) that differs from running pod (%q)", r.Namespace+"/"+spec.PodName, spec.ServiceAccountName, pod.Spec.ServiceAccountName)
	}
	for _, v := range pod.Spec.Volumes {
		for _, source := range ptr.Deref(v.Projected, corev1.ProjectedVolumeSource{}).Sources {
			if source.PodCertificate != nil && source.PodCertificate.SignerName == spec.SignerName {
				return nil
			}
		}
	}
	return fmt.Errorf("pod %q has no volume with a certificate of signer %q", r.Namespace+"/"+spec.PodName, spec.SignerName)
}

func restrictSlice(node string, obj, old runtime.Object) error {
	mine := func(o runtime.Object) bool {
		n := o.(*resourcev1.ResourceSlice).Spec.NodeName
		return n != nil && *n == node
	}
	switch {
	case old == nil && !mine(obj):
		return errors.New("can only create ResourceSlice with the same NodeName as the requesting node")
	case obj == nil && !mine(old):
		return errors.New("can only delete ResourceSlice with the same NodeName as the requesting node")
	}
	return nil
}
