// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
)

const candidatesPath = "/apis/coordination.k8s.io/v1beta1/namespaces/{NS}/leasecandidates"

var coordinationCases = []scenario{
	{"lease-fields", func(c *C) {
		c.namespace()
		with := func(name string, spec object) object {
			return object{"metadata": object{"name": name}, "spec": spec}
		}
		c.post(leasesPath, with("a", object{"leaseDurationSeconds": 0}), 422)
		c.post(leasesPath, with("a", object{"leaseTransitions": -1}), 422)
		c.post(leasesPath, with("Bad", nil), 422)
		// The feature gate CoordinatedLeaderElection is off by default.
		c.post(leasesPath, with("a", object{"holderIdentity": "x", "strategy": "OldestEmulationVersion", "preferredHolder": "y", "renewTime": "2020-01-01T00:00:00.123456Z"}), 201)
		c.patch(leasesPath+"/a", mergePatch, object{"spec": object{"strategy": "OldestEmulationVersion", "preferredHolder": "y"}}, 200)
		for _, bad := range []string{"2020-01-01T00:00:00Z", "yesterday"} { // microseconds are required
			c.do(req{Method: "PATCH", Path: leasesPath + "/a", Type: mergePatch, Body: object{"spec": object{"renewTime": bad}}, Code: 422, quiet: true})
		}
		c.patch(leasesPath+"/a", mergePatch, object{"spec": object{"renewTime": "2020-01-01T00:00:00.000000Z"}}, 200)
		c.post(leasesPath, with("empty", nil), 201)
	}},
	{"lease-candidates", func(c *C) {
		c.namespace()
		with := func(name string, change object) object {
			spec := object{"leaseName": "l", "binaryVersion": "1.37.0", "emulationVersion": "1.36.0", "strategy": "OldestEmulationVersion"}
			for k, v := range change {
				if v == nil {
					delete(spec, k)
				} else {
					spec[k] = v
				}
			}
			return object{"metadata": object{"name": name}, "spec": spec}
		}
		made := c.post(candidatesPath, with("a_b", nil), 201)
		for _, bad := range []object{
			{"leaseName": nil}, {"binaryVersion": nil}, {"binaryVersion": "v1.37.0"}, {"binaryVersion": "1.35.0"}, {"emulationVersion": nil},
			{"emulationVersion": "1.36"}, {"strategy": nil}, {"strategy": "mine"}, {"strategy": "example.com/"}, {"binaryVersion": "1.36.0-alpha.1"},
		} {
			c.post(candidatesPath, with("bad", bad), 422)
		}
		c.post(candidatesPath, with("own", object{"strategy": "example.com/mine", "emulationVersion": nil}), 201)
		c.post(candidatesPath, with("bad:name", nil), 422)
		c.put(candidatesPath+"/a_b", made.with(func(m object) { in(m, "spec")["leaseName"] = "m" }), 422)
		c.put(candidatesPath+"/a_b", made.with(func(m object) { in(m, "spec")["renewTime"] = "2020-01-01T00:00:00.000000Z" }), 200)
		c.put(candidatesPath+"/a_b", with("a_b", nil), 422)
		c.put(candidatesPath+"/by-put", with("by-put", object{"leaseName": "other"}), 201)
		c.lists(req{Path: candidatesPath, Query: "fieldSelector=spec.leaseName=l", Code: 400})
		c.lists(req{Path: candidatesPath, Query: "fieldSelector=metadata.name=own", Code: 200})
	}},
}

