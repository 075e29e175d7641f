// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
)

// compare finds out what the API server made of a slice: fields whose feature
// is off, or that it doesn't know, are dropped without a word.
func (j *job) compare(page *page, sent, got *resourcev1.ResourceSlice, rec *record) {
	differs := make(map[string]hash) // what was sent, by name; "" is the head
	accept := func(name string, sent, got hash) {
		if sent == got {
			return
		}
		differs[name] = sent
		j.c.mu.Lock()
		j.w.accepted[sent] = got
		j.c.mu.Unlock()
	}
	accept("", j.want.heads[page.kind()], rec.head)
	there := rec.devices
	if page.counters {
		there = rec.sets
	}
	index := indexOf(there)
	for i := range page.items {
		it := &page.items[i]
		if at, ok := index[it.name]; ok {
			accept(it.name, it.hash, there[at].hash)
		} else {
			accept(it.name, it.hash, hash{})
		}
	}
	if len(differs) == 0 {
		return
	}
	fields := missingFields(&sent.Spec, &got.Spec)
	if len(fields) == 0 {
		return // something was added; that is the API server's affair
	}
	err := &DroppedFieldsError{Pool: j.p.id, Slice: got.Name, Fields: fields}
	j.c.mu.Lock()
	for name, content := range differs {
		if missing := missingFields(only(&sent.Spec, name), only(&got.Spec, name)); len(missing) > 0 {
			j.w.faults[content] = &DroppedFieldsError{Pool: j.p.id, Slice: got.Name, Fields: missing}
		}
	}
	j.w.sumUp()
	j.c.mu.Unlock()
	j.report(err, "The API server dropped fields of a ResourceSlice")
	j.c.release.need()
	j.s.poke()
}

// only returns the part of a spec that is about the device or the counter set of
// that name, and for "" what is about none.
func only(spec *resourcev1.ResourceSliceSpec, name string) *resourcev1.ResourceSliceSpec {
	part := *spec
	part.Devices, part.SharedCounters = nil, nil
	for i := range spec.Devices {
		if spec.Devices[i].Name == name {
			part.Devices = spec.Devices[i : i+1]
		}
	}
	for i := range spec.SharedCounters {
		if spec.SharedCounters[i].Name == name {
			part.SharedCounters = spec.SharedCounters[i : i+1]
		}
	}
	if name != "" {
		part = resourcev1.ResourceSliceSpec{Devices: part.Devices, SharedCounters: part.SharedCounters}
	}
	return &part
}

// missingFields returns the paths, without indexes, that are in sent and not
// or not the same in got.
func missingFields(sent, got *resourcev1.ResourceSliceSpec) []string {
	var fields []string
	walk("", plain(sent), plain(got), false, func(path string) {
		if path = strings.TrimPrefix(path, "."); !slices.Contains(fields, path) {
			fields = append(fields, path)
		}
	})
	slices.Sort(fields)
	return fields
}

// plain returns the JSON form of a spec.
func plain(spec *resourcev1.ResourceSliceSpec) (v any) {
	if b, err := json.Marshal(spec); err == nil {
		_ = json.Unmarshal(b, &v) // it was made a moment ago
	}
	return v
}

// keyedByName are the fields whose keys are names, not fields.
var keyedByName = []string{"attributes", "capacity", "nodeAllocatableResources", "counters"}

// walk compares two values; names says that the keys are names.
func walk(path string, sent, got any, names bool, missing func(string)) {
	switch sent := sent.(type) {
	case map[string]any:
		got, ok := got.(map[string]any)
		if !ok {
			missing(path)
			return
		}
		for key, value := range sent {
			if key == "timeAdded" {
				continue
			}
			sub := path + "." + key
			if names {
				sub = path
			}
			if other, ok := got[key]; ok {
				walk(sub, value, other, !names && slices.Contains(keyedByName, key), missing)
			} else {
				missing(sub)
			}
		}
	case []any:
		got, ok := got.([]any)
		if !ok || len(got) != len(sent) {
			missing(path)
			return
		}
		for i := range sent {
			walk(path, sent[i], got[i], false, missing)
		}
	default:
		if sent != got {
			missing(path)
		}
	}
}

// refuse takes from what is wanted what the API server has refused: those
// devices or counter sets that it names or, where it names none, all that the
// page has and the slice has not. Where nothing is left to take, the whole
// pool waits.
func (j *job) refuse(page *page, err error) {
	j.c.release.need()
	j.s.poke()
	invalid := &InvalidError{Pool: j.p.id, Slice: page.name, Err: err}
	items := j.inOrder(page)
	named := namedItems(err, page.counters)
	var bad []item
	for i, it := range items {
		if it.encoded != "" && slices.Contains(named, i) {
			bad = append(bad, it)
		}
	}
	vague := len(bad) == 0
	if vague {
		there := page.live()
		for _, it := range items {
			if at, ok := there[it.name]; it.encoded != "" && (!ok || at != it.hash) {
				bad = append(bad, it)
			}
		}
	}
	j.c.mu.Lock()
	j.w.refusedAt, j.w.vague = time.Now(), j.w.vague || vague
	if len(bad) == 0 {
		j.w.blocked = j.want
	} else {
		j.w.invalid = invalid
	}
	for _, it := range bad {
		j.w.refused[it.hash] = true
		j.w.faults[it.hash] = invalid
	}
	j.c.mu.Unlock()
	if len(bad) == 0 {
		j.permanent(invalid)
		return
	}
	j.logger.V(2).Info("The API server refused a ResourceSlice", "slice", klog.KRef("", page.name), "leftOut", len(bad))
	j.report(invalid, "The pool can't be published as it is")
}

// live returns the hashes of what the page has on the API server.
func (p *page) live() map[string]hash {
	there := make(map[string]hash)
	if p.rec == nil {
		return there
	}
	for _, li := range slices.Concat(p.rec.devices, p.rec.sets) {
		there[li.name] = li.hash
	}
	return there
}

// namedItems returns the indexes of the devices or counter sets that an answer
// names.
func namedItems(err error, counters bool) (indexes []int) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	prefix := "spec.devices["
	if counters {
		prefix = "spec.sharedCounters["
	}
	for _, cause := range status.Status().Details.Causes {
		rest, ok := strings.CutPrefix(cause.Field, prefix)
		number, _, closed := strings.Cut(rest, "]")
		if i, err := strconv.Atoi(number); ok && closed && err == nil {
			indexes = append(indexes, i)
		}
	}
	return indexes
}
