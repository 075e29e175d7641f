// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// forms returns quantities of each form in memory: an int64 with and without a scale, a
// decimal, and one that remembers its text, in all formats.
func forms() (all []resource.Quantity) {
	for _, text := range []string{"0", "1", "1000", "1k", "1e3", "1024Mi", "1Gi", "1500m", "1.5", "0.5Gi", "1.5Gi", "100n", "1n", "0.1n", "-1", "-1500m", "9223372036854775807", "9223372036854775808", "16Ei", "12E", "100E", "1.000000001", "1000000000000000000000"} {
		parsed := resource.MustParse(text)
		cached := parsed.DeepCopy()
		_ = cached.String()
		all = append(all, parsed, cached)
		for _, format := range []resource.Format{resource.DecimalSI, resource.BinarySI, resource.DecimalExponent} {
			decimal := resource.MustParse(text)
			decimal.ToDec()
			decimal.Format = format
			parsed := resource.MustParse(text)
			other := *resource.NewQuantity(parsed.Value(), format)
			all = append(all, decimal, other, *resource.NewMilliQuantity(other.Value()%1_000_000, format), *resource.NewScaledQuantity(other.Value()%1_000_000, 6))
		}
	}
	return all
}

// random fills v with a value of each form that Go has and the API can't tell apart.
func random(r *rand.Rand, v reflect.Value, quantities []resource.Quantity) {
	if v.Type() == reflect.TypeFor[resource.Quantity]() {
		v.Set(reflect.ValueOf(quantities[r.IntN(len(quantities))].DeepCopy()))
		return
	}
	if v.Type() == reflect.TypeFor[metav1.Time]() {
		v.Set(reflect.ValueOf(metav1.Unix(r.Int64N(2_000_000_000), r.Int64N(1_000_000_000))))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if r.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			random(r, v.Elem(), quantities)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			random(r, v.Field(i), quantities)
		}
	case reflect.Slice:
		if n := r.IntN(4) - 1; n >= 0 { // nil, and empty
			v.Set(reflect.MakeSlice(v.Type(), n, n+r.IntN(2)))
			for i := range n {
				random(r, v.Index(i), quantities)
			}
		}
	case reflect.Map:
		if n := r.IntN(4) - 1; n >= 0 {
			v.Set(reflect.MakeMap(v.Type()))
			for i := range n {
				value := reflect.New(v.Type().Elem()).Elem()
				random(r, value, quantities)
				v.SetMapIndex(reflect.ValueOf(fmt.Sprint("key", i)).Convert(v.Type().Key()), value)
			}
		}
	case reflect.String:
		v.SetString([]string{"", "a", "1.0.0", "1.0"}[r.IntN(4)])
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Int64:
		v.SetInt(r.Int64N(3) - 1)
	default:
		panic(v.Type().String())
	}
}

// trips are what an object goes through until this process reads it back.
var trips = map[string]func(*resourcev1.ResourceSlice) *resourcev1.ResourceSlice{
	"JSON": func(s *resourcev1.ResourceSlice) *resourcev1.ResourceSlice {
		return decoded(s, &resourcev1.ResourceSlice{}, json.Marshal, json.Unmarshal)
	},
	"protobuf": protobuf,
	"the API server": func(s *resourcev1.ResourceSlice) *resourcev1.ResourceSlice { // which stores what it has decoded
		return protobuf(protobuf(s))
	},
}

func protobuf(s *resourcev1.ResourceSlice) *resourcev1.ResourceSlice {
	wire, err := s.Marshal()
	if err != nil {
		panic(err)
	}
	var back resourcev1.ResourceSlice
	if err := back.Unmarshal(wire); err != nil {
		panic(err)
	}
	return &back
}

func decoded[A, B any](from A, to B, marshal func(any) ([]byte, error), unmarshal func([]byte, any) error) B {
	data, err := marshal(from)
	if err == nil {
		err = unmarshal(data, to)
	}
	if err != nil {
		panic(err)
	}
	return to
}

// TestEveryObjectHashesLikeItsRoundTrip is the mirror of TestEveryFieldChangesTheHash: what the
// API can't tell apart makes no difference. Otherwise each restart of a driver would write
// all slices.
func TestEveryObjectHashesLikeItsRoundTrip(t *testing.T) {
	e := newHasher()
	quantities := forms()
	kinds := func(rec *record) (advanced []bool) {
		for _, it := range rec.items {
			advanced = append(advanced, it.advanced)
		}
		return advanced
	}
	n := 3000
	if testing.Short() {
		n = 600
	}
	for seed := range uint64(n) {
		r := rand.New(rand.NewPCG(seed, 1))
		var s resourcev1.ResourceSlice
		random(r, reflect.ValueOf(&s.Spec).Elem(), quantities)
		for i := range s.Spec.Devices {
			s.Spec.Devices[i].Name = fmt.Sprint("d", i)
		}
		for i := range s.Spec.SharedCounters {
			s.Spec.SharedCounters[i].Name = fmt.Sprint("s", i)
		}
		want := e.record(s.DeepCopy())
		for name, trip := range trips {
			got := e.record(trip(s.DeepCopy()))
			if got.head != want.head || len(got.items) != len(want.items) {
				t.Fatalf("seed %d, %s: the head differs: %+v", seed, name, s.Spec)
			}
			for i := range want.items {
				if got.items[i].name != want.items[i].name || got.items[i].hash != want.items[i].hash {
					t.Fatalf("seed %d, %s: %s differs from its round trip", seed, name, want.items[i].name)
				}
			}
			if fmt.Sprint(kinds(got)) != fmt.Sprint(kinds(want)) {
				t.Fatalf("seed %d, %s: advanced %v, and %v after the round trip", seed, name, kinds(want), kinds(got))
			}
		}
	}
	// What the caller passes is encoded, too.
	for i := range quantities {
		d := resourcev1.Device{Name: "d", Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"q": {Value: quantities[i]}}}
		want, _ := e.device(&d, nil)
		var stored resourcev1.Device
		if err := stored.Unmarshal([]byte(want.encoded)); err != nil {
			t.Fatal(err)
		}
		if got := e.deviceHash(&stored); got != want.hash {
			q := quantities[i]
			t.Errorf("%v differs from its round trip", q.String())
		}
	}
}
