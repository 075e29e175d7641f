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

// ledgerVersions is the number of versions of which a ledger keeps what the provider was handed. The
// API server allows a pod 256 KiB of annotations, so this is 1.25 MiB of a pod at most, however often
// it is patched: of the pods that a provider may still return, that of CreatePod, the last one that
// UpdatePod has accepted, and the newest three, of which it may have one in spite of an error.
const ledgerVersions = 5

// A ledger is what the provider has written into the annotations, or the labels, of a pod.
type ledger struct {
	given  []given // what the provider was handed, oldest first: no news if it comes back
	values map[string]string
}

// given is a version that the provider was handed.
type given struct {
	values   map[string]string
	accepted bool // the last version for which CreatePod or UpdatePod has succeeded
}

// hand records what the provider is handed.
func (l *ledger) hand(values map[string]string) {
	n := len(l.given)
	if n > 0 && maps.Equal(l.given[n-1].values, values) {
		return
	}
	if n == ledgerVersions {
		drop := 1
		if l.given[drop].accepted {
			drop++
		}
		l.given = slices.Delete(l.given, drop, drop+1)
	}
	l.given = append(l.given, given{values: maps.Clone(values)})
}

// accept records that the provider has accepted what it was handed last.
func (l *ledger) accept() {
	for i := range l.given {
		l.given[i].accepted = i == len(l.given)-1
	}
}

// gave reports whether the provider was handed a value of a key, and this one.
func (l *ledger) gave(key, value string) (some, this bool) {
	for _, g := range l.given {
		v, ok := g.values[key]
		some, this = some || ok, this || ok && v == value
	}
	return some, this
}

// take records what the provider has written. What it was handed may be old. Of a pod that an
// earlier process has handed over, only what the API's lacks is certain to be the provider's.
func (l *ledger) take(values map[string]string, adopted bool) {
	for key, value := range values {
		if some, this := l.gave(key, value); !this && !(adopted && some) {
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
