// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// A difference is the change that makes a Node equal to ours. The maps have
// the form of a strategic merge patch.
type difference struct {
	metadata   map[string]any // labels and annotations
	status     map[string]any // everything but conditions
	dropped    []string       // types of conditions to remove
	conditions bool           // a condition differs, leaving aside its times
	reorder    bool           // our conditions would not stand in our order
}

func (d difference) empty() bool {
	return len(d.metadata) == 0 && len(d.status) == 0 && len(d.dropped) == 0 && !d.conditions
}

// compare returns the parts of said that shown lacks, and the parts in owned that shown
// has and said does not.
func compare(said, shown *corev1.Node, owned ownership) (difference, error) {
	d := difference{metadata: make(map[string]any), status: make(map[string]any)}
	put(d.metadata, "labels", compareKeys(said.Labels, shown.Labels, owned.labels))
	put(d.metadata, "annotations", compareKeys(said.Annotations, shown.Annotations, owned.annotations))
	put(d.status, "capacity", compareResources(said.Status.Capacity, shown.Status.Capacity, owned.capacity))
	put(d.status, "allocatable", compareResources(said.Status.Allocatable, shown.Status.Allocatable, owned.allocatable))
	if err := compareFields(d.status, &said.Status, &shown.Status, owned.fields); err != nil {
		return difference{}, err
	}
	for _, c := range said.Status.Conditions {
		old := FindCondition(shown.Status.Conditions, c.Type)
		if old == nil || old.Status != c.Status || old.Reason != c.Reason || old.Message != c.Message {
			d.conditions = true
		}
	}
	for _, c := range shown.Status.Conditions {
		if owned.conditions.Has(string(c.Type)) && FindCondition(said.Status.Conditions, c.Type) == nil {
			d.dropped = append(d.dropped, string(c.Type))
		}
	}
	d.reorder = !slices.Equal(orderAfter(said.Status.Conditions, shown.Status.Conditions), conditionTypes(said.Status.Conditions))
	return d, nil
}

// put sets into[key] unless value is empty.
func put(into map[string]any, key string, value map[string]any) {
	if len(value) > 0 {
		into[key] = value
	}
}

// compareKeys returns the entries of said that shown lacks or has otherwise,
// and null for those of shown that are ours and no longer said.
func compareKeys(said, shown map[string]string, owned sets.Set[string]) map[string]any {
	changes := make(map[string]any)
	for key, value := range said {
		if old, there := shown[key]; !there || old != value {
			changes[key] = value
		}
	}
	for key := range shown {
		if _, kept := said[key]; !kept && owned.Has(key) {
			changes[key] = nil
		}
	}
	return changes
}

// compareResources is compareKeys for quantities, which are equal when they
// are the same amount.
func compareResources(said, shown corev1.ResourceList, owned sets.Set[string]) map[string]any {
	changes := make(map[string]any)
	for name, quantity := range said {
		if old, there := shown[name]; !there || old.Cmp(quantity) != 0 {
			changes[string(name)] = quantity.String()
		}
	}
	for name := range shown {
		if _, kept := said[name]; !kept && owned.Has(string(name)) {
			changes[string(name)] = nil
		}
	}
	return changes
}

// compareFields adds to changes the other fields of the status. A list is
// replaced as a whole, whatever the API's type says of merging: addresses are
// declared to merge by type, of which a node may have several.
func compareFields(changes map[string]any, said, shown *corev1.NodeStatus, owned sets.Set[string]) error {
	want, err := statusFields(said, true)
	if err != nil {
		return err
	}
	have, err := statusFields(shown, false)
	if err != nil {
		return err
	}
	for name, value := range want {
		old := have[name]
		if bytes.Equal(old, value) {
			continue
		}
		switch {
		case value[0] == '{' && len(old) > 0:
			change, err := mergePatch(value, old)
			if err != nil {
				return err
			}
			changes[name] = change
		case name == "addresses":
			list, err := replaceList(value)
			if err != nil {
				return err
			}
			changes[name] = list
		default:
			changes[name] = value
		}
	}
	for name := range owned {
		if _, kept := want[name]; kept {
			continue
		}
		if _, there := have[name]; there && !emptyStruct(name, shown) {
			changes[name] = nil
		}
	}
	return nil
}

