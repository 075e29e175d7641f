// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// LabelsAnnotation is the annotation of a pod that has the labels that its provider has written
// into it, as a JSON object: the credentials of a node may change annotations, but not labels. The
// provider finds them as labels of the pods that it is handed and that its lister returns.
const LabelsAnnotation = "vkadapter.kubewright.dev/labels"

// A ledger is what the provider has written into the annotations, or the labels, of a pod.
type ledger struct {
	given  map[string][]string // the values that the provider was handed: no news if they come back
	values map[string]string
}

// hand records what the provider is handed.
func (l *ledger) hand(values map[string]string) {
	if l.given == nil {
		l.given = make(map[string][]string)
	}
	for key, value := range values {
		if !slices.Contains(l.given[key], value) {
			l.given[key] = append(l.given[key], value)
		}
	}
}

// take records what the provider has written. What it was handed may be old. Of a pod that an
// earlier process has handed over, only what the API's lacks is certain to be the provider's.
func (l *ledger) take(values map[string]string, adopted bool) {
	for key, value := range values {
		if given := l.given[key]; !slices.Contains(given, value) && !(adopted && len(given) > 0) {
			if l.values == nil {
				l.values = make(map[string]string)
			}
			l.values[key] = value
		}
	}
}

// add records what an earlier process has stored. What is newer stays.
func (l *ledger) add(values map[string]string) { l.values = merged(values, l.values) }

// stored returns the annotations that are stored in the API for a provider.
func stored(annotations, labels map[string]string) map[string]string {
	if len(labels) == 0 {
		return maps.Clone(annotations)
	}
	value, _ := json.Marshal(labels) // of strings: no error
	return merged(maps.Clone(annotations), map[string]string{LabelsAnnotation: string(value)})
}

// storedLabels returns the labels that are stored for the provider in a pod of the API, nil if
// another client has spoiled them.
func storedLabels(pod *corev1.Pod) (labels map[string]string) {
	if json.Unmarshal([]byte(pod.Annotations[LabelsAnnotation]), &labels) != nil {
		return nil
	}
	return labels
}

// withLabels returns the pod with its stored labels. It does not change pod.
func withLabels(pod *corev1.Pod) *corev1.Pod {
	if labels := storedLabels(pod); len(labels) > 0 {
		pod = pod.DeepCopy()
		pod.Labels = merged(labels, pod.Labels)
	}
	return pod
}

// merged adds entries to a map, which may be nil, and returns it.
func merged(to, from map[string]string) map[string]string {
	if to == nil {
		return maps.Clone(from)
	}
	maps.Copy(to, from)
	return to
}
