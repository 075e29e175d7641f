// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateDevice checks what can be seen of a device alone.
func validateDevice(d *resourcev1.Device, perDevice bool, path *field.Path) field.ErrorList {
	problems := validateLabel(d.Name, path.Child("name"))
	if n := len(d.Attributes) + len(d.Capacity); n > resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		problems = append(problems, field.Invalid(path, n, fmt.Sprintf("must not have more than %d attributes and capacities", resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice)))
	}
	values := 0
	for name, attribute := range d.Attributes {
		values += max(1, len(attribute.BoolValues)+len(attribute.IntValues)+len(attribute.StringValues)+len(attribute.VersionValues))
		problems = append(problems, validateQualifiedName(name, path.Child("attributes"))...)
		problems = append(problems, validateAttribute(&attribute, path.Child("attributes").Key(string(name)))...)
	}
	if values > resourcev1.ResourceSliceMaxAttributeValuesPerDevice {
		problems = append(problems, field.Invalid(path, values, fmt.Sprintf("must not have more than %d values of attributes", resourcev1.ResourceSliceMaxAttributeValuesPerDevice)))
	}
	shared := d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
	for name, capacity := range d.Capacity {
		problems = append(problems, validateQualifiedName(name, path.Child("capacity"))...)
		problems = append(problems, validateCapacity(&capacity, shared, path.Child("capacity").Key(string(name)))...)
	}
	problems = append(problems, validateTaints(d.Taints, path.Child("taints"))...)
	problems = append(problems, validateConsumption(d.ConsumesCounters, path.Child("consumesCounters"))...)
	problems = append(problems, validateDeviceNodes(d, perDevice, path)...)
	problems = append(problems, validateBinding(d, path)...)
	return append(problems, validateNodeAllocatable(d, path.Child("nodeAllocatableResources"))...)
}

func validateQualifiedName(name resourcev1.QualifiedName, path *field.Path) field.ErrorList {
	domain, id, qualified := strings.Cut(string(name), "/")
	if !qualified {
		return validateIdentifier(domain, path)
	}
	return append(DriverName(domain, path), validateIdentifier(id, path)...)
}

func validateIdentifier(id string, path *field.Path) field.ErrorList {
	var problems field.ErrorList
	if len(id) > resourcev1.DeviceMaxIDLength {
		problems = append(problems, field.TooLong(path, "", resourcev1.DeviceMaxIDLength))
	}
	return append(problems, invalid(path, id, validation.IsCIdentifier(id))...)
}

func validateAttribute(a *resourcev1.DeviceAttribute, path *field.Path) field.ErrorList {
	var problems field.ErrorList
	set := 0
	list := func(name string, isSet bool, n int) {
		if !isSet {
			return
		}
		set++
		if n == 0 {
			problems = append(problems, field.Invalid(path.Child(name), "", "must not be empty"))
		}
	}
	for _, isSet := range []bool{a.BoolValue != nil, a.IntValue != nil, a.StringValue != nil, a.VersionValue != nil} {
		if isSet {
			set++
		}
	}
	list("bools", a.BoolValues != nil, len(a.BoolValues))
	list("ints", a.IntValues != nil, len(a.IntValues))
	list("strings", a.StringValues != nil, len(a.StringValues))
	list("versions", a.VersionValues != nil, len(a.VersionValues))
	if set != 1 {
		problems = append(problems, field.Invalid(path, "", "must have exactly one value"))
	}
	if a.StringValue != nil {
		problems = append(problems, validateString(*a.StringValue, path.Child("string"))...)
	}
	for i, s := range a.StringValues {
		problems = append(problems, validateString(s, path.Child("strings").Index(i))...)
	}
	if a.VersionValue != nil {
		problems = append(problems, validateVersion(*a.VersionValue, path.Child("version"))...)
	}
	for i, v := range a.VersionValues {
		problems = append(problems, validateVersion(v, path.Child("versions").Index(i))...)
	}
	return problems
}

func validateString(s string, path *field.Path) field.ErrorList {
	if len(s) > resourcev1.DeviceAttributeMaxValueLength {
		return field.ErrorList{field.TooLong(path, "", resourcev1.DeviceAttributeMaxValueLength)}
	}
	return nil
}

