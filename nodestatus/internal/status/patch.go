// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
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