// emptyStruct reports whether the field is one of the two that are always
// there, and empty.
func emptyStruct(name string, status *corev1.NodeStatus) bool {
	switch name {
	case "nodeInfo":
		return status.NodeInfo == (corev1.NodeSystemInfo{})
	case "daemonEndpoints":
		return status.DaemonEndpoints == (corev1.NodeDaemonEndpoints{})
	}
	return false
}

// mergePatch returns the JSON merge patch from the object old to the object
// value.
func mergePatch(value, old json.RawMessage) (map[string]any, error) {
	var want, have map[string]json.RawMessage
	if err := json.Unmarshal(value, &want); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(old, &have); err != nil {
		return nil, err
	}
	change := make(map[string]any)
	for key, v := range want {
		o := have[key]
		switch {
		case bytes.Equal(o, v):
		case v[0] == '{' && len(o) > 0 && o[0] == '{':
			inner, err := mergePatch(v, o)
			if err != nil {
				return nil, err
			}
			change[key] = inner
		default:
			change[key] = v
		}
	}
	for key := range have {
		if _, kept := want[key]; !kept {
			change[key] = nil
		}
	}
	return change, nil
}

// replaceList returns the list with the directive that makes a strategic merge
// patch replace instead of merge.
func replaceList(list json.RawMessage) ([]any, error) {
	var items []json.RawMessage
	if err := json.Unmarshal(list, &items); err != nil {
		return nil, err
	}
	replaced := []any{map[string]string{"$patch": "replace"}}
	for _, item := range items {
		replaced = append(replaced, item)
	}
	return replaced, nil
}

func conditionTypes(conditions []corev1.NodeCondition) []corev1.NodeConditionType {
	types := make([]corev1.NodeConditionType, len(conditions))
	for i, c := range conditions {
		types[i] = c.Type
	}
	return types
}

// orderAfter returns the order of said after a patch without directive: conditions in
// shown keep their places, new ones go to the end.
func orderAfter(said, shown []corev1.NodeCondition) []corev1.NodeConditionType {
	var order []corev1.NodeConditionType
	for _, c := range shown {
		if FindCondition(said, c.Type) != nil {
			order = append(order, c.Type)
		}
	}
	for _, c := range said {
		if FindCondition(shown, c.Type) == nil {
			order = append(order, c.Type)
		}
	}
	return order
}

// patchCondition is a NodeCondition none of whose fields can be omitted: a
// field that the patch lacks would keep what another writer has put there.
type patchCondition struct {
	Type               corev1.NodeConditionType `json:"type"`
	Status             corev1.ConditionStatus   `json:"status"`
	LastHeartbeatTime  metav1.Time              `json:"lastHeartbeatTime"`
	LastTransitionTime metav1.Time              `json:"lastTransitionTime"`
	Reason             string                   `json:"reason"`
	Message            string                   `json:"message"`
}

// patch encodes the difference as a strategic merge patch that applies to the
// object with this uid and to no other, and to no other version of it if one
// is given. All of conditions go into it, whole and
// whether they changed or not: a diff would be against a view that may be old.
func (d difference) patch(uid types.UID, version string, conditions []corev1.NodeCondition) ([]byte, error) {
	metadata := maps.Clone(d.metadata)
	if metadata == nil {
		metadata = make(map[string]any)
	}
	metadata["uid"] = uid
	if version != "" {
		metadata["resourceVersion"] = version
	}
	status := maps.Clone(d.status)
	if status == nil {
		status = make(map[string]any)
	}
	list := make([]any, 0, len(conditions)+len(d.dropped))
	order := make([]any, 0, len(conditions))
	for _, c := range conditions {
		list = append(list, patchCondition(c))
		order = append(order, map[string]any{"type": c.Type})
	}
	for _, kind := range d.dropped {
		list = append(list, map[string]any{"$patch": "delete", "type": kind})
	}
	status["conditions"] = list
	if d.reorder {
		status["$setElementOrder/conditions"] = order
	}
	return json.Marshal(map[string]any{"metadata": metadata, "status": status})
}
