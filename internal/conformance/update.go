// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import ()

// updateCases check PUT.
var updateCases = []scenario{
	{"put", func(c *C) {
		c.namespace()
		made := c.post(configMapsPath, configMap("a", object{"k": "v"}), 201)
		changed := c.put(configMapsPath+"/a", made.with(func(m object) { in(m, "data")["k"] = "w" }), 200)
		if changed.rv() == made.rv() || changed.uid() != made.uid() {
			c.Error("resourceVersion must change and UID must not")
		}
		c.put(configMapsPath+"/a", made.with(func(m object) { in(m, "data")["k"] = "stale" }), 409)
		same := c.put(configMapsPath+"/a", changed.Body, 200)
		if same.rv() != changed.rv() {
			c.Error("an update that changes nothing was written")
		}
		c.put(configMapsPath+"/a", configMap("a", object{"k": "unconditional"}), 200)
		c.put(configMapsPath+"/a", configMap("b", nil), 400)
		c.put(configMapsPath+"/a", configMap("", nil), 400)
		c.put(configMapsPath+"/a", object{"metadata": object{"name": "a", "namespace": "elsewhere"}}, 400)
		c.put(configMapsPath+"/a", object{"metadata": object{"name": "a", "resourceVersion": "xyz"}}, 0)
		c.put(configMapsPath+"/absent", configMap("absent", nil), 404)
	}},
	{"put-server-fields", func(c *C) {
		c.namespace()
		made := c.post(configMapsPath, configMap("a", object{"k": "v"}), 201)
		got := c.put(configMapsPath+"/a", made.with(func(m object) {
			meta := in(m, "metadata")
			delete(meta, "managedFields")
			meta["creationTimestamp"] = "2001-01-01T00:00:00Z"
			meta["generation"] = 9
			in(m, "data")["k"] = "w"
		}), 200)
		if got.str("metadata", "creationTimestamp") != made.str("metadata", "creationTimestamp") {
			c.Error("creationTimestamp changed")
		}
		if mf, _ := in(got.Body, "metadata")["managedFields"].([]any); len(mf) != 1 {
			c.Errorf("managedFields of a write without them: %v", mf)
		}
		c.put(configMapsPath+"/a", got.with(func(m object) { in(m, "metadata")["deletionTimestamp"] = "2001-01-01T00:00:00Z" }), 422)
		c.put(configMapsPath+"/a", got.with(func(m object) { delete(in(m, "metadata"), "creationTimestamp") }), 200)
		c.put(configMapsPath+"/a", got.with(func(m object) { in(m, "metadata")["uid"] = "33333333-3333-3333-3333-333333333333" }), 409)
		c.put(configMapsPath+"/a", got.with(func(m object) { in(m, "metadata")["labels"] = object{"bad key": "v"} }), 422)
		reset := c.put(configMapsPath+"/a", got.with(func(m object) { in(m, "metadata")["managedFields"] = []any{object{}} }), 200)
		if mf, _ := in(reset.Body, "metadata")["managedFields"].([]any); len(mf) > 1 {
			c.Errorf("managedFields after a reset: %v", mf)
		}
	}},
	{"put-gone", func(c *C) {
		// The UID in a PUT is a precondition, also if the object does not
		// exist. For a kind that PUT cannot create, the server looks up the
		// object first.
		c.namespace()
		l := c.post(leasesPath, lease("l"), 201)
		cm := c.post(configMapsPath, configMap("a", nil), 201)
		c.quiet("DELETE", leasesPath+"/l", nil, 200)
		c.quiet("DELETE", configMapsPath+"/a", nil, 200)
		c.put(leasesPath+"/l", l.Body, 409)
		c.put(configMapsPath+"/a", cm.Body, 404)
		c.quiet("POST", leasesPath, lease("l"), 201)
		c.quiet("POST", configMapsPath, configMap("a", nil), 201)
		c.put(leasesPath+"/l", l.Body, 409)
		c.put(configMapsPath+"/a", cm.Body, 409)
		c.put(leasesPath+"/l", l.with(func(m object) { delete(in(m, "metadata"), "uid") }), 409)
	}},
	{"put-lease", func(c *C) {
		c.namespace()
		made := c.put(leasesPath+"/l", lease("l"), 201) // created by PUT
		c.put(leasesPath+"/l", lease("l"), 422)         // the next PUT needs a resourceVersion
		c.put(leasesPath+"/l", made.with(func(m object) { in(m, "spec")["holderIdentity"] = "you" }), 200)
		c.put(leasesPath+"/m", object{"metadata": object{"name": "m", "resourceVersion": "5"}}, 201)
		c.put(leasesPath+"/n", object{"metadata": object{"name": "n", "uid": "44444444-4444-4444-4444-444444444444"}}, 409)
		c.put("/apis/coordination.k8s.io/v1/namespaces/no-such-namespace/leases/l", lease("l"), 404)
	}},
}

