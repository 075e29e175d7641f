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

// compare records the differences between a slice as sent and as stored. The API
// server silently drops fields that it doesn't know or whose feature is off. The
// verdict is refused if a device must be withheld for that.
func (j *job) compare(req *request, got *resourcev1.ResourceSlice, rec *record) verdict {
	page, spec := req.page, &req.slice.Spec
	e := encoder{hasher: j.c.hasher}
	found := make(map[hash]*answer)
	if head := e.head(spec); head != rec.head {
		found[head] = j.newAnswer("", rec.head, false, req, got)
	}
	live := rec.contents(page.counters)
	index := indexOf(live)
	for i := range page.items {
		it := &page.items[i]
		var is content
		if at, ok := index[it.name]; ok {
			is = live[at]
		}
		if is.hash != it.hash {
			found[it.hash] = j.newAnswer(it.name, is.hash, page.counters && is.hash == 0 || it.losesRestriction(is), req, got)
		}
	}
	v, all := stored, &DroppedFieldsError{Pool: j.p.id, Slice: got.Name}
	j.c.mu.Lock()
	for h, a := range found {
		if j.w.answers[h] = a; a.refused {
			v = refused
		}
		if err, ok := errors.AsType[*DroppedFieldsError](a.err); ok {
			all.Fields, all.Withheld = append(all.Fields, err.Fields...), append(all.Withheld, err.Withheld...)
		}
	}
	j.c.mu.Unlock()
	if len(all.Fields) > 0 {
		all.sort()
		j.report(all, "The API server dropped fields of a ResourceSlice")
	}
	return v
}

// losesRestriction reports whether the stored device lacks counters or a
// restrictive taint of c.
func (c content) losesRestriction(is content) bool {
	return len(is.counterSets()) < len(c.counterSets()) || slices.ContainsFunc(c.taintList(), func(t taint) bool {
		return t.restrictive() && !slices.ContainsFunc(is.taintList(), t.same)
	})
}

// newAnswer returns the answer about a device or a counter set, or about the
// head of the slice if name is empty.
func (j *job) newAnswer(name string, live hash, unsafe bool, req *request, got *resourcev1.ResourceSlice) *answer {
	a := &answer{stored: live, at: time.Now()}
	if fields := missingFields(only(&req.slice.Spec, name), only(&got.Spec, name)); len(fields) > 0 {
		err := &DroppedFieldsError{Pool: j.p.id, Slice: got.Name, Fields: fields}
		if unsafe && !j.c.cfg.PublishUnrestricted {
			a.refused, err.Withheld = true, []string{name}
		}
		a.err = err
	}
	return a
}

// only returns the part of a spec about the device or the counter set of that
// name; if name is empty, the part about neither.
func only(spec *resourcev1.ResourceSliceSpec, name string) *resourcev1.ResourceSliceSpec {
	part := *spec
	if name != "" {
		part = resourcev1.ResourceSliceSpec{}
	}
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
	return &part
}

// missingFields returns the paths, without indexes, that are in sent and are
// missing or different in got.
func missingFields(sent, got *resourcev1.ResourceSliceSpec) []string {
	var fields []string
	walk("", toJSON(sent), toJSON(got), false, func(path string) { fields = append(fields, strings.TrimPrefix(path, ".")) })
	slices.Sort(fields)
	return slices.Compact(fields)
}

func toJSON(spec *resourcev1.ResourceSliceSpec) (v any) {
	if b, err := json.Marshal(spec); err == nil {
		_ = json.Unmarshal(b, &v) // it was just made
	}
	return v
}

// keyedByName are the fields whose keys are names, not fields.
var keyedByName = []string{"attributes", "capacity", "nodeAllocatableResources", "counters"}

// walk compares two JSON values. names reports that the keys are names.
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

// refuse records which items the API server refused: those that it names or, if
// it names none, all that are not live as wanted. Their live versions are
// published instead. If nothing can be left out the pool is stuck.
func (j *job) refuse(page *page, err error) (verdict, error) {
	invalid := &InvalidError{Pool: j.p.id, Slice: page.name, Err: err}
	var bad []*item
	for _, i := range namedItems(err, page.counters) {
		if i < len(page.items) {
			bad = append(bad, &page.items[i])
		}
	}
	culpritUnknown := len(bad) == 0
	if culpritUnknown {
		for i := range page.items {
			if rec, is := j.find(page.items[i].name, page.counters); rec == nil || is.hash != page.items[i].hash {
				bad = append(bad, &page.items[i])
			}
		}
	}
	if len(bad) == 0 {
		j.permanent(invalid)
		return stuck, invalid
	}
	instead, err := j.liveItems(bad, page.counters)
	if err != nil {
		return failure, err
	}
	j.logger.V(2).Info("The API server refused a ResourceSlice", "slice", klog.KRef("", page.name), "leftOut", len(bad))
	j.report(invalid, "The pool can't be published as it is")
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	for _, it := range bad {
		a := &answer{refused: true, instead: instead[it.name], culpritUnknown: culpritUnknown, err: invalid, at: time.Now()}
		if a.instead != nil && a.instead.hash == it.hash {
			a.instead = nil // it is refused there too
		}
		j.w.answers[it.hash] = a
	}
	return refused, invalid
}

// find returns the newest slice that has a device or a counter set, or nil.
func (j *job) find(name string, counters bool) (*record, content) {
	for _, rec := range j.live {
		all := rec.contents(counters)
		if i := slices.IndexFunc(all, func(is content) bool { return is.name == name }); i >= 0 {
			return rec, all[i]
		}
	}
	return nil, content{}
}

// liveItems gets the live versions of items, by name.
func (j *job) liveItems(of []*item, counters bool) (map[string]*item, error) {
	live := make(map[string]*item)
	e := encoder{hasher: j.c.hasher}
	got := make(map[string]bool)
	for _, it := range of {
		rec, _ := j.find(it.name, counters)
		if rec == nil || got[rec.Name] {
			continue
		}
		got[rec.Name] = true
		slice, err := j.get(rec.Name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for i := range slice.Spec.Devices {
			is, _ := e.device(&slice.Spec.Devices[i], nil)
			live[is.name] = &is
		}
		for i := range slice.Spec.SharedCounters {
			is := e.counterSet(&slice.Spec.SharedCounters[i])
			live[is.name] = &is
		}
	}
	return live, nil
}

// namedItems returns the indexes of the devices or counter sets that an error
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
		if i, err := strconv.Atoi(number); ok && closed && err == nil && i >= 0 && !slices.Contains(indexes, i) {
			indexes = append(indexes, i)
		}
	}
	return indexes
}
