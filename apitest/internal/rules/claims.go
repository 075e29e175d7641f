// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"encoding/json"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

var resourceClaimTemplates = &Kind{
	Name: "ResourceClaimTemplate", Resource: "resourceclaimtemplates",
	Views: resourceViews(&resourcev1.ResourceClaimTemplate{}, &resourcev1beta2.ResourceClaimTemplate{}, &resourcev1beta1.ResourceClaimTemplate{},
		inSpec(inSpec(flatRequests)), inSpec(inSpec(exactRequests))),
	Namespaced: true, validName: apivalidation.NameIsDNSSubdomain, Unconditional: true, ReturnsDeleted: true,
	Defaults: func(obj runtime.Object) {
		defaultRequests(obj.(*resourcev1.ResourceClaimTemplate).Spec.Spec.Devices.Requests)
	},
	validate: func(_ *Write, obj, old runtime.Object) field.ErrorList {
		if old == nil {
			return nil
		}
		return immutableSpec(obj.(*resourcev1.ResourceClaimTemplate).Spec, old.(*resourcev1.ResourceClaimTemplate).Spec)
	},
}

// immutableSpec rejects a change of spec.
func immutableSpec(spec, old any) (errs field.ErrorList) {
	if !equality.Semantic.DeepEqual(spec, old) {
		errs = append(errs, field.Invalid(field.NewPath("spec"), nil, apivalidation.FieldImmutableErrorMsg))
	}
	return errs
}

// defaultRequests sets the count of a request to one device if it has none.
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

var resourceClaims = &Kind{
	Name: "ResourceClaim", Resource: "resourceclaims",
	Views: resourceViews(&resourcev1.ResourceClaim{}, &resourcev1beta2.ResourceClaim{}, &resourcev1beta1.ResourceClaim{},
		inSpec(flatRequests), inSpec(exactRequests)),
	Namespaced: true, Status: true, validName: apivalidation.NameIsDNSSubdomain, Unconditional: true, ReturnsDeleted: true,
	Defaults: func(obj runtime.Object) { defaultRequests(obj.(*resourcev1.ResourceClaim).Spec.Devices.Requests) },
	OnCreate: func(_ *Write, obj runtime.Object) {
		obj.(*resourcev1.ResourceClaim).Status = resourcev1.ResourceClaimStatus{}
	},
	OnUpdate: updateClaim,
	validate: validateClaim,
}

// updateClaim keeps a write of the claim from changing its status, and a write of the
// status from changing the rest.
func updateClaim(w *Write, obj, old runtime.Object) {
	c, o := obj.(*resourcev1.ResourceClaim), old.(*resourcev1.ResourceClaim)
	if w.Subresource != "status" {
		c.Status = o.Status
		return
	}
	c.Spec = o.Spec
	metav1.ResetObjectMetaForStatus(c, o)
	// The status of a device goes with its allocation.
	allocated, before := allocatedDevices(c.Status.Allocation), allocatedDevices(o.Status.Allocation)
	c.Status.Devices = slices.DeleteFunc(slices.Clone(c.Status.Devices), func(d resourcev1.AllocatedDeviceStatus) bool {
		return before.Has(deviceOf(&d)) && !allocated.Has(deviceOf(&d))
	})
}

// allocatedDevice names a device as error messages quote it.
type allocatedDevice struct{ Driver, Pool, Device, ShareID string }

func deviceOf(d *resourcev1.AllocatedDeviceStatus) allocatedDevice {
	return allocatedDevice{d.Driver, d.Pool, d.Device, ptr.Deref(d.ShareID, "")}
}

func allocatedDevices(a *resourcev1.AllocationResult) sets.Set[allocatedDevice] {
	devices := sets.New[allocatedDevice]()
	if a != nil {
		for _, r := range a.Devices.Results {
			devices.Insert(allocatedDevice{r.Driver, r.Pool, r.Device, string(ptr.Deref(r.ShareID, ""))})
		}
	}
	return devices
}

