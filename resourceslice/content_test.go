// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fill sets a field to something that isn't its zero value, and reports the
// paths of all fields below it through visit, each with a function that
// changes that field alone.
func fill(v reflect.Value, path string, visit func(path string, change func())) {
	switch v.Interface().(type) {
	case resource.Quantity:
		v.Set(reflect.ValueOf(resource.MustParse("3")))
		visit(path, func() { v.Set(reflect.ValueOf(resource.MustParse("4"))) })
		return
	case metav1.Time:
		v.Set(reflect.ValueOf(metav1.Unix(1_000_000_000, 0)))
		visit(path, func() { v.Set(reflect.ValueOf(metav1.Unix(1_100_000_000, 0))) })
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), path, visit)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), path+"."+v.Type().Field(i).Name, visit)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), path, visit)
		visit(path+" longer", func() { v.Set(reflect.Append(v, v.Index(0))) })
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		value := reflect.New(v.Type().Elem()).Elem()
		key := reflect.ValueOf("key").Convert(v.Type().Key())
		fill(value, path, func(path string, change func()) {
			visit(path, func() {
				change()
				v.SetMapIndex(key, value)
			})
		})
		v.SetMapIndex(key, value)
		visit(path+" key", func() {
			v.SetMapIndex(key, reflect.Value{})
			v.SetMapIndex(reflect.ValueOf("other").Convert(v.Type().Key()), value)
		})
	case reflect.String:
		v.SetString("a")
		visit(path, func() { v.SetString("b") })
	case reflect.Bool:
		v.SetBool(true)
		visit(path, func() { v.SetBool(false) })
	case reflect.Int64:
		v.SetInt(1)
		visit(path, func() { v.SetInt(2) })
	default:
		panic(path + " has kind " + v.Kind().String())
	}
}

// TestEveryFieldChangesTheHash guards against fields that a later version of
// the API adds: a change of one must be seen.
func TestEveryFieldChangesTheHash(t *testing.T) {
	e := newHasher()
	var changes []func()
	var paths []string
	fill(reflect.ValueOf(&resourcev1.ResourceSliceSpec{}).Elem(), "", func(path string, change func()) { paths = append(paths, path) })
	for i, path := range paths {
		var spec resourcev1.ResourceSliceSpec
		changes = nil
		fill(reflect.ValueOf(&spec).Elem(), "", func(_ string, change func()) { changes = append(changes, change) })
		content := func() string {
			s := &resourcev1.ResourceSlice{Spec: spec}
			rec := e.record(s)
			text := fmt.Sprint(rec.id, rec.generation, rec.count, rec.nodeName, rec.head)
			var items []string // the order is by name, which is in the hash too
			for _, is := range rec.items {
				item := fmt.Sprint(is.hash)
				for _, t := range is.taints {
					item += fmt.Sprint(" ", t.added) // not in the hash
				}
				items = append(items, item)
			}
			slices.Sort(items)
			return text + fmt.Sprint(items)
		}
		before := content()
		if content() != before {
			t.Fatal("the content of the same slice is another one")
		}
		changes[i]()
		if content() == before {
			t.Errorf("a change of %s is not seen", path)
		}
	}
	if len(paths) < 60 {
		t.Errorf("only %d fields", len(paths))
	}
}

// TestSetTwiceTheSameName: two of one name are not the pool that had another
// in the place of one of them.
func TestSetTwiceTheSameName(t *testing.T) {
	e := newHasher()
	p := Pool{Devices: someDevices(0, 3)}
	d, _, _ := e.newDesired(testID, &p, "n1", &desired{})
	for _, devices := range [][]resourcev1.Device{
		{p.Devices[0], p.Devices[0], p.Devices[2]}, {p.Devices[2], p.Devices[2], p.Devices[2]}, {p.Devices[1], p.Devices[0], p.Devices[0]},
	} {
		if _, _, same := e.newDesired(testID, &Pool{Devices: devices}, "n1", d); same {
			t.Errorf("%v passes for the same", devices)
		}
	}
	if _, _, same := e.newDesired(testID, &Pool{Devices: []resourcev1.Device{p.Devices[2], p.Devices[0], p.Devices[1]}}, "n1", d); !same {
		t.Error("another order doesn't pass for the same")
	}
}

