// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"cmp"
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sort"
	"strconv"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/resourceslice/internal/core"
)

// item is a device or a counter set. Items are immutable.
type item struct {
	name string
	hash hash
	at   int32 // the place in Pool.Devices or in the slice
	*traits
	// encoded is the protobuf encoding, which takes a tenth of the memory of the
	// decoded object. Items of records have none.
	encoded string
}

// traits are the properties of an item, beyond name and hash, that layout and
// planning depend on. Most items share noTraits.
type traits struct {
	isSet    bool     // it is a counter set
	advanced bool     // a slice with such a device holds 64 devices, not 128
	consumes []string // names of counter sets
	groups   []string // compatibility groups, each after its counter set
	taints   []taint
}

var (
	noTraits  = &traits{}
	setTraits = &traits{isSet: true}
	noItem    = &item{traits: noTraits}
)

// taint is a taint and its time. The API server sets a new time on each write
// that omits it, so a write must repeat the stored time.
type taint struct {
	key, value string
	effect     resourcev1.DeviceTaintEffect
	added      metav1.Time // zero: not given
}

func (t taint) same(other taint) bool {
	return t.key == other.key && t.value == other.value && t.effect == other.effect
}

// restrictive reports whether the taint keeps Pods away or evicts them.
func (t taint) restrictive() bool {
	return t.effect == resourcev1.DeviceTaintEffectNoSchedule || t.effect == resourcev1.DeviceTaintEffectNoExecute
}

// restricts reports whether it has a restrictive taint that other doesn't have.
func (it *item) restricts(other *item) bool {
	return slices.ContainsFunc(it.taints, func(t taint) bool {
		return t.restrictive() && !slices.ContainsFunc(other.taints, t.same)
	})
}

// isLooser reports whether Pods could use the stored device in a way that the wanted one
// forbids, because the API server dropped a counter, a compatibility group or a
// restrictive taint. Other fields that it drops, such as nodeAllocatableResources and
// bindingConditions, do not make two claims share what they must not share: see
// Config.PublishUnrestricted.
func (stored *item) isLooser(wanted *item) bool {
	return wanted.isSet && stored == noItem || len(stored.consumes) < len(wanted.consumes) ||
		len(stored.groups) < len(wanted.groups) || wanted.restricts(stored)
}

// restrictions are kinds of fields that the API server drops if a feature is
// off, although Pods could then use devices that they must not use.
type restrictions uint8

const (
	byCounters restrictions = 1 << iota
	byTaint
	byGroup
)

func restrictionsOf(items []item) (kinds restrictions) {
	for i := range items {
		if items[i].isSet || len(items[i].consumes) > 0 {
			kinds |= byCounters
		}
		if items[i].restricts(noItem) {
			kinds |= byTaint
		}
		if len(items[i].groups) > 0 {
			kinds |= byGroup
		}
	}
	return kinds
}

// find returns the item with a name, or nil. The items are sorted by name.
func find(items []item, name string) *item {
	i, ok := sort.Find(len(items), func(i int) int { return strings.Compare(name, items[i].name) })
	if !ok {
		return nil
	}
	return &items[i]
}

func byName(a, b item) int { return strings.Compare(a.name, b.name) }

// byPlace is the order in which the scheduler tries devices: the caller's.
func byPlace(a, b item) int { return cmp.Compare(a.at, b.at) }

func same(a, b item) bool { return a.name == b.name && a.hash == b.hash }

func traitsOf(d *resourcev1.Device) *traits {
	var t traits
	for i := range d.ConsumesCounters {
		set := d.ConsumesCounters[i].CounterSet
		t.consumes = append(t.consumes, set)
		for _, group := range d.ConsumesCounters[i].CompatibilityGroups {
			t.groups = append(t.groups, set+"/"+group)
		}
	}
	for i := range d.Taints {
		t.taints = append(t.taints, taintOf(&d.Taints[i]))
	}
	t.advanced = len(t.consumes) > 0 || len(t.taints) > 0
	for _, a := range d.Attributes {
		t.advanced = t.advanced || isList(&a)
	}
	if !t.advanced {
		return noTraits
	}
	return &t
}

func taintOf(from *resourcev1.DeviceTaint) taint {
	t := taint{key: from.Key, value: from.Value, effect: from.Effect}
	if from.TimeAdded != nil {
		t.added = metav1.Time{Time: from.TimeAdded.Truncate(1e9)} // the API has whole seconds
	}
	return t
}

// sameTaints reports whether the taints are those of the API objects, times
// included.
func (it *item) sameTaints(of []resourcev1.DeviceTaint) bool {
	return slices.EqualFunc(it.taints, of, func(have taint, d resourcev1.DeviceTaint) bool {
		t := taintOf(&d)
		return t.same(have) && t.added.Time.Equal(have.added.Time)
	})
}

