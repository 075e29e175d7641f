// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ID validates the driver and the name of a pool.
func ID(driver, pool string) field.ErrorList {
	c := checker{DriverName(driver, field.NewPath("driver"))}
	path := field.NewPath("name")
	c.length(resourcev1.PoolNameMaxLength, pool, path)
	for part := range strings.SplitSeq(pool, "/") {
		c.syntax(part, path, validation.IsDNS1123Subdomain(part))
	}
	return c.problems
}

// DriverName validates the name of a driver by the rules of CSI driver names.
func DriverName(name string, path *field.Path) field.ErrorList {
	var c checker
	c.driver(name, path)
	return c.problems
}

// Pool validates the content of a pool, as the spec of one slice without limits to
// its number of devices and counter sets. It checks the content of the devices
// whose indexes are in fresh; all others were found valid before.
func Pool(p *resourcev1.ResourceSliceSpec, fresh []int) field.ErrorList {
	var c checker
	c.selection(p, field.NewPath("nodes"))
	sets := c.counterSets(p.SharedCounters, field.NewPath("sharedCounters"))
	devices := field.NewPath("devices")
	for _, i := range fresh {
		c.device(&p.Devices[i], p.PerDeviceNodeSelection != nil, devices.Index(i))
	}
	names := make(map[string]bool, len(p.Devices))
	for i := range p.Devices {
		device := &p.Devices[i]
		c.when(names[device.Name], field.Duplicate(devices.Index(i).Child("name"), device.Name))
		names[device.Name] = true
		c.references(device.ConsumesCounters, sets, devices.Index(i))
	}
	if p.PartitionTypeAttribute != nil {
		c.partitionType(p, string(*p.PartitionTypeAttribute), field.NewPath("partitionTypeAttribute"))
	}
	c.skip(p.SkipNodeOperations, field.NewPath("skipNodeOperations"))
	return c.problems
}

// checker collects problems. A method adds one if its argument is not valid, or
// if the condition that it is called with holds.
type checker struct{ problems field.ErrorList }

func (c *checker) add(problems ...*field.Error) { c.problems = append(c.problems, problems...) }

// when adds a problem if a condition holds.
func (c *checker) when(holds bool, problem *field.Error) {
	if holds {
		c.add(problem)
	}
}

// atMost checks a number of things.
func (c *checker) atMost(limit, n int, path *field.Path) {
	if n > limit { // no error is made for each list that is short enough
		c.add(field.TooMany(path, n, limit))
	}
}

func (c *checker) length(limit int, s string, path *field.Path) {
	c.when(len(s) > limit, field.TooLong(path, "", limit))
}

// oneOf checks a value of an enumeration.
func oneOf[T ~string](c *checker, value T, path *field.Path, known ...T) {
	c.when(!slices.Contains(known, value), field.NotSupported(path, value, known))
}

// syntax adds the messages of a check of apimachinery.
func (c *checker) syntax(value string, path *field.Path, messages []string) {
	for _, message := range messages {
		c.add(field.Invalid(path, value, message))
	}
}

func (c *checker) label(name string, path *field.Path) {
	c.syntax(name, path, validation.IsDNS1123Label(name))
}

// key checks the key of a label, of a taint or of a condition.
func (c *checker) key(key string, path *field.Path) {
	c.add(metav1validation.ValidateLabelName(key, path)...)
}

func (c *checker) driver(name string, path *field.Path) {
	c.length(resourcev1.DriverNameMaxLength, name, path)
	c.syntax(name, path, validation.IsDNS1123Subdomain(strings.ToLower(name)))
}

func (c *checker) node(name string, path *field.Path) {
	c.syntax(name, path, apivalidation.NameIsDNSSubdomain(name, false))
}

// count returns the number of conditions that hold.
func count(conditions ...bool) (n int) {
	for _, is := range conditions {
		if is {
			n++
		}
	}
	return n
}