func TestEqualContentHasOneHash(t *testing.T) {
	e := newHasher()
	a := resourcev1.Device{Name: "a", Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"m": {Value: resource.MustParse("1024Mi")}}}
	b := resourcev1.Device{
		Name: "a", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{}, Taints: []resourcev1.DeviceTaint{},
		Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"m": {Value: resource.MustParse("1Gi")}},
	}
	first, _ := e.device(&a, nil)
	second, reused := e.device(&b, &first)
	if first.hash != second.hash || !reused {
		t.Error("nil and empty, or 1024Mi and 1Gi, make a difference")
	}
	a.Taints = []resourcev1.DeviceTaint{{Key: "k", Effect: "NoSchedule", TimeAdded: &metav1.Time{Time: time.Unix(1, 0)}}}
	b = *a.DeepCopy()
	b.Taints[0].TimeAdded = nil
	first, _ = e.device(&a, nil)
	second, _ = e.device(&b, nil)
	if first.hash != second.hash {
		t.Error("the time of a taint changes the hash")
	}
	if a.Taints[0].TimeAdded == nil {
		t.Error("the embedder's device was changed")
	}
}

// BenchmarkSetUnchanged measures a Set that changes nothing.
func BenchmarkSetUnchanged(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := Pool{Devices: typical(n)}
			e := newHasher()
			d, _, _ := e.newDesired(testID, &p, "n1", &desired{})
			b.ReportAllocs()
			for b.Loop() {
				if _, _, same := e.newDesired(testID, &p, "n1", d); !same {
					b.Fatal("not the same")
				}
			}
		})
	}
}

// BenchmarkPlan measures a plan after one device of many has changed.
func BenchmarkPlan(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m := newModel(b)
			p := Pool{Devices: typical(n)}
			m.publish(m.desired(p))
			p.Devices[n/2].AllowMultipleAllocations = new(true)
			d, o := m.desired(p), m.observed()
			b.ReportAllocs()
			for b.Loop() {
				if writesOf(newPlan(d, o)) != 1 {
					b.Fatal("not one write")
				}
			}
		})
	}
}

// BenchmarkManyDevices measures the steps that were quadratic in an earlier
// version: to find the times of 10,000 taints during a switch to a new generation,
// and to assign 99,000 plain devices to slices that have room.
func BenchmarkManyDevices(b *testing.B) {
	b.Run("switch of 10000 tainted", func(b *testing.B) {
		m := newModel(b)
		m.publish(m.desired(Pool{Devices: someTainted(0, 10_000)}))
		at := metav1.Now()
		for _, s := range m.slices {
			for i := range s.Spec.Devices {
				s.Spec.Devices[i].Taints[0].TimeAdded = &at
			}
		}
		d, o := m.desired(Pool{Devices: someTainted(0, 10_100)}), m.observed()
		p := newPlan(d, o)
		b.ReportAllocs()
		for b.Loop() {
			j := &job{c: &Controller{hasher: m.e}, want: d, live: o.live}
			j.indexTimes()
			for _, page := range slices.Concat(p.phases...) {
				if _, err := j.build(p, page); err != nil {
					b.Fatal(err)
				}
			}
		}
		if !p.window() {
			b.Error("the number of slices did not change")
		}
	})
	b.Run("plan of 99000 plain", func(b *testing.B) {
		m := newModel(b)
		m.publish(m.desired(Pool{Devices: someDevices(0, 50_000)}))
		d, o := m.desired(Pool{Devices: someDevices(0, 99_000)}), m.observed()
		b.ReportAllocs()
		for b.Loop() {
			if p := newPlan(d, o); p.outcome != inPlace || p.devices() != 99_000 {
				b.Fatal("the devices don't fit")
			}
		}
	})
}

// publish stores a pool in an empty model, and checks nothing.
func (m *model) publish(d *desired) {
	p := newPlan(d, m.observed())
	j := &job{c: &Controller{hasher: m.e}, want: d}
	j.indexTimes()
	for _, phase := range p.phases {
		for _, page := range phase {
			s, err := j.build(p, page)
			if err != nil {
				m.t.Fatal(err)
			}
			m.store(s, page)
		}
	}
}

