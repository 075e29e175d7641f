// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Patch returns the strategic merge patch for the subresource status that makes
// next of the status stored in pod, or nil if there is nothing to write. It holds
// the fields that changed, of the fields that a node writes, and metadata.uid,
// which makes the API server refuse it with 422 and a cause for that field when
// another pod has got the name by now. It carries no resourceVersion: the writes
// of others to other conditions don't get in its way.
//
// next is a status returned by [Next] or [Minimal] for the same pod. Of other
// statuses, texts that are not UTF-8 and times with fractions of a second are not
// stored as they are.
func Patch(pod *corev1.Pod, next *corev1.PodStatus) []byte {
	w := patchWriter{}
	w.status(&pod.Status, next)
	if len(w.fields) == 0 {
		return nil
	}
	out := make([]byte, 0, 512)
	out = append(out, `{"metadata":{"uid":`...)
	out = appendJSON(out, pod.UID)
	out = append(out, `},"status":`...)
	out = w.append(out)
	return append(out, '}')
}

// PatchType is the content type of the result of [Patch].
const PatchType = types.StrategicMergePatchType

// Minimal returns pod's stored status with only phase, reason, message and the
// conditions ContainersReady and Ready of next. It is the status to write if the
// API server refuses all of next, so that the pod ends anyway.
func Minimal(pod *corev1.Pod, next *corev1.PodStatus) corev1.PodStatus {
	out := *pod.Status.DeepCopy()
	out.Phase, out.Reason, out.Message = next.Phase, next.Reason, next.Message
	for _, t := range [...]corev1.PodConditionType{corev1.ContainersReady, corev1.PodReady} {
		from := indexOf(next.Conditions, t)
		if from < 0 {
			continue
		}
		if at := indexOf(out.Conditions, t); at >= 0 {
			out.Conditions[at] = next.Conditions[from]
		} else {
			out.Conditions = append(out.Conditions, next.Conditions[from])
		}
	}
	return out
}

// patchWriter collects the members of one JSON object.
type patchWriter struct {
	fields []member
}

type member struct {
	name  string
	value any // nil takes the field away
}

func (w *patchWriter) set(name string, value any) { w.fields = append(w.fields, member{name, value}) }

// str writes a field whose zero value is not stored.
func (w *patchWriter) str(name, old, new string) {
	switch {
	case old == new:
	case new == "":
		w.set(name, nil)
	default:
		w.set(name, new)
	}
}

func (w *patchWriter) append(out []byte) []byte {
	out = append(out, '{')
	for i, f := range w.fields {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(appendJSON(out, f.name), ':')
		if sub, ok := f.value.(*patchWriter); ok {
			out = sub.append(out)
			continue
		}
		if raw, ok := f.value.(json.RawMessage); ok {
			out = append(out, raw...)
			continue
		}
		out = appendJSON(out, f.value)
	}
	return append(out, '}')
}

// appendJSON appends v. The types of a pod status have no value that JSON can't
// spell.
func appendJSON(out []byte, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return append(out, "null"...)
	}
	return append(out, b...)
}

func (w *patchWriter) status(old, next *corev1.PodStatus) {
	if next.ObservedGeneration != old.ObservedGeneration {
		w.set("observedGeneration", next.ObservedGeneration)
	}
	w.str("phase", string(old.Phase), string(next.Phase))
	w.conditions(old.Conditions, next.Conditions)
	w.str("message", old.Message, next.Message)
	w.str("reason", old.Reason, next.Reason)
	w.str("hostIP", old.HostIP, next.HostIP)
	if !slices.Equal(old.HostIPs, next.HostIPs) {
		w.list("hostIPs", len(next.HostIPs), func(i int) any { return next.HostIPs[i] })
	}
	w.str("podIP", old.PodIP, next.PodIP)
	if !slices.Equal(old.PodIPs, next.PodIPs) {
		w.list("podIPs", len(next.PodIPs), func(i int) any { return next.PodIPs[i] })
	}
	switch {
	case next.StartTime == nil && old.StartTime != nil:
		w.set("startTime", nil)
	case next.StartTime != nil && !next.StartTime.Equal(old.StartTime):
		w.set("startTime", next.StartTime)
	}
	w.containers("initContainerStatuses", old.InitContainerStatuses, next.InitContainerStatuses)
	w.containers("containerStatuses", old.ContainerStatuses, next.ContainerStatuses)
	w.containers("ephemeralContainerStatuses", old.EphemeralContainerStatuses, next.EphemeralContainerStatuses)
	w.resources("allocatedResources", old.AllocatedResources, next.AllocatedResources)
	w.requirements("resources", old.Resources, next.Resources)
}

