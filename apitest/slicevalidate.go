// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"fmt"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateSlice has the limits and rules that a publisher of slices runs into.
func validateSlice(w *write, obj, old runtime.Object) (errs field.ErrorList) {
	s, path := &obj.(*resourcev1.ResourceSlice).Spec, field.NewPath("spec")
	errs = append(errs, validateDriver(s.Driver, path.Child("driver"))...)
	errs = append(errs, validatePool(s.Pool, path.Child("pool"))...)
	if old != nil {
		o := &old.(*resourcev1.ResourceSlice).Spec
		errs = append(errs, apivalidation.ValidateImmutableField(s.Pool.Name, o.Pool.Name, path.Child("pool", "name"))...)
		errs = append(errs, apivalidation.ValidateImmutableField(s.Driver, o.Driver, path.Child("driver"))...)
		errs = append(errs, apivalidation.ValidateImmutableField(s.NodeName, o.NodeName, path.Child("nodeName"))...)
	}
	errs = append(errs, validateSelection(s, path)...)
	if s.SharedCounters != nil && s.Devices != nil {
		errs = append(errs, field.Invalid(path, "", "only one of `sharedCounters` or `devices` is allowed"))
	}
	limit := resourcev1.ResourceSliceMaxDevices
	for i := range s.Devices {
		if advanced(&s.Devices[i]) && w.s.minor >= 35 {
			limit = resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
		}
	}
	devices := path.Child("devices")
	if len(s.Devices) > limit {
		errs = append(errs, field.TooMany(devices, len(s.Devices), limit))
	}
	seen := map[string]bool{}
	for i := range s.Devices {
		d, at := &s.Devices[i], devices.Index(i)
		errs = append(errs, validateDevice(d, at)...)
		if seen[d.Name] {
			errs = append(errs, field.Duplicate(at, d.Name))
		}
		seen[d.Name] = true
	}
	return append(errs, validateCounters(s.SharedCounters, path.Child("sharedCounters"))...)
}

// advanced reports whether a device uses what halves the number of devices that
// a slice may have.
func advanced(d *resourcev1.Device) bool {
	if len(d.Taints) > 0 || len(d.ConsumesCounters) > 0 {
		return true
	}
	for _, a := range d.Attributes {
		if a.IntValues != nil || a.BoolValues != nil || a.StringValues != nil || a.VersionValues != nil {
			return true
		}
	}
	return false
}

func validateDriver(name string, path *field.Path) (errs field.ErrorList) {
	if name == "" {
		return append(errs, field.Required(path, ""))
	}
	if len(name) > resourcev1.DriverNameMaxLength {
		errs = append(errs, field.TooLong(path, name, resourcev1.DriverNameMaxLength))
	}
	for _, msg := range utilvalidation.IsDNS1123Subdomain(strings.ToLower(name)) {
		errs = append(errs, field.Invalid(path, name, msg))
	}
	return errs
}

func validatePool(p resourcev1.ResourcePool, path *field.Path) (errs field.ErrorList) {
	if p.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	} else {
		if len(p.Name) > resourcev1.PoolNameMaxLength {
			errs = append(errs, field.TooLong(path.Child("name"), p.Name, resourcev1.PoolNameMaxLength))
		}
		for part := range strings.SplitSeq(p.Name, "/") {
			for _, msg := range utilvalidation.IsDNS1123Subdomain(part) {
				errs = append(errs, field.Invalid(path.Child("name"), part, msg))
			}
		}
	}
	if p.ResourceSliceCount <= 0 {
		errs = append(errs, field.Invalid(path.Child("resourceSliceCount"), p.ResourceSliceCount, "must be greater than zero"))
	}
	if p.Generation < 0 {
		errs = append(errs, field.Invalid(path.Child("generation"), p.Generation, "must be greater than or equal to zero"))
	}
	return errs
}

// validateSelection wants exactly one way of saying for which nodes it is.
func validateSelection(s *resourcev1.ResourceSliceSpec, path *field.Path) (errs field.ErrorList) {
	var set []string
	if s.NodeName != nil {
		if *s.NodeName == "" {
			errs = append(errs, field.Invalid(path.Child("nodeName"), *s.NodeName, "must be either unset or set to a non-empty string"))
		} else {
			set = append(set, "`nodeName`")
			for _, msg := range apivalidation.NameIsDNSSubdomain(*s.NodeName, false) {
				errs = append(errs, field.Invalid(path.Child("nodeName"), *s.NodeName, msg))
			}
		}
	}
	if s.NodeSelector != nil {
		set = append(set, "`nodeSelector`")
		if len(s.NodeSelector.NodeSelectorTerms) != 1 {
			errs = append(errs, field.Invalid(path.Child("nodeSelector", "nodeSelectorTerms"), s.NodeSelector.NodeSelectorTerms, "must have exactly one node selector term"))
		}
	}
	for _, b := range []struct {
		name  string
		value *bool
	}{{"allNodes", s.AllNodes}, {"perDeviceNodeSelection", s.PerDeviceNodeSelection}} {
		switch {
		case b.value == nil:
		case *b.value:
			set = append(set, "`"+b.name+"`")
		default:
			errs = append(errs, field.Invalid(path.Child(b.name), false, "must be either unset or set to true"))
		}
	}
	const oneOf = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
	switch len(set) {
	case 0:
		errs = append(errs, field.Required(path, oneOf))
	case 1:
	default:
		errs = append(errs, field.Invalid(path, "{"+strings.Join(set, ", ")+"}", oneOf+", but multiple fields are set"))
	}
	return errs
}

