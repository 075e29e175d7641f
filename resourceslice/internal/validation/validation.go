// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package validation

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

// A Pool is the desired content of a pool, with the names that go into its
// slices.
type Pool struct {
	// Driver and Name identify the pool.
	Driver, Name string
	// NodeName is the node of the controller, empty if it has none.
	NodeName string
	// Selector, AllNodes and PerDevice select nodes other than NodeName.
	Selector  *corev1.NodeSelector
	AllNodes  bool
	PerDevice bool

	// Devices, SharedCounters, PartitionType and Skip are the fields of a slice
	// with similar names.
	Devices        []resourcev1.Device
	SharedCounters []resourcev1.CounterSet
	PartitionType  resourcev1.FullyQualifiedName
	Skip           []resourcev1.SkipNodeOperation
}

// ID validates the driver and the name of a pool.
func ID(driver, pool string) field.ErrorList {
	problems := DriverName(driver, field.NewPath("driver"))
	path := field.NewPath("name")
	if pool == "" {
		return append(problems, field.Required(path, ""))
	}
	if len(pool) > resourcev1.PoolNameMaxLength {
		problems = append(problems, field.TooLong(path, "", resourcev1.PoolNameMaxLength))
	}
	for part := range strings.SplitSeq(pool, "/") {
		problems = append(problems, invalid(path, part, validation.IsDNS1123Subdomain(part))...)
	}
	return problems
}

// Validate validates p except for its identity. It checks the content of the
// devices whose indexes are in fresh; all others were found valid before.
func (p *Pool) Validate(fresh []int) field.ErrorList {
	problems := validateSelection(p, field.NewPath("nodes"))
	sets, setProblems := validateCounterSets(p.SharedCounters, field.NewPath("sharedCounters"))
	problems = append(problems, setProblems...)
	devices := field.NewPath("devices")
	for _, i := range fresh {
		problems = append(problems, validateDevice(&p.Devices[i], p.PerDevice, devices.Index(i))...)
	}
	names := make(map[string]bool, len(p.Devices))
	for i := range p.Devices {
		device := &p.Devices[i]
		if names[device.Name] {
			problems = append(problems, field.Duplicate(devices.Index(i).Child("name"), device.Name))
		}
		names[device.Name] = true
		if len(device.ConsumesCounters) > 0 {
			problems = append(problems, validateReferences(device.ConsumesCounters, sets, devices.Index(i).Child("consumesCounters"))...)
		}
	}
	problems = append(problems, validatePartitionType(p)...)
	return append(problems, validateSkipOperations(p.Skip, field.NewPath("skipNodeOperations"))...)
}

func validateSelection(p *Pool, path *field.Path) field.ErrorList {
	var problems field.ErrorList
	set := 0
	for _, is := range []bool{p.Selector != nil, p.AllNodes, p.PerDevice} {
		if is {
			set++
		}
	}
	if set > 1 {
		problems = append(problems, field.Invalid(path, "", "at most one of selector, allNodes and perDevice may be set"))
	}
	if set == 0 && p.NodeName == "" {
		problems = append(problems, field.Required(path, "the controller has no node of its own: one of selector, allNodes and perDevice must be set"))
	}
	if p.Selector != nil {
		problems = append(problems, validateNodeSelector(p.Selector, path.Child("selector"))...)
		if terms := len(p.Selector.NodeSelectorTerms); terms > 1 {
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
		problems = append(problems, NodeName(value, path.Child("values").Index(i))...)
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

// validatePartitionType checks the attribute that tells the type of a
// partition: all devices that consume counters must have it as a string. Its
// name may omit the domain if that is the driver's.
func validatePartitionType(p *Pool) field.ErrorList {
	name := string(p.PartitionType)
	if name == "" {
		return nil
	}
	path := field.NewPath("partitionTypeAttribute")
	problems := validateQualifiedName(resourcev1.QualifiedName(name), path)
	if !strings.Contains(name, "/") {
		problems = append(problems, field.Invalid(path, name, "must be a domain and a name, separated by a slash"))
	}
	bare := strings.TrimPrefix(name, p.Driver+"/")
	for i := range p.Devices {
		if len(p.Devices[i].ConsumesCounters) == 0 {
			continue
		}
		path := field.NewPath("devices").Index(i).Child("attributes").Key(name)
		attribute, ok := p.Devices[i].Attributes[resourcev1.QualifiedName(name)]
		if !ok {
			attribute, ok = p.Devices[i].Attributes[resourcev1.QualifiedName(bare)]
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

// DriverName validates the name of a driver by the rules of CSI driver names.
func DriverName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var problems field.ErrorList
	if len(name) > resourcev1.DriverNameMaxLength {
		problems = append(problems, field.TooLong(path, "", resourcev1.DriverNameMaxLength))
	}
	return append(problems, invalid(path, name, validation.IsDNS1123Subdomain(strings.ToLower(name)))...)
}

// NodeName validates the name of a node.
func NodeName(name string, path *field.Path) field.ErrorList {
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
