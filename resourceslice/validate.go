// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Everything that the API server checks in a slice is checked here first, with
// the limits of Kubernetes 1.37, so that Set can refuse at once what would
// otherwise fail in the background; and so is what it can't check, since it
// sees one slice at a time: names that are unique in a pool and references to
// counters. The rules are those of the API types' documentation and of the API
// server's validation; test/e2e holds the two against each other.

// validatePoolID checks the names of a pool.
func validatePoolID(id PoolID) field.ErrorList {
	problems := validateDriverName(id.Driver, field.NewPath("driver"))
	path := field.NewPath("name")
	if id.Name == "" {
		return append(problems, field.Required(path, ""))
	}
	if len(id.Name) > resourcev1.PoolNameMaxLength {
		problems = append(problems, field.TooLong(path, "", resourcev1.PoolNameMaxLength))
	}
	for part := range strings.SplitSeq(id.Name, "/") {
		problems = append(problems, invalid(path, part, validation.IsDNS1123Subdomain(part))...)
	}
	return problems
}

// validatePool checks a pool but for the devices that are not listed in fresh:
// those were found to be valid before.
func validatePool(pool *Pool, fresh []int, nodeName string) field.ErrorList {
	problems := validateSelection(pool.Nodes, nodeName, field.NewPath("nodes"))
	sets, setProblems := validateCounterSets(pool.SharedCounters, field.NewPath("sharedCounters"))
	problems = append(problems, setProblems...)
	devices := field.NewPath("devices")
	for _, i := range fresh {
		problems = append(problems, validateDevice(&pool.Devices[i], pool.Nodes.PerDevice, devices.Index(i))...)
	}
	names := make(map[string]bool, len(pool.Devices))
	consumers := false
	for i := range pool.Devices {
		device := &pool.Devices[i]
		if names[device.Name] {
			problems = append(problems, field.Duplicate(devices.Index(i).Child("name"), device.Name))
		}
		names[device.Name] = true
		consumers = consumers || len(device.ConsumesCounters) > 0
		problems = append(problems, validateReferences(device.ConsumesCounters, sets, devices.Index(i).Child("consumesCounters"))...)
	}
	problems = append(problems, validatePartitionType(pool, consumers)...)
	return append(problems, validateSkipOperations(pool.SkipNodeOperations, field.NewPath("skipNodeOperations"))...)
}

func validateSelection(n NodeSelection, nodeName string, path *field.Path) field.ErrorList {
	var problems field.ErrorList
	set := 0
	for _, is := range []bool{n.Selector != nil, n.AllNodes, n.PerDevice} {
		if is {
			set++
		}
	}
	if set > 1 {
		problems = append(problems, field.Invalid(path, "", "at most one of selector, allNodes and perDevice may be set"))
	}
	if set == 0 && nodeName == "" {
		problems = append(problems, field.Required(path, "the controller has no node of its own: one of selector, allNodes and perDevice must be set"))
	}
	if n.Selector != nil {
		problems = append(problems, validateNodeSelector(n.Selector, path.Child("selector"))...)
		if terms := len(n.Selector.NodeSelectorTerms); terms > 1 {
			problems = append(problems, field.Invalid(path.Child("selector", "nodeSelectorTerms"), terms, "must have exactly one term"))
		}
	}
	return problems
}

func validateNodeSelector(s *corev1.NodeSelector, path *field.Path) field.ErrorList {
	terms := path.Child("nodeSelectorTerms")
	if len(s.NodeSelectorTerms) == 0 {
		return field.ErrorList{field.Required(terms, "must have a term")}
	}
	var problems field.ErrorList
	for i := range s.NodeSelectorTerms {
		for j, req := range s.NodeSelectorTerms[i].MatchExpressions {
			problems = append(problems, validateExpression(req, terms.Index(i).Child("matchExpressions").Index(j))...)
		}
		for j, req := range s.NodeSelectorTerms[i].MatchFields {
			problems = append(problems, validateMatchField(req, terms.Index(i).Child("matchFields").Index(j))...)
		}
	}
	return problems
}

func validateExpression(req corev1.NodeSelectorRequirement, path *field.Path) field.ErrorList {
	problems := metav1validation.ValidateLabelName(req.Key, path.Child("key"))
	values := path.Child("values")
	switch req.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(req.Values) == 0 {
			problems = append(problems, field.Required(values, "In and NotIn need a value"))
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(req.Values) > 0 {
			problems = append(problems, field.Forbidden(values, "Exists and DoesNotExist take no value"))
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(req.Values) != 1 {
			problems = append(problems, field.Required(values, "Gt and Lt take exactly one value"))
		}
	default:
		problems = append(problems, field.NotSupported(path.Child("operator"), req.Operator, []corev1.NodeSelectorOperator{
			corev1.NodeSelectorOpDoesNotExist, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpGt,
			corev1.NodeSelectorOpIn, corev1.NodeSelectorOpLt, corev1.NodeSelectorOpNotIn,
		}))
	}
	for i, value := range req.Values {
		problems = append(problems, invalid(values.Index(i), value, validation.IsValidLabelValue(value))...)
	}
	return problems
}

func validateMatchField(req corev1.NodeSelectorRequirement, path *field.Path) field.ErrorList {
	var problems field.ErrorList
	switch req.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(req.Values) != 1 {
			problems = append(problems, field.Required(path.Child("values"), "a field takes exactly one value"))
		}
	default:
		problems = append(problems, field.NotSupported(path.Child("operator"), req.Operator,
			[]corev1.NodeSelectorOperator{corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn}))
	}
	if req.Key != metav1.ObjectNameField {
		return append(problems, field.NotSupported(path.Child("key"), req.Key, []string{metav1.ObjectNameField}))
	}
	for i, value := range req.Values {
		problems = append(problems, validateNodeName(value, path.Child("values").Index(i))...)
	}
	return problems
}

