// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/resourceslice"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

// verdicts are pools about which Set and the API server must agree. Each
// changes a valid pool with one plain device, one that consumes counters, and
// one with consumable capacity.
var verdicts = map[string]func(*resourceslice.Pool){
	"valid":   func(*resourceslice.Pool) {},
	"nothing": func(p *resourceslice.Pool) { *p = resourceslice.Pool{} },

	"device name, empty":      func(p *resourceslice.Pool) { p.Devices[0].Name = "" },
	"device name, upper case": func(p *resourceslice.Pool) { p.Devices[0].Name = "Gpu" },
	"device name, dots":       func(p *resourceslice.Pool) { p.Devices[0].Name = "gpu.0" },
	"device name, 63":         func(p *resourceslice.Pool) { p.Devices[0].Name = strings.Repeat("a", 63) },
	"device name, 64":         func(p *resourceslice.Pool) { p.Devices[0].Name = strings.Repeat("a", 64) },

	"attribute, no value":            attribute("a", resourcev1.DeviceAttribute{}),
	"attribute, two values":          attribute("a", resourcev1.DeviceAttribute{IntValue: new(int64(1)), BoolValue: new(true)}),
	"attribute, false":               attribute("a", resourcev1.DeviceAttribute{BoolValue: new(false)}),
	"attribute, empty string":        attribute("a", resourcev1.DeviceAttribute{StringValue: new("")}),
	"attribute, string of 64":        attribute("a", resourcev1.DeviceAttribute{StringValue: new(strings.Repeat("s", 64))}),
	"attribute, string of 65":        attribute("a", resourcev1.DeviceAttribute{StringValue: new(strings.Repeat("s", 65))}),
	"attribute, version":             attribute("a", resourcev1.DeviceAttribute{VersionValue: new("1.2.3-rc.1+build.5")}),
	"attribute, version of two":      attribute("a", resourcev1.DeviceAttribute{VersionValue: new("1.2")}),
	"attribute, version with zero":   attribute("a", resourcev1.DeviceAttribute{VersionValue: new("1.02.3")}),
	"attribute, pre-release zero":    attribute("a", resourcev1.DeviceAttribute{VersionValue: new("1.0.0-01")}),
	"attribute, pre-release 0a":      attribute("a", resourcev1.DeviceAttribute{VersionValue: new("1.0.0-0a")}),
	"attribute, version with v":      attribute("a", resourcev1.DeviceAttribute{VersionValue: new("v1.0.0")}),
	"attribute, long version":        attribute("a", resourcev1.DeviceAttribute{VersionValue: new("1.0.0-" + strings.Repeat("a", 60))}),
	"attribute, strings":             attribute("a", resourcev1.DeviceAttribute{StringValues: []string{"a", "b"}}),
	"attribute, long string in list": attribute("a", resourcev1.DeviceAttribute{StringValues: []string{strings.Repeat("s", 65)}}),
	"attribute, bad version in list": attribute("a", resourcev1.DeviceAttribute{VersionValues: []string{"1.0.0", "1"}}),
	"attribute, value and list":      attribute("a", resourcev1.DeviceAttribute{StringValue: new("a"), IntValues: []int64{1}}),
	"attribute, ints":                attribute("a", resourcev1.DeviceAttribute{IntValues: []int64{1, 1}}),
	"attribute, 47 more values":      attribute("a", resourcev1.DeviceAttribute{IntValues: make([]int64, 47)}),
	"attribute, 48 more values":      attribute("a", resourcev1.DeviceAttribute{IntValues: make([]int64, 48)}),
	"attribute name, empty":          attribute("", resourcev1.DeviceAttribute{IntValue: new(int64(1))}),
	"attribute name, hyphen":         attribute("a-b", resourcev1.DeviceAttribute{IntValue: new(int64(1))}),
	"attribute name, digit first":    attribute("1a", resourcev1.DeviceAttribute{IntValue: new(int64(1))}),
	"attribute name, 32":             attribute(resourcev1.QualifiedName(strings.Repeat("a", 32)), resourcev1.DeviceAttribute{IntValue: new(int64(1))}),
	"attribute name, 33":             attribute(resourcev1.QualifiedName(strings.Repeat("a", 33)), resourcev1.DeviceAttribute{IntValue: new(int64(1))}),
	"attribute name, domain":         attribute("example.com/a", resourcev1.DeviceAttribute{IntValue: new(int64(1))}),
	"attribute name, empty domain":   attribute("/a", resourcev1.DeviceAttribute{IntValue: new(int64(1))}),
	"attribute name, only a domain":  attribute("example.com/", resourcev1.DeviceAttribute{IntValue: new(int64(1))}),
	"attribute name, bad domain":     attribute("example_com/a", resourcev1.DeviceAttribute{IntValue: new(int64(1))}),
	"attribute name, domain of 64":   attribute(resourcev1.QualifiedName(strings.Repeat("a", 64)+"/a"), resourcev1.DeviceAttribute{IntValue: new(int64(1))}),
	"attributes, 31 more":            manyAttributes(31),
	"attributes, 32 more":            manyAttributes(32),

	"capacity name, bad": func(p *resourceslice.Pool) {
		p.Devices[0].Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"a b": {Value: resource.MustParse("1")}}
	},
	"policy without sharing":         func(p *resourceslice.Pool) { p.Devices[2].AllowMultipleAllocations = nil },
	"policy with sharing false":      func(p *resourceslice.Pool) { p.Devices[2].AllowMultipleAllocations = new(false) },
	"policy, empty":                  policy(resourcev1.CapacityRequestPolicy{}),
	"policy, default alone":          policy(resourcev1.CapacityRequestPolicy{Default: q("99")}),
	"policy, values without default": policy(resourcev1.CapacityRequestPolicy{ValidValues: qs("1", "2")}),
	"policy, values":                 policy(resourcev1.CapacityRequestPolicy{Default: q("2"), ValidValues: qs("1", "2")}),
	"policy, default not among":      policy(resourcev1.CapacityRequestPolicy{Default: q("3"), ValidValues: qs("1", "2")}),
	"policy, values not sorted":      policy(resourcev1.CapacityRequestPolicy{Default: q("2"), ValidValues: qs("2", "1")}),
	"policy, values twice":           policy(resourcev1.CapacityRequestPolicy{Default: q("2"), ValidValues: qs("2", "2")}),
	"policy, value beyond capacity":  policy(resourcev1.CapacityRequestPolicy{Default: q("2"), ValidValues: qs("2", "9")}),
	"policy, eleven values":          policy(resourcev1.CapacityRequestPolicy{Default: q("1"), ValidValues: qs("1", "1100m", "1200m", "1300m", "1400m", "1500m", "1600m", "1700m", "1800m", "1900m", "2")}),
	"policy, values and range":       policy(resourcev1.CapacityRequestPolicy{Default: q("2"), ValidValues: qs("2"), ValidRange: &resourcev1.CapacityRequestPolicyRange{Min: q("1")}}),
	"range without default":          policy(resourcev1.CapacityRequestPolicy{ValidRange: &resourcev1.CapacityRequestPolicyRange{Min: q("1")}}),
	"range without min":              policy(resourcev1.CapacityRequestPolicy{Default: q("1"), ValidRange: &resourcev1.CapacityRequestPolicyRange{Max: q("2")}}),
	"range":                          ranged("2", "1", "4", "1"),
	"range without step":             ranged("2", "1", "4", ""),
	"range, min beyond max":          ranged("4", "4", "2", ""),
	"range, min beyond capacity":     ranged("9", "9", "", ""),
	"range, max beyond capacity":     ranged("2", "1", "9", ""),
	"range, default below min":       ranged("1", "2", "4", ""),
	"range, default beyond max":      ranged("4", "1", "3", ""),
	"range, default between steps":   ranged("2", "1", "7", "2"),
	"range, max between steps":       ranged("3", "1", "6", "2"),
	"range, step zero":               ranged("2", "1", "4", "0"),
	"range, step negative":           ranged("2", "1", "4", "-1"),
	"range, step beyond capacity":    ranged("1", "1", "", "8"),
	"range, min negative":            ranged("2", "-2", "4", "2"),
	"range, fractions":               ranged("1500m", "500m", "4500m", "500m"),
	"range, fraction between steps":  ranged("1300m", "500m", "4500m", "500m"),
	"range, default a fraction":      ranged("1500m", "1", "4", "1"),
	"range, too fine":                ranged("1", "1", "4", "100u"),

	"taints, 16":            func(p *resourceslice.Pool) { p.Devices[0].Taints = taintsOf(16) },
	"taints, 17":            func(p *resourceslice.Pool) { p.Devices[0].Taints = taintsOf(17) },
	"taint, no key":         taint(resourcev1.DeviceTaint{Effect: resourcev1.DeviceTaintEffectNoSchedule}),
	"taint, bad key":        taint(resourcev1.DeviceTaint{Key: "a b", Effect: resourcev1.DeviceTaintEffectNoSchedule}),
	"taint, bad value":      taint(resourcev1.DeviceTaint{Key: "a", Value: "b c", Effect: resourcev1.DeviceTaintEffectNoSchedule}),
	"taint, no effect":      taint(resourcev1.DeviceTaint{Key: "a"}),
	"taint, None":           taint(resourcev1.DeviceTaint{Key: "a", Effect: resourcev1.DeviceTaintEffectNone}),
	"taint, unknown effect": taint(resourcev1.DeviceTaint{Key: "a", Effect: "PreferNoSchedule"}),
	"taint, twice":          func(p *resourceslice.Pool) { p.Devices[0].Taints = append(taintsOf(1), taintsOf(1)...) },

	"set, no counters":      func(p *resourceslice.Pool) { p.SharedCounters[1].Counters = nil },
	"set, no name":          func(p *resourceslice.Pool) { p.SharedCounters[1].Name = "" },
	"set, bad name":         func(p *resourceslice.Pool) { p.SharedCounters[1].Name = "A" },
	"set, 32 counters":      func(p *resourceslice.Pool) { p.SharedCounters[1].Counters = counters(32) },
	"set, 33 counters":      func(p *resourceslice.Pool) { p.SharedCounters[1].Counters = counters(33) },
	"set, bad counter":      func(p *resourceslice.Pool) { p.SharedCounters[1].Counters = map[string]resourcev1.Counter{"A": {}} },
	"set, twice":            func(p *resourceslice.Pool) { p.SharedCounters[1].Name = p.SharedCounters[0].Name },
	"consumes, nothing":     func(p *resourceslice.Pool) { p.Devices[1].ConsumesCounters[0].Counters = nil },
	"consumes, two sets":    func(p *resourceslice.Pool) { consume(p, "set-1") },
	"consumes, a set twice": func(p *resourceslice.Pool) { consume(p, "set-0") },
	"groups, two":           groups("a", "b"),
	"groups, three":         groups("a", "b", "c"),
	"groups, twice":         groups("a", "a"),
	"groups, bad":           groups("A"),

	"binding": func(p *resourceslice.Pool) {
		p.Devices[0].BindingConditions, p.Devices[0].BindingFailureConditions = []string{"a"}, []string{"b"}
	},
	"binding, no failure":   func(p *resourceslice.Pool) { p.Devices[0].BindingConditions = []string{"a"} },
	"binding, only failure": func(p *resourceslice.Pool) { p.Devices[0].BindingFailureConditions = []string{"a"} },
	"binding, the same": func(p *resourceslice.Pool) {
		p.Devices[0].BindingConditions, p.Devices[0].BindingFailureConditions = []string{"a"}, []string{"a"}
	},
	"binding, twice": func(p *resourceslice.Pool) {
		p.Devices[0].BindingConditions, p.Devices[0].BindingFailureConditions = []string{"a", "a"}, []string{"b"}
	},
	"binding, five": func(p *resourceslice.Pool) {
		p.Devices[0].BindingConditions, p.Devices[0].BindingFailureConditions = []string{"a", "b", "c", "d", "e"}, []string{"f"}
	},
	"binding, bad": func(p *resourceslice.Pool) {
		p.Devices[0].BindingConditions, p.Devices[0].BindingFailureConditions = []string{"a b"}, []string{"b"}
	},

	"allocatable":                    allocatable("cpu", resourcev1.NodeAllocatableResource{Mapping: &resourcev1.NodeAllocatableMapping{DeviceMultiplier: q("8")}}),
	"allocatable, hugepages":         allocatable("hugepages-2Mi", resourcev1.NodeAllocatableResource{Overhead: &resourcev1.NodeAllocatableOverhead{PerPod: q("2Mi")}}),
	"allocatable, extended":          allocatable("example.com/a", resourcev1.NodeAllocatableResource{Overhead: &resourcev1.NodeAllocatableOverhead{PerPod: q("1")}}),
	"allocatable, nothing":           allocatable("cpu", resourcev1.NodeAllocatableResource{}),
	"allocatable, zero":              allocatable("cpu", resourcev1.NodeAllocatableResource{Mapping: &resourcev1.NodeAllocatableMapping{DeviceMultiplier: q("0")}}),
	"allocatable, empty mapping":     allocatable("cpu", resourcev1.NodeAllocatableResource{Mapping: &resourcev1.NodeAllocatableMapping{}}),
	"allocatable, empty overhead":    allocatable("cpu", resourcev1.NodeAllocatableResource{Overhead: &resourcev1.NodeAllocatableOverhead{}}),
	"allocatable, negative overhead": allocatable("cpu", resourcev1.NodeAllocatableResource{Overhead: &resourcev1.NodeAllocatableOverhead{PerContainer: q("-1")}}),
	"allocatable, unknown capacity": allocatable("cpu", resourcev1.NodeAllocatableResource{Mapping: &resourcev1.NodeAllocatableMapping{
		CapacityKey: new(resourcev1.QualifiedName("other")), CapacityMultiplier: q("1")}}),
	"allocatable, capacity": allocatable("cpu", resourcev1.NodeAllocatableResource{Mapping: &resourcev1.NodeAllocatableMapping{
		CapacityKey: new(resourcev1.QualifiedName("memory")), CapacityMultiplier: q("1")}}),
	"allocatable, capacity without multiplier": allocatable("cpu", resourcev1.NodeAllocatableResource{Mapping: &resourcev1.NodeAllocatableMapping{
		CapacityKey: new(resourcev1.QualifiedName("memory"))}}),
	"allocatable, multiplier without capacity": allocatable("cpu", resourcev1.NodeAllocatableResource{Mapping: &resourcev1.NodeAllocatableMapping{
		CapacityMultiplier: q("1")}}),
	"allocatable, both": allocatable("cpu", resourcev1.NodeAllocatableResource{Mapping: &resourcev1.NodeAllocatableMapping{
		CapacityKey: new(resourcev1.QualifiedName("memory")), CapacityMultiplier: q("1"), DeviceMultiplier: q("1")}}),

	"skip, all":       skip(resourcev1.SkipNodeOperationAll),
	"skip, both":      skip(resourcev1.SkipNodeOperationNodePrepareResources, resourcev1.SkipNodeOperationNodeUnprepareResources),
	"skip, prepare":   skip(resourcev1.SkipNodeOperationNodePrepareResources),
	"skip, unprepare": skip(resourcev1.SkipNodeOperationNodeUnprepareResources),
	"skip, unknown":   skip("Other"),
	"skip, twice":     skip(resourcev1.SkipNodeOperationAll, resourcev1.SkipNodeOperationAll),

	"partition type":            func(p *resourceslice.Pool) { p.PartitionTypeAttribute = "gpu.example.com/model" },
	"partition type, not there": func(p *resourceslice.Pool) { p.PartitionTypeAttribute = "gpu.example.com/other" },
	"partition type, no string": func(p *resourceslice.Pool) { p.PartitionTypeAttribute = "gpu.example.com/index" },
	"partition type, no domain": func(p *resourceslice.Pool) { p.PartitionTypeAttribute = "model" },

	"nodes, all":                   nodes(resourceslice.NodeSelection{AllNodes: true}),
	"nodes, selector":              selected(corev1.NodeSelectorRequirement{Key: "a", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}),
	"nodes, no values":             selected(corev1.NodeSelectorRequirement{Key: "a", Operator: corev1.NodeSelectorOpIn}),
	"nodes, exists":                selected(corev1.NodeSelectorRequirement{Key: "a", Operator: corev1.NodeSelectorOpExists}),
	"nodes, exists a value":        selected(corev1.NodeSelectorRequirement{Key: "a", Operator: corev1.NodeSelectorOpExists, Values: []string{"b"}}),
	"nodes, greater":               selected(corev1.NodeSelectorRequirement{Key: "a", Operator: corev1.NodeSelectorOpGt, Values: []string{"1"}}),
	"nodes, greater than two":      selected(corev1.NodeSelectorRequirement{Key: "a", Operator: corev1.NodeSelectorOpGt, Values: []string{"1", "2"}}),
	"nodes, bad operator":          selected(corev1.NodeSelectorRequirement{Key: "a", Operator: "Like", Values: []string{"1"}}),
	"nodes, bad key":               selected(corev1.NodeSelectorRequirement{Key: "a b", Operator: corev1.NodeSelectorOpExists}),
	"nodes, bad value":             selected(corev1.NodeSelectorRequirement{Key: "a", Operator: corev1.NodeSelectorOpIn, Values: []string{"a b"}}),
	"nodes, no term":               nodes(resourceslice.NodeSelection{Selector: &corev1.NodeSelector{}}),
	"nodes, two terms":             nodes(resourceslice.NodeSelection{Selector: &corev1.NodeSelector{NodeSelectorTerms: make([]corev1.NodeSelectorTerm, 2)}}),
	"nodes, by name":               byField("metadata.name", corev1.NodeSelectorOpIn, "n1"),
	"nodes, by two names":          byField("metadata.name", corev1.NodeSelectorOpIn, "n1", "n2"),
	"nodes, by bad name":           byField("metadata.name", corev1.NodeSelectorOpIn, "N 1"),
	"nodes, by other field":        byField("spec.podCIDR", corev1.NodeSelectorOpIn, "n1"),
	"nodes, name exists":           byField("metadata.name", corev1.NodeSelectorOpExists),
	"nodes, per device":            perDevice(func(d *resourcev1.Device) { d.AllNodes = new(true) }),
	"nodes, per device none":       perDevice(func(*resourcev1.Device) {}),
	"nodes, per device two":        perDevice(func(d *resourcev1.Device) { d.AllNodes, d.NodeName = new(true), new("n1") }),
	"nodes, per device name":       perDevice(func(d *resourcev1.Device) { d.NodeName = new("n1") }),
	"nodes, per device bad name":   perDevice(func(d *resourcev1.Device) { d.NodeName = new("N 1") }),
	"nodes, per device no name":    perDevice(func(d *resourcev1.Device) { d.NodeName = new("") }),
	"nodes, per device not all":    perDevice(func(d *resourcev1.Device) { d.AllNodes = new(false) }),
	"nodes, device says, pool not": func(p *resourceslice.Pool) { p.Devices[0].AllNodes = new(true) },
	"nodes, device says selector": perDevice(func(d *resourcev1.Device) {
		d.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}
	}),
}

