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
	q = canonical(q)
	if n, ok := q.AsInt64(); ok {
		return f.mix(f.mix(h, 1), uint64(n))
	}
	return f.text(h, q.String())
}

// canonical returns the one form of all quantities with the value that the API stores for
// q. A quantity is an int64 with a scale, or a decimal, and has a format. What is stored is
// its text, in whole nanos, which is often parsed into another form than q has.
func canonical(q resource.Quantity) resource.Quantity {
	const limit = 1e18 // longer numbers are parsed into decimals, and very long ones are cut
	if n, ok := q.AsInt64(); ok && -limit < n && n < limit {
		return *resource.NewQuantity(n, resource.DecimalSI)
	}
	stored := q
	for range 4 { // beyond 64 bits, a text may be cut more than once
		next, err := resource.ParseQuantity(stored.String())
		if err != nil {
			return q // it was made from fields, and the API server will refuse it
		}
		stored = next
	}
	if n, ok := stored.AsInt64(); ok {
		return *resource.NewQuantity(n, resource.DecimalSI)
	}
	text := stored.AsDec().String()
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return *resource.NewQuantity(n, resource.DecimalSI)
	}
	number, err := resource.ParseQuantity(text)
	if err != nil {
		return stored
	}
	return number
}

// canonicalize gives each quantity its canonical form.
func canonicalize(quantities ...*resource.Quantity) {
	for _, q := range quantities {
		if q != nil {
			*q = canonical(*q)
		}
	}
}

// barePolicy returns a copy of the policy with canonical quantities.
func barePolicy(policy *resourcev1.CapacityRequestPolicy) *resourcev1.CapacityRequestPolicy {
	policy = policy.DeepCopy() // see device
	canonicalize(policy.Default)
	for i := range policy.ValidValues {
		canonicalize(&policy.ValidValues[i])
	}
	if r := policy.ValidRange; r != nil {
		canonicalize(r.Min, r.Max, r.Step)
	}
	return policy
}

// bareCounters returns the counters with canonical quantities.
func bareCounters(counters map[string]resourcev1.Counter) map[string]resourcev1.Counter {
	bare := make(map[string]resourcev1.Counter, len(counters))
	for name, c := range counters {
		c.Value = canonical(c.Value)
		bare[name] = c
	}
	return bare
}

// messageHash returns the hash of the encoding of m.
func (f *hasher) messageHash(m message) hash { return hash(maphash.Bytes(f.seed, encode(m))) }

func (f *hasher) rare(h hash, m message) hash { return f.mix(h, uint64(f.messageHash(m))) }

// deviceHash returns the hash of a device. It reads attributes and capacities one
// by one, because their protobuf encoding sorts and allocates and takes four times
// as long; all other fields are hashed by their encoding.
// TestEveryFieldChangesTheHash fails if a later version of the API adds a field
// that is not covered, and TestEveryObjectHashesLikeItsRoundTrip if it adds a quantity.
func (f *hasher) deviceHash(d *resourcev1.Device) hash {
	var sum hash // because maps have no order
	for name, a := range d.Attributes {
		sum += f.attribute(f.text(1, string(name)), &a)
	}
	for name, c := range d.Capacity {
		one := f.quantity(f.text(2, string(name)), c.Value)
		if c.RequestPolicy != nil {
			one = f.rare(one, barePolicy(c.RequestPolicy))
		}
		sum += one
	}
	for i := range d.Taints {
		t := &d.Taints[i]
		sum = f.text(f.text(f.text(sum, t.Key), t.Value), string(t.Effect))
	}
	h := f.text(sum, d.Name)
	rest := *d
	rest.Name, rest.Attributes, rest.Capacity, rest.Taints = "", nil, nil, nil
	if len(rest.NodeAllocatableResources)+len(rest.ConsumesCounters) > 0 {
		rest = *rest.DeepCopy() // see device
	}
	for i := range rest.ConsumesCounters {
		c := &rest.ConsumesCounters[i]
		c.Counters = bareCounters(c.Counters)
	}
	for _, r := range rest.NodeAllocatableResources { // its quantities are pointers
		if r.Mapping != nil {
			canonicalize(r.Mapping.CapacityMultiplier, r.Mapping.DeviceMultiplier)
		}
		if r.Overhead != nil {
			canonicalize(r.Overhead.PerPod, r.Overhead.PerContainer)
		}
	}
	if rest.Size() > emptySize {
		h = f.rare(h, rest.DeepCopy()) // so that rest stays on the stack
	}
	return h
}

// counterSetHash returns the hash of a counter set.
func (f *hasher) counterSetHash(s *resourcev1.CounterSet) hash {
	bare := *s
	bare.Counters = bareCounters(s.Counters)
	return f.rare(setHash, &bare)
}

var emptySize = (&resourcev1.Device{}).Size()

// isList reports whether the attribute has a list of values. The API can't tell an empty one
// from none.
func isList(a *resourcev1.DeviceAttribute) bool {
	return len(a.BoolValues)+len(a.IntValues)+len(a.StringValues)+len(a.VersionValues) > 0
}

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
	if a.BoolValue != nil || isList(a) {
		h = f.rare(h, a.DeepCopy()) // so that a stays on the stack
	}
	return h
}
