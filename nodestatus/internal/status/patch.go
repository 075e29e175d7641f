// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/sets"
)

// compare returns what makes shown equal to said, by part: what a strategic merge patch
// has for the parts that shown lacks, and nil for those in owned that shown has and said
// does not.
//
// A field of the status is replaced as a whole, whatever the API's type says of merging:
// addresses are declared to merge by type, of which a node may have several.
func compare(said, shown *corev1.Node, owned ownership) map[string]any {
	want, have := partsOf(said), partsOf(shown)
	changes := make(map[string]any)
	for key, value := range want {
		old, there := have[key]
		if there && equality.Semantic.DeepEqual(old, value) {
			continue
		}
		switch v := value.(type) {
		case map[string]any:
			if there {
				v["$patch"] = "replace"
			}
		case []any:
			if key == "addresses" {
				value = append([]any{map[string]any{"$patch": "replace"}}, v...)
			}
		}
		changes[key] = value
	}
	for key := range have {
		if _, kept := want[key]; !kept && owned.Has(key) {
			changes[key] = nil
		}
	}
	return changes
}

// encodePatch returns changes as a strategic merge patch that applies to the object with
// this uid and to no other, and to no other version of it if one is given. All of
// conditions go into it in their order, whole and whether they changed or not: a diff
// would be against a view that may be old, and a field that the patch lacks would keep
// what another writer has put there.
func encodePatch(uid types.UID, version string, changes map[string]any, conditions []corev1.NodeCondition) []byte {
	metadata, status := map[string]any{"uid": uid}, make(map[string]any)
	if version != "" {
		metadata["resourceVersion"] = version
	}
	var list, order []any
	for _, c := range conditions {
		order = append(order, map[string]any{"type": c.Type})
		list = append(list, map[string]any{
			"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message,
			"lastHeartbeatTime": c.LastHeartbeatTime, "lastTransitionTime": c.LastTransitionTime,
		})
	}
	for _, key := range slices.Sorted(maps.Keys(changes)) {
		section, name, hasName := strings.Cut(key, "/")
		into, change := status, changes[key]
		if section == labels || section == annotations {
			into = metadata
		}
		switch {
		case !hasName:
			into[section] = change
		case section != conditionsOf:
			entries, _ := into[section].(map[string]any)
			if entries == nil {
				entries = make(map[string]any)
				into[section] = entries
			}
			entries[name] = change
		case change == nil:
			list = append(list, map[string]any{"$patch": "delete", "type": name})
		}
	}
	status["conditions"], status["$setElementOrder/conditions"] = list, order
	patch, _ := json.Marshal(map[string]any{"metadata": metadata, "status": status}) // of strings and decoded JSON
	return patch
}

// The parts of a Node have one owner each. Their names are those of the JSON fields:
// "labels/KEY", "annotations/KEY", "capacity/RESOURCE", "allocatable/RESOURCE",
// "conditions/TYPE", and the name alone for any other field of the status.
const (
	labels       = "labels"
	annotations  = "annotations"
	capacity     = "capacity"
	allocatable  = "allocatable"
	conditionsOf = "conditions"
)

// ownership names the parts of a Node that we own. All other parts belong to
// other clients and are neither changed nor removed.
type ownership = sets.Set[string]

// A conditionPart is the value of a condition without its times.
type conditionPart struct {
	Status          corev1.ConditionStatus
	Reason, Message string
}

// partsOf returns the parts of node with their values: strings, quantities,
// conditionParts, and other fields of the status as decoded JSON. Text that is not UTF-8
// is there as the API server stores it. The phase is left out, which no component has
// written since Kubernetes 1.0, and so are two structs that JSON can't omit if they are
// empty: then no setter has set them.
func partsOf(node *corev1.Node) map[string]any {
	rest := node.Status
	rest.Conditions, rest.Capacity, rest.Allocatable, rest.Phase = nil, nil, nil, ""
	encoded, _ := json.Marshal(rest) // every status can be encoded
	parts := make(map[string]any)
	_ = utiljson.Unmarshal(encoded, &parts)
	if rest.NodeInfo == (corev1.NodeSystemInfo{}) {
		delete(parts, "nodeInfo")
	}
	if rest.DaemonEndpoints == (corev1.NodeDaemonEndpoints{}) {
		delete(parts, "daemonEndpoints")
	}
	insert(parts, labels, node.Labels)
	insert(parts, annotations, node.Annotations)
	insert(parts, capacity, node.Status.Capacity)
	insert(parts, allocatable, node.Status.Allocatable)
	for _, c := range node.Status.Conditions {
		parts[conditionsOf+"/"+string(c.Type)] = conditionPart{c.Status, c.Reason, c.Message}
	}
	return parts
}

// insert adds the entries of a field to parts.
func insert[K ~string, V any](parts map[string]any, section string, entries map[K]V) {
	for name, value := range entries {
		parts[section+"/"+string(name)] = value
	}
}

// ownershipOf returns the names of the parts of node, a composed scratch.
func ownershipOf(node *corev1.Node) ownership { return sets.KeySet(partsOf(node)) }

// encode returns o as a string that nodes with the same ownership share.
func encode(o ownership) unique.Handle[string] {
	return unique.Make(strings.Join(sets.List(o), "\n"))
}

// decodeOwnership returns what encode encoded; the zero Handle is nothing.
func decodeOwnership(h unique.Handle[string]) ownership {
	if h == (unique.Handle[string]{}) || h.Value() == "" {
		return nil
	}
	return sets.New(strings.Split(h.Value(), "\n")...)
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
	former := sets.New[string]()
	written := sets.New[string]() // by us or another client
	created := false
	for _, entry := range node.ManagedFields {
		var fields managedFields
		if entry.FieldsV1 == nil || entry.FieldsType != "FieldsV1" || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			return nil // of a form that is not known
		}
		names := fields.ownership()
		written = written.Union(names)
		if entry.Manager == FieldManager {
			former = former.Union(names)
			created = created || entry.Subresource == "" && len(fields.Metadata.Labels)+len(fields.Metadata.Annotations)+len(fields.Spec) > 0
		}
	}
	if created {
		status := corev1.Node{Status: node.Status} // labels and annotations have writers
		former = former.Union(ownershipOf(&status).Difference(written))
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
	o := sets.New[string]()
	insertFields(o, labels, f.Metadata.Labels)
	insertFields(o, annotations, f.Metadata.Annotations)
	for key, value := range f.Status {
		name, isField := strings.CutPrefix(key, "f:")
		var children map[string]any
		if !isField || json.Unmarshal(value, &children) != nil {
			continue
		}
		switch name {
		case capacity, allocatable:
			insertFields(o, name, children)
		case conditionsOf:
			insertConditions(o, children)
		case "phase":
		default:
			o.Insert(name)
		}
	}
	return o
}

func insertFields(into ownership, section string, children map[string]any) {
	for key := range children {
		if name, isField := strings.CutPrefix(key, "f:"); isField {
			into.Insert(section + "/" + name)
		}
	}
}

func insertConditions(into ownership, children map[string]any) {
	for key, leaves := range children {
		element, isElement := strings.CutPrefix(key, "k:")
		var condition struct{ Type string }
		if !isElement || json.Unmarshal([]byte(element), &condition) != nil {
			continue
		}
		if leaves, ok := leaves.(map[string]any); ok && leaves["f:lastHeartbeatTime"] != nil {
			into.Insert(conditionsOf + "/" + condition.Type)
		}
	}
}