// recordVerdicts makes TestResourceSliceValidation record the verdicts.
var recordVerdicts = flag.Bool("verdicts.record", false, "write the API server's verdicts to resourceslice/internal/validation/testdata/verdicts.json")

// verdict is a pool with the API server's answer. The tests of package validation
// read the file of recorded verdicts, which has a list of them.
type verdict struct {
	Name    string
	ID      resourceslice.PoolID
	Pool    resourceslice.Pool
	Refused []string `json:",omitempty"` // the paths that the API server names
}

func newVerdict(name string, id resourceslice.PoolID, p *resourceslice.Pool, err error) verdict {
	v := verdict{Name: name, ID: id, Pool: *p}
	if status, ok := err.(apierrors.APIStatus); ok {
		for _, cause := range status.Status().Details.Causes {
			v.Refused = append(v.Refused, cause.Field)
		}
	}
	return v
}

func q(s string) *resource.Quantity { return new(resource.MustParse(s)) }

func qs(all ...string) (quantities []resource.Quantity) {
	for _, s := range all {
		quantities = append(quantities, resource.MustParse(s))
	}
	return quantities
}

func attribute(name resourcev1.QualifiedName, a resourcev1.DeviceAttribute) func(*resourceslice.Pool) {
	return func(p *resourceslice.Pool) { p.Devices[0].Attributes[name] = a }
}

