// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	core "github.com/kubewright/kubewright/resourceslice/internal/pool"
)

// compare records the differences between a slice as sent and as stored. The API
// server silently drops fields that it doesn't know or whose feature is off. The
// verdict is refused if a device must be withheld for that.
func (j *job) compare(req *request, got *resourcev1.ResourceSlice, rec *record) verdict {
	found := make(map[hash]*answer)
	fieldsOf := sync.OnceValue(func() map[string][]string { return missingFields(&req.slice.Spec, &got.Spec) })
	add := func(name string, sent, live hash, unsafe bool) {
		a := &answer{stored: live, at: time.Now(), head: name == ""}
		if fields := fieldsOf()[name]; len(fields) > 0 {
			err := &DroppedFieldsError{Pool: j.p.id, Slice: got.Name, Fields: fields}
			a.standing, a.err = partial, err
			if unsafe && !j.c.cfg.PublishUnrestricted {
				a.standing, err.Withheld = withheld, []string{name}
			}
		}
		found[sent] = a
	}
	if head := j.c.hasher.head(&req.slice.Spec); head != rec.head {
		add("", head, rec.head, false)
	}
	for i := range req.page.items {
		it := &req.page.items[i]
		is := cmp.Or(find(rec.items, it.name), noItem)
		if is.hash != it.hash {
			add(it.name, it.hash, is.hash, is.isLooser(it))
		}
	}
	v := stored
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	for i := range req.page.items {
		delete(j.w.answers, req.page.items[i].hash) // a doubted one
	}
	for h, a := range found {
		if j.w.answers[h] = a; a.omits() {
			j.s.trusted.Store(0)
			v = refused
		}
	}
	return v
}

// keyedByName are the fields whose keys are names, not fields.
var keyedByName = []string{"attributes", "capacity", "nodeAllocatableResources", "counters"}

// missingFields returns the paths, without indexes, of all values that sent has and
// got has not, by the name of the device or the counter set. An empty name stands
// for the rest of the slice.
func missingFields(sent, got *resourcev1.ResourceSliceSpec) map[string][]string {
	// A spec can always be converted.
	wanted, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(sent)
	stored, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(got)
	fields := make(map[string][]string)
	for _, path := range []string{"devices", "sharedCounters"} {
		found := named(stored[path])
		for name, value := range named(wanted[path]) {
			fields[name] = missing(path, value, found[name], false)
		}
		delete(wanted, path)
	}
	fields[""] = missing("", wanted, stored, false)
	return fields
}

// named returns the elements of a list by name.
func named(list any) map[string]any {
	elements, _ := list.([]any)
	names := make(map[string]any, len(elements))
	for _, one := range elements {
		names[one.(map[string]any)["name"].(string)] = one
	}
	return names
}

// missing returns the paths of all values in sent that got has not. names reports
// that the keys of sent are names.
func missing(path string, sent, got any, names bool) (paths []string) {
	switch sent := sent.(type) {
	case map[string]any:
		if got, ok := got.(map[string]any); ok {
			for key, value := range sent {
				sub := path
				if !names {
					sub = strings.TrimPrefix(path+"."+key, ".")
				}
				paths = append(paths, missing(sub, value, got[key], !names && slices.Contains(keyedByName, key))...)
			}
			return paths
		}
	case []any:
		got, _ := got.([]any)
		lost := slices.ContainsFunc(sent, func(one any) bool {
			return !slices.ContainsFunc(got, func(other any) bool { return len(missing(path, one, other, false)) == 0 })
		})
		switch {
		case !lost: // a webhook may add elements, or change their order
			return nil
		case len(got) == len(sent):
			for i := range sent {
				paths = append(paths, missing(path, sent[i], got[i], false)...)
			}
			return paths
		}
	}
	if !reflect.DeepEqual(sent, got) {
		paths = append(paths, path)
	}
	return paths
}

// refuse records which items the API server refused: those that it names or, if
// it names none, all that are not live as wanted. Their live versions are
// published instead. If nothing can be left out the pool is stuck.
func (j *job) refuse(page *page, err error) result {
	invalid := &InvalidError{Pool: j.p.id, Slice: page.name, Err: err}
	bad := namedItems(err, page)
	as := rejected
	if len(bad) == 0 {
		as = suspect
		for i := range page.items {
			if it := &page.items[i]; j.holder(it) == nil || find(j.holder(it).items, it.name).hash != it.hash {
				bad = append(bad, it)
			}
		}
	}
	if len(bad) == 0 {
		j.permanent(invalid)
		return waitFor(retryFaults, core.Stuck)
	}
	instead, err := j.liveItems(bad)
	if err != nil {
		return failureOf(err)
	}
	j.logger.V(2).Info("The API server refused a ResourceSlice", "slice", klog.KRef("", page.name), "leftOut", len(bad))
	j.report(invalid.Error(), invalid, "The pool can't be published as it is")
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	for _, it := range bad {
		a := &answer{standing: as, instead: instead[it.name], err: invalid, at: time.Now()}
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
			is, _ := j.c.hasher.device(&slice.Spec.Devices[i], nil)
			live[is.name] = &is
		}
		for i := range slice.Spec.SharedCounters {
			is := j.c.hasher.counterSet(&slice.Spec.SharedCounters[i])
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
	written := page.written()
	format := "spec.devices[%d]"
	if page.isSets() {
		format = "spec.sharedCounters[%d]"
	}
	for _, cause := range status.Status().Details.Causes {
		var i int
		if _, err := fmt.Sscanf(cause.Field, format, &i); err == nil && i >= 0 && i < len(written) {
			items = append(items, &written[i])
		}
	}
	return items
}