func (c *checker) selection(p *resourcev1.ResourceSliceSpec, path *field.Path) {
	set := count(p.NodeName != nil, p.NodeSelector != nil, p.AllNodes != nil, p.PerDeviceNodeSelection != nil)
	c.when(set > 1, field.Invalid(path, "", "at most one of selector, allNodes and perDevice may be set"))
	c.when(set == 0, field.Required(path, "the controller has no node of its own: one of selector, allNodes and perDevice must be set"))
	if p.NodeSelector != nil {
		c.nodeSelector(p.NodeSelector, path.Child("selector"))
	}
}

// nodeSelector checks a selector. The API server accepts several terms in the selector of
// a device, but the scheduler can't allocate it.
func (c *checker) nodeSelector(s *corev1.NodeSelector, path *field.Path) {
	path = path.Child("nodeSelectorTerms")
	terms := len(s.NodeSelectorTerms)
	c.when(terms != 1, field.Invalid(path, terms, "must have exactly one term"))
	for i, term := range s.NodeSelectorTerms {
		for j, req := range term.MatchExpressions {
			c.expression(req, path.Index(i).Child("matchExpressions").Index(j))
		}
		for j, req := range term.MatchFields {
			c.matchField(req, path.Index(i).Child("matchFields").Index(j))
		}
	}
}

// operators has the operators of a selector of nodes as those of a selector of labels.
var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
	corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

// expression parses a requirement as the scheduler does. The API server accepts more,
// such as Gt without an integer, and the scheduler then allocates nothing on any node.
func (c *checker) expression(req corev1.NodeSelectorRequirement, path *field.Path) {
	operator, known := operators[req.Operator]
	if !known {
		c.add(field.NotSupported(path.Child("operator"), req.Operator, slices.Sorted(maps.Keys(operators))))
		return
	}
	_, err := labels.NewRequirement(req.Key, operator, req.Values, field.WithPath(path))
	if problems, ok := errors.AsType[utilerrors.Aggregate](err); ok {
		for _, problem := range problems.Errors() {
			c.add(problem.(*field.Error))
		}
	}
}

func (c *checker) matchField(req corev1.NodeSelectorRequirement, path *field.Path) {
	c.when(len(req.Values) != 1, field.Invalid(path.Child("values"), len(req.Values), "a field takes exactly one value"))
	oneOf(c, req.Operator, path.Child("operator"), corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn)
	oneOf(c, req.Key, path.Child("key"), metav1.ObjectNameField)
	for i, value := range req.Values {
		c.node(value, path.Child("values").Index(i))
	}
}

// counterSets returns the sets by name.
func (c *checker) counterSets(all []resourcev1.CounterSet, path *field.Path) map[string]map[string]resourcev1.Counter {
	sets := make(map[string]map[string]resourcev1.Counter, len(all))
	for i, set := range all {
		path := path.Index(i)
		c.label(set.Name, path.Child("name"))
		c.when(sets[set.Name] != nil, field.Duplicate(path.Child("name"), set.Name))
		c.counters(set.Counters, resourcev1.ResourceSliceMaxCountersPerCounterSet, path.Child("counters"))
		sets[set.Name] = set.Counters
	}
	return sets
}

func (c *checker) counters(counters map[string]resourcev1.Counter, limit int, path *field.Path) {
	c.when(len(counters) == 0, field.Required(path, "must have a counter"))
	c.atMost(limit, len(counters), path)
	for name := range counters {
		c.label(name, path.Key(name))
	}
}

// references checks that the pool has the counters that a device consumes:
// consumers of the pool would take no device from it otherwise.
func (c *checker) references(consumed []resourcev1.DeviceCounterConsumption, sets map[string]map[string]resourcev1.Counter, device *field.Path) {
	for i, one := range consumed {
		path := device.Child("consumesCounters").Index(i)
		set, ok := sets[one.CounterSet]
		c.when(!ok, field.NotFound(path.Child("counterSet"), one.CounterSet))
		for name := range one.Counters {
			_, has := set[name]
			c.when(ok && !has, field.NotFound(path.Child("counters").Key(name), name))
		}
	}
}