func manyAttributes(n int) func(*resourceslice.Pool) {
	return func(p *resourceslice.Pool) {
		p.Devices[0].Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {BoolValue: new(true)}}
		for i := range n {
			p.Devices[0].Attributes[resourcev1.QualifiedName(fmt.Sprint("a", i))] = resourcev1.DeviceAttribute{BoolValue: new(true)}
		}
	}
}

func policy(r resourcev1.CapacityRequestPolicy) func(*resourceslice.Pool) {
	return func(p *resourceslice.Pool) {
		p.Devices[2].Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse("8"), RequestPolicy: &r}}
	}
}

func ranged(def, lowest, highest, step string) func(*resourceslice.Pool) {
	r := &resourcev1.CapacityRequestPolicyRange{Min: q(lowest)}
	if highest != "" {
		r.Max = q(highest)
	}
	if step != "" {
		r.Step = q(step)
	}
	return policy(resourcev1.CapacityRequestPolicy{Default: q(def), ValidRange: r})
}

func taintsOf(n int) (all []resourcev1.DeviceTaint) {
	for i := range n {
		all = append(all, resourcev1.DeviceTaint{Key: fmt.Sprint("t", i), Effect: resourcev1.DeviceTaintEffectNoSchedule})
	}
	return all
}

func taint(t resourcev1.DeviceTaint) func(*resourceslice.Pool) {
	return func(p *resourceslice.Pool) { p.Devices[0].Taints = []resourcev1.DeviceTaint{t} }
}