func validateClaim(w *Write, obj, old runtime.Object) field.ErrorList {
	if old == nil {
		return nil
	}
	c, o := obj.(*resourcev1.ResourceClaim), old.(*resourcev1.ResourceClaim)
	if w.Subresource != "status" {
		return immutableSpec(c.Spec, o.Spec)
	}
	status, path := &c.Status, field.NewPath("status")
	errs := validateReservations(status.ReservedFor, path.Child("reservedFor"))
	errs = append(errs, validateDeviceStatuses(status, path.Child("devices"))...)
	if len(status.ReservedFor) > 0 && status.Allocation == nil {
		errs = append(errs, field.Forbidden(path.Child("reservedFor"), "may not be specified when `allocated` is not set"))
	}
	switch {
	case status.Allocation == nil:
	case o.Status.Allocation != nil:
		errs = append(errs, apivalidation.ValidateImmutableField(status.Allocation, o.Status.Allocation, path.Child("allocation"))...)
	default:
		errs = append(errs, validateAllocation(status.Allocation, &c.Spec, path.Child("allocation"))...)
	}
	return errs
}

func validateReservations(refs []resourcev1.ResourceClaimConsumerReference, path *field.Path) (errs field.ErrorList) {
	if n := len(refs); n > resourcev1.ResourceClaimReservedForMaxSize {
		errs = append(errs, field.TooMany(path, n, resourcev1.ResourceClaimReservedForMaxSize))
	}
	for i, ref := range refs {
		at := path.Index(i)
		for _, f := range []struct{ name, value string }{{"resource", ref.Resource}, {"name", ref.Name}, {"uid", string(ref.UID)}} {
			if f.value == "" {
				errs = append(errs, field.Required(at.Child(f.name), ""))
			}
		}
		if slices.ContainsFunc(refs[:i], func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == ref.UID }) {
			errs = append(errs, field.Duplicate(at, ref))
		}
	}
	return errs
}

func validateDeviceStatuses(status *resourcev1.ResourceClaimStatus, path *field.Path) (errs field.ErrorList) {
	allocated, seen := allocatedDevices(status.Allocation), sets.New[allocatedDevice]()
	for i := range status.Devices {
		d, at := &status.Devices[i], path.Index(i)
		errs = append(errs, validateDriver(d.Driver, at.Child("driver"))...)
		if d.Pool == "" {
			errs = append(errs, field.Required(at.Child("pool"), ""))
		} else {
			errs = append(errs, wellFormed(validate.ResourcePoolName, at.Child("pool"), d.Pool)...)
		}
		for _, msg := range utilvalidation.IsDNS1123Label(d.Device) {
			errs = append(errs, field.Invalid(at.Child("device"), d.Device, msg))
		}
		if !allocated.Has(deviceOf(d)) {
			errs = append(errs, field.Invalid(at, deviceOf(d), "must be an allocated device in the claim"))
		}
		if seen.Has(deviceOf(d)) {
			errs = append(errs, field.Duplicate(at, *d))
		}
		seen.Insert(deviceOf(d))
		if n := len(d.Conditions); n > resourcev1.AllocatedDeviceStatusMaxConditions {
			errs = append(errs, field.TooMany(at.Child("conditions"), n, resourcev1.AllocatedDeviceStatusMaxConditions))
		}
		errs = append(errs, metav1validation.ValidateConditions(d.Conditions, at.Child("conditions"))...)
		errs = append(errs, validateDeviceData(d.Data, at.Child("data"))...)
		errs = append(errs, validateNetworkData(d.NetworkData, at.Child("networkData"))...)
		if d.ShareID != nil {
			errs = append(errs, wellFormed(validate.UUID, at.Child("shareID"), *d.ShareID)...)
		}
	}
	return errs
}

// wellFormed applies one of apimachinery's checks of a text.
func wellFormed(check func(context.Context, operation.Operation, *field.Path, *string, *string) field.ErrorList, path *field.Path, value string) field.ErrorList {
	return check(context.Background(), operation.Operation{}, path, &value, nil)
}