var eventCases = []scenario{
	{"events", func(c *C) {
		c.namespace()
		const core, modern = "/api/v1/namespaces/{NS}/events", "/apis/events.k8s.io/v1/namespaces/{NS}/events"
		about := object{"kind": "Pod", "name": "p", "namespace": c.NS, "uid": "u-1"}
		c.post(core, object{"metadata": object{"name": "old"}, "involvedObject": about, "reason": "R", "message": "m", "type": "Normal", "count": 1, "source": object{"component": "k"},
			"firstTimestamp": "2020-01-01T00:00:00Z", "lastTimestamp": "2020-01-01T00:00:00Z"}, 201)
		c.get(modern+"/old", 200)
		c.post(core, object{"metadata": object{"name": "elsewhere"}, "involvedObject": object{"kind": "Pod", "name": "p", "namespace": "elsewhere"}}, 422)
		c.post(core, object{"metadata": object{"name": "cluster"}, "involvedObject": object{"kind": "Node", "name": "n"}}, 422)
		event := func(name string, change object) object {
			e := object{"metadata": object{"name": name}, "eventTime": "2020-01-01T00:00:00.000001Z", "reportingController": "example.com/c", "reportingInstance": "c-1",
				"action": "Doing", "reason": "Done", "regarding": about, "note": "n", "type": "Normal"}
			for k, v := range change {
				if v == nil {
					delete(e, k)
				} else {
					e[k] = v
				}
			}
			return e
		}
		made := c.post(modern, event("new", nil), 201)
		c.get(core+"/new", 200)
		for _, bad := range []object{{"eventTime": nil}, {"reportingController": nil}, {"reportingInstance": nil}, {"action": nil}, {"reason": nil}, {"type": "Odd"}} {
			c.post(modern, event("bad", bad), 422)
		}
		c.patch(modern+"/new", strategicPatch, object{"series": object{"count": 2, "lastObservedTime": "2020-01-01T00:00:01.000000Z"}}, 200)
		c.patch(modern+"/new", strategicPatch, object{"series": object{"count": 1}}, 422)
		c.patch(modern+"/new", strategicPatch, object{"note": "other"}, 422)
		c.patch(core+"/new", strategicPatch, object{"message": "other"}, 200)
		_ = made
		for _, q := range []string{"involvedObject.name=p", "involvedObject.kind=Pod,reason=R", "source=k", "type=Warning", "reportingComponent=example.com/c", "involvedObject.uid=u-1,metadata.name=new"} {
			c.lists(req{Path: core, Query: "fieldSelector=" + q, Code: 200})
		}
		for _, q := range []string{"regarding.name=p", "reportingController=example.com/c", "reason=R", "type=Normal"} {
			c.lists(req{Path: modern, Query: "fieldSelector=" + q, Code: 200})
		}
		c.lists(req{Path: modern, Query: "fieldSelector=involvedObject.name=p", Code: 400})
		c.lists(req{Path: core, Query: "fieldSelector=regarding.name=p", Code: 400})
		w := c.watch(req{Path: modern, Query: "fieldSelector=regarding.name=p"})
		defer w.stop()
		w.expect("ADDED", "ADDED")
		c.quiet("DELETE", core+"/old", nil, 200)
		w.expect("DELETED")
	}},
}

var coreCases = []scenario{
	{"secrets-and-configmaps", func(c *C) {
		c.namespace()
		const secrets = "/api/v1/namespaces/{NS}/secrets"
		c.post(secrets, object{"metadata": object{"name": "s"}, "stringData": object{"k": "v"}}, 201)
		c.patch(secrets+"/s", mergePatch, object{"type": "example.com/other"}, 422)
		c.post(secrets, object{"metadata": object{"name": "bad"}, "data": object{"bad key": ""}}, 422)
		c.lists(req{Path: secrets, Query: "fieldSelector=type=Opaque", Code: 200})
		c.post(configMapsPath, configMap("bad", object{"bad key": "v"}), 422)
		c.post(configMapsPath, configMap("bad", object{"..": "v"}), 422)
		c.post(configMapsPath, object{"metadata": object{"name": "both"}, "data": object{"k": "v"}, "binaryData": object{"k": "dg=="}}, 422)
		c.post(configMapsPath, object{"metadata": object{"name": "fixed"}, "data": object{"k": "v"}, "immutable": true}, 201)
		c.patch(configMapsPath+"/fixed", mergePatch, object{"data": object{"k": "w"}}, 422)
		c.patch(configMapsPath+"/fixed", mergePatch, object{"immutable": false}, 422)
		c.patch(configMapsPath+"/fixed", mergePatch, object{"metadata": object{"labels": object{"l": "1"}}}, 200)
	}},
	{"namespaces", func(c *C) {
		const path = "/api/v1/namespaces/c-ns-life"
		c.post("/api/v1/namespaces", named("c-ns-life"), 201)
		c.post("/api/v1/namespaces", named("Bad.Name"), 422)
		c.lists(req{Path: "/api/v1/namespaces", Query: "fieldSelector=metadata.name=c-ns-life,status.phase=Active", Code: 200})
		c.quiet("POST", path+"/configmaps", configMap("a", nil), 201)
		c.delete(path, nil, 0)
		c.get(path, 200)
		c.post(path+"/configmaps", configMap("b", nil), 403)
		c.patch(path+"/configmaps/a", mergePatch, object{"data": object{"k": "v"}}, 200)
		c.delete(path, nil, 0)
		c.put(path+"/finalize", object{"metadata": object{"name": "c-ns-life"}, "spec": object{"finalizers": []any{}}}, 200)
	}},
	{"service-accounts", func(c *C) {
		c.namespace()
		const path = "/api/v1/namespaces/{NS}/serviceaccounts"
		c.post(path, named("sa"), 201)
		c.delete(path+"/sa", nil, 200)
	}},
}