// patchCases check PATCH.
var patchCases = []scenario{
	{"patch", func(c *C) {
		c.namespace()
		made := c.post(configMapsPath, configMap("a", object{"k": "v", "gone": "x"}), 201)
		path := configMapsPath + "/a"
		c.patch(path, mergePatch, object{"data": object{"gone": nil, "new": "y"}}, 200)
		c.patch(path, strategicPatch, object{"data": object{"k": "w"}, "metadata": object{"labels": object{"l": "1"}}}, 200)
		c.patch(path, jsonPatch, []any{
			object{"op": "test", "path": "/data/k", "value": "w"},
			object{"op": "replace", "path": "/data/k", "value": "x"},
			object{"op": "add", "path": "/data/a~1b", "value": "slash"},
		}, 422) // a/b is not a valid key
		same := c.patch(path, jsonPatch, []any{
			object{"op": "test", "path": "/data/k", "value": "w"},
			object{"op": "copy", "from": "/data/k", "path": "/data/copied"},
			object{"op": "move", "from": "/data/new", "path": "/data/moved"},
			object{"op": "remove", "path": "/metadata/labels/l"},
		}, 200)
		again := c.patch(path, mergePatch, object{"data": object{"k": "w"}}, 200)
		if again.rv() != same.rv() {
			c.Error("a patch that changes nothing was written")
		}
		c.patch(path, jsonPatch, []any{object{"op": "test", "path": "/data/k", "value": "other"}}, 422)
		c.patch(path, mergePatch, object{"metadata": object{"resourceVersion": made.rv()}, "data": object{"k": "z"}}, 409)
		c.patch(path, mergePatch, object{"metadata": object{"resourceVersion": again.rv()}, "data": object{"k": "z"}}, 200)
		c.patch(configMapsPath+"/absent", mergePatch, object{"data": object{"k": "z"}}, 404)
	}},
	{"patch-uid", func(c *C) {
		c.namespace()
		made := c.post(leasesPath, lease("l"), 201)
		uid := made.uid()
		c.patch(leasesPath+"/l", mergePatch, object{"metadata": object{"uid": uid}, "spec": object{"leaseDurationSeconds": 41}}, 200)
		c.patch(leasesPath+"/l", mergePatch, object{"metadata": object{"uid": "55555555-5555-5555-5555-555555555555"}, "spec": object{"leaseDurationSeconds": 42}}, 422)
		c.patch(leasesPath+"/l", strategicPatch, object{"metadata": object{"uid": "55555555-5555-5555-5555-555555555555"}}, 422)
		c.quiet("DELETE", leasesPath+"/l", nil, 200)
		c.patch(leasesPath+"/l", mergePatch, object{"metadata": object{"uid": uid}}, 404)
	}},
	{"patch-bad", func(c *C) {
		c.namespace()
		c.quiet("POST", configMapsPath, configMap("a", object{"k": "v"}), 201)
		path := configMapsPath + "/a"
		c.do(req{Method: "PATCH", Path: path, Type: mergePatch, Body: `{`, Code: 400, quiet: true})
		c.do(req{Method: "PATCH", Path: path, Type: strategicPatch, Body: `{`, Code: 400, quiet: true})
		c.do(req{Method: "PATCH", Path: path, Type: jsonPatch, Body: `{}`, Code: 400, quiet: true})
		c.patch(path, mergePatch, object{"metadata": object{"name": "b"}}, 0)
		c.patch(path, mergePatch, object{"metadata": object{"namespace": "b"}}, 0)
		c.do(req{Method: "PATCH", Path: path, Type: mergePatch, Body: object{"data": object{"k": 7}}, Code: 422, quiet: true})
		c.patch(path, mergePatch, object{"nonsense": 7}, 200)
		c.do(req{Method: "PATCH", Path: path, Type: mergePatch, Query: "fieldValidation=Strict", Body: object{"nonsense": 7}, Code: 422, quiet: true})
		c.patch(path, mergePatch, object{"metadata": object{"labels": object{"bad key": "v"}}}, 422)
		c.do(req{Method: "PATCH", Path: path, Type: "application/json", Body: object{}, Code: 415})
	}},
}
