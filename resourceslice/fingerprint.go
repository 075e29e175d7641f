// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"hash/maphash"
	"math/bits"
	"math/rand/v2"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A fingerprint tells whether a device is the one that was Set last time, at a
// fifth of the cost of its encoding: nothing is sorted, and nothing allocated
// for what most devices have. Equal fingerprints mean equal devices, times of
// taints included. Different ones mean nothing: the encoding decides then.
//
// It has to take in every field of a device, also those that a later version
// of the API adds; TestEveryFieldChangesTheFingerprint sees to that.
type fingerprinter struct {
	seed maphash.Seed
	keys [2]uint64
}

func newFingerprinter() fingerprinter {
	return fingerprinter{seed: maphash.MakeSeed(), keys: [2]uint64{rand.Uint64(), rand.Uint64()}}
}

// mix adds x to a sum so that the order counts.
func (f *fingerprinter) mix(sum, x uint64) uint64 {
	hi, lo := bits.Mul64(sum^f.keys[0], x^f.keys[1])
	return hi ^ lo ^ sum<<1
}

func (f *fingerprinter) text(sum uint64, s string) uint64 {
	return f.mix(sum, maphash.String(f.seed, s))
}

func (f *fingerprinter) texts(sum uint64, all []string) uint64 {
	sum = f.mix(sum, uint64(len(all)))
	for _, s := range all {
		sum = f.text(sum, s)
	}
	return sum
}

// pointer mixes in whether there is one, and what it points to.
func pointer[T any](f *fingerprinter, sum uint64, p *T, value func(uint64, T) uint64) uint64 {
	if p == nil {
		return f.mix(sum, 0)
	}
	return value(f.mix(sum, 1), *p)
}

func (f *fingerprinter) number(sum uint64, n int64) uint64 { return f.mix(sum, uint64(n)) }

func (f *fingerprinter) truth(sum uint64, b bool) uint64 {
	if b {
		return f.mix(sum, 2)
	}
	return f.mix(sum, 1)
}

func (f *fingerprinter) quantity(sum uint64, q *resource.Quantity) uint64 {
	sum = f.text(sum, string(q.Format))
	if n, ok := q.AsInt64(); ok {
		return f.mix(f.mix(sum, 1), uint64(n))
	}
	return f.text(sum, q.String())
}

// device returns the fingerprint of a device. What few devices have goes in by
// its encoding.
func (e *encoder) fingerprint(d *resourcev1.Device) uint64 {
	f := &e.fingerprinter
	sum := f.text(0, d.Name)
	var attributes, capacities, allocatable uint64 // of maps, which have no order: the sum
	for name, a := range d.Attributes {
		attributes += f.attribute(f.text(1, string(name)), &a)
	}
	for name, c := range d.Capacity {
		one := f.quantity(f.text(2, string(name)), &c.Value)
		if c.RequestPolicy != nil {
			one = e.rare(one, c.RequestPolicy.DeepCopy()) // see unshared
		}
		capacities += one
	}
	for name, r := range d.NodeAllocatableResources {
		allocatable += e.rare(f.text(3, string(name)), r.DeepCopy())
	}
	sum = f.mix(f.mix(f.mix(sum, attributes), capacities), allocatable)
	sum = f.mix(sum, uint64(len(d.ConsumesCounters)))
	for i := range d.ConsumesCounters {
		sum = e.rare(sum, &d.ConsumesCounters[i])
	}
	sum = f.mix(sum, uint64(len(d.Taints)))
	for i := range d.Taints {
		t := &d.Taints[i]
		sum = f.text(f.text(f.text(sum, t.Key), t.Value), string(t.Effect))
		if t.TimeAdded == nil {
			sum = f.mix(sum, 0)
		} else {
			sum = f.number(f.mix(sum, 1), t.TimeAdded.Unix())
		}
	}
	sum = pointer(f, sum, d.NodeName, f.text)
	if d.NodeSelector != nil {
		sum = e.rare(sum, d.NodeSelector)
	}
	sum = pointer(f, sum, d.AllNodes, f.truth)
	sum = pointer(f, sum, d.BindsToNode, f.truth)
	sum = f.texts(sum, d.BindingConditions)
	sum = f.texts(sum, d.BindingFailureConditions)
	return pointer(f, sum, d.AllowMultipleAllocations, f.truth)
}

func (f *fingerprinter) attribute(sum uint64, a *resourcev1.DeviceAttribute) uint64 {
	sum = pointer(f, sum, a.IntValue, f.number)
	sum = pointer(f, sum, a.BoolValue, f.truth)
	sum = pointer(f, sum, a.StringValue, f.text)
	sum = pointer(f, sum, a.VersionValue, f.text)
	if a.IntValues == nil && a.BoolValues == nil && a.StringValues == nil && a.VersionValues == nil {
		return sum
	}
	sum = f.mix(sum, uint64(len(a.IntValues)))
	for _, n := range a.IntValues {
		sum = f.number(sum, n)
	}
	sum = f.mix(sum, uint64(len(a.BoolValues)))
	for _, b := range a.BoolValues {
		sum = f.truth(sum, b)
	}
	return f.texts(f.texts(sum, a.StringValues), a.VersionValues)
}

func (e *encoder) rare(sum uint64, m message) uint64 {
	return e.mix(sum, maphash.Bytes(e.seed, e.encode(m)))
}