func counters(n int) map[string]resourcev1.Counter {
	all := make(map[string]resourcev1.Counter)
	for i := range n {
		all[fmt.Sprint("c", i)] = resourcev1.Counter{Value: resource.MustParse("1")}
	}
	return all
}

func consume(p *resourceslice.Pool, set string) {
	p.Devices[1].ConsumesCounters = append(p.Devices[1].ConsumesCounters, resourcev1.DeviceCounterConsumption{CounterSet: set, Counters: counters(1)})
}

func groups(all ...string) func(*resourceslice.Pool) {
	return func(p *resourceslice.Pool) { p.Devices[1].ConsumesCounters[0].CompatibilityGroups = all }
}

func allocatable(name corev1.ResourceName, r resourcev1.NodeAllocatableResource) func(*resourceslice.Pool) {
	return func(p *resourceslice.Pool) {
		p.Devices[2].NodeAllocatableResources = map[corev1.ResourceName]resourcev1.NodeAllocatableResource{name: r}
	}
}

func skip(operations ...resourcev1.SkipNodeOperation) func(*resourceslice.Pool) {
	return func(p *resourceslice.Pool) { p.SkipNodeOperations = operations }
}

func nodes(n resourceslice.NodeSelection) func(*resourceslice.Pool) {
	return func(p *resourceslice.Pool) { p.Nodes = n }
}

