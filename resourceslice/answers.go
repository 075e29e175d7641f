// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"cmp"
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
	e := encoder{hasher: j.c.hasher}
	found := make(map[hash]*answer)
	add := func(name string, sent, live hash, unsafe bool) {
		a := &answer{stored: live, at: time.Now()}
		if fields := missingFields(&req.slice.Spec, &got.Spec, name); len(fields) > 0 {
			err := &DroppedFieldsError{Pool: j.p.id, Slice: got.Name, Fields: fields}
			if unsafe && !j.c.cfg.PublishUnrestricted {
				a.refused, err.Withheld = true, []string{name}
			}
			a.err = err
		}
		found[sent] = a
	}
	if head := e.head(&req.slice.Spec); head != rec.head {
		add("", head, rec.head, false)
	}
	for i := range req.page.items {
		it := &req.page.items[i]
		is := cmp.Or(find(rec.items, it.name), noItem)
		if is.hash != it.hash {
			add(it.name, it.hash, is.hash, it.isSet && is == noItem || len(is.consumes) < len(it.consumes) || it.restricts(is))
		}
	}
	v := stored
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	for h, a := range found {
		if j.w.answers[h] = a; a.refused {
			v = refused
		}
	}
	return v
}

// part returns the device or the counter set of that name and its path; if name
// is empty, the fields of a spec that are about neither.
func part(spec *resourcev1.ResourceSliceSpec, name string) (path string, value any) {
	for i := range spec.Devices {
		if spec.Devices[i].Name == name {
			return "devices", &spec.Devices[i]
		}
	}
	for i := range spec.SharedCounters {
		if spec.SharedCounters[i].Name == name {
			return "sharedCounters", &spec.SharedCounters[i]
		}
	}
	if name != "" {
		return "", nil
	}
	head := *spec
	head.Devices, head.SharedCounters = nil, nil
	return "", &head
}

// missingFields returns the paths, without indexes, that are in the part of sent
// with a name and are missing or different in got.
func missingFields(sent, got *resourcev1.ResourceSliceSpec, name string) []string {
	var fields []string
	path, value := part(sent, name)
	_, other := part(got, name)
	walk(path, toJSON(value), toJSON(other), false, func(path string) { fields = append(fields, strings.TrimPrefix(path, ".")) })
	slices.Sort(fields)
	return slices.Compact(fields)
}

func toJSON(value any) (v any) {
	if b, err := json.Marshal(value); err == nil {
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
func (j *job) refuse(page *page, err error) result {
	invalid := &InvalidError{Pool: j.p.id, Slice: page.name, Err: err}
	bad := namedItems(err, page)
	culpritUnknown := len(bad) == 0
	if culpritUnknown {
		for i := range page.items {
			if it := &page.items[i]; j.holder(it) == nil || find(j.holder(it).items, it.name).hash != it.hash {
				bad = append(bad, it)
			}
		}
	}
	if len(bad) == 0 {
		j.permanent(invalid)
		return waitFor(retryFaults, faulty)
	}
	instead, err := j.liveItems(bad)
	if err != nil {
		return failureOf(err)
	}
	j.logger.V(2).Info("The API server refused a ResourceSlice", "slice", klog.KRef("", page.name), "leftOut", len(bad))
	j.report(invalid, "The pool can't be published as it is")
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	for _, it := range bad {
		a := &answer{refused: true, instead: instead[it.name], culpritUnknown: culpritUnknown, err: invalid, at: time.Now()}
		if a.instead != nil && (a.instead.hash == it.hash || a.instead.isSet != it.isSet) {
			a.instead = nil // it is refused there too
		}
		j.w.answers[it.hash] = a
	}
	return result{verdict: refused}
}

// holder returns the newest slice that has an item of the name and kind, or nil.
func (j *job) holder(it *item) *record {
	i := slices.IndexFunc(j.live, func(rec *record) bool {
		is := find(rec.items, it.name)
		return is != nil && is.isSet == it.isSet
	})
	if i < 0 {
		return nil
	}
	return j.live[i]
}

// liveItems gets the live versions of items, by name.
func (j *job) liveItems(of []*item) (map[string]*item, error) {
	live := make(map[string]*item)
	e := encoder{hasher: j.c.hasher}
	for _, it := range of {
		rec := j.holder(it)
		if rec == nil || live[it.name] != nil {
			continue
		}
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

// namedItems returns the items of a page that an error names.
func namedItems(err error, page *page) (items []*item) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	prefix := "spec.devices["
	if page.isSets() {
		prefix = "spec.sharedCounters["
	}
	for _, cause := range status.Status().Details.Causes {
		rest, ok := strings.CutPrefix(cause.Field, prefix)
		number, _, closed := strings.Cut(rest, "]")
		if i, err := strconv.Atoi(number); ok && closed && err == nil && i >= 0 && i < len(page.items) {
			items = append(items, &page.items[i])
		}
	}
	return items
}