func validateDeviceData(data *runtime.RawExtension, path *field.Path) field.ErrorList {
	const limit = resourcev1.AllocatedDeviceStatusDataMaxLength
	switch {
	case data == nil || len(data.Raw) == 0:
	case len(data.Raw) > limit:
		return field.ErrorList{field.TooLong(path, "", limit)}
	case json.Unmarshal(data.Raw, &map[string]any{}) != nil:
		return field.ErrorList{field.Invalid(path, "<value omitted>", "must be a valid JSON object")}
	}
	return nil
}

func validateNetworkData(n *resourcev1.NetworkDeviceData, path *field.Path) (errs field.ErrorList) {
	if n == nil {
		return nil
	}
	if len(n.InterfaceName) > resourcev1.NetworkDeviceDataInterfaceNameMaxLength {
		errs = append(errs, field.TooLong(path.Child("interfaceName"), "", resourcev1.NetworkDeviceDataInterfaceNameMaxLength))
	}
	if len(n.HardwareAddress) > resourcev1.NetworkDeviceDataHardwareAddressMaxLength {
		errs = append(errs, field.TooLong(path.Child("hardwareAddress"), "", resourcev1.NetworkDeviceDataHardwareAddressMaxLength))
	}
	ips := path.Child("ips")
	if len(n.IPs) > resourcev1.NetworkDeviceDataMaxIPs {
		errs = append(errs, field.TooMany(ips, len(n.IPs), resourcev1.NetworkDeviceDataMaxIPs))
	}
	for i, ip := range n.IPs {
		errs = append(errs, utilvalidation.IsValidInterfaceAddress(ips.Index(i), ip)...)
		if slices.Contains(n.IPs[:i], ip) {
			errs = append(errs, field.Duplicate(ips.Index(i), ip))
		}
	}
	return errs
}

func validateAllocation(a *resourcev1.AllocationResult, spec *resourcev1.ResourceClaimSpec, path *field.Path) (errs field.ErrorList) {
	requests := sets.New[string]()
	for _, r := range spec.Devices.Requests {
		requests.Insert(r.Name)
		for _, sub := range r.FirstAvailable {
			requests.Insert(r.Name + "/" + sub.Name)
		}
	}
	results := path.Child("devices", "results")
	if n := len(a.Devices.Results); n > resourcev1.AllocationResultsMaxSize {
		errs = append(errs, field.TooMany(results, n, resourcev1.AllocationResultsMaxSize))
	}
	for i, r := range a.Devices.Results {
		at := results.Index(i)
		if !requests.Has(r.Request) {
			errs = append(errs, field.Invalid(at.Child("request"), r.Request, "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"))
		}
		for _, msg := range utilvalidation.IsDNS1123Label(r.Device) {
			errs = append(errs, field.Invalid(at.Child("device"), r.Device, msg))
		}
		errs = append(errs, wellFormed(validate.LongNameCaseless, at.Child("driver"), r.Driver)...)
		errs = append(errs, wellFormed(validate.ResourcePoolName, at.Child("pool"), r.Pool)...)
	}
	return errs
}

// flatRequests moves the fields below "exactly" up to the request, as in v1beta1.
func flatRequests(spec map[string]any) {
	devices, _ := spec["devices"].(map[string]any)
	eachMap(devices["requests"], func(r map[string]any) { hoist(r, "exactly") })
}

// exactRequests undoes flatRequests.
func exactRequests(spec map[string]any) {
	devices, _ := spec["devices"].(map[string]any)
	eachMap(devices["requests"], func(r map[string]any) {
		exactly := map[string]any{}
		for k, v := range r {
			if k != "name" && k != "firstAvailable" {
				exactly[k] = v
				delete(r, k)
			}
		}
		if len(exactly) > 0 {
			r["exactly"] = exactly
		}
	})
}
