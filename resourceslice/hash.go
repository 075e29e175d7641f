// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
	"strconv"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// hash identifies the content of a device, of a counter set or of the head of a
// slice, without generation, count and the times of taints. Contents that
// the API can't tell apart have the same hash: nil and empty, or a quantity in
// two notations.
type hash uint64

// hasher computes hashes. Its seeds are random, so hashes are comparable within
// one Controller only, and a collision can't be constructed.
type hasher struct {
	seed maphash.Seed
	keys [2]uint64
}

func newHasher() hasher {
	return hasher{seed: maphash.MakeSeed(), keys: [2]uint64{rand.Uint64(), rand.Uint64()}}
}

// mix adds x to h. The order of calls matters.
func (f *hasher) mix(h hash, x uint64) hash {
	hi, lo := bits.Mul64(uint64(h)^f.keys[0], x^f.keys[1])
	return hash(hi ^ lo ^ uint64(h)<<1)
}

func (f *hasher) text(h hash, s string) hash { return f.mix(h, maphash.String(f.seed, s)) }

func (f *hasher) texts(h hash, all []string) hash {
	h = f.mix(h, uint64(len(all)))
	for _, s := range all {
		h = f.text(h, s)
	}
	return h
}

func (f *hasher) number(h hash, n int64) hash { return f.mix(h, uint64(n)) }

func (f *hasher) truth(h hash, b bool) hash {
	if b {
		return f.mix(h, 2)
	}
	return f.mix(h, 1)
}

// pointer adds whether p is nil, and *p if it is not.
func pointer[T any](f *hasher, h hash, p *T, value func(hash, T) hash) hash {
	if p == nil {
		return f.mix(h, 0)
	}
	return value(f.mix(h, 1), *p)
}

func (f *hasher) quantity(h hash, q resource.Quantity) hash {
	if n, ok := q.AsInt64(); ok {
		return f.number(f.mix(h, 1), n)
	}
	text := q.String()
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return f.number(f.mix(h, 1), n) // 1000m is 1
	}
	return f.text(h, text)
}

// messageHash returns the hash of the encoding of m.
func (e *encoder) messageHash(m message) hash { return hash(maphash.Bytes(e.seed, e.encode(m))) }

// deviceHash returns the hash of a device. It reads most fields one by one,
// because the protobuf encoding sorts and allocates and takes four times as
// long; rare fields are hashed by their encoding. TestEveryFieldChangesTheHash
// fails if a later version of the API adds a field that is not covered.
func (e *encoder) deviceHash(d *resourcev1.Device) hash {
	f := &e.hasher
	h := f.text(0, d.Name)
	var attributes, capacities, allocatable hash // sums, because maps have no order
	for name, a := range d.Attributes {
		attributes += f.attribute(f.text(1, string(name)), &a)
	}
	for name, c := range d.Capacity {
		one := f.quantity(f.text(2, string(name)), c.Value)
		if c.RequestPolicy != nil {
			one = e.rare(one, c.RequestPolicy.DeepCopy()) // see sharesQuantities
		}
		capacities += one
	}
	for name, r := range d.NodeAllocatableResources {
		allocatable += e.rare(f.text(3, string(name)), r.DeepCopy())
	}
	h = f.mix(f.mix(f.mix(h, uint64(attributes)), uint64(capacities)), uint64(allocatable))
	h = f.mix(h, uint64(len(d.ConsumesCounters)))
	for i := range d.ConsumesCounters {
		h = e.rare(h, &d.ConsumesCounters[i])
	}
	h = f.mix(h, uint64(len(d.Taints)))
	for i := range d.Taints {
		t := &d.Taints[i]
		h = f.text(f.text(f.text(h, t.Key), t.Value), string(t.Effect))
	}
	h = pointer(f, h, d.NodeName, f.text)
	if d.NodeSelector != nil {
		h = e.rare(h, d.NodeSelector)
	}
	h = pointer(f, h, d.AllNodes, f.truth)
	h = pointer(f, h, d.BindsToNode, f.truth)
	h = f.texts(h, d.BindingConditions)
	h = f.texts(h, d.BindingFailureConditions)
	return pointer(f, h, d.AllowMultipleAllocations, f.truth)
}

func (f *hasher) attribute(h hash, a *resourcev1.DeviceAttribute) hash {
	h = pointer(f, h, a.IntValue, f.number)
	h = pointer(f, h, a.BoolValue, f.truth)
	h = pointer(f, h, a.StringValue, f.text)
	h = pointer(f, h, a.VersionValue, f.text)
	if a.IntValues == nil && a.BoolValues == nil && a.StringValues == nil && a.VersionValues == nil {
		return h
	}
	h = f.mix(h, uint64(len(a.IntValues)))
	for _, n := range a.IntValues {
		h = f.number(h, n)
	}
	h = f.mix(h, uint64(len(a.BoolValues)))
	for _, b := range a.BoolValues {
		h = f.truth(h, b)
	}
	return f.texts(f.texts(h, a.StringValues), a.VersionValues)
}

func (e *encoder) rare(h hash, m message) hash { return e.mix(h, uint64(e.messageHash(m))) }

// sharesQuantities reports whether d has quantities behind pointers.
func sharesQuantities(d *resourcev1.Device) bool {
	shares := len(d.NodeAllocatableResources) > 0
	for _, c := range d.Capacity {
		shares = shares || c.RequestPolicy != nil
	}
	return shares
}
