// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
// that consume counters must have it as a string.
func (c *checker) partitionType(p *resourcev1.ResourceSliceSpec, name string, path *field.Path) {
	c.qualifiedName(resourcev1.QualifiedName(name), path)
	c.when(!strings.Contains(name, "/"), field.Invalid(path, name, "must be a domain and a name, separated by a slash"))
	for i := range p.Devices {
		c.when(len(p.Devices[i].ConsumesCounters) > 0 && attributeOf(&p.Devices[i], p.Driver, name).StringValue == nil,
			field.Required(field.NewPath("devices").Index(i).Child("attributes").Key(name),
				"the device consumes counters, so it must have the string that partitionTypeAttribute names"))
	}
}

// attributeOf returns an attribute of a device by its full name, or the zero value. A name
// without a domain is in the domain of the driver, so it may stand for the full name.
func attributeOf(d *resourcev1.Device, driver, name string) resourcev1.DeviceAttribute {
	if a, ok := d.Attributes[resourcev1.QualifiedName(name)]; ok {
		return a
	}
	return d.Attributes[resourcev1.QualifiedName(strings.TrimPrefix(name, driver+"/"))]
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

// device checks a device, except for its references to the rest of the pool. The API server
// names the device if it refuses something else, so that this one is left out and the others
// are published.
func (c *checker) device(d *resourcev1.Device, perDevice bool, path *field.Path) {
	c.label(d.Name, path.Child("name"))
	for name, a := range d.Attributes {
		path := path.Child("attributes").Key(string(name))
		if a.VersionValue != nil {
			c.version(*a.VersionValue, path.Child("version"))
		}
		for i, v := range a.VersionValues {
			c.version(v, path.Child("versions").Index(i))
		}
	}
	for name, capacity := range d.Capacity {
		// The API server accepts it, and the scheduler gives up a claim that it meets it for.
		c.when(capacity.Value.Sign() < 0, field.Invalid(path.Child("capacity").Key(string(name)).Child("value"), text(capacity.Value), "must not be negative"))
	}
	c.deviceNodes(d, perDevice, path)
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

// semver is the grammar of semver.org 2.0.0: three numbers without leading zeros,
// then a pre-release whose numeric parts have none either, then a build. That has no
// limit for numbers, and neither has the API server, but the scheduler parses them
// into 64 bits, and gives up a claim that it meets a larger one for.
var semver = regexp.MustCompile(`^(?:(?:0|[1-9]\d{0,18})\.){2}(?:0|[1-9]\d{0,18})` +
	`(?:-(?:0|[1-9]\d{0,18}|\d*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9]\d{0,18}|\d*[A-Za-z-][0-9A-Za-z-]*))*)?` +
	`(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?$`)

func (c *checker) version(v string, path *field.Path) {
	c.when(!semver.MatchString(v), field.Invalid(path, v, "must be a version as semver.org 2.0.0 has them, with numbers of at most 19 digits"))
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

// text returns the text of a quantity. The method String would also store it in
// the quantity, which belongs to the caller.
func text(q resource.Quantity) string { return q.String() }