func selected(r corev1.NodeSelectorRequirement) func(*resourceslice.Pool) {
	return nodes(resourceslice.NodeSelection{Selector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{r}}}}})
}

func byField(key string, operator corev1.NodeSelectorOperator, values ...string) func(*resourceslice.Pool) {
	return nodes(resourceslice.NodeSelection{Selector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: key, Operator: operator, Values: values}}}}}})
}

func perDevice(change func(*resourcev1.Device)) func(*resourceslice.Pool) {
	return func(p *resourceslice.Pool) {
		p.Nodes.PerDevice = true
		for i := range p.Devices {
			change(&p.Devices[i])
		}
	}
}

func validPool() *resourceslice.Pool {
	p := &resourceslice.Pool{Devices: gpusFrom(0, 3, "a")}
	for i := range 2 {
		p.SharedCounters = append(p.SharedCounters, resourcev1.CounterSet{Name: fmt.Sprint("set-", i), Counters: counters(1)})
	}
	consume(p, "set-0")
	p.Devices[2].AllowMultipleAllocations = new(true)
	ranged("2", "1", "4", "1")(p)
	return p
}

// TestResourceSliceValidation compares Set with the API server's dry-run, with
// all features on. The API server may refuse a single device of what Set accepts.
func TestResourceSliceValidation(t *testing.T) {
	busy(t)
	harness.OnlyDefaultVersion(t, "others lack some of the features")
	cluster := ownCluster(t, harness.Options{
		Without: []string{harness.ControllerManager, harness.Scheduler},
		FeatureGates: map[string]bool{
			"DRAListTypeAttributes": true, "DRANodeAllocatableResources": true, "DRADeviceCompatibilityGroups": true,
			"DRAPartitionableDevicesType": true, "DRAResourcePoolStatus": true, "DRAOptionalNodeOperations": true,
		},
	})
	client := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	// Mapped resources are compared with the node's resources.
	amounts := corev1.ResourceList{"cpu": resource.MustParse("64"), "memory": resource.MustParse("64Gi"), "hugepages-2Mi": resource.MustParse("1Gi")}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
			Capacity: amounts, Allocatable: amounts, DeclaredFeatures: []string{"DRANodeAllocatableResources"},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	id := resourceslice.PoolID{Driver: gpuDriver, Name: "n1"}
	// The admission of mapped resources sees the Node in an informer of its own.
	mapped := validPool()
	verdicts["allocatable"](mapped)
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		return !apierrors.IsForbidden(dryRunOf(ctx, client, specsOf(id, mapped)[0])), nil
	})
	if err != nil {
		t.Fatal("the admission does not see the Node: ", err)
	}
	names := make([]string, 0, len(verdicts))
	for name := range verdicts {
		names = append(names, name)
	}
	slices.Sort(names)
	accepted := 0
	var recorded []verdict
	for _, name := range names {
		p := validPool()
		verdicts[name](p)
		c, err := resourceslice.New(resourceslice.Config{Client: client.ResourceV1(), NodeName: "n1", Owner: resourceslice.NodeOwner(client.CoreV1().Nodes(), "n1")})
		if err != nil {
			t.Fatal(err)
		}
		ours := c.Set(id, *p)
		theirs := dryRun(t, client, id, p)
		recorded = append(recorded, newVerdict(name, id, p, theirs))
		if ours != nil && theirs == nil || ours == nil && !namesDevices(theirs) {
			t.Errorf("%s:\nSet:        %v\nAPI server: %v", name, ours, theirs)
		}
		if ours == nil {
			accepted++
		}
	}
	if len(names) < 100 || accepted < 25 {
		t.Errorf("%d cases, of which %d are valid", len(names), accepted)
	}
	for _, pool := range []string{"", "a", "a/b", "a//b", "/a", "A", "a.b/c.d", strings.Repeat("a", 253), strings.Repeat("a", 254)} {
		for _, driver := range []string{"", "gpu.example.com", "GPU.example.com", "gpu_example", strings.Repeat("a", 63), strings.Repeat("a", 64)} {
			id := resourceslice.PoolID{Driver: driver, Name: pool}
			c, err := resourceslice.New(resourceslice.Config{Client: client.ResourceV1(), NodeName: "n1", Owner: resourceslice.NodeOwner(client.CoreV1().Nodes(), "n1")})
			if err != nil {
				t.Fatal(err)
			}
			ours, theirs := c.Set(id, resourceslice.Pool{}), dryRun(t, client, id, &resourceslice.Pool{})
			recorded = append(recorded, newVerdict("identity, "+id.String(), id, &resourceslice.Pool{}, theirs))
			if (ours == nil) != (theirs == nil) {
				t.Errorf("%v:\nSet:        %v\nAPI server: %v", id, ours, theirs)
			}
		}
	}
	if *recordVerdicts {
		lines := make([]string, len(recorded))
		for i, v := range recorded {
			line, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			lines[i] = string(line)
		}
		err := os.WriteFile("../../resourceslice/internal/validation/testdata/verdicts.json", []byte("[\n"+strings.Join(lines, ",\n")+"\n]\n"), 0o644)
		if err != nil {
			t.Error(err)
		}
	}
}