// partitionType checks the attribute with the type of a partition: all devices
// that consume counters must have it as a string. Its name may omit the domain
// if that is the driver's.
func (c *checker) partitionType(p *resourcev1.ResourceSliceSpec, name string, path *field.Path) {
	c.qualifiedName(resourcev1.QualifiedName(name), path)
	c.when(!strings.Contains(name, "/"), field.Invalid(path, name, "must be a domain and a name, separated by a slash"))
	bare := strings.TrimPrefix(name, p.Driver+"/")
	for i := range p.Devices {
		if len(p.Devices[i].ConsumesCounters) == 0 {
			continue
		}
		attribute, ok := p.Devices[i].Attributes[resourcev1.QualifiedName(name)]
		if !ok {
			attribute = p.Devices[i].Attributes[resourcev1.QualifiedName(bare)]
		}
		c.when(attribute.StringValue == nil, field.Required(field.NewPath("devices").Index(i).Child("attributes").Key(name),
			"the device consumes counters, so it must have the string that partitionTypeAttribute names"))
	}
}

func (c *checker) skip(operations []resourcev1.SkipNodeOperation, path *field.Path) {
	const all, prepare, unprepare = resourcev1.SkipNodeOperationAll, resourcev1.SkipNodeOperationNodePrepareResources, resourcev1.SkipNodeOperationNodeUnprepareResources
	for i, op := range operations {
		c.when(slices.Contains(operations[:i], op), field.Duplicate(path.Index(i), op))
		oneOf(c, op, path.Index(i), all, prepare, unprepare)
	}
	c.when(slices.Contains(operations, prepare) && !slices.Contains(operations, unprepare) && !slices.Contains(operations, all), field.Invalid(
		path, operations, "a driver can't unprepare what it did not prepare: NodePrepareResources needs NodeUnprepareResources too"))
}

// device checks a device, except for its references to the rest of the pool.
func (c *checker) device(d *resourcev1.Device, perDevice bool, path *field.Path) {
	c.label(d.Name, path.Child("name"))
	n := len(d.Attributes) + len(d.Capacity)
	c.when(n > resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice, field.Invalid(path, n,
		fmt.Sprintf("must not have more than %d attributes and capacities", resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice)))
	values := 0
	for name, a := range d.Attributes {
		values += max(1, len(a.BoolValues)+len(a.IntValues)+len(a.StringValues)+len(a.VersionValues))
		c.qualifiedName(name, path.Child("attributes"))
		c.attribute(&a, path.Child("attributes").Key(string(name)))
	}
	c.when(values > resourcev1.ResourceSliceMaxAttributeValuesPerDevice, field.Invalid(path, values,
		fmt.Sprintf("must not have more than %d values of attributes", resourcev1.ResourceSliceMaxAttributeValuesPerDevice)))
	for name, capacity := range d.Capacity {
		c.qualifiedName(name, path.Child("capacity"))
		// The API server accepts it, and the scheduler gives up a claim that it meets it for.
		c.atLeast(0, &capacity.Value, path.Child("capacity").Key(string(name)).Child("value"))
		if capacity.RequestPolicy != nil {
			c.policy(capacity.RequestPolicy, capacity.Value, d.AllowMultipleAllocations, path.Child("capacity").Key(string(name)).Child("requestPolicy"))
		}
	}
	c.taints(d.Taints, path.Child("taints"))
	c.consumption(d.ConsumesCounters, path.Child("consumesCounters"))
	c.deviceNodes(d, perDevice, path)
	c.binding(d, path)
	for name, r := range d.NodeAllocatableResources {
		c.nodeAllocatable(name, &r, d, path.Child("nodeAllocatableResources").Key(string(name)))
	}
}