// slice returns a ResourceSlice with one device, for a node or for no node.
func slice(name, node string) object {
	spec := object{
		"driver":  "d.example.com",
		"pool":    object{"name": "p", "generation": 1, "resourceSliceCount": 1},
		"devices": []any{object{"name": "dev-0", "attributes": object{"model": object{"string": "m"}}, "capacity": object{"mem": object{"value": "4Gi"}}}},
	}
	if node != "" {
		spec["nodeName"] = node
	}
	return object{"metadata": object{"name": name}, "spec": spec}
}

var sliceCases = []scenario{
	{"slices", func(c *C) {
		made := c.post(slicesPath, slice("s-1", "n-s"), 201)
		path := slicesPath + "/s-1"
		c.put(path, made.with(func(m object) { in(m, "spec", "pool")["generation"] = 2 }), 200) // generation 2
		c.patch(path, mergePatch, object{"metadata": object{"labels": object{"l": "1"}}}, 200)  // same generation
		c.patch(path, mergePatch, object{"spec": object{"driver": "e.example.com"}}, 422)
		c.patch(path, mergePatch, object{"spec": object{"pool": object{"name": "q"}}}, 422)
		c.patch(path, mergePatch, object{"spec": object{"nodeName": "n-t"}}, 422)
		c.patch(path, mergePatch, object{"spec": object{"nodeName": nil, "allNodes": true}}, 422)
		c.patch(path, mergePatch, object{"spec": object{"allNodes": true}}, 422)
		for _, q := range []string{"spec.nodeName=n-s", "spec.driver=d.example.com,spec.nodeName=n-s", "spec.pool.name=p,spec.nodeName=n-s", "spec.nodeName=n-s,spec.driver!=d.example.com"} {
			c.lists(req{Path: slicesPath, Query: "fieldSelector=" + q, Code: 200})
		}
		c.lists(req{Path: slicesPath, Query: "fieldSelector=spec.allNodes=true", Code: 400})
		// A taint without a time gets the time of each write.
		c.patch(path, mergePatch, object{"spec": object{"devices": []any{object{"name": "dev-0", "taints": []any{object{"key": "example.com/t", "value": "v", "effect": "NoSchedule"}}}}}}, 200)
		c.delete(path, nil, 200)
	}},
	{"slice-versions", func(c *C) {
		const beta1, beta2 = "/apis/resource.k8s.io/v1beta1/resourceslices", "/apis/resource.k8s.io/v1beta2/resourceslices"
		c.quiet("POST", slicesPath, slice("v-1", "n-v"), 201)
		c.get(beta1+"/v-1", 200)
		c.get(beta2+"/v-1", 200)
		c.post(beta1, object{"metadata": object{"name": "v-2"}, "spec": object{
			"driver": "d.example.com", "nodeName": "n-v", "pool": object{"name": "p", "generation": 1, "resourceSliceCount": 1},
			"devices": []any{object{"name": "dev-0", "basic": object{"attributes": object{"model": object{"string": "m"}}}}},
		}}, 201)
		c.get(slicesPath+"/v-2", 200)
		c.lists(req{Path: beta1, Query: "fieldSelector=spec.nodeName=n-v,spec.driver=d.example.com", Code: 200})
		w := c.watch(req{Path: beta1, Query: "fieldSelector=spec.nodeName=n-v"})
		defer w.stop()
		w.expect("ADDED", "ADDED")
		c.patch(beta1+"/v-1", mergePatch, object{"spec": object{"devices": []any{object{"name": "dev-9", "basic": object{}}}}}, 200)
		w.expect("MODIFIED")
		c.quiet("DELETE", beta2+"/v-1", nil, 200)
		c.quiet("DELETE", slicesPath+"/v-2", nil, 200)
		w.expect("DELETED", "DELETED")
	}},
	{"slice-limits", func(c *C) {
		with := func(change func(spec object)) object {
			s := slice("bad", "n-l")
			change(in(s, "spec"))
			return s
		}
		devices := func(n int, change func(i int, d object)) []any {
			var out []any
			for i := range n {
				d := object{"name": fmt.Sprintf("d-%d", i)}
				if change != nil {
					change(i, d)
				}
				out = append(out, d)
			}
			return out
		}
		bad := func(code int, change func(spec object)) {
			c.Helper()
			c.post(slicesPath, with(change), code)
		}
		bad(422, func(s object) { s["devices"] = devices(129, nil) })
		bad(422, func(s object) {
			s["devices"] = devices(65, func(i int, d object) {
				if i == 0 {
					d["taints"] = []any{object{"key": "t", "effect": "NoSchedule"}}
				}
			})
		})
		bad(422, func(s object) { s["devices"] = append(devices(1, nil), devices(1, nil)...) })
		bad(422, func(s object) { s["devices"] = []any{object{"name": "Bad"}} })
		bad(422, func(s object) { delete(s, "nodeName") })
		bad(422, func(s object) { s["allNodes"] = true })
		bad(422, func(s object) { in(s, "pool")["resourceSliceCount"] = 0 })
		bad(422, func(s object) { in(s, "pool")["generation"] = -1 })
		bad(422, func(s object) { in(s, "pool")["name"] = "" })
		bad(422, func(s object) { s["driver"] = "not_a_driver" })
		bad(422, func(s object) { s["devices"] = []any{object{"name": "d", "attributes": object{"a": object{}}}} })
		bad(422, func(s object) {
			s["devices"] = []any{object{"name": "d", "attributes": object{"a": object{"int": 1, "bool": true}}}}
		})
		bad(422, func(s object) {
			s["devices"] = []any{object{"name": "d", "attributes": object{"not-c": object{"int": 1}}}}
		})
		bad(422, func(s object) {
			s["devices"] = []any{object{"name": "d", "attributes": object{"a": object{"ints": []any{1, 2}}}}}
		}) // dropped: the gate is off
		bad(422, func(s object) {
			s["sharedCounters"] = []any{object{"name": "c", "counters": object{"m": object{"value": "1"}}}}
		})
		c.quiet("POST", slicesPath, with(func(s object) { s["devices"] = devices(128, nil) }), 201)
		c.quiet("DELETE", slicesPath+"/bad", nil, 200)
	}},
	{"claims", func(c *C) {
		c.namespace()
		const path = "/apis/resource.k8s.io/v1/namespaces/{NS}/resourceclaims"
		c.post(path, object{"metadata": object{"name": "c"}, "spec": object{"devices": object{"requests": []any{object{"name": "r", "exactly": object{"deviceClassName": "k"}}}}}}, 201)
		c.get("/apis/resource.k8s.io/v1beta1/namespaces/{NS}/resourceclaims/c", 200)
		c.patch(path+"/c", mergePatch, object{"spec": object{"devices": nil}}, 422)
		c.delete(path+"/c", nil, 200)
	}},
}
