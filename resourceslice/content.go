// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// content identifies a device or a counter set. Contents are immutable.
type content struct {
	name string
	hash hash
	*traits
}

// traits are the properties of a device, beyond name and hash, that layout and
// planning depend on. Most devices have none and a nil pointer.
type traits struct {
	advanced bool     // a slice with such a device holds 64 devices, not 128
	consumes []string // names of counter sets
	taints   []taint
}

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

func (c content) isAdvanced() bool { return c.traits != nil && c.advanced }

func (c content) taintList() []taint {
	if c.traits == nil {
		return nil
	}
	return c.taints
}

func (c content) counterSets() []string {
	if c.traits == nil {
		return nil
	}
	return c.consumes
}

// restrictions are kinds of fields that the API server drops if a feature is
// off, although Pods could then use devices that they must not use.
type restrictions uint8

const (
	byCounters restrictions = 1 << iota
	byTaint
)

func restrictionsOf(devices, sets []content) (kinds restrictions) {
	if len(sets) > 0 {
		kinds |= byCounters
	}
	for _, c := range devices {
		if len(c.counterSets()) > 0 {
			kinds |= byCounters
		}
		if slices.ContainsFunc(c.taintList(), taint.restrictive) {
			kinds |= byTaint
		}
	}
	return kinds
}

// item is a content with its protobuf encoding, which takes a tenth of the
// memory of the decoded object.
type item struct {
	content
	encoded string
}

func byName(a, b item) int { return strings.Compare(a.name, b.name) }

func same(a, b item) bool { return a.name == b.name && a.hash == b.hash }