// qualifiedName checks a name with or without a domain.
func (c *checker) qualifiedName(name resourcev1.QualifiedName, path *field.Path) {
	domain, id, qualified := strings.Cut(string(name), "/")
	if qualified {
		c.driver(domain, path)
	} else {
		id = domain
	}
	c.length(resourcev1.DeviceMaxIDLength, id, path)
	c.syntax(id, path, validation.IsCIdentifier(id))
}

func (c *checker) attribute(a *resourcev1.DeviceAttribute, path *field.Path) {
	single := count(a.BoolValue != nil, a.IntValue != nil, a.StringValue != nil, a.VersionValue != nil)
	lists := count(a.BoolValues != nil, a.IntValues != nil, a.StringValues != nil, a.VersionValues != nil)
	values := len(a.BoolValues) + len(a.IntValues) + len(a.StringValues) + len(a.VersionValues)
	c.when(single+lists != 1 || lists > values, field.Invalid(path, "", "must have exactly one value or one list of values"))
	if a.StringValue != nil {
		c.length(resourcev1.DeviceAttributeMaxValueLength, *a.StringValue, path.Child("string"))
	}
	for i, s := range a.StringValues {
		c.length(resourcev1.DeviceAttributeMaxValueLength, s, path.Child("strings").Index(i))
	}
	if a.VersionValue != nil {
		c.version(*a.VersionValue, path.Child("version"))
	}
	for i, v := range a.VersionValues {
		c.version(v, path.Child("versions").Index(i))
	}
}

// semver is the grammar of semver.org 2.0.0: three numbers without leading zeros,
// then a pre-release whose numeric parts have none either, then a build. That has no
// limit for numbers, and neither has the API server, but the scheduler parses them
// into 64 bits, and gives up a claim that it meets a larger one for.
var semver = regexp.MustCompile(`^(?:(?:0|[1-9]\d{0,18})\.){2}(?:0|[1-9]\d{0,18})` +
	`(?:-(?:0|[1-9]\d{0,18}|\d*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9]\d{0,18}|\d*[A-Za-z-][0-9A-Za-z-]*))*)?` +
	`(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?$`)

func (c *checker) version(v string, path *field.Path) {
	c.length(resourcev1.DeviceAttributeMaxValueLength, v, path)
	c.when(!semver.MatchString(v), field.Invalid(path, v, "must be a version as semver.org 2.0.0 has them, with numbers of at most 19 digits"))
}

func (c *checker) taints(taints []resourcev1.DeviceTaint, path *field.Path) {
	c.atMost(resourcev1.DeviceTaintsMaxLength, len(taints), path)
	for i := range taints {
		t, path := &taints[i], path.Index(i)
		c.key(t.Key, path.Child("key"))
		c.syntax(t.Value, path.Child("value"), validation.IsValidLabelValue(t.Value))
		oneOf(c, t.Effect, path.Child("effect"),
			resourcev1.DeviceTaintEffectNoExecute, resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNone)
	}
}

func (c *checker) consumption(consumed []resourcev1.DeviceCounterConsumption, path *field.Path) {
	c.atMost(resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice, len(consumed), path)
	for i := range consumed {
		one, path := &consumed[i], path.Index(i)
		c.label(one.CounterSet, path.Child("counterSet"))
		c.when(i > 0 && one.CounterSet == consumed[0].CounterSet, field.Duplicate(path.Child("counterSet"), one.CounterSet))
		c.counters(one.Counters, resourcev1.ResourceSliceMaxCountersPerDeviceCounterConsumption, path.Child("counters"))
		c.names(one.CompatibilityGroups, resourcev1.DeviceCompatibilityGroupsMaxSize, path.Child("compatibilityGroups"), c.label)
	}
}

