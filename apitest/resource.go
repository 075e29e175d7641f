// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

var deviceClasses = &kind{
	name: "DeviceClass", resource: "deviceclasses", views: resourceViews(&resourcev1.DeviceClass{}, &resourcev1beta2.DeviceClass{}, &resourcev1beta1.DeviceClass{}, nil, nil),
	validName: apivalidation.NameIsDNSSubdomain, unconditional: true, returnsDeleted: true,
	spec: func(obj runtime.Object) any { return &obj.(*resourcev1.DeviceClass).Spec },
}

var resourceClaimTemplates = &kind{
	name: "ResourceClaimTemplate", resource: "resourceclaimtemplates",
	views: resourceViews(&resourcev1.ResourceClaimTemplate{}, &resourcev1beta2.ResourceClaimTemplate{}, &resourcev1beta1.ResourceClaimTemplate{},
		inSpec(inSpec(flatRequests)), inSpec(inSpec(exactRequests))),
	namespaced: true, validName: apivalidation.NameIsDNSSubdomain, unconditional: true, returnsDeleted: true,
	defaults: func(obj runtime.Object) {
		defaultRequests(obj.(*resourcev1.ResourceClaimTemplate).Spec.Spec.Devices.Requests)
	},
	validate: func(_ *write, obj, old runtime.Object) field.ErrorList {
		if old == nil {
			return nil
		}
		return immutableSpec(obj.(*resourcev1.ResourceClaimTemplate).Spec, old.(*resourcev1.ResourceClaimTemplate).Spec)
	},
}

// immutableSpec refuses a change of spec.
func immutableSpec(spec, old any) (errs field.ErrorList) {
	if !equality.Semantic.DeepEqual(spec, old) {
		errs = append(errs, field.Invalid(field.NewPath("spec"), nil, apivalidation.FieldImmutableErrorMsg))
	}
	return errs
}

// defaultRequests asks for one device where a request says nothing.
func defaultRequests(requests []resourcev1.DeviceRequest) {
	for i := range requests {
		e := requests[i].Exactly
		if e != nil && e.AllocationMode == "" {
			e.AllocationMode = resourcev1.DeviceAllocationModeExactCount
		}
		if e != nil && e.AllocationMode == resourcev1.DeviceAllocationModeExactCount && e.Count == 0 {
			e.Count = 1
		}
	}
}

var resourceClaims = &kind{
	name: "ResourceClaim", resource: "resourceclaims",
	views: resourceViews(&resourcev1.ResourceClaim{}, &resourcev1beta2.ResourceClaim{}, &resourcev1beta1.ResourceClaim{},
		inSpec(flatRequests), inSpec(exactRequests)),
	namespaced: true, status: true, validName: apivalidation.NameIsDNSSubdomain, unconditional: true, returnsDeleted: true,
	defaults: func(obj runtime.Object) { defaultRequests(obj.(*resourcev1.ResourceClaim).Spec.Devices.Requests) },
	onCreate: func(_ *write, obj runtime.Object) {
		obj.(*resourcev1.ResourceClaim).Status = resourcev1.ResourceClaimStatus{}
	},
	onUpdate: func(w *write, obj, old runtime.Object) {
		c, o := obj.(*resourcev1.ResourceClaim), old.(*resourcev1.ResourceClaim)
		if w.r.Subresource == "status" {
			c.Spec = o.Spec
		} else {
			c.Status = o.Status
		}
	},
	validate: func(_ *write, obj, old runtime.Object) field.ErrorList {
		if old == nil {
			return nil
		}
		return immutableSpec(obj.(*resourcev1.ResourceClaim).Spec, old.(*resourcev1.ResourceClaim).Spec)
	},
}

var resourceSlices = &kind{
	name: "ResourceSlice", resource: "resourceslices",
	views: resourceViews(&resourcev1.ResourceSlice{}, &resourcev1beta2.ResourceSlice{}, &resourcev1beta1.ResourceSlice{},
		inSpec(basicDevices), inSpec(plainDevices)),
	validName: apivalidation.NameIsDNSSubdomain, unconditional: true, returnsDeleted: true,
	spec: func(obj runtime.Object) any { return &obj.(*resourcev1.ResourceSlice).Spec },
	node: func(obj runtime.Object) string { return ptr.Deref(obj.(*resourcev1.ResourceSlice).Spec.NodeName, "") },
	fields: func(obj runtime.Object, path string) (string, bool) {
		s := obj.(*resourcev1.ResourceSlice)
		switch path {
		case resourcev1.ResourceSliceSelectorNodeName:
			return ptr.Deref(s.Spec.NodeName, ""), true
		case resourcev1.ResourceSliceSelectorDriver:
			return s.Spec.Driver, true
		case resourcev1.ResourceSliceSelectorPoolName:
			return s.Spec.Pool.Name, true
		}
		return "", false
	},
	onCreate: func(w *write, obj runtime.Object) {
		s := obj.(*resourcev1.ResourceSlice)
		w.timeTaints(s)
		dropGated(w, s, nil)
	},
	onUpdate: func(w *write, obj, old runtime.Object) {
		s := obj.(*resourcev1.ResourceSlice)
		w.timeTaints(s)
		dropGated(w, s, old.(*resourcev1.ResourceSlice))
	},
	validate: validateSlice,
}

// timeTaints gives every taint without a time the time of this write, new ones
// and old ones whose writer left it out alike.
func (w *write) timeTaints(s *resourcev1.ResourceSlice) {
	for i := range s.Spec.Devices {
		for j := range s.Spec.Devices[i].Taints {
			if t := &s.Spec.Devices[i].Taints[j]; t.TimeAdded == nil {
				t.TimeAdded = &w.now
			}
		}
	}
}