// typical makes devices of seven attributes and a capacity.
func typical(n int) []resourcev1.Device {
	all := make([]resourcev1.Device, n)
	for i := range all {
		all[i] = resourcev1.Device{
			Name: fmt.Sprintf("gpu-%06d", i),
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
				"index":            {IntValue: new(int64(i))},
				"uuid":             {StringValue: new(fmt.Sprintf("GPU-%032x", i))},
				"productName":      {StringValue: new("Example Accelerator 9000")},
				"brand":            {StringValue: new("Example")},
				"architecture":     {StringValue: new("Whatever")},
				"driverVersion":    {VersionValue: new("550.54.15")},
				"example.com/numa": {IntValue: new(int64(i % 2))},
			},
			Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}},
		}
	}
	return all
}

// TestNamesTakeNoMemory: a name is a part of the encoding.
func TestNamesTakeNoMemory(t *testing.T) {
	e := newHasher()
	for _, name := range []string{"a", strings.Repeat("x", 63)} {
		it, _ := e.device(&resourcev1.Device{Name: name, AllNodes: new(true)}, nil)
		if it.name != name || unsafe.StringData(it.name) != unsafe.StringData(it.encoded[2:]) {
			t.Errorf("the name is %q, not within the encoding", it.name)
		}
	}
}

// TestDifferentContentsHaveDifferentHashes: each pair differs in a type, in the value of a
// type, or in a part of a quantity only.
func TestDifferentContentsHaveDifferentHashes(t *testing.T) {
	e := newHasher()
	of := func(a resourcev1.DeviceAttribute) resourcev1.Device {
		return resourcev1.Device{Name: "a", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"x": a}}
	}
	size := func(q string) resourcev1.Device {
		return resourcev1.Device{Name: "a", Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"x": {Value: resource.MustParse(q)}}}
	}
	all := []resourcev1.Device{
		of(resourcev1.DeviceAttribute{StringValue: new("1.0")}), of(resourcev1.DeviceAttribute{VersionValue: new("1.0")}),
		of(resourcev1.DeviceAttribute{StringValue: new("1")}), of(resourcev1.DeviceAttribute{IntValue: new(int64(1))}),
		of(resourcev1.DeviceAttribute{BoolValue: new(true)}), of(resourcev1.DeviceAttribute{StringValues: []string{"1"}}),
		of(resourcev1.DeviceAttribute{VersionValues: []string{"1"}}), of(resourcev1.DeviceAttribute{IntValues: []int64{1}}),
		of(resourcev1.DeviceAttribute{BoolValues: []bool{true}}),
		of(resourcev1.DeviceAttribute{StringValue: new("1.1")}), of(resourcev1.DeviceAttribute{VersionValue: new("1.1")}),
		of(resourcev1.DeviceAttribute{IntValue: new(int64(2))}), of(resourcev1.DeviceAttribute{BoolValue: new(false)}),
		of(resourcev1.DeviceAttribute{StringValues: []string{"2"}}), of(resourcev1.DeviceAttribute{VersionValues: []string{"2"}}),
		of(resourcev1.DeviceAttribute{IntValues: []int64{2}}), of(resourcev1.DeviceAttribute{BoolValues: []bool{false}}),
		size("1"), size("1100m"), size("10m"), size("1m"), size("1k"), size("1Ki"),
	}
	names := map[hash]int{}
	for i := range all {
		h := e.deviceHash(&all[i])
		if other, ok := names[h]; ok {
			t.Errorf("%v and %v have one hash", all[other], all[i])
		}
		names[h] = i
	}
	for _, same := range [][2]string{{"1", "1000m"}, {"1k", "1000"}, {"1Gi", "1024Mi"}, {"1e3", "1k"}, {"1100m", "1.1"}} {
		a, b := size(same[0]), size(same[1])
		if e.deviceHash(&a) != e.deviceHash(&b) {
			t.Errorf("%s and %s have different hashes", same[0], same[1])
		}
		milli := size("0")
		milli.Capacity["x"] = resourcev1.DeviceCapacity{Value: *resource.NewMilliQuantity(1000, resource.DecimalSI)}
		if one := size("1"); e.deviceHash(&milli) != e.deviceHash(&one) {
			t.Error("1000 thousandths are not 1")
		}
	}
}