// deviceNodes checks the nodes of a device: it must name them in a pool with
// PerDevice, and must not in others.
func (c *checker) deviceNodes(d *resourcev1.Device, perDevice bool, path *field.Path) {
	set := count(d.NodeName != nil, d.NodeSelector != nil, d.AllNodes != nil)
	c.when(!perDevice && set > 0, field.Invalid(path, "", "nodeName, nodeSelector and allNodes need the pool's nodes.perDevice"))
	c.when(perDevice && set != 1, field.Invalid(path, "", "must have exactly one of nodeName, nodeSelector and allNodes, because the pool has nodes.perDevice"))
	if d.NodeName != nil {
		c.node(*d.NodeName, path.Child("nodeName"))
	}
	if d.NodeSelector != nil {
		c.nodeSelector(d.NodeSelector, path.Child("nodeSelector"))
	}
	c.when(d.AllNodes != nil && !*d.AllNodes, field.Invalid(path.Child("allNodes"), false, "must be true or not set"))
}

func (c *checker) binding(d *resourcev1.Device, path *field.Path) {
	success, failure := path.Child("bindingConditions"), path.Child("bindingFailureConditions")
	c.names(d.BindingConditions, resourcev1.BindingConditionsMaxSize, success, c.key)
	c.names(d.BindingFailureConditions, resourcev1.BindingFailureConditionsMaxSize, failure, c.key)
	for i, condition := range d.BindingFailureConditions {
		c.when(slices.Contains(d.BindingConditions, condition), field.Duplicate(failure.Index(i), condition))
	}
	c.when(len(d.BindingConditions) == 0 && len(d.BindingFailureConditions) > 0, field.Required(success, "bindingFailureConditions need them"))
	c.when(len(d.BindingConditions) > 0 && len(d.BindingFailureConditions) == 0, field.Required(failure, "bindingConditions need them"))
}

// names checks a list of at most limit different names.
func (c *checker) names(all []string, limit int, path *field.Path, check func(string, *field.Path)) {
	c.atMost(limit, len(all), path)
	for i, name := range all {
		check(name, path.Index(i))
		c.when(slices.Contains(all[:i], name), field.Duplicate(path.Index(i), name))
	}
}

func (c *checker) nodeAllocatable(name corev1.ResourceName, r *resourcev1.NodeAllocatableResource, d *resourcev1.Device, path *field.Path) {
	if !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
		oneOf(c, name, path, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceHugePagesPrefix+"*")
	}
	c.when(r.Mapping == nil && r.Overhead == nil, field.Required(path, "at least one of mapping and overhead"))
	if m, path := r.Mapping, path.Child("mapping"); m != nil {
		c.when((m.CapacityKey == nil) == (m.DeviceMultiplier == nil), field.Invalid(path, "", "must have exactly one of capacityKey and deviceMultiplier"))
		c.when((m.CapacityKey == nil) != (m.CapacityMultiplier == nil), field.Required(path, "capacityKey and capacityMultiplier need each other"))
		if m.CapacityKey != nil {
			_, ok := d.Capacity[*m.CapacityKey]
			c.when(!ok, field.NotFound(path.Child("capacityKey"), *m.CapacityKey))
		}
		c.atLeast(1, m.CapacityMultiplier, path.Child("capacityMultiplier"))
		c.atLeast(1, m.DeviceMultiplier, path.Child("deviceMultiplier"))
	}
	if o, path := r.Overhead, path.Child("overhead"); o != nil {
		c.when(o.PerPod == nil && o.PerContainer == nil, field.Required(path, "at least one of perPod and perContainer"))
		c.atLeast(0, o.PerPod, path.Child("perPod"))
		c.atLeast(0, o.PerContainer, path.Child("perContainer"))
	}
}

// atLeast checks the sign of a quantity: -1, 0 or 1.
func (c *checker) atLeast(sign int, q *resource.Quantity, path *field.Path) {
	if q != nil && q.Sign() < sign {
		c.add(field.Invalid(path, text(*q), []string{"must not be negative", "must be positive"}[sign]))
	}
}

// text returns the text of a quantity. The method String would also store it in
// the quantity, which belongs to the caller.
func text(q resource.Quantity) string { return q.String() }

