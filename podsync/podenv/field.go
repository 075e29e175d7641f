// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// fieldValue returns a field of the pod that doesn't change while it runs on its
// node, or the labels or annotations as they were when the pod was handed over.
func fieldValue(pod *corev1.Pod, ref *corev1.ObjectFieldSelector) (string, error) {
	if ref.APIVersion != "" && ref.APIVersion != "v1" {
		return "", fmt.Errorf("no fields of version %q", ref.APIVersion)
	}
	switch path := ref.FieldPath; path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "spec.nodeName", "spec.host": // the API server accepts the name of old versions, too
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	default:
		// metadata.labels['key'], the value of one; empty if there is none.
		if key, ok := subscript(path, "metadata.labels"); ok {
			return pod.Labels[key], nil
		}
		if key, ok := subscript(path, "metadata.annotations"); ok {
			return pod.Annotations[key], nil
		}
		return "", fmt.Errorf("no field %q can be referred to", path)
	}
}

// subscript returns key of a path such as base['key'].
func subscript(path, base string) (key string, ok bool) {
	rest, ok := strings.CutPrefix(path, base+"['")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(rest, "']")
}

// formatMap writes labels or annotations as documented for downward API volumes:
// a line key="value" for each, by key, with the value quoted as Go quotes strings.
func formatMap(m map[string]string) string {
	var out []byte
	for i, key := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			out = append(out, '\n')
		}
		out = append(append(out, key...), '=')
		out = strconv.AppendQuote(out, m[key])
	}
	return string(out)
}
