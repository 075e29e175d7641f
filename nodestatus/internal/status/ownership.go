// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
)

// ownership names the parts of a Node that we own. All other parts belong to
// other clients and are neither changed nor removed.
type ownership struct {
	conditions, labels, annotations, capacity, allocatable sets.Set[string]
	fields                                                 sets.Set[string] // of the status, by JSON name; not those above
}

// sections lists the parts of o with the letter they have in the encoding.
func (o *ownership) sections() []ownedSection {
	return []ownedSection{
		{'a', &o.annotations}, {'c', &o.conditions}, {'f', &o.fields},
		{'l', &o.labels}, {'q', &o.capacity}, {'r', &o.allocatable},
	}
}

type ownedSection struct {
	letter byte
	keys   *sets.Set[string]
}

// ownershipOf returns the parts of node, a composed scratch.
func ownershipOf(node *corev1.Node) (ownership, error) {
	fields, err := statusFields(&node.Status, true)
	if err != nil {
		return ownership{}, err
	}
	o := ownership{
		labels:      sets.KeySet(node.Labels),
		annotations: sets.KeySet(node.Annotations),
		capacity:    keysOf(node.Status.Capacity),
		allocatable: keysOf(node.Status.Allocatable),
		fields:      sets.KeySet(fields),
		conditions:  sets.New[string](),
	}
	for _, c := range node.Status.Conditions {
		o.conditions.Insert(string(c.Type))
	}
	return o, nil
}

// add adds what other names.
func (o *ownership) add(other ownership) {
	into, from := o.sections(), other.sections()
	for i := range into {
		*into[i].keys = into[i].keys.Union(*from[i].keys)
	}
}

// addWithout adds what other names and except does not.
func (o *ownership) addWithout(other, except ownership) {
	into, from, without := o.sections(), other.sections(), except.sections()
	for i := range into {
		*into[i].keys = into[i].keys.Union(from[i].keys.Difference(*without[i].keys))
	}
}

func keysOf(list corev1.ResourceList) sets.Set[string] {
	keys := sets.New[string]()
	for name := range list {
		keys.Insert(string(name))
	}
	return keys
}

// encode returns o as a string that nodes with the same ownership share.
func (o *ownership) encode() unique.Handle[string] {
	var b strings.Builder
	for _, section := range o.sections() {
		for _, key := range slices.Sorted(maps.Keys(*section.keys)) {
			b.WriteByte(section.letter)
			b.WriteString(key)
			b.WriteByte('\n')
		}
	}
	return unique.Make(b.String())
}

// decodeOwnership returns what encode encoded; the zero Handle is nothing.
func decodeOwnership(h unique.Handle[string]) ownership {
	var o ownership
	for _, section := range o.sections() {
		*section.keys = sets.New[string]()
	}
	if h == (unique.Handle[string]{}) {
		return o
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(h.Value(), "\n"), "\n") {
		for _, section := range o.sections() {
			if line != "" && line[0] == section.letter {
				section.keys.Insert(line[1:])
			}
		}
	}
	return o
}

// FieldManager is who managedFields names as the writer of a Node and its status.
const FieldManager = "kubewright-nodestatus"

// formerOwnership returns the parts of node that an earlier process with the same
// field manager has written last, by the managedFields of node.
//
// The API server records the writer of each field at each update, but not of the
// status with which a Node is created. So a field of the status without a writer is
// from the client that has created the Node: from an earlier process if that has
// written metadata or spec, since it does so only when it creates the Node. A
// condition belongs to the client that has written its heartbeat last.
func formerOwnership(node *corev1.Node) ownership {
	former := decodeOwnership(unique.Handle[string]{})
	status := decodeOwnership(unique.Handle[string]{}) // of other clients, or ours
	created := false
	for _, entry := range node.ManagedFields {
		var fields managedFields
		if entry.FieldsV1 == nil || entry.FieldsType != "FieldsV1" || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			return decodeOwnership(unique.Handle[string]{}) // of a form that is not known
		}
		written := fields.ownership()
		status.add(written)
		if entry.Manager == FieldManager {
			former.add(written)
			created = created || entry.Subresource == "" && len(fields.Metadata.Labels)+len(fields.Metadata.Annotations)+len(fields.Spec) > 0
		}
	}
	if all, err := ownershipOf(node); err == nil && created {
		all.labels, all.annotations = nil, nil // those have writers
		former.addWithout(all, status)
	}
	return former
}

