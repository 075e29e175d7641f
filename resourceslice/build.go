// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"fmt"
	"maps"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// build makes the slice of a page.
func (j *job) build(p *plan, page *page) (*resourcev1.ResourceSlice, error) {
	slice := &resourcev1.ResourceSlice{ObjectMeta: j.metadata(page), Spec: j.want.spec(page.kind())}
	slice.Spec.Pool.Generation = p.generation
	slice.Spec.Pool.ResourceSliceCount = int64(len(p.pages))
	items := j.inOrder(page)
	var is *resourcev1.ResourceSlice // what the page is now
	if page.rec != nil && slices.ContainsFunc(items, func(it item) bool { return it.encoded == "" }) {
		ctx, cancel := context.WithTimeout(j.c.outlives, j.c.cfg.CallTimeout)
		defer cancel()
		var err error
		if is, err = j.s.version.get(ctx, page.name); err != nil {
			return nil, err
		}
	}
	for i := range items {
		var err error
		if page.counters {
			err = addSet(slice, is, &items[i])
		} else {
			err = j.addDevice(slice, is, &items[i])
		}
		if err != nil {
			return nil, err
		}
	}
	return slice, nil
}

// inOrder returns the items of a page in the order of its slice.
func (j *job) inOrder(page *page) []item {
	if j.want.ordered {
		return page.items
	}
	items := slices.Clone(page.items)
	slices.SortFunc(items, byName)
	return items
}

// metadata returns what the page's metadata has to be: what it is, with our
// labels and our owner. The resource version in it makes an update fail when
// somebody else was faster.
func (j *job) metadata(page *page) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: page.name}
	if page.rec != nil {
		page.rec.DeepCopyInto(&m)
	}
	if len(j.c.cfg.Labels) > 0 {
		m.Labels = maps.Clone(m.Labels)
		if m.Labels == nil {
			m.Labels = make(map[string]string)
		}
		maps.Copy(m.Labels, j.c.cfg.Labels)
	}
	if j.owner == nil {
		return m
	}
	// An owner of that name with another UID is the same one in an earlier
	// life, and the reason for which the garbage collector would delete the
	// slice.
	m.OwnerReferences = slices.DeleteFunc(m.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == j.owner.Kind && o.Name == j.owner.Name
	})
	m.OwnerReferences = append(m.OwnerReferences, *j.owner)
	return m
}

func (j *job) addDevice(slice, is *resourcev1.ResourceSlice, it *item) error {
	if it.encoded == "" {
		if is != nil {
			for i := range is.Spec.Devices {
				if is.Spec.Devices[i].Name == it.name {
					slice.Spec.Devices = append(slice.Spec.Devices, is.Spec.Devices[i])
					return nil
				}
			}
		}
		return fmt.Errorf("resourceslice: device %s is not on slice %s any longer", it.name, slice.Name)
	}
	var device resourcev1.Device
	if err := device.Unmarshal([]byte(it.encoded)); err != nil {
		return fmt.Errorf("resourceslice: decode device %s: %w", it.name, err)
	}
	for i, t := range it.timesOfTaints() {
		added := t.added
		if added.IsZero() {
			added = j.timeOf(t)
		}
		if !added.IsZero() {
			device.Taints[i].TimeAdded = &added
		}
	}
	slice.Spec.Devices = append(slice.Spec.Devices, device)
	return nil
}

// timeOf returns the time that the API server has for a taint, on whatever
// page its device is now.
func (j *job) timeOf(t taintTime) metav1.Time {
	for _, rec := range j.live {
		if added, ok := rec.timeOf(t); ok {
			return added
		}
	}
	return metav1.Time{}
}

func addSet(slice, is *resourcev1.ResourceSlice, it *item) error {
	if it.encoded == "" {
		if is != nil {
			for i := range is.Spec.SharedCounters {
				if is.Spec.SharedCounters[i].Name == it.name {
					slice.Spec.SharedCounters = append(slice.Spec.SharedCounters, is.Spec.SharedCounters[i])
					return nil
				}
			}
		}
		return fmt.Errorf("resourceslice: counter set %s is not on slice %s any longer", it.name, slice.Name)
	}
	var set resourcev1.CounterSet
	if err := set.Unmarshal([]byte(it.encoded)); err != nil {
		return fmt.Errorf("resourceslice: decode counter set %s: %w", it.name, err)
	}
	slice.Spec.SharedCounters = append(slice.Spec.SharedCounters, set)
	return nil
}

// eachSlice goes through a list of slices of any version.
func eachSlice(list runtime.Object, visit func(name, uid string)) error {
	return meta.EachListItem(list, func(obj runtime.Object) error {
		m, err := meta.Accessor(obj)
		if err == nil {
			visit(m.GetName(), string(m.GetUID()))
		}
		return err
	})
}
