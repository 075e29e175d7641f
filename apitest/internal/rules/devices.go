// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

var deviceClasses = &Kind{
	Name: "DeviceClass", Resource: "deviceclasses", Views: resourceViews(&resourcev1.DeviceClass{}, &resourcev1beta2.DeviceClass{}, &resourcev1beta1.DeviceClass{}, nil, nil),
	validName: apivalidation.NameIsDNSSubdomain, Unconditional: true, ReturnsDeleted: true,
	Spec: func(obj runtime.Object) any { return &obj.(*resourcev1.DeviceClass).Spec },
}

var resourceSlices = &Kind{
	Name: "ResourceSlice", Resource: "resourceslices",
	Views: resourceViews(&resourcev1.ResourceSlice{}, &resourcev1beta2.ResourceSlice{}, &resourcev1beta1.ResourceSlice{},
		inSpec(basicDevices), inSpec(plainDevices)),
	validName: apivalidation.NameIsDNSSubdomain, Unconditional: true, ReturnsDeleted: true,
	Spec: func(obj runtime.Object) any { return &obj.(*resourcev1.ResourceSlice).Spec },
	Node: func(obj runtime.Object) string { return ptr.Deref(obj.(*resourcev1.ResourceSlice).Spec.NodeName, "") },
	Fields: func(obj runtime.Object, path string) (string, bool) {
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
	OnCreate: func(w *Write, obj runtime.Object) {
		s := obj.(*resourcev1.ResourceSlice)
		timeTaints(w, s)
		dropGated(w, s, nil)
	},
	OnUpdate: func(w *Write, obj, old runtime.Object) {
		s := obj.(*resourcev1.ResourceSlice)
		timeTaints(w, s)
		dropGated(w, s, old.(*resourcev1.ResourceSlice))
	},
	validate: validateSlice,
}

// timeTaints sets the time of every taint without a time to the time of this
// write, even if the stored taint has one.
func timeTaints(w *Write, s *resourcev1.ResourceSlice) {
	for i := range s.Spec.Devices {
		for j := range s.Spec.Devices[i].Taints {
			if t := &s.Spec.Devices[i].Taints[j]; t.TimeAdded == nil {
				t.TimeAdded = &w.Now
			}
		}
	}
}

// resourceViews returns the three versions of a kind of resource.k8s.io. v1beta2
// has the same fields as v1. v1beta1 has some of them in other places; to and
// from move them.
func resourceViews(v1, v1beta2, v1beta1 runtime.Object, toV1beta1, fromV1beta1 func(map[string]any)) []View {
	return []View{
		{GV: resourcev1.SchemeGroupVersion},
		{GV: resourcev1beta2.SchemeGroupVersion, toStored: viaJSON(v1, nil), fromStored: viaJSON(v1beta2, nil), deprecated: 36, removed: 39},
		{GV: resourcev1beta1.SchemeGroupVersion, toStored: viaJSON(v1, fromV1beta1), fromStored: viaJSON(v1beta1, toV1beta1), deprecated: 35, removed: 38},
	}
}

// viaJSON converts an object to the type of into through JSON. change moves the
// fields that have another place there.
func viaJSON(into runtime.Object, change func(map[string]any)) func(runtime.Object) runtime.Object {
	typ := reflect.TypeOf(into).Elem()
	return func(obj runtime.Object) runtime.Object {
		b, err := json.Marshal(obj)
		if err == nil && change != nil {
			m := map[string]any{}
			if err = json.Unmarshal(b, &m); err == nil {
				change(m)
				b, err = json.Marshal(m)
			}
		}
		out := reflect.New(typ).Interface().(runtime.Object)
		if err == nil {
			err = json.Unmarshal(b, out)
		}
		if err != nil {
			// Both are API types with the same fields.
			panic("apitest: converting " + typ.String() + ": " + err.Error())
		}
		return out
	}
}

// inSpec applies f to the object's field spec.
func inSpec(f func(map[string]any)) func(map[string]any) {
	return func(m map[string]any) {
		if spec, ok := m["spec"].(map[string]any); ok {
			f(spec)
		}
	}
}

func eachMap(list any, f func(map[string]any)) {
	items, _ := list.([]any)
	for _, e := range items {
		if m, ok := e.(map[string]any); ok {
			f(m)
		}
	}
}

// basicDevices moves all fields of a device except the name below "basic", as in
// v1beta1.
func basicDevices(spec map[string]any) {
	eachMap(spec["devices"], func(d map[string]any) {
		basic := map[string]any{}
		for k, v := range d {
			if k != "name" {
				basic[k] = v
				delete(d, k)
			}
		}
		d["basic"] = basic
	})
}

// plainDevices undoes basicDevices.
func plainDevices(spec map[string]any) {
	eachMap(spec["devices"], func(d map[string]any) { hoist(d, "basic") })
}

// hoist moves the fields below a field up to the object that has it.
func hoist(object map[string]any, name string) {
	fields, _ := object[name].(map[string]any)
	delete(object, name)
	maps.Copy(object, fields)
}

// validateSlice checks the limits and rules that matter to a publisher.
func validateSlice(w *Write, obj, old runtime.Object) (errs field.ErrorList) {
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
		if advanced(&s.Devices[i]) && w.Minor >= 35 {
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

// advanced reports whether a device uses a feature that halves the number of
// devices in a slice.
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

// validateSelection requires exactly one of the node selections.
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
		errs = append(errs, requireOneOf(at.Child("effect"), t.Effect,
			resourcev1.DeviceTaintEffectNone, resourcev1.DeviceTaintEffectNoExecute, resourcev1.DeviceTaintEffectNoSchedule)...)
	}
	if n := len(d.ConsumesCounters); n > resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice {
		errs = append(errs, field.TooMany(path.Child("consumesCounters"), n, resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice))
	}
	return errs
}

// validateQualified requires a C identifier, with an optional domain.
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

// gatedField is the part of a slice that a feature gate enables: a function that
// reports its use, and a function that drops it.
type gatedField struct {
	gate string

	sliceUses func(*resourcev1.ResourceSliceSpec) bool
	sliceDrop func(*resourcev1.ResourceSliceSpec)
	uses      func(*resourcev1.Device) bool
	drop      func(*resourcev1.Device)
}

var gatedFields = []gatedField{
	{
		gate: "DRADeviceTaints",
		uses: func(d *resourcev1.Device) bool { return len(d.Taints) > 0 },
		drop: func(d *resourcev1.Device) { d.Taints = nil },
	},
	{
		gate: "DRAPartitionableDevices",
		sliceUses: func(s *resourcev1.ResourceSliceSpec) bool {
			return len(s.SharedCounters) > 0 || s.PerDeviceNodeSelection != nil
		},
		sliceDrop: func(s *resourcev1.ResourceSliceSpec) { s.SharedCounters, s.PerDeviceNodeSelection = nil, nil },
		uses: func(d *resourcev1.Device) bool {
			return len(d.ConsumesCounters) > 0 || d.NodeName != nil || d.NodeSelector != nil || d.AllNodes != nil
		},
		drop: func(d *resourcev1.Device) {
			d.ConsumesCounters, d.NodeName, d.NodeSelector, d.AllNodes = nil, nil, nil, nil
		},
	},
	{
		gate: "DRADeviceBindingConditions",
		uses: func(d *resourcev1.Device) bool {
			return len(d.BindingConditions) > 0 || len(d.BindingFailureConditions) > 0 || d.BindsToNode != nil
		},
		drop: func(d *resourcev1.Device) {
			d.BindingConditions, d.BindingFailureConditions, d.BindsToNode = nil, nil, nil
		},
	},
	{
		gate: "DRAConsumableCapacity",
		uses: func(d *resourcev1.Device) bool {
			for _, c := range d.Capacity {
				if c.RequestPolicy != nil {
					return true
				}
			}
			return d.AllowMultipleAllocations != nil
		},
		drop: func(d *resourcev1.Device) {
			d.AllowMultipleAllocations = nil
			for name, c := range d.Capacity {
				c.RequestPolicy = nil
				d.Capacity[name] = c
			}
		},
	},
	{
		gate: "DRADeviceCompatibilityGroups",
		uses: func(d *resourcev1.Device) bool {
			return slices.ContainsFunc(d.ConsumesCounters, func(c resourcev1.DeviceCounterConsumption) bool { return len(c.CompatibilityGroups) > 0 })
		},
		drop: func(d *resourcev1.Device) {
			for i := range d.ConsumesCounters {
				d.ConsumesCounters[i].CompatibilityGroups = nil
			}
		},
	},
	{
		gate: "DRANodeAllocatableResources",
		uses: func(d *resourcev1.Device) bool { return len(d.NodeAllocatableResources) > 0 },
		drop: func(d *resourcev1.Device) { d.NodeAllocatableResources = nil },
	},
	{
		gate: "DRAListTypeAttributes",
		uses: func(d *resourcev1.Device) bool {
			for _, a := range d.Attributes {
				if a.IntValues != nil || a.BoolValues != nil || a.StringValues != nil || a.VersionValues != nil {
					return true
				}
			}
			return false
		},
		drop: func(d *resourcev1.Device) {
			for name, a := range d.Attributes {
				a.IntValues, a.BoolValues, a.StringValues, a.VersionValues = nil, nil, nil, nil
				d.Attributes[name] = a
			}
		},
	},
	{
		gate:      "DRAPartitionableDevicesType",
		sliceUses: func(s *resourcev1.ResourceSliceSpec) bool { return s.PartitionTypeAttribute != nil },
		sliceDrop: func(s *resourcev1.ResourceSliceSpec) { s.PartitionTypeAttribute = nil },
	},
	{
		gate:      "DRAOptionalNodeOperations",
		sliceUses: func(s *resourcev1.ResourceSliceSpec) bool { return len(s.SkipNodeOperations) > 0 },
		sliceDrop: func(s *resourcev1.ResourceSliceSpec) { s.SkipNodeOperations = nil },
	},
}

// dropGated removes fields whose gate is off, unless the stored object uses the
// feature.
func dropGated(w *Write, s, old *resourcev1.ResourceSlice) {
	for _, g := range gatedFields {
		if w.On(g.gate) || old != nil && g.inUse(&old.Spec) {
			continue
		}
		if g.sliceDrop != nil {
			g.sliceDrop(&s.Spec)
		}
		if g.drop != nil {
			for i := range s.Spec.Devices {
				g.drop(&s.Spec.Devices[i])
			}
		}
	}
}

func (g *gatedField) inUse(s *resourcev1.ResourceSliceSpec) bool {
	if g.sliceUses != nil && g.sliceUses(s) {
		return true
	}
	for i := range s.Devices {
		if g.uses != nil && g.uses(&s.Devices[i]) {
			return true
		}
	}
	return false
}
