// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import ()

// deleteCases check deletion of any kind; pods.go has more cases for pods.
var deleteCases = []scenario{
	{"delete", func(c *C) {
		c.namespace()
		a := c.post(configMapsPath, configMap("a", nil), 201)
		path := configMapsPath + "/a"
		c.delete(path, object{"preconditions": object{"uid": "66666666-6666-6666-6666-666666666666"}}, 409)
		c.delete(path, object{"preconditions": object{"resourceVersion": "1"}}, 409)
		c.delete(path, object{"preconditions": object{"uid": a.uid(), "resourceVersion": a.rv()}}, 200)
		c.delete(path, nil, 404)
		c.delete(path, object{"preconditions": object{"uid": a.uid()}}, 404)
		c.quiet("POST", configMapsPath, configMap("a", nil), 201)
		c.delete(path, object{"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}, 200)
		c.quiet("POST", configMapsPath, configMap("a", nil), 201)
		c.do(req{Method: "DELETE", Path: path, Query: "gracePeriodSeconds=0&propagationPolicy=Background", Code: 200})
		c.quiet("POST", configMapsPath, configMap("a", nil), 201)
		c.delete(path, object{"propagationPolicy": "Nonsense"}, 422)
		c.delete(path, object{"propagationPolicy": "Background", "orphanDependents": true}, 422)
	}},
	{"finalizers", func(c *C) {
		c.namespace()
		made := c.post(configMapsPath, object{"metadata": object{"name": "a", "finalizers": []any{"example.com/f", "example.com/g"}}}, 201)
		path := configMapsPath + "/a"
		w := c.watch(req{Path: configMapsPath, Query: "resourceVersion=" + made.rv()})
		defer w.stop()
		c.delete(path, nil, 200)
		w.expect("MODIFIED")
		again := c.delete(path, nil, 200)
		w.silent()
		c.post(configMapsPath, configMap("a", nil), 409)
		c.patch(path, mergePatch, object{"metadata": object{"finalizers": []any{"example.com/f"}}}, 200)
		w.expect("MODIFIED")
		c.patch(path, mergePatch, object{"metadata": object{"finalizers": []any{"example.com/f", "example.com/new"}}}, 422)
		c.put(path, again.with(func(m object) {
			meta := in(m, "metadata")
			delete(meta, "deletionTimestamp")
			delete(meta, "resourceVersion")
			meta["finalizers"] = []any{"example.com/f"}
			in(m, "data")["k"] = "while deleting"
		}), 200)
		w.expect("MODIFIED")
		c.patch(path, mergePatch, object{"metadata": object{"finalizers": nil}}, 200)
		w.expect("DELETED")
		c.get(path, 404)
	}},
	{"delete-policies", func(c *C) {
		c.namespace()
		for _, policy := range []string{"Orphan", "Foreground"} {
			c.quiet("POST", configMapsPath, configMap("a", nil), 201)
			c.delete(configMapsPath+"/a", object{"propagationPolicy": policy}, 200)
			c.get(configMapsPath+"/a", 200)
			c.patch(configMapsPath+"/a", mergePatch, object{"metadata": object{"finalizers": nil}}, 200)
			c.get(configMapsPath+"/a", 404)
		}
	}},
	{"delete-collection", func(c *C) {
		c.namespace()
		for _, name := range []string{"a", "b", "c"} {
			label := "x"
			if name == "c" {
				label = "y"
			}
			c.quiet("POST", configMapsPath, object{"metadata": object{"name": name, "labels": object{"l": label}}}, 201)
		}
		list := c.do(req{Path: configMapsPath, quiet: true})
		w := c.watch(req{Path: configMapsPath, Query: "resourceVersion=" + list.rv()})
		defer w.stop()
		c.do(req{Method: "DELETE", Path: configMapsPath, Query: "labelSelector=l=x", Code: 200})
		w.expect("DELETED", "DELETED")
		w.silent()
		c.do(req{Method: "DELETE", Path: configMapsPath, Query: "fieldSelector=metadata.name=absent", Code: 200})
		c.do(req{Method: "DELETE", Path: configMapsPath, Query: "fieldSelector=spec.nonsense=absent", Code: 400})
		c.do(req{Method: "DELETE", Path: configMapsPath, Query: "fieldSelector=metadata.name=c", Body: object{"preconditions": object{"uid": "66666666-6666-6666-6666-666666666666"}}, Code: 0})
		c.get(configMapsPath+"/c", 200)
	}},
}
