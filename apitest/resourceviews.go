// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"encoding/json"
	"reflect"

	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	"k8s.io/apimachinery/pkg/runtime"
)

// resourceViews are the three versions of a kind of resource.k8s.io. v1beta2
// has the same fields as v1; v1beta1 has some of them in other places, where
// to and from put them.
func resourceViews(v1, v1beta2, v1beta1 runtime.Object, toV1beta1, fromV1beta1 func(map[string]any)) []view {
	return []view{
		{gv: resourcev1.SchemeGroupVersion},
		{gv: resourcev1beta2.SchemeGroupVersion, toStored: viaJSON(v1, nil), fromStored: viaJSON(v1beta2, nil), deprecated: 36, removed: 39},
		{gv: resourcev1beta1.SchemeGroupVersion, toStored: viaJSON(v1, fromV1beta1), fromStored: viaJSON(v1beta1, toV1beta1), deprecated: 35, removed: 38},
	}
}

// viaJSON converts an object to the type of into by its JSON form, in which
// change moves what has another place.
func viaJSON(into runtime.Object, change func(map[string]any)) func(runtime.Object) runtime.Object {
	typ := reflect.TypeOf(into).Elem()
	return func(obj runtime.Object) runtime.Object {
		b, err := json.Marshal(obj)
		if err == nil && change != nil {
			m := map[string]any{}
			if err = json.Unmarshal(b, &m); err == nil {
				change(m)
				b, err = json.Marshal(m)
			}
		}
		out := reflect.New(typ).Interface().(runtime.Object)
		if err == nil {
			err = json.Unmarshal(b, out)
		}
		if err != nil {
			// Both are types of the API and have what the other has.
			panic("apitest: converting " + typ.String() + ": " + err.Error())
		}
		return out
	}
}

// inSpec applies f to the object's field spec.
func inSpec(f func(map[string]any)) func(map[string]any) {
	return func(m map[string]any) {
		if spec, ok := m["spec"].(map[string]any); ok {
			f(spec)
		}
	}
}

func eachMap(list any, f func(map[string]any)) {
	items, _ := list.([]any)
	for _, e := range items {
		if m, ok := e.(map[string]any); ok {
			f(m)
		}
	}
}

// basicDevices moves everything of a device but its name below "basic", where
// v1beta1 has it.
func basicDevices(spec map[string]any) {
	eachMap(spec["devices"], func(d map[string]any) {
		basic := map[string]any{}
		for k, v := range d {
			if k != "name" {
				basic[k] = v
				delete(d, k)
			}
		}
		d["basic"] = basic
	})
}

// plainDevices undoes basicDevices.
func plainDevices(spec map[string]any) {
	eachMap(spec["devices"], func(d map[string]any) {
		basic, _ := d["basic"].(map[string]any)
		delete(d, "basic")
		for k, v := range basic {
			d[k] = v
		}
	})
}

// flatRequests moves what is below "exactly" up to the request itself, where
// v1beta1 has it.
func flatRequests(spec map[string]any) {
	devices, _ := spec["devices"].(map[string]any)
	eachMap(devices["requests"], func(r map[string]any) {
		exactly, _ := r["exactly"].(map[string]any)
		delete(r, "exactly")
		for k, v := range exactly {
			r[k] = v
		}
	})
}

// exactRequests undoes flatRequests.
func exactRequests(spec map[string]any) {
	devices, _ := spec["devices"].(map[string]any)
	eachMap(devices["requests"], func(r map[string]any) {
		exactly := map[string]any{}
		for k, v := range r {
			if k != "name" && k != "firstAvailable" {
				exactly[k] = v
				delete(r, k)
			}
		}
		if len(exactly) > 0 {
			r["exactly"] = exactly
		}
	})
}
