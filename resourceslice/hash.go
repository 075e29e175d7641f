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

// setHash is the start of the hash of a counter set, which so differs from that of
// a device.
const setHash hash = 3

func (f *hasher) quantity(h hash, q resource.Quantity) hash {
	if n, ok := q.AsInt64(); ok {
		return f.mix(f.mix(h, 1), uint64(n))
	}
	text := q.String()
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return f.mix(f.mix(h, 1), uint64(n)) // 1000m is 1
	}
	return f.text(h, text)
}

// messageHash returns the hash of the encoding of m.
func (f *hasher) messageHash(m message) hash { return hash(maphash.Bytes(f.seed, encode(m))) }

func (f *hasher) rare(h hash, m message) hash { return f.mix(h, uint64(f.messageHash(m))) }

// deviceHash returns the hash of a device. It reads attributes and capacities one
// by one, because their protobuf encoding sorts and allocates and takes four times
// as long; all other fields are hashed by their encoding.
// TestEveryFieldChangesTheHash fails if a later version of the API adds a field
// that is not covered.
func (f *hasher) deviceHash(d *resourcev1.Device) hash {
	var sum hash // because maps have no order
	for name, a := range d.Attributes {
		sum += f.attribute(f.text(1, string(name)), &a)
	}
	for name, c := range d.Capacity {
		one := f.quantity(f.text(2, string(name)), c.Value)
		if c.RequestPolicy != nil {
			one = f.rare(one, c.RequestPolicy.DeepCopy()) // see device
		}
		sum += one
	}
	for i := range d.Taints {
		t := &d.Taints[i]
		sum = f.text(f.text(f.text(sum, t.Key), t.Value), string(t.Effect))
	}
	h := f.text(sum, d.Name)
	rest := *d
	if len(d.NodeAllocatableResources) > 0 {
		rest = *d.DeepCopy() // see device
	}
	rest.Name, rest.Attributes, rest.Capacity, rest.Taints = "", nil, nil, nil
	if rest.Size() > emptySize {
		h = f.rare(h, rest.DeepCopy()) // so that rest stays on the stack
	}
	return h
}

var emptySize = (&resourcev1.Device{}).Size()

func (f *hasher) attribute(h hash, a *resourcev1.DeviceAttribute) hash {
	if a.IntValue != nil {
		h = f.mix(f.mix(h, 1), uint64(*a.IntValue))
	}
	if a.StringValue != nil {
		h = f.text(f.mix(h, 2), *a.StringValue)
	}
	if a.VersionValue != nil {
		h = f.text(f.mix(h, 3), *a.VersionValue)
	}
	if a.BoolValue != nil || a.BoolValues != nil || a.IntValues != nil || a.StringValues != nil || a.VersionValues != nil {
		h = f.rare(h, a.DeepCopy()) // so that a stays on the stack
	}
	return h
}
