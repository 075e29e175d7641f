// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
)

// gatedField is what of a slice belongs to a feature gate: how to tell that it
// is in use, and how to drop it.
type gatedField struct {
	gate Gate

	sliceUses func(*resourcev1.ResourceSliceSpec) bool
	sliceDrop func(*resourcev1.ResourceSliceSpec)
	uses      func(*resourcev1.Device) bool
	drop      func(*resourcev1.Device)
}

var gatedFields = []gatedField{
	{
		gate: DRADeviceTaints,
		uses: func(d *resourcev1.Device) bool { return len(d.Taints) > 0 },
		drop: func(d *resourcev1.Device) { d.Taints = nil },
	},
	{
		gate: DRAPartitionableDevices,
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
		gate: DRADeviceBindingConditions,
		uses: func(d *resourcev1.Device) bool {
			return len(d.BindingConditions) > 0 || len(d.BindingFailureConditions) > 0 || d.BindsToNode != nil
		},
		drop: func(d *resourcev1.Device) {
			d.BindingConditions, d.BindingFailureConditions, d.BindsToNode = nil, nil, nil
		},
	},
	{
		gate: DRAConsumableCapacity,
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
		gate: DRADeviceCompatibilityGroups,
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
		gate: DRANodeAllocatableResources,
		uses: func(d *resourcev1.Device) bool { return len(d.NodeAllocatableResources) > 0 },
		drop: func(d *resourcev1.Device) { d.NodeAllocatableResources = nil },
	},
	{
		gate: DRAListTypeAttributes,
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
		gate:      DRAPartitionableDevicesType,
		sliceUses: func(s *resourcev1.ResourceSliceSpec) bool { return s.PartitionTypeAttribute != nil },
		sliceDrop: func(s *resourcev1.ResourceSliceSpec) { s.PartitionTypeAttribute = nil },
	},
	{
		gate:      DRAOptionalNodeOperations,
		sliceUses: func(s *resourcev1.ResourceSliceSpec) bool { return len(s.SkipNodeOperations) > 0 },
		sliceDrop: func(s *resourcev1.ResourceSliceSpec) { s.SkipNodeOperations = nil },
	},
}

// dropGated removes fields whose gate is off, unless the stored object has the
// feature in use already.
func dropGated(w *write, s, old *resourcev1.ResourceSlice) {
	for _, g := range gatedFields {
		if w.gate(g.gate) || old != nil && g.inUse(&old.Spec) {
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