func traitsOf(d *resourcev1.Device) *traits {
	var t traits
	for i := range d.ConsumesCounters {
		t.consumes = append(t.consumes, d.ConsumesCounters[i].CounterSet)
	}
	for i := range d.Taints {
		t.taints = append(t.taints, taintOf(&d.Taints[i]))
	}
	t.advanced = len(t.consumes) > 0 || len(t.taints) > 0
	for _, a := range d.Attributes {
		t.advanced = t.advanced || a.BoolValues != nil || a.IntValues != nil || a.StringValues != nil || a.VersionValues != nil
	}
	if !t.advanced {
		return nil
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

// sameTaints reports whether the taints of c are those of the API objects, times
// included.
func (c content) sameTaints(of []resourcev1.DeviceTaint) bool {
	have := c.taintList()
	if len(have) != len(of) {
		return false
	}
	for i := range of {
		if t := taintOf(&of[i]); !t.same(have[i]) || !t.added.Time.Equal(have[i].added.Time) {
			return false
		}
	}
	return true
}

// encoder encodes and hashes content. It has a buffer, so one goroutine at a
// time may use it.
type encoder struct {
	hasher
	buf []byte
}

// message is a protobuf message of k8s.io/api.
type message interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
}

// encode returns the encoding of m, valid until the next call.
func (e *encoder) encode(m message) []byte {
	size := m.Size()
	if size > cap(e.buf) {
		e.buf = make([]byte, 2*size)
	}
	// An error means that the buffer is too small; it has the message's size.
	n, _ := m.MarshalToSizedBuffer(e.buf[:size])
	return e.buf[size-n : size]
}

// item returns the item of a message with that name as its first field.
func (e *encoder) item(name string, h hash, t *traits, m message) item {
	it := item{content: content{name: name, hash: h, traits: t}, encoded: string(e.encode(m))}
	// The name shares the memory of the encoding, which begins with a tag, a
	// length and the name.
	const at = 2
	if end := at + len(name); len(it.encoded) >= end && it.encoded[at:end] == name {
		it.name = it.encoded[at:end]
	}
	return it
}

// device returns the item of a device. It returns before if that is equal.
func (e *encoder) device(d *resourcev1.Device, before *item) (it item, reused bool) {
	h := e.deviceHash(d)
	if before != nil && before.hash == h && before.sameTaints(d.Taints) {
		return *before, true
	}
	bare := d
	if len(d.Taints) > 0 || sharesQuantities(d) {
		// Encoding a quantity caches its text in it, and that behind a pointer
		// belongs to the caller.
		bare = d.DeepCopy()
	}
	for i := range bare.Taints {
		bare.Taints[i].TimeAdded = nil
	}
	return e.item(d.Name, h, traitsOf(d), bare), false
}

func (e *encoder) counterSet(s *resourcev1.CounterSet) item {
	return e.item(s.Name, e.messageHash(s), nil, s)
}

// selection is a NodeSelection with the node's name.
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

// head returns the hash of the fields of a spec that are about neither its
// pool nor its node nor a single device or counter set.
func (e *encoder) head(spec *resourcev1.ResourceSliceSpec) hash {
	bare := resourcev1.ResourceSliceSpec{
		NodeSelector:           spec.NodeSelector,
		AllNodes:               spec.AllNodes,
		PerDeviceNodeSelection: spec.PerDeviceNodeSelection,
		PartitionTypeAttribute: spec.PartitionTypeAttribute,
		SkipNodeOperations:     slices.Sorted(slices.Values(spec.SkipNodeOperations)),
	}
	return e.messageHash(&bare)
}

// desired is a pool as passed to Set. It is immutable.
type desired struct {
	id        PoolID
	devices   []item // by name
	sets      []item // by name
	selection selection
	skip      []resourcev1.SkipNodeOperation // sorted
	partition resourcev1.FullyQualifiedName
	heads     [3]hash // by kind of page
	atomic    bool
}

// kinds of pages, as indexes of desired.heads
const (
	plainPage    = iota // devices, none of which consumes counters, or nothing
	consumerPage        // devices, some of which consume counters
	counterPage         // counter sets
)

// find returns the item of a device, or nil. hint is the index to try first;
// find sets it to the next one.
func (d *desired) find(name string, hint *int) *item {
	if d == nil {
		return nil
	}
	i, found := *hint, *hint < len(d.devices) && d.devices[*hint].name == name
	if !found {
		i, found = slices.BinarySearchFunc(d.devices, name, func(it item, name string) int { return strings.Compare(it.name, name) })
	}
	if *hint = i + 1; !found {
		return nil
	}
	return &d.devices[i]
}

// spec returns the common part of the specs of all pages of a kind.
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

// newDesired encodes a pool and reuses equal items of before. fresh has the
// indexes in pool.Devices of all other devices: those must be validated. same
// reports that the pool equals before.
func (e *encoder) newDesired(id PoolID, pool *Pool, nodeName string, before *desired) (d *desired, fresh []int, same bool) {
	d = &desired{
		id: id, atomic: pool.Atomic, partition: pool.PartitionTypeAttribute,
		skip:      slices.Sorted(slices.Values(pool.SkipNodeOperations)),
		selection: selection{selector: pool.Nodes.Selector.DeepCopy(), allNodes: pool.Nodes.AllNodes, perDevice: pool.Nodes.PerDevice},
		devices:   make([]item, len(pool.Devices)),
	}
	if pool.Nodes == (NodeSelection{}) {
		d.selection.nodeName = nodeName
	}
	for i := range pool.SharedCounters {
		d.sets = append(d.sets, e.counterSet(&pool.SharedCounters[i]))
	}
	slices.SortStableFunc(d.sets, byName)
	for kind := range d.heads {
		spec := d.spec(kind)
		d.heads[kind] = e.head(&spec)
	}
	// A device that was valid is not if only one of the pools is PerDevice.
	known := before != nil && before.selection.perDevice == d.selection.perDevice
	hint, sorted := 0, true
	for i := range pool.Devices {
		it, reused := e.device(&pool.Devices[i], before.find(pool.Devices[i].Name, &hint))
		if d.devices[i] = it; !reused || !known {
			fresh = append(fresh, i)
		}
		sorted = sorted && (i == 0 || d.devices[i-1].name <= it.name)
	}
	if !sorted {
		slices.SortStableFunc(d.devices, byName)
	}
	return d, fresh, before != nil && len(fresh) == 0 && d.equal(before)
}

func (d *desired) equal(other *desired) bool {
	return d.atomic == other.atomic && d.selection.nodeName == other.selection.nodeName && d.heads == other.heads &&
		d.partition == other.partition && slices.EqualFunc(d.sets, other.sets, same) && slices.EqualFunc(d.devices, other.devices, same)
}

// urgent reports whether replacing before with d takes something from Pods: a
// device, or the permission to use it.
func (d *desired) urgent(before *desired) bool {
	if before == nil {
		return false
	}
	hint := 0
	for i := range before.devices {
		if d.find(before.devices[i].name, &hint) == nil {
			return true
		}
	}
	hint = 0
	for i := range d.devices {
		taints := d.devices[i].taintList()
		if len(taints) == 0 {
			continue
		}
		var had []taint
		if was := before.find(d.devices[i].name, &hint); was != nil {
			had = was.taintList()
		}
		for _, t := range taints {
			if t.restrictive() && !slices.ContainsFunc(had, t.same) {
				return true
			}
		}
	}
	return false
}

// record is a slice on the API server, reduced to metadata, names and hashes.
// Records are immutable. The informer stores them in place of the objects.
type record struct {
	// The metadata without managedFields. An update repeats it.
	metav1.ObjectMeta

	id         PoolID
	generation int64
	count      int64
	nodeName   string
	head       hash
	devices    []content // in the order of the slice
	sets       []content // in the order of the slice
	manager    string    // the last writer
}

// record returns the record of a slice. It keeps no part of the slice except
// for strings and metadata.
func (e *encoder) record(s *resourcev1.ResourceSlice) *record {
	r := &record{
		ObjectMeta: s.ObjectMeta,
		id:         PoolID{s.Spec.Driver, s.Spec.Pool.Name},
		generation: s.Spec.Pool.Generation,
		count:      s.Spec.Pool.ResourceSliceCount,
		head:       e.head(&s.Spec),
		devices:    make([]content, len(s.Spec.Devices)),
	}
	if s.Spec.NodeName != nil {
		r.nodeName = *s.Spec.NodeName
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
		r.devices[i] = content{name: d.Name, hash: e.deviceHash(d), traits: traitsOf(d)}
	}
	for i := range s.Spec.SharedCounters {
		set := &s.Spec.SharedCounters[i]
		r.sets = append(r.sets, content{name: set.Name, hash: e.messageHash(set)})
	}
	return r
}

// record returns the record of one slice.
func (c *Controller) record(s *resourcev1.ResourceSlice) *record {
	e := encoder{hasher: c.hasher}
	return e.record(s)
}

// contents returns the counter sets or the devices.
func (r *record) contents(counters bool) []content {
	if counters {
		return r.sets
	}
	return r.devices
}

// deleting reports whether the object only waits for its finalizers.
func (r *record) deleting() bool { return r.DeletionTimestamp != nil }

// is reports whether r and other are about the same object.
func (r *record) is(uid types.UID) bool { return r.UID == uid }

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

func (r *record) hasLabels(labels map[string]string) bool {
	for k, v := range labels {
		if have, ok := r.Labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// byRecord sorts records for a layout: the newest generation first, then by
// name.
func byRecord(a, b *record) int {
	return cmp.Or(cmp.Compare(b.generation, a.generation), strings.Compare(a.Name, b.Name))
}