// message is a protobuf message of k8s.io/api.
type message interface{ Marshal() ([]byte, error) }

// encode returns the encoding of m.
func encode(m message) []byte {
	data, _ := m.Marshal() // an error would mean that a buffer of the message's size is too small
	return data
}

// device returns the item of a device. It returns before if that is equal.
func (f *hasher) device(d *resourcev1.Device, before *item) (it item, reused bool) {
	h := f.deviceHash(d)
	if before != nil && before.hash == h && before.sameTaints(d.Taints) {
		return *before, true
	}
	bare := *d
	if len(d.Taints)+len(d.Capacity)+len(d.NodeAllocatableResources) > 0 {
		// Encoding a quantity caches its text in it, so those of the caller must not
		// be encoded.
		bare = *d.DeepCopy()
	}
	for i := range bare.Taints {
		bare.Taints[i].TimeAdded = nil
	}
	it = item{name: d.Name, hash: h, traits: traitsOf(d), encoded: string(encode(&bare))}
	if at := strings.Index(it.encoded, d.Name); at >= 0 {
		it.name = it.encoded[at : at+len(d.Name)] // shares the memory
	}
	return it, false
}

func (f *hasher) counterSet(s *resourcev1.CounterSet) item {
	return item{name: s.Name, hash: f.counterSetHash(s), traits: setTraits, encoded: string(encode(s))}
}

// head returns the hash of the fields of a spec that are about neither its
// pool nor its node nor a single device or counter set.
func (f *hasher) head(spec *resourcev1.ResourceSliceSpec) hash {
	bare := resourcev1.ResourceSliceSpec{
		NodeSelector:           spec.NodeSelector,
		AllNodes:               spec.AllNodes,
		PerDeviceNodeSelection: spec.PerDeviceNodeSelection,
		PartitionTypeAttribute: spec.PartitionTypeAttribute,
		SkipNodeOperations:     slices.Sorted(slices.Values(spec.SkipNodeOperations)),
	}
	return f.messageHash(&bare)
}

// desired is a pool as passed to Set. It is immutable.
type desired struct {
	id       PoolID
	nodeName string                       // "" for pools of the cluster
	base     resourcev1.ResourceSliceSpec // without devices and counter sets
	heads    [3]hash                      // by kind of page
	devices  []item                       // by name
	sets     []item                       // by name
	ordered  bool                         // the order of devices is content
}

// kinds of pages, as indexes of desired.heads
const (
	plainPage    = iota // devices, none of which consumes counters, or nothing
	consumerPage        // devices, some of which consume counters
	counterPage         // counter sets
)

// spec returns the common part of the specs of all pages of a kind.
func (d *desired) spec(kind int) resourcev1.ResourceSliceSpec {
	spec := d.base
	if kind == counterPage {
		spec.SkipNodeOperations = nil
	}
	if kind != consumerPage {
		spec.PartitionTypeAttribute = nil
	}
	return spec
}

// newDesired encodes a pool and reuses equal items of before. fresh has the
// indexes in pool.Devices of all other devices: those must be validated. same
// reports that the pool equals before.
func (f *hasher) newDesired(id PoolID, pool *Pool, nodeName string, before *desired) (d *desired, fresh []int, same bool) {
	d = &desired{id: id, ordered: pool.Ordered, devices: make([]item, len(pool.Devices)), base: resourcev1.ResourceSliceSpec{
		Driver: id.Driver, Pool: resourcev1.ResourcePool{Name: id.Name},
		NodeSelector: pool.Nodes.Selector.DeepCopy(), AllNodes: orNil(pool.Nodes.AllNodes), PerDeviceNodeSelection: orNil(pool.Nodes.PerDevice),
		PartitionTypeAttribute: orNil(pool.PartitionTypeAttribute),
		SkipNodeOperations:     slices.Sorted(slices.Values(pool.SkipNodeOperations)),
	}}
	if pool.Nodes == (NodeSelection{}) {
		d.nodeName, d.base.NodeName = nodeName, orNil(nodeName)
	}
	for i := range pool.SharedCounters {
		d.sets = append(d.sets, f.counterSet(&pool.SharedCounters[i]))
	}
	slices.SortFunc(d.sets, byName)
	for kind := range d.heads {
		spec := d.spec(kind)
		d.heads[kind] = f.head(&spec)
	}
	for i := range pool.Devices {
		it, reused := f.device(&pool.Devices[i], find(before.devices, pool.Devices[i].Name))
		it.at = int32(i)
		// A device that was valid is not if only one of the pools is PerDevice.
		if d.devices[i] = it; !reused || (before.base.PerDeviceNodeSelection == nil) != (d.base.PerDeviceNodeSelection == nil) {
			fresh = append(fresh, i)
		}
	}
	slices.SortFunc(d.devices, byName)
	return d, fresh, len(fresh) == 0 && d.equal(before)
}

