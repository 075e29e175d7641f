// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// traits is what the layout of a pool depends on beyond name and content.
type traits struct {
	// advanced devices have taints, consume counters or have list attributes:
	// a slice with one of them holds 64 devices at most, not 128.
	advanced bool
	consumes []string    // counter sets
	taints   []taintTime // all taints; the times are zero where Set gave none
}

// taintTime is a taint with its time, which the API server sets on each write
// that leaves it out. What was set once must be repeated, or a taint would grow
// younger with every change of its slice.
type taintTime struct {
	device, key, value string
	effect             resourcev1.DeviceTaintEffect
	added              metav1.Time
}

func (t taintTime) same(other taintTime) bool {
	return t.device == other.device && t.key == other.key && t.value == other.value && t.effect == other.effect
}

func (i item) isAdvanced() bool { return i.traits != nil && i.advanced }

func (i item) timesOfTaints() []taintTime {
	if i.traits == nil {
		return nil
	}
	return i.taints
}

func (i item) counterSets() []string {
	if i.traits == nil {
		return nil
	}
	return i.consumes
}

func traitsOf(d *resourcev1.Device) *traits {
	var t traits
	for i := range d.ConsumesCounters {
		t.consumes = append(t.consumes, d.ConsumesCounters[i].CounterSet)
	}
	for i := range d.Taints {
		taint := &d.Taints[i]
		tt := taintTime{device: d.Name, key: taint.Key, value: taint.Value, effect: taint.Effect}
		if taint.TimeAdded != nil {
			tt.added = metav1.Time{Time: taint.TimeAdded.Truncate(1e9)} // the API has whole seconds
		}
		t.taints = append(t.taints, tt)
	}
	t.advanced = len(t.consumes) > 0 || len(t.taints) > 0 || hasListAttribute(d)
	if !t.advanced {
		return nil
	}
	return &t
}

func hasListAttribute(d *resourcev1.Device) bool {
	for _, a := range d.Attributes {
		if a.BoolValues != nil || a.IntValues != nil || a.StringValues != nil || a.VersionValues != nil {
			return true
		}
	}
	return false
}

// unshared returns a device whose encoding leaves that of the caller as it is:
// a quantity remembers its text, which is a write, and those behind pointers
// are the caller's.
func unshared(d *resourcev1.Device) *resourcev1.Device {
	pointers := len(d.NodeAllocatableResources) > 0
	for _, c := range d.Capacity {
		pointers = pointers || c.RequestPolicy != nil
	}
	if pointers {
		return d.DeepCopy()
	}
	return d
}

func withoutTimes(d *resourcev1.Device) *resourcev1.Device {
	bare := *d
	bare.Taints = slices.Clone(d.Taints)
	for i := range bare.Taints {
		bare.Taints[i].TimeAdded = nil
	}
	return &bare
}