// semver is the grammar of semver.org 2.0.0: three numbers without leading
// zeros, then a pre-release whose numeric parts have none either, then a build.
var semver = regexp.MustCompile(`^(?:(?:0|[1-9]\d*)\.){2}(?:0|[1-9]\d*)` +
	`(?:-(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*)?` +
	`(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?$`)

func validateVersion(v string, path *field.Path) field.ErrorList {
	problems := validateString(v, path)
	if !semver.MatchString(v) {
		problems = append(problems, field.Invalid(path, v, "must be a version as semver.org 2.0.0 has them"))
	}
	return problems
}

func validateTaints(taints []resourcev1.DeviceTaint, path *field.Path) field.ErrorList {
	if len(taints) > resourcev1.DeviceTaintsMaxLength {
		return field.ErrorList{field.TooMany(path, len(taints), resourcev1.DeviceTaintsMaxLength)}
	}
	var problems field.ErrorList
	for i := range taints {
		problems = append(problems, validateTaint(&taints[i], path.Index(i))...)
	}
	return problems
}

func validateTaint(taint *resourcev1.DeviceTaint, path *field.Path) field.ErrorList {
	effects := []resourcev1.DeviceTaintEffect{resourcev1.DeviceTaintEffectNoExecute, resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNone}
	problems := metav1validation.ValidateLabelName(taint.Key, path.Child("key"))
	problems = append(problems, invalid(path.Child("value"), taint.Value, validation.IsValidLabelValue(taint.Value))...)
	if taint.Effect == "" {
		return append(problems, field.Required(path.Child("effect"), ""))
	}
	if !slices.Contains(effects, taint.Effect) {
		problems = append(problems, field.NotSupported(path.Child("effect"), taint.Effect, effects))
	}
	return problems
}

func validateConsumption(consumed []resourcev1.DeviceCounterConsumption, path *field.Path) field.ErrorList {
	if len(consumed) > resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice {
		return field.ErrorList{field.TooMany(path, len(consumed), resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice)}
	}
	var problems field.ErrorList
	for i, c := range consumed {
		problems = append(problems, validateLabel(c.CounterSet, path.Index(i).Child("counterSet"))...)
		if i > 0 && c.CounterSet == consumed[0].CounterSet {
			problems = append(problems, field.Duplicate(path.Index(i).Child("counterSet"), c.CounterSet))
		}
		problems = append(problems, validateCounters(c.Counters, resourcev1.ResourceSliceMaxCountersPerDeviceCounterConsumption, path.Index(i).Child("counters"))...)
		problems = append(problems, validateGroups(c.CompatibilityGroups, path.Index(i).Child("compatibilityGroups"))...)
	}
	return problems
}

func validateGroups(groups []string, path *field.Path) field.ErrorList {
	if len(groups) > resourcev1.DeviceCompatibilityGroupsMaxSize {
		return field.ErrorList{field.TooMany(path, len(groups), resourcev1.DeviceCompatibilityGroupsMaxSize)}
	}
	var problems field.ErrorList
	for i, group := range groups {
		problems = append(problems, invalid(path.Index(i), group, validation.IsDNS1123Label(group))...)
		if slices.Contains(groups[:i], group) {
			problems = append(problems, field.Duplicate(path.Index(i), group))
		}
	}
	return problems
}

// validateDeviceNodes checks where the device says that it is: it has to where
// the pool says PerDevice, and must not otherwise.
func validateDeviceNodes(d *resourcev1.Device, perDevice bool, path *field.Path) field.ErrorList {
	var problems field.ErrorList
	set := 0
	if d.NodeName != nil {
		set++
		problems = append(problems, NodeName(*d.NodeName, path.Child("nodeName"))...)
	}
	if d.NodeSelector != nil {
		set++
		problems = append(problems, validateNodeSelector(d.NodeSelector, path.Child("nodeSelector"))...)
	}
	if d.AllNodes != nil {
		set++
		if !*d.AllNodes {
			problems = append(problems, field.Invalid(path.Child("allNodes"), false, "must be true or not set"))
		}
	}
	switch {
	case !perDevice && set > 0:
		return field.ErrorList{field.Invalid(path, "", "nodeName, nodeSelector and allNodes need the pool's nodes.perDevice")}
	case perDevice && set == 0:
		problems = append(problems, field.Required(path, "exactly one of nodeName, nodeSelector and allNodes, since the pool says nodes.perDevice"))
	case set > 1:
		problems = append(problems, field.Invalid(path, "", "at most one of nodeName, nodeSelector and allNodes may be set"))
	}
	return problems
}