// maxValidValues is the limit of requestPolicy.validValues, which the API
// types state but don't export.
const maxValidValues = 10

// policy checks the request policy of a capacity.
func (c *checker) policy(p *resourcev1.CapacityRequestPolicy, capacity resource.Quantity, shared *bool, path *field.Path) {
	switch {
	case shared == nil || !*shared:
		c.add(field.Forbidden(path, "needs allowMultipleAllocations"))
	case len(p.ValidValues) > 0 && p.ValidRange != nil:
		c.add(field.Forbidden(path, "must not have both validValues and validRange"))
	case len(p.ValidValues) == 0 && p.ValidRange == nil:
	case p.Default == nil:
		c.add(field.Required(path.Child("default"), "validValues and validRange need it"))
	case p.ValidRange != nil:
		c.validRange(p.Default, p.ValidRange, &capacity, path.Child("validRange"))
	default:
		c.validValues(p, &capacity, path.Child("validValues"))
	}
}

func (c *checker) validValues(p *resourcev1.CapacityRequestPolicy, capacity *resource.Quantity, path *field.Path) {
	c.atMost(maxValidValues, len(p.ValidValues), path)
	for i := range p.ValidValues {
		v := &p.ValidValues[i]
		c.when(i > 0 && p.ValidValues[i-1].Cmp(*v) >= 0, field.Invalid(path.Index(i), text(*v), "must be in ascending order"))
		c.notAbove(v, capacity, path.Index(i), "the capacity")
	}
	c.when(!slices.ContainsFunc(p.ValidValues, p.Default.Equal), field.Invalid(path, text(*p.Default), "must have the default among them"))
}

// notAbove checks that q is at most limit, if both are there.
func (c *checker) notAbove(q, limit *resource.Quantity, path *field.Path, name string) {
	if q != nil && limit != nil && q.Cmp(*limit) > 0 {
		c.add(field.Invalid(path, text(*q), "must not be more than "+name))
	}
}

func (c *checker) validRange(def *resource.Quantity, r *resourcev1.CapacityRequestPolicyRange, capacity *resource.Quantity, path *field.Path) {
	if r.Min == nil {
		c.add(field.Required(path.Child("min"), ""))
		return
	}
	c.notAbove(r.Min, capacity, path.Child("min"), "the capacity")
	c.when(def.Cmp(*r.Min) < 0, field.Invalid(path.Child("default"), text(*def), "must not be less than min"))
	c.notAbove(r.Min, r.Max, path.Child("min"), "max")
	c.notAbove(r.Max, capacity, path.Child("max"), "the capacity")
	c.notAbove(def, r.Max, path.Child("default"), "max")
	if r.Step == nil {
		return
	}
	if r.Step.Sign() <= 0 {
		c.atLeast(1, r.Step, path.Child("step"))
		return
	}
	next := r.Min.DeepCopy()
	next.Add(*r.Step)
	c.notAbove(&next, capacity, path.Child("step"), "the capacity")
	// The API server counts in whole units, or in thousandths if the feature gate
	// DRAFractionalCapacityRange is on and a quantity is fractional. A range that
	// only one of the two accepts is for the API server to decide.
	c.when(r.Min.Sign() < 0, field.Invalid(path.Child("min"), text(*r.Min), "must not be negative if there is a step"))
	for _, q := range []*resource.Quantity{def, r.Max} {
		if q != nil && !reaches(q, r, (*resource.Quantity).Value) && !reaches(q, r, (*resource.Quantity).MilliValue) {
			c.add(field.Invalid(path.Child("step"), text(*q), "must be min and a whole number of steps"))
		}
	}
}

// reaches reports whether q is min and a whole number of steps, in some unit.
func reaches(q *resource.Quantity, r *resourcev1.CapacityRequestPolicyRange, unit func(*resource.Quantity) int64) bool {
	step := unit(r.Step)
	return step > 0 && q.CmpInt64(math.MaxInt64) <= 0 && (unit(q)-unit(r.Min))%step == 0
}
