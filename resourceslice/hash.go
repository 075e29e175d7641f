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
func (e *encoder) messageHash(m message) hash { return hash(maphash.Bytes(e.seed, e.encode(m))) }

func (e *encoder) rare(h hash, m message) hash { return e.mix(h, uint64(e.messageHash(m))) }

// deviceHash returns the hash of a device. It reads attributes and capacities one
// by one, because their protobuf encoding sorts and allocates and takes four times
// as long; all other fields are hashed by their encoding.
// TestEveryFieldChangesTheHash fails if a later version of the API adds a field
// that is not covered.
func (e *encoder) deviceHash(d *resourcev1.Device) hash {
	var sum hash // because maps have no order
	for name, a := range d.Attributes {
		sum += e.attribute(e.text(1, string(name)), &a)
	}
	for name, c := range d.Capacity {
		one := e.quantity(e.text(2, string(name)), c.Value)
		if c.RequestPolicy != nil {
			one = e.rare(one, c.RequestPolicy.DeepCopy()) // see sharesQuantities
		}
		sum += one
	}
	for i := range d.Taints {
		t := &d.Taints[i]
		sum = e.text(e.text(e.text(sum, t.Key), t.Value), string(t.Effect))
	}
	h := e.text(sum, d.Name)
	rest := *d
	if len(d.NodeAllocatableResources) > 0 {
		rest = *d.DeepCopy() // see sharesQuantities
	}
	rest.Name, rest.Attributes, rest.Capacity, rest.Taints = "", nil, nil, nil
	if rest.Size() > emptySize {
		h = e.rare(h, rest.DeepCopy()) // so that rest stays on the stack
	}
	return h
}

var emptySize = (&resourcev1.Device{}).Size()

func (e *encoder) attribute(h hash, a *resourcev1.DeviceAttribute) hash {
	if a.IntValue != nil {
		h = e.mix(e.mix(h, 1), uint64(*a.IntValue))
	}
	if a.StringValue != nil {
		h = e.text(e.mix(h, 2), *a.StringValue)
	}
	if a.VersionValue != nil {
		h = e.text(e.mix(h, 3), *a.VersionValue)
	}
	if a.BoolValue != nil || a.BoolValues != nil || a.IntValues != nil || a.StringValues != nil || a.VersionValues != nil {
		h = e.rare(h, a.DeepCopy()) // so that a stays on the stack
	}
	return h
}