// orNil returns a pointer to v, or nil for the zero value.
func orNil[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// equal reports whether nothing must be written to turn one into the other.
func (d *desired) equal(other *desired) bool {
	return d.ordered == other.ordered && d.nodeName == other.nodeName && d.heads == other.heads &&
		slices.EqualFunc(d.sets, other.sets, same) && slices.EqualFunc(d.devices, other.devices, same) && (!d.ordered || d.sameOrder(other))
}

// sameOrder reports whether the devices of both are in the same order. Their names
// must be the same.
func (d *desired) sameOrder(other *desired) bool {
	return slices.EqualFunc(d.devices, other.devices, func(a, b item) bool { return a.at == b.at })
}

// urgent reports whether replacing before with d takes something from Pods: a
// device, or the permission to use it.
func (d *desired) urgent(before *desired) bool {
	return slices.ContainsFunc(before.devices, func(it item) bool { return find(d.devices, it.name) == nil }) ||
		slices.ContainsFunc(d.devices, func(it item) bool { return it.restricts(cmp.Or(find(before.devices, it.name), noItem)) })
}

// record is a slice on the API server, reduced to metadata, names and hashes.
// Records are immutable. The view stores them in place of the objects.
type record struct {
	// The metadata without managedFields. An update repeats it.
	metav1.ObjectMeta

	id         PoolID
	generation int64
	count      int64
	nodeName   string
	head       hash
	items      []item // by name; devices or, in a counter page, counter sets
	manager    string // the last writer
}

// record returns the record of a slice. It keeps no part of the slice except
// for strings and metadata.
func (f *hasher) record(s *resourcev1.ResourceSlice) *record {
	r := &record{
		ObjectMeta: s.ObjectMeta,
		id:         PoolID{s.Spec.Driver, s.Spec.Pool.Name},
		generation: s.Spec.Pool.Generation,
		count:      s.Spec.Pool.ResourceSliceCount,
		head:       f.head(&s.Spec),
		nodeName:   ptr.Deref(s.Spec.NodeName, ""),
		items:      make([]item, 0, len(s.Spec.Devices)+len(s.Spec.SharedCounters)),
	}
	var last metav1.ManagedFieldsEntry
	for _, entry := range s.ManagedFields {
		if entry.Time != nil && (last.Time == nil || !entry.Time.Before(last.Time)) {
			last = entry
		}
	}
	r.manager, r.ManagedFields = last.Manager, nil
	for i := range s.Spec.Devices {
		d := &s.Spec.Devices[i]
		r.items = append(r.items, item{name: d.Name, hash: f.deviceHash(d), at: int32(i), traits: traitsOf(d)})
	}
	for i := range s.Spec.SharedCounters {
		set := &s.Spec.SharedCounters[i]
		r.items = append(r.items, item{name: set.Name, hash: f.counterSetHash(set), traits: setTraits})
	}
	slices.SortStableFunc(r.items, byName)
	return r
}

// writer returns the instance that wrote the slice, or the zero value if that is unknown.
func (r *record) writer() core.Instance {
	return core.ParseInstance(r.Annotations[instanceAnnotation])
}

// has reports whether the slice has counter sets, or devices.
func (r *record) has(sets bool) bool {
	return slices.ContainsFunc(r.items, func(it item) bool { return it.isSet == sets })
}

// deleting reports whether the object only waits for its finalizers.
func (r *record) deleting() bool { return r.DeletionTimestamp != nil }

// ownedBy reports whether one of the owners is ref.
func (r *record) ownedBy(ref *metav1.OwnerReference) bool {
	return slices.ContainsFunc(r.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.UID == ref.UID && o.Kind == ref.Kind && o.Name == ref.Name
	})
}

// otherOwner returns an owner that is not ref, whatever the UID, or nil.
func (r *record) otherOwner(ref *metav1.OwnerReference) *metav1.OwnerReference {
	for i := range r.OwnerReferences {
		o := &r.OwnerReferences[i]
		if ref == nil || o.Kind != ref.Kind || o.Name != ref.Name {
			return o
		}
	}
	return nil
}

// byRecord sorts records for a layout: the newest generation first, then by
// name.
func byRecord(a, b *record) int {
	return cmp.Or(cmp.Compare(b.generation, a.generation), strings.Compare(a.Name, b.Name))
}

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