// namesDevices reports whether each cause of an error is in a device.
func namesDevices(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || !slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool {
		return !strings.HasPrefix(c.Field, "spec.devices[")
	})
}

// dryRun returns the API server's verdict on the slices of a pool.
func dryRun(t *testing.T, client kubernetes.Interface, id resourceslice.PoolID, p *resourceslice.Pool) error {
	t.Helper()
	for _, spec := range specsOf(id, p) {
		err := dryRunOf(t.Context(), client, spec)
		if err != nil && !apierrors.IsInvalid(err) {
			t.Errorf("the API server says %v, which is no verdict on the slice", err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func dryRunOf(ctx context.Context, client kubernetes.Interface, spec resourcev1.ResourceSliceSpec) error {
	_, err := client.ResourceV1().ResourceSlices().Create(ctx, &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "verdict"}, Spec: spec,
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// specsOf returns a slice with the devices of a pool, and one with its counters.
func specsOf(id resourceslice.PoolID, p *resourceslice.Pool) [2]resourcev1.ResourceSliceSpec {
	spec := resourcev1.ResourceSliceSpec{
		Driver: id.Driver, Pool: resourcev1.ResourcePool{Name: id.Name, ResourceSliceCount: 1}, NodeSelector: p.Nodes.Selector,
	}
	switch {
	case p.Nodes.AllNodes:
		spec.AllNodes = new(true)
	case p.Nodes.PerDevice:
		spec.PerDeviceNodeSelection = new(true)
	case p.Nodes.Selector == nil:
		spec.NodeName = new("n1")
	}
	withCounters := spec
	withCounters.SharedCounters = p.SharedCounters
	spec.Devices, spec.SkipNodeOperations = p.Devices, p.SkipNodeOperations
	if p.PartitionTypeAttribute != "" {
		spec.PartitionTypeAttribute = &p.PartitionTypeAttribute
	}
	return [2]resourcev1.ResourceSliceSpec{spec, withCounters}
}
