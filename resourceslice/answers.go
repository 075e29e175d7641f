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
)

// answersOf returns what the API server made of a slice, by the hash of the content as
// sent: nil if it stored that. The API server silently drops fields that it doesn't know or whose
// feature is off. If it dropped a restriction, and unless unrestricted content may be
// published, the item must be withheld.
func (f *hasher) answersOf(req *request, got *resourcev1.ResourceSlice, rec *record, unrestricted bool) map[hash]*answer {
	found := make(map[hash]*answer)
	fieldsOf := sync.OnceValue(func() map[string][]string { return missingFields(&req.slice.Spec, &got.Spec) })
	add := func(name string, sent, live hash, unsafe bool) {
		if found[sent] = nil; sent == live {
			return
		}
		a := &answer{stored: live, at: time.Now(), head: name == ""}
		if fields := fieldsOf()[name]; len(fields) > 0 {
			err := &DroppedFieldsError{Pool: PoolID{req.slice.Spec.Driver, req.slice.Spec.Pool.Name}, Slice: got.Name, Fields: fields}
			a.standing, a.err = partial, err
			if unsafe && !unrestricted {
				a.standing, err.Withheld = withheld, []string{name}
			}
		}
		found[sent] = a
	}
	add("", f.head(&req.slice.Spec), rec.head, false)
	for i := range req.page.items {
		it := &req.page.items[i]
		is := cmp.Or(find(rec.items, it.name), noItem)
		add(it.name, it.hash, is.hash, is.isLooser(it))
	}
	return found
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
