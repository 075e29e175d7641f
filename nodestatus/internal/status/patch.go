// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A difference is the change that makes a Node equal to ours.
type difference struct {
	changes map[string]any // by part: what a strategic merge patch has for it; nil removes the part
	reorder bool           // our conditions would not stand in our order
}

func (d difference) empty() bool { return len(d.changes) == 0 }

// compare returns the parts of said that shown lacks, and the parts in owned that shown
// has and said does not.
func compare(said, shown *corev1.Node, owned ownership) (difference, error) {
	want, err := partsOf(said)
	if err != nil {
		return difference{}, err
	}
	have, err := partsOf(shown)
	if err != nil {
		return difference{}, err
	}
	d := difference{changes: make(map[string]any)}
	for key, value := range want {
		old, there := have[key]
		if there && samePart(old, value) {
			continue
		}
		if d.changes[key], err = changeOf(key, value, there); err != nil {
			return difference{}, err
		}
	}
	for key := range have {
		if _, kept := want[key]; !kept && owned.Has(key) {
			d.changes[key] = nil
		}
	}
	d.reorder = !slices.Equal(orderAfter(said.Status.Conditions, shown.Status.Conditions), conditionTypes(said.Status.Conditions))
	return d, nil
}

// samePart reports whether two values of a part are equal. Quantities are equal when
// they are the same amount.
func samePart(a, b any) bool {
	switch a := a.(type) {
	case resource.Quantity:
		return a.Cmp(b.(resource.Quantity)) == 0
	case json.RawMessage:
		return bytes.Equal(a, b.(json.RawMessage))
	}
	return a == b
}

// changeOf returns what a patch has for a part that is new or changed. A field of the
// status is replaced as a whole, whatever the API's type says of merging: addresses are
// declared to merge by type, of which a node may have several.
func changeOf(key string, value any, replaces bool) (any, error) {
	switch value := value.(type) {
	case resource.Quantity:
		return value.String(), nil
	case json.RawMessage:
		switch {
		case key == "addresses":
			var list []any
			err := json.Unmarshal(value, &list)
			return append([]any{map[string]string{"$patch": "replace"}}, list...), err
		case value[0] == '{' && replaces:
			var object map[string]json.RawMessage
			err := json.Unmarshal(value, &object)
			object["$patch"] = json.RawMessage(`"replace"`)
			return object, err
		}
	}
	return value, nil
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
	metadata, status := map[string]any{"uid": uid}, make(map[string]any)
	if version != "" {
		metadata["resourceVersion"] = version
	}
	list := make([]any, 0, len(conditions))
	order := make([]any, 0, len(conditions))
	for _, c := range conditions {
		list = append(list, patchCondition(c))
		order = append(order, map[string]any{"type": c.Type})
	}
	for _, key := range slices.Sorted(maps.Keys(d.changes)) {
		section, name, hasName := strings.Cut(key, "/")
		into := status
		if section == labels || section == annotations {
			into = metadata
		}
		switch change := d.changes[key]; {
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
	status["conditions"] = list
	if d.reorder {
		status["$setElementOrder/conditions"] = order
	}
	return json.Marshal(map[string]any{"metadata": metadata, "status": status})
}
