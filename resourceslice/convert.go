// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
)

func same(s *resourcev1.ResourceSlice) (*resourcev1.ResourceSlice, error) { return s, nil }

// The versions of the API are different Go types with one wire format, but for
// the devices of v1beta1, which have a level more. So what is the same goes
// through the wire format, and a field that a later release adds to all of them
// is not forgotten.

func fromV1beta2(s *resourcev1beta2.ResourceSlice) (*resourcev1.ResourceSlice, error) {
	to := &resourcev1.ResourceSlice{ObjectMeta: s.ObjectMeta}
	return to, recode(&s.Spec, &to.Spec)
}

func toV1beta2(s *resourcev1.ResourceSlice) (*resourcev1beta2.ResourceSlice, error) {
	to := &resourcev1beta2.ResourceSlice{ObjectMeta: s.ObjectMeta}
	return to, recode(&s.Spec, &to.Spec)
}

func fromV1beta1(s *resourcev1beta1.ResourceSlice) (*resourcev1.ResourceSlice, error) {
	to := &resourcev1.ResourceSlice{ObjectMeta: s.ObjectMeta}
	spec := s.Spec
	spec.Devices = nil
	if err := recode(&spec, &to.Spec); err != nil {
		return nil, err
	}
	if s.Spec.NodeName == "" {
		to.Spec.NodeName = nil // v1beta1 doesn't tell empty from missing
	}
	if !s.Spec.AllNodes {
		to.Spec.AllNodes = nil
	}
	to.Spec.Devices = make([]resourcev1.Device, len(s.Spec.Devices))
	for i := range s.Spec.Devices {
		if err := fromBasic(&s.Spec.Devices[i], &to.Spec.Devices[i]); err != nil {
			return nil, err
		}
	}
	return to, nil
}

func toV1beta1(s *resourcev1.ResourceSlice) (*resourcev1beta1.ResourceSlice, error) {
	to := &resourcev1beta1.ResourceSlice{ObjectMeta: s.ObjectMeta}
	spec := s.Spec
	spec.Devices = nil
	if err := recode(&spec, &to.Spec); err != nil {
		return nil, err
	}
	to.Spec.Devices = make([]resourcev1beta1.Device, len(s.Spec.Devices))
	for i := range s.Spec.Devices {
		if err := toBasic(&s.Spec.Devices[i], &to.Spec.Devices[i]); err != nil {
			return nil, err
		}
	}
	return to, nil
}

func fromBasic(from *resourcev1beta1.Device, to *resourcev1.Device) (err error) {
	to.Name = from.Name
	basic := from.Basic
	if basic == nil {
		return nil
	}
	to.NodeName, to.NodeSelector, to.AllNodes = basic.NodeName, basic.NodeSelector, basic.AllNodes
	to.BindsToNode, to.AllowMultipleAllocations = basic.BindsToNode, basic.AllowMultipleAllocations
	to.BindingConditions, to.BindingFailureConditions = basic.BindingConditions, basic.BindingFailureConditions
	if to.Attributes, err = recodeMap[resourcev1.QualifiedName, resourcev1.DeviceAttribute](basic.Attributes); err != nil {
		return err
	}
	if to.Capacity, err = recodeMap[resourcev1.QualifiedName, resourcev1.DeviceCapacity](basic.Capacity); err != nil {
		return err
	}
	if to.NodeAllocatableResources, err = recodeMap[corev1.ResourceName, resourcev1.NodeAllocatableResource](basic.NodeAllocatableResources); err != nil {
		return err
	}
	if to.ConsumesCounters, err = recodeList[resourcev1.DeviceCounterConsumption](basic.ConsumesCounters); err != nil {
		return err
	}
	to.Taints, err = recodeList[resourcev1.DeviceTaint](basic.Taints)
	return err
}

func toBasic(from *resourcev1.Device, to *resourcev1beta1.Device) (err error) {
	basic := &resourcev1beta1.BasicDevice{
		NodeName: from.NodeName, NodeSelector: from.NodeSelector, AllNodes: from.AllNodes,
		BindsToNode: from.BindsToNode, AllowMultipleAllocations: from.AllowMultipleAllocations,
		BindingConditions: from.BindingConditions, BindingFailureConditions: from.BindingFailureConditions,
	}
	to.Name, to.Basic = from.Name, basic
	if basic.Attributes, err = recodeMap[resourcev1beta1.QualifiedName, resourcev1beta1.DeviceAttribute](from.Attributes); err != nil {
		return err
	}
	if basic.Capacity, err = recodeMap[resourcev1beta1.QualifiedName, resourcev1beta1.DeviceCapacity](from.Capacity); err != nil {
		return err
	}
	if basic.NodeAllocatableResources, err = recodeMap[corev1.ResourceName, resourcev1beta1.NodeAllocatableResource](from.NodeAllocatableResources); err != nil {
		return err
	}
	if basic.ConsumesCounters, err = recodeList[resourcev1beta1.DeviceCounterConsumption](from.ConsumesCounters); err != nil {
		return err
	}
	basic.Taints, err = recodeList[resourcev1beta1.DeviceTaint](from.Taints)
	return err
}

type marshaler interface{ Marshal() ([]byte, error) }

type unmarshaler interface{ Unmarshal([]byte) error }

// recode copies a message into one of another version.
func recode(from marshaler, to unmarshaler) error {
	wire, err := from.Marshal()
	if err != nil {
		return err
	}
	return to.Unmarshal(wire)
}

// recodeMap copies a map of messages; pointers to both types of them are
// messages of k8s.io/api.
func recodeMap[K2 ~string, B any, K1 ~string, A any, PA interface {
	*A
	marshaler
}, PB interface {
	*B
	unmarshaler
}](from map[K1]A) (map[K2]B, error) {
	if from == nil {
		return nil, nil
	}
	to := make(map[K2]B, len(from))
	for key, a := range from {
		var b B
		if err := recode(PA(&a), PB(&b)); err != nil {
			return nil, err
		}
		to[K2(key)] = b
	}
	return to, nil
}

// recodeList is recodeMap for lists.
func recodeList[B, A any, PA interface {
	*A
	marshaler
}, PB interface {
	*B
	unmarshaler
}](from []A) ([]B, error) {
	if from == nil {
		return nil, nil
	}
	to := make([]B, len(from))
	for i := range from {
		if err := recode(PA(&from[i]), PB(&to[i])); err != nil {
			return nil, err
		}
	}
	return to, nil
}