func validateBinding(d *resourcev1.Device, path *field.Path) field.ErrorList {
	var problems field.ErrorList
	check := func(name string, conditions []string, limit int) {
		if len(conditions) > limit {
			problems = append(problems, field.TooMany(path.Child(name), len(conditions), limit))
			return
		}
		for i, condition := range conditions {
			problems = append(problems, metav1validation.ValidateLabelName(condition, path.Child(name).Index(i))...)
			if slices.Contains(conditions[:i], condition) {
				problems = append(problems, field.Duplicate(path.Child(name).Index(i), condition))
			}
		}
	}
	check("bindingConditions", d.BindingConditions, resourcev1.BindingConditionsMaxSize)
	check("bindingFailureConditions", d.BindingFailureConditions, resourcev1.BindingFailureConditionsMaxSize)
	for i, condition := range d.BindingFailureConditions {
		if slices.Contains(d.BindingConditions, condition) {
			problems = append(problems, field.Invalid(path.Child("bindingFailureConditions").Index(i), condition, "must not be one of bindingConditions"))
		}
	}
	switch {
	case len(d.BindingConditions) == 0 && len(d.BindingFailureConditions) > 0:
		problems = append(problems, field.Required(path.Child("bindingConditions"), "bindingFailureConditions need them"))
	case len(d.BindingConditions) > 0 && len(d.BindingFailureConditions) == 0:
		problems = append(problems, field.Required(path.Child("bindingFailureConditions"), "bindingConditions need them"))
	}
	return problems
}

func validateNodeAllocatable(d *resourcev1.Device, path *field.Path) field.ErrorList {
	var problems field.ErrorList
	for name, resource := range d.NodeAllocatableResources {
		key := path.Key(string(name))
		if name != corev1.ResourceCPU && name != corev1.ResourceMemory && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			problems = append(problems, field.NotSupported(key, name, []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceHugePagesPrefix + "*"}))
		}
		if resource.Mapping == nil && resource.Overhead == nil {
			problems = append(problems, field.Required(key, "at least one of mapping and overhead"))
		}
		if m := resource.Mapping; m != nil {
			problems = append(problems, validateMapping(m, d.Capacity, key.Child("mapping"))...)
		}
		if o := resource.Overhead; o != nil {
			if o.PerPod == nil && o.PerContainer == nil {
				problems = append(problems, field.Required(key.Child("overhead"), "at least one of perPod and perContainer"))
			}
			if o.PerPod != nil && o.PerPod.Sign() < 0 {
				problems = append(problems, field.Invalid(key.Child("overhead", "perPod"), o.PerPod.String(), "must not be negative"))
			}
			if o.PerContainer != nil && o.PerContainer.Sign() < 0 {
				problems = append(problems, field.Invalid(key.Child("overhead", "perContainer"), o.PerContainer.String(), "must not be negative"))
			}
		}
	}
	return problems
}

func validateMapping(m *resourcev1.NodeAllocatableMapping, capacities map[resourcev1.QualifiedName]resourcev1.DeviceCapacity, path *field.Path) field.ErrorList {
	var problems field.ErrorList
	if (m.CapacityKey == nil) == (m.DeviceMultiplier == nil) {
		problems = append(problems, field.Invalid(path, "", "must have exactly one of capacityKey and deviceMultiplier"))
	}
	if (m.CapacityKey == nil) != (m.CapacityMultiplier == nil) {
		problems = append(problems, field.Required(path, "capacityKey and capacityMultiplier need each other"))
	}
	if m.CapacityKey != nil {
		if _, ok := capacities[*m.CapacityKey]; !ok {
			problems = append(problems, field.NotFound(path.Child("capacityKey"), *m.CapacityKey))
		}
	}
	if q := m.CapacityMultiplier; q != nil && q.Sign() <= 0 {
		problems = append(problems, field.Invalid(path.Child("capacityMultiplier"), q.String(), "must be positive"))
	}
	if q := m.DeviceMultiplier; q != nil && q.Sign() <= 0 {
		problems = append(problems, field.Invalid(path.Child("deviceMultiplier"), q.String(), "must be positive"))
	}
	return problems
}