// list writes a list that strategic merge would merge by a key, as a whole.
func (w *patchWriter) list(name string, n int, item func(int) any) {
	if n == 0 {
		w.set(name, nil)
		return
	}
	items := make([]any, 0, n+1)
	items = append(items, directive{"replace"})
	for i := range n {
		items = append(items, item(i))
	}
	w.set(name, items)
}

// directive is an instruction in a strategic merge patch.
type directive struct {
	Patch string `json:"$patch"`
}

// resources writes the names whose quantity changed. A map takes no directive to
// replace it if none is stored yet.
func (w *patchWriter) resources(name string, old, next corev1.ResourceList) {
	switch {
	case equalResources(old, next):
	case len(next) == 0:
		w.set(name, nil)
	default:
		var p patchWriter
		for _, key := range slices.Sorted(maps.Keys(next)) {
			if q, ok := old[key]; !ok || q.Cmp(next[key]) != 0 {
				p.set(string(key), next[key])
			}
		}
		for _, key := range slices.Sorted(maps.Keys(old)) {
			if _, ok := next[key]; !ok {
				p.set(string(key), nil)
			}
		}
		w.set(name, &p)
	}
}

func (w *patchWriter) requirements(name string, old, next *corev1.ResourceRequirements) {
	switch {
	case equalRequirements(old, next):
	case next == nil:
		w.set(name, nil)
	default:
		var p patchWriter
		if old == nil {
			old = &corev1.ResourceRequirements{}
		}
		p.resources("limits", old.Limits, next.Limits)
		p.resources("requests", old.Requests, next.Requests)
		w.set(name, &p)
	}
}

func (w *patchWriter) containers(name string, old, next []corev1.ContainerStatus) {
	if equalContainers(old, next) {
		return
	}
	// The list is atomic: it replaces the stored one.
	if len(next) == 0 {
		w.set(name, nil)
		return
	}
	w.set(name, next)
}

// conditions writes the conditions that changed, merged by type.
func (w *patchWriter) conditions(old, next []corev1.PodCondition) {
	var out []byte
	add := func(c *patchWriter) {
		if out == nil {
			out = append(out, '[')
		} else {
			out = append(out, ',')
		}
		out = c.append(out)
	}
	olds, nexts := conditionsIn(old), conditionsIn(next)
	for i := range next {
		c := &next[i]
		before := olds.find(string(c.Type))
		switch {
		case nexts.index(string(c.Type)) < i:
			continue // of a type that is there twice the first one counts
		case before == nil:
			before = &corev1.PodCondition{}
		case equalCondition(before, c):
			continue
		}
		var p patchWriter
		p.set("type", c.Type)
		p.condition(before, c)
		add(&p)
	}
	for i := range old {
		if nexts.find(string(old[i].Type)) == nil {
			add(&patchWriter{fields: []member{{"$patch", "delete"}, {"type", old[i].Type}}})
		}
	}
	if out != nil {
		w.set("conditions", json.RawMessage(append(out, ']')))
	}
}

func (w *patchWriter) condition(old, next *corev1.PodCondition) {
	if next.ObservedGeneration != old.ObservedGeneration {
		w.set("observedGeneration", next.ObservedGeneration)
	}
	w.str("status", string(old.Status), string(next.Status))
	if !next.LastProbeTime.Equal(&old.LastProbeTime) {
		w.set("lastProbeTime", next.LastProbeTime)
	}
	if !next.LastTransitionTime.Equal(&old.LastTransitionTime) {
		w.set("lastTransitionTime", next.LastTransitionTime)
	}
	w.str("reason", old.Reason, next.Reason)
	w.str("message", old.Message, next.Message)
}