// managedFields is the part of a FieldsV1 that matters here: a tree of maps whose
// keys are "f:" and the name of a field, or "k:" and the key of a list element.
type managedFields struct {
	Metadata struct {
		Labels      map[string]any `json:"f:labels"`
		Annotations map[string]any `json:"f:annotations"`
	} `json:"f:metadata"`
	Spec   map[string]any             `json:"f:spec"`
	Status map[string]json.RawMessage `json:"f:status"`
}

// ownership returns the parts of a Node that f names.
func (f *managedFields) ownership() ownership {
	o := decodeOwnership(unique.Handle[string]{})
	insertFields(o.labels, f.Metadata.Labels)
	insertFields(o.annotations, f.Metadata.Annotations)
	for key, value := range f.Status {
		name, isField := strings.CutPrefix(key, "f:")
		var children map[string]any
		if !isField || json.Unmarshal(value, &children) != nil {
			continue
		}
		switch name {
		case "capacity":
			insertFields(o.capacity, children)
		case "allocatable":
			insertFields(o.allocatable, children)
		case "conditions":
			insertConditions(o.conditions, children)
		case "phase":
		default:
			o.fields.Insert(name)
		}
	}
	return o
}

func insertFields(into sets.Set[string], children map[string]any) {
	for key := range children {
		if name, isField := strings.CutPrefix(key, "f:"); isField {
			into.Insert(name)
		}
	}
}

func insertConditions(into sets.Set[string], children map[string]any) {
	for key, leaves := range children {
		element, isElement := strings.CutPrefix(key, "k:")
		var condition struct{ Type string }
		if !isElement || json.Unmarshal([]byte(element), &condition) != nil {
			continue
		}
		if leaves, ok := leaves.(map[string]any); ok && leaves["f:lastHeartbeatTime"] != nil {
			into.Insert(condition.Type)
		}
	}
}

// statusFields returns the fields of status as JSON, except for conditions, capacity
// and allocatable, which are merged by key, and the phase, which no component has
// written since Kubernetes 1.0. If ours is set, two structs that JSON can't omit are
// left out if they are empty: then no setter has set them.
func statusFields(status *corev1.NodeStatus, ours bool) (map[string]json.RawMessage, error) {
	rest := *status
	rest.Conditions, rest.Capacity, rest.Allocatable, rest.Phase = nil, nil, nil, ""
	encoded, err := json.Marshal(rest)
	if err != nil {
		return nil, err
	}
	if bytes.Contains(encoded, []byte(`\ufffd`)) {
		// Text that is not UTF-8 is spelled so, and differently once it was stored.
		rest = corev1.NodeStatus{} // it shares its lists with status
		if err := json.Unmarshal(encoded, &rest); err != nil {
			return nil, err
		}
		if encoded, err = json.Marshal(rest); err != nil {
			return nil, err
		}
	}
	fields := make(map[string]json.RawMessage)
	if err := json.Unmarshal(encoded, &fields); err != nil {
		return nil, err
	}
	if ours && status.NodeInfo == (corev1.NodeSystemInfo{}) {
		delete(fields, "nodeInfo")
	}
	if ours && status.DaemonEndpoints == (corev1.NodeDaemonEndpoints{}) {
		delete(fields, "daemonEndpoints")
	}
	return fields, nil
}

// canonical rewrites quantities in their canonical form, as the server will
// return them: "1000m" and "1" are equal and must not be taken for a change.
func canonical(lists ...corev1.ResourceList) {
	for _, list := range lists {
		for name, quantity := range list {
			quantity.Add(resource.Quantity{Format: quantity.Format}) // forgets the text it was parsed from
			list[name] = quantity
		}
	}
}
