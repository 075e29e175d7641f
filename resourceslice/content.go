// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
)

// A hash stands for the content of a device, a counter set or what else a
// slice has, without its pool's generation and count and without the times of
// taints. Two contents that the API can't tell apart have the same hash: it is
// taken from the protobuf encoding, which sorts maps, doesn't distinguish nil
// from empty, and has quantities in their canonical form.
type hash [2]uint64

// hasher makes hashes that can be compared with each other only: its seeds are
// random, so that nobody can construct two devices with one hash.
type hasher struct {
	seeds [2]maphash.Seed
	fingerprinter
}

func newHasher() hasher {
	return hasher{[2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, newFingerprinter()}
}

func (h hasher) sum(b []byte) hash {
	return hash{maphash.Bytes(h.seeds[0], b), maphash.Bytes(h.seeds[1], b)}
}

// item is a device or a counter set in encoded form: a tenth of the memory of
// the decoded one. Items are immutable.
type item struct {
	name    string
	hash    hash
	print   uint64 // the fingerprint of a device
	encoded string // empty: it stays as it is on the API server
	*traits        // nil for a device without any
}

// encoder turns devices and counter sets into items; it keeps a buffer.
type encoder struct {
	hasher
	buf []byte
}

// message is a protobuf message of k8s.io/api.
type message interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
}

// encode returns the encoding, valid until the next call.
func (e *encoder) encode(m message) []byte {
	size := m.Size()
	if size > cap(e.buf) {
		e.buf = make([]byte, 2*size)
	}
	// The error is for messages that don't fit the buffer, which has the size
	// that they gave.
	n, _ := m.MarshalToSizedBuffer(e.buf[:size])
	return e.buf[size-n : size]
}

// device returns the item of a device. The one that was there before, if it
// has the same content, is used again, so that a Set which changes little keeps
// little.
func (e *encoder) device(d *resourcev1.Device, before *item) (it item, reused bool) {
	print := e.fingerprint(d)
	if before != nil && before.print == print {
		return *before, true
	}
	t := traitsOf(d)
	bare := unshared(d)
	if t != nil && len(t.taints) > 0 {
		bare = withoutTimes(bare)
	}
	encoded := e.encode(bare)
	it = item{name: d.Name, hash: e.sum(encoded), print: print, traits: t}
	if before != nil && before.hash == it.hash && slices.EqualFunc(before.timesOfTaints(), it.timesOfTaints(), sameTime) {
		it.encoded = before.encoded
		return it, true
	}
	it.encoded = string(encoded)
	it.name = within(it.encoded, it.name)
	return it, false
}

// within returns the name of a message, its first field, as a part of the
// encoding, so that it takes no memory of its own.
func within(encoded, name string) string {
	const tagAndLength = 2
	if len(encoded) >= tagAndLength+len(name) && encoded[tagAndLength:tagAndLength+len(name)] == name {
		return encoded[tagAndLength : tagAndLength+len(name)]
	}
	return name
}

func sameTime(a, b taintTime) bool { return a.same(b) && a.added.Time.Equal(b.added.Time) }

func (e *encoder) counterSet(s *resourcev1.CounterSet) item {
	encoded := e.encode(s)
	it := item{hash: e.sum(encoded), encoded: string(encoded)}
	it.name = within(it.encoded, s.Name)
	return it
}

// selection is who can use the devices of a slice, in the form of its spec.
type selection struct {
	nodeName  string // immutable in the API, unlike the rest
	selector  *corev1.NodeSelector
	allNodes  bool
	perDevice bool
}

func (s selection) apply(spec *resourcev1.ResourceSliceSpec) {
	if s.nodeName != "" {
		spec.NodeName = &s.nodeName
	}
	spec.NodeSelector = s.selector
	if s.allNodes {
		spec.AllNodes = new(true)
	}
	if s.perDevice {
		spec.PerDeviceNodeSelection = new(true)
	}
}

// head returns the hash of what a slice has beside its devices and counters,
// its pool and its node: who can use it, and how.
func (e *encoder) head(spec *resourcev1.ResourceSliceSpec) hash {
	bare := resourcev1.ResourceSliceSpec{
		NodeSelector:           spec.NodeSelector,
		AllNodes:               spec.AllNodes,
		PerDeviceNodeSelection: spec.PerDeviceNodeSelection,
		PartitionTypeAttribute: spec.PartitionTypeAttribute,
		SkipNodeOperations:     slices.Clone(spec.SkipNodeOperations),
	}
	slices.Sort(bare.SkipNodeOperations)
	return e.sum(e.encode(&bare))
}

// desired is a pool as Set left it. It is immutable.
type desired struct {
	id        PoolID
	devices   []item  // by name, or as given in an ordered pool
	byName    []int32 // indexes of devices by name in an ordered pool, else nil
	given     []int32 // indexes of devices in the order in which they were Set
	sets      []item  // by name
	selection selection
	skip      []resourcev1.SkipNodeOperation // sorted
	partition resourcev1.FullyQualifiedName
	heads     [3]hash // by kind of page
	ordered   bool
	atomic    bool
}