func validateDevice(d *resourcev1.Device, path *field.Path) (errs field.ErrorList) {
	for _, msg := range utilvalidation.IsDNS1123Label(d.Name) {
		errs = append(errs, field.Invalid(path.Child("name"), d.Name, msg))
	}
	const limit = resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice
	if n := len(d.Attributes) + len(d.Capacity); n > limit {
		errs = append(errs, field.Invalid(path, n, fmt.Sprintf("the total number of attributes and capacities must not exceed %d", limit)))
	}
	for name, a := range d.Attributes {
		at := path.Child("attributes").Key(string(name))
		errs = append(errs, validateQualified(name, path.Child("attributes"))...)
		errs = append(errs, validateAttribute(a, at)...)
	}
	for name := range d.Capacity {
		errs = append(errs, validateQualified(name, path.Child("capacity"))...)
	}
	if len(d.Taints) > resourcev1.DeviceTaintsMaxLength {
		errs = append(errs, field.TooMany(path.Child("taints"), len(d.Taints), resourcev1.DeviceTaintsMaxLength))
	}
	for i, t := range d.Taints {
		at := path.Child("taints").Index(i)
		for _, msg := range utilvalidation.IsQualifiedName(t.Key) {
			errs = append(errs, field.Invalid(at.Child("key"), t.Key, msg))
		}
		switch t.Effect {
		case resourcev1.DeviceTaintEffectNone, resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNoExecute:
		case "":
			errs = append(errs, field.Required(at.Child("effect"), ""))
		default:
			errs = append(errs, field.NotSupported(at.Child("effect"), t.Effect, []resourcev1.DeviceTaintEffect{
				resourcev1.DeviceTaintEffectNone, resourcev1.DeviceTaintEffectNoExecute, resourcev1.DeviceTaintEffectNoSchedule}))
		}
	}
	if n := len(d.ConsumesCounters); n > resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice {
		errs = append(errs, field.TooMany(path.Child("consumesCounters"), n, resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice))
	}
	return errs
}

// validateQualified wants an identifier, with or without a domain before it.
func validateQualified(name resourcev1.QualifiedName, path *field.Path) (errs field.ErrorList) {
	domain, id, ok := strings.Cut(string(name), "/")
	if !ok {
		domain, id = "", domain
	} else {
		if len(domain) > resourcev1.DeviceMaxDomainLength {
			errs = append(errs, field.TooLong(path, domain, resourcev1.DeviceMaxDomainLength))
		}
		for _, msg := range utilvalidation.IsDNS1123Subdomain(domain) {
			errs = append(errs, field.Invalid(path, domain, msg))
		}
	}
	if len(id) > resourcev1.DeviceMaxIDLength {
		errs = append(errs, field.TooLong(path, id, resourcev1.DeviceMaxIDLength))
	}
	for _, msg := range utilvalidation.IsCIdentifier(id) {
		errs = append(errs, field.Invalid(path, id, msg))
	}
	return errs
}

func validateAttribute(a resourcev1.DeviceAttribute, path *field.Path) (errs field.ErrorList) {
	const all = "`int`, `bool`, `string`, `version`, `ints`, `bools`, `strings`, `versions`"
	var set []string
	for _, v := range []struct {
		name  string
		isSet bool
		text  *string
	}{
		{"int", a.IntValue != nil, nil}, {"bool", a.BoolValue != nil, nil}, {"string", a.StringValue != nil, a.StringValue}, {"version", a.VersionValue != nil, a.VersionValue},
		{"ints", a.IntValues != nil, nil}, {"bools", a.BoolValues != nil, nil}, {"strings", a.StringValues != nil, nil}, {"versions", a.VersionValues != nil, nil},
	} {
		if v.isSet {
			set = append(set, v.name)
		}
		if v.text != nil && len(*v.text) > resourcev1.DeviceAttributeMaxValueLength {
			errs = append(errs, field.TooLong(path.Child(v.name), *v.text, resourcev1.DeviceAttributeMaxValueLength))
		}
	}
	switch len(set) {
	case 1:
	case 0:
		errs = append(errs, field.Invalid(path, "", "must specify one of: "+all))
	default:
		errs = append(errs, field.Invalid(path, "{"+strings.Join(set, ", ")+"}", "must specify exactly one of: "+all))
	}
	return errs
}

func validateCounters(sets []resourcev1.CounterSet, path *field.Path) (errs field.ErrorList) {
	if len(sets) > resourcev1.ResourceSliceMaxCounterSets {
		errs = append(errs, field.TooMany(path, len(sets), resourcev1.ResourceSliceMaxCounterSets))
	}
	seen := map[string]bool{}
	for i, set := range sets {
		at := path.Index(i)
		for _, msg := range utilvalidation.IsDNS1123Label(set.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), set.Name, msg))
		}
		if seen[set.Name] {
			errs = append(errs, field.Duplicate(at, set.Name))
		}
		seen[set.Name] = true
		if len(set.Counters) == 0 {
			errs = append(errs, field.Required(at.Child("counters"), ""))
		}
		if n := len(set.Counters); n > resourcev1.ResourceSliceMaxCountersPerCounterSet {
			errs = append(errs, field.TooMany(at.Child("counters"), n, resourcev1.ResourceSliceMaxCountersPerCounterSet))
		}
	}
	return errs
}