// validateCounterSets returns the names of the counters of each set as well.
func validateCounterSets(sets []resourcev1.CounterSet, path *field.Path) (map[string]map[string]resourcev1.Counter, field.ErrorList) {
	var problems field.ErrorList
	counters := make(map[string]map[string]resourcev1.Counter, len(sets))
	for i, set := range sets {
		name := path.Index(i).Child("name")
		problems = append(problems, validateLabel(set.Name, name)...)
		if _, twice := counters[set.Name]; twice {
			problems = append(problems, field.Duplicate(name, set.Name))
		}
		counters[set.Name] = set.Counters
		problems = append(problems, validateCounters(set.Counters, resourcev1.ResourceSliceMaxCountersPerCounterSet, path.Index(i).Child("counters"))...)
	}
	return counters, problems
}

func validateCounters(counters map[string]resourcev1.Counter, limit int, path *field.Path) field.ErrorList {
	if len(counters) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	if len(counters) > limit {
		return field.ErrorList{field.TooMany(path, len(counters), limit)}
	}
	var problems field.ErrorList
	for name := range counters {
		problems = append(problems, validateLabel(name, path.Key(name))...)
	}
	return problems
}

// validateReferences checks that what a device consumes is there: consumers of
// the pool would take no device from it otherwise.
func validateReferences(consumed []resourcev1.DeviceCounterConsumption, sets map[string]map[string]resourcev1.Counter, path *field.Path) field.ErrorList {
	var problems field.ErrorList
	for i, c := range consumed {
		counters, ok := sets[c.CounterSet]
		if !ok {
			problems = append(problems, field.NotFound(path.Index(i).Child("counterSet"), c.CounterSet))
			continue
		}
		for name := range c.Counters {
			if _, ok := counters[name]; !ok {
				problems = append(problems, field.NotFound(path.Index(i).Child("counters").Key(name), name))
			}
		}
	}
	return problems
}

func validatePartitionType(pool *Pool, consumers bool) field.ErrorList {
	if pool.PartitionTypeAttribute == "" {
		return nil
	}
	path, name := field.NewPath("partitionTypeAttribute"), string(pool.PartitionTypeAttribute)
	problems := validateQualifiedName(resourcev1.QualifiedName(name), path)
	if !strings.Contains(name, "/") {
		problems = append(problems, field.Invalid(path, name, "must be a domain and a name, separated by a slash"))
	}
	if !consumers {
		problems = append(problems, field.Invalid(path, name, "needs devices that consume counters"))
	}
	return problems
}

// validatePartitionTypeOf checks that the devices that consume counters carry
// the attribute that tells the type of partition. A name in the driver's own
// domain may stand without it.
func validatePartitionTypeOf(pool *Pool, driver string) field.ErrorList {
	name := string(pool.PartitionTypeAttribute)
	if name == "" {
		return nil
	}
	var problems field.ErrorList
	bare := strings.TrimPrefix(name, driver+"/")
	for i := range pool.Devices {
		if len(pool.Devices[i].ConsumesCounters) == 0 {
			continue
		}
		path := field.NewPath("devices").Index(i).Child("attributes").Key(name)
		attribute, ok := pool.Devices[i].Attributes[resourcev1.QualifiedName(name)]
		if !ok {
			attribute, ok = pool.Devices[i].Attributes[resourcev1.QualifiedName(bare)]
		}
		switch {
		case !ok:
			problems = append(problems, field.Required(path, "partitionTypeAttribute names it, and the device consumes counters"))
		case attribute.StringValue == nil:
			problems = append(problems, field.Invalid(path, "", "must be a string, since partitionTypeAttribute names it"))
		}
	}
	return problems
}

func validateSkipOperations(operations []resourcev1.SkipNodeOperation, path *field.Path) field.ErrorList {
	var problems field.ErrorList
	known := []resourcev1.SkipNodeOperation{resourcev1.SkipNodeOperationAll, resourcev1.SkipNodeOperationNodePrepareResources, resourcev1.SkipNodeOperationNodeUnprepareResources}
	seen := make(map[resourcev1.SkipNodeOperation]bool)
	for i, op := range operations {
		if seen[op] {
			problems = append(problems, field.Duplicate(path.Index(i), op))
		}
		seen[op] = true
		if op != known[0] && op != known[1] && op != known[2] {
			problems = append(problems, field.NotSupported(path.Index(i), op, known))
		}
	}
	if seen[known[1]] && !seen[known[2]] && !seen[known[0]] {
		problems = append(problems, field.Invalid(path, operations, "what isn't unprepared can't go unprepared: NodePrepareResources needs NodeUnprepareResources too"))
	}
	return problems
}

// validateDriverName applies the rules of CSI driver names.
func validateDriverName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var problems field.ErrorList
	if len(name) > resourcev1.DriverNameMaxLength {
		problems = append(problems, field.TooLong(path, "", resourcev1.DriverNameMaxLength))
	}
	return append(problems, invalid(path, name, validation.IsDNS1123Subdomain(strings.ToLower(name)))...)
}

func validateNodeName(name string, path *field.Path) field.ErrorList {
	return invalid(path, name, apivalidation.NameIsDNSSubdomain(name, false))
}

func validateLabel(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return invalid(path, name, validation.IsDNS1123Label(name))
}

// invalid turns the messages of a check of apimachinery into problems.
func invalid(path *field.Path, value string, messages []string) field.ErrorList {
	var problems field.ErrorList
	for _, message := range messages {
		problems = append(problems, field.Invalid(path, value, message))
	}
	return problems
}
