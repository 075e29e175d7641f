// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestID has the lengths of names of several parts, of which each is short.
func TestID(t *testing.T) {
	name := strings.Repeat("a/", resourcev1.PoolNameMaxLength/2) + "a"
	if problems := ID("d.example.com", name); len(problems) > 0 {
		t.Errorf("%d bytes: %v", len(name), problems)
	}
	if problems := ID("d.example.com", name+"a"); len(problems) != 1 || problems[0].Field != "name" {
		t.Errorf("%d bytes: problems %v, want one at name", len(name)+1, problems)
	}
}

// TestPool has the cases that the recorded answers of the API server don't have:
// TestSetAndTheAPIServer has the others.
func TestPool(t *testing.T) {
	quantity := func(text string) *resource.Quantity { return new(resource.MustParse(text)) }
	attribute := func(a resourcev1.DeviceAttribute) func(*resourcev1.ResourceSliceSpec) {
		return func(p *resourcev1.ResourceSliceSpec) {
			p.Devices[0].Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"a": a}
		}
	}
	matchField := func(values ...string) func(*resourcev1.ResourceSliceSpec) {
		return func(p *resourcev1.ResourceSliceSpec) {
			p.NodeName = nil
			p.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: values}},
			}}}
		}
	}
	selector := func(terms ...corev1.NodeSelectorTerm) func(*resourcev1.ResourceSliceSpec) {
		return func(p *resourcev1.ResourceSliceSpec) {
			p.NodeName, p.NodeSelector = nil, &corev1.NodeSelector{NodeSelectorTerms: terms}
		}
	}
	expression := func(op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "cores", Operator: op, Values: values}}}
	}
	ofDevice := func(terms ...corev1.NodeSelectorTerm) func(*resourcev1.ResourceSliceSpec) {
		return func(p *resourcev1.ResourceSliceSpec) {
			p.NodeName, p.PerDeviceNodeSelection = nil, new(true)
			p.Devices[0].NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: terms}
		}
	}
	version := func(text string) func(*resourcev1.ResourceSliceSpec) {
		return attribute(resourcev1.DeviceAttribute{VersionValue: &text})
	}
	consume := func(set, counter string) func(*resourcev1.ResourceSliceSpec) {
		return func(p *resourcev1.ResourceSliceSpec) {
			p.SharedCounters = []resourcev1.CounterSet{{Name: "s", Counters: map[string]resourcev1.Counter{"c": {Value: *quantity("1")}}}}
			p.Devices[0].ConsumesCounters = []resourcev1.DeviceCounterConsumption{
				{CounterSet: set, Counters: map[string]resourcev1.Counter{counter: {Value: *quantity("1")}}},
			}
		}
	}
	// partition sets the attribute with the type of partitions. Only the second of two
	// devices consumes counters; it has the given attributes.
	partition := func(name resourcev1.FullyQualifiedName, has ...resourcev1.QualifiedName) func(*resourcev1.ResourceSliceSpec) {
		return func(p *resourcev1.ResourceSliceSpec) {
			consume("s", "c")(p)
			p.Driver, p.PartitionTypeAttribute = "d.example.com", &name
			p.Devices = append([]resourcev1.Device{{Name: "whole"}}, p.Devices...)
			p.Devices[1].Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"x": {StringValue: new("other")}}
			for _, name := range has {
				p.Devices[1].Attributes[name] = resourcev1.DeviceAttribute{StringValue: new("half")}
			}
		}
	}
	const values = "nodeSelectorTerms[0].matchExpressions[0].values"
	for name, tc := range map[string]struct {
		change func(*resourcev1.ResourceSliceSpec)
		want   string // the path of the problem
	}{
		"valid":                         {func(*resourcev1.ResourceSliceSpec) {}, ""},
		"no nodes":                      {func(p *resourcev1.ResourceSliceSpec) { p.NodeName = nil }, "nodes"},
		"two kinds of nodes":            {func(p *resourcev1.ResourceSliceSpec) { p.AllNodes = new(true) }, "nodes"},
		"counter":                       {consume("s", "c"), ""},
		"unknown counter set":           {consume("x", "c"), "devices[0].consumesCounters[0].counterSet"},
		"unknown counter":               {consume("s", "x"), "devices[0].consumesCounters[0].counters[x]"},
		"the name of another device":    {func(p *resourcev1.ResourceSliceSpec) { p.Devices = append(p.Devices, p.Devices[0]) }, "devices[1].name"},
		"a partition":                   {partition("d.example.com/size", "d.example.com/size"), ""},
		"a partition by a bare name":    {partition("d.example.com/size", "size"), ""},
		"a partition without a type":    {partition("d.example.com/size"), "devices[1].attributes[d.example.com/size]"},
		"a partition of another domain": {partition("e.example.com/size", "size"), "devices[1].attributes[e.example.com/size]"},
		"a type that is no name":        {partition("d.example.com/a-b", "d.example.com/a-b"), "partitionTypeAttribute"},
		"a field with a value":          {matchField("n1"), ""},
		"a field without a value":       {matchField(), "nodes.selector.nodeSelectorTerms[0].matchFields[0].values"},
		"a field with two values":       {matchField("n1", "n2"), "nodes.selector.nodeSelectorTerms[0].matchFields[0].values"},
		// What follows is stored by the API server. The scheduler can't parse it.
		"more than an integer":       {selector(expression(corev1.NodeSelectorOpGt, "8")), ""},
		"less than a zero":           {selector(expression(corev1.NodeSelectorOpLt, "0")), ""},
		"more than a word":           {selector(expression(corev1.NodeSelectorOpGt, "many")), "nodes.selector." + values + "[0]"},
		"less than a fraction":       {selector(expression(corev1.NodeSelectorOpLt, "1.5")), "nodes.selector." + values + "[0]"},
		"more than 64 bits":          {selector(expression(corev1.NodeSelectorOpGt, "9223372036854775808")), "nodes.selector." + values + "[0]"},
		"a device for many cores":    {ofDevice(expression(corev1.NodeSelectorOpGt, "many")), "devices[0].nodeSelector." + values + "[0]"},
		"a device with one term":     {ofDevice(expression(corev1.NodeSelectorOpGt, "8")), ""},
		"a device with two terms":    {ofDevice(expression(corev1.NodeSelectorOpExists), expression(corev1.NodeSelectorOpExists)), "devices[0].nodeSelector.nodeSelectorTerms"},
		"a version of 19 digits":     {version("1.2.9999999999999999999"), ""},
		"a version of 20 digits":     {version("1.2.20000000000000000000"), "devices[0].attributes[a].version"},
		"a pre-release of 20 digits": {version("1.2.3-rc.20000000000000000000"), "devices[0].attributes[a].version"},
		"a build of 20 digits":       {version("1.2.3+20000000000000000000"), ""},
		"no version":                 {version("1.0"), "devices[0].attributes[a].version"},
		"a list of versions":         {attribute(resourcev1.DeviceAttribute{VersionValues: []string{"1.0.0", "1.0"}}), "devices[0].attributes[a].versions[1]"},
		// The API server names the device.
		"an attribute without a value": {attribute(resourcev1.DeviceAttribute{}), ""},
		"a device name with a dot":     {func(p *resourcev1.ResourceSliceSpec) { p.Devices[0].Name = "a.b" }, "devices[0].name"},
		"no capacity": {func(p *resourcev1.ResourceSliceSpec) {
			p.Devices[0].Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"c": {}}
		}, ""},
		"a negative capacity": {func(p *resourcev1.ResourceSliceSpec) {
			p.Devices[0].Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"c": {Value: *quantity("-1")}}
		}, "devices[0].capacity[c].value"},

		"skip prepare": {func(p *resourcev1.ResourceSliceSpec) {
			p.SkipNodeOperations = []resourcev1.SkipNodeOperation{resourcev1.SkipNodeOperationNodePrepareResources}
		}, "skipNodeOperations"},
		"skip prepare and all": {func(p *resourcev1.ResourceSliceSpec) {
			p.SkipNodeOperations = []resourcev1.SkipNodeOperation{resourcev1.SkipNodeOperationNodePrepareResources, resourcev1.SkipNodeOperationAll}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := &resourcev1.ResourceSliceSpec{NodeName: new("n1"), Devices: []resourcev1.Device{{Name: "d"}}}
			tc.change(p)
			problems := Pool(p, []int{0})
			if tc.want == "" && len(problems) > 0 || tc.want != "" && (len(problems) != 1 || problems[0].Field != tc.want) {
				t.Errorf("problems %v, want one at %q", problems, tc.want)
			}
			if known := Pool(p, nil); tc.want == "devices[0].attributes[a].version" && len(known) > 0 {
				t.Errorf("a device that is known to be valid is checked: %v", known)
			}
		})
	}
}