// kinds of pages, as indexes of desired.heads
const (
	plainPage    = iota // devices, none of which consumes counters, or nothing
	consumerPage        // devices, some of which consume counters
	counterPage         // counter sets
)

// find returns the item of a device, or nil.
func (d *desired) find(name string) *item {
	if i := d.indexOf(name); i >= 0 {
		return &d.devices[i]
	}
	return nil
}

// indexOf returns the index of a device, or -1.
func (d *desired) indexOf(name string) int {
	if d == nil {
		return -1
	}
	at := func(i int) int {
		if d.byName != nil {
			return int(d.byName[i])
		}
		return i
	}
	i, found := sort.Find(len(d.devices), func(i int) int { return strings.Compare(name, d.devices[at(i)].name) })
	if !found {
		return -1
	}
	return at(i)
}

// unchanged reports whether the devices are those of the pool and, if that
// matters, in the same order. It is quick about it when they are.
func (d *desired) unchanged(e *encoder, devices []resourcev1.Device) bool {
	if len(devices) != len(d.devices) {
		return false
	}
	var seen []bool // once the order differs: a name may be there twice
	for i := range devices {
		at := int(d.given[i])
		if d.devices[at].name != devices[i].Name {
			if d.ordered {
				return false
			}
			if seen == nil {
				seen = make([]bool, len(devices))
				for _, before := range d.given[:i] {
					seen[before] = true
				}
			}
			if at = d.indexOf(devices[i].Name); at < 0 {
				return false
			}
		}
		if seen != nil {
			if seen[at] {
				return false
			}
			seen[at] = true
		}
		if d.devices[at].print != e.fingerprint(&devices[i]) {
			return false
		}
	}
	return true
}

// spec returns the part of the spec that pages of a kind have in common.
func (d *desired) spec(kind int) resourcev1.ResourceSliceSpec {
	spec := resourcev1.ResourceSliceSpec{Driver: d.id.Driver, Pool: resourcev1.ResourcePool{Name: d.id.Name}}
	d.selection.apply(&spec)
	if kind == counterPage {
		return spec
	}
	spec.SkipNodeOperations = slices.Clone(d.skip)
	if kind == consumerPage && d.partition != "" {
		spec.PartitionTypeAttribute = &d.partition
	}
	return spec
}

// newDesired encodes a pool. Items of the one before are used again; fresh
// lists the indexes in pool.Devices of the devices that are not among them and
// so have to be validated. same reports that nothing differs.
func (e *encoder) newDesired(id PoolID, pool *Pool, nodeName string, before *desired) (d *desired, fresh []int, same bool) {
	d = &desired{
		id: id, ordered: pool.Ordered, atomic: pool.Atomic,
		partition: pool.PartitionTypeAttribute,
		skip:      slices.Clone(pool.SkipNodeOperations),
		selection: selection{selector: pool.Nodes.Selector.DeepCopy(), allNodes: pool.Nodes.AllNodes, perDevice: pool.Nodes.PerDevice},
	}
	if pool.Nodes.local() {
		d.selection.nodeName = nodeName
	}
	slices.Sort(d.skip)
	for i := range pool.SharedCounters {
		d.sets = append(d.sets, e.counterSet(&pool.SharedCounters[i]))
	}
	slices.SortStableFunc(d.sets, byName)
	for kind := range d.heads {
		spec := d.spec(kind)
		d.heads[kind] = e.head(&spec)
	}
	if before != nil && d.sameBut(before) && before.unchanged(e, pool.Devices) {
		return before, nil, true
	}
	d.devices = make([]item, len(pool.Devices))
	// Whether a device has to say where it is depends on the pool.
	other := before != nil && before.selection.perDevice != d.selection.perDevice
	for i := range pool.Devices {
		was := before.find(pool.Devices[i].Name)
		it, reused := e.device(&pool.Devices[i], was)
		d.devices[i] = it
		if !reused || other {
			fresh = append(fresh, i)
		}
	}
	d.sort()
	return d, fresh, before != nil && len(fresh) == 0 && d.sameAs(before)
}

func byName(a, b item) int { return cmp.Compare(a.name, b.name) }

// sort sorts the devices by name, unless their order matters.
func (d *desired) sort() {
	order := make([]int32, len(d.devices))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return byName(d.devices[a], d.devices[b]) })
	d.given = make([]int32, len(d.devices))
	if d.ordered {
		d.byName = order
		for i := range d.given {
			d.given[i] = int32(i)
		}
		return
	}
	sorted := make([]item, len(d.devices))
	for i, at := range order {
		sorted[i] = d.devices[at]
		d.given[at] = int32(i)
	}
	d.devices = sorted
}

// sameBut reports whether nothing differs but perhaps the devices.
func (d *desired) sameBut(other *desired) bool {
	return d.ordered == other.ordered && d.atomic == other.atomic && d.selection.nodeName == other.selection.nodeName &&
		d.heads == other.heads && slices.EqualFunc(d.sets, other.sets, sameItem)
}

func sameItem(a, b item) bool { return a.name == b.name && a.hash == b.hash }

func (d *desired) sameAs(other *desired) bool {
	return d.sameBut(other) && slices.EqualFunc(d.devices, other.devices, sameItem)
}
