// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"strings"
)

// Paths that many cases use.
const (
	configMapsPath = "/api/v1/namespaces/{NS}/configmaps"
	podsPath       = "/api/v1/namespaces/{NS}/pods"
	leasesPath     = "/apis/coordination.k8s.io/v1/namespaces/{NS}/leases"
	nodesPath      = "/api/v1/nodes"
	slicesPath     = "/apis/resource.k8s.io/v1/resourceslices"
)

func named(name string) object { return object{"metadata": object{"name": name}} }

func configMap(name string, data object) object {
	return object{"metadata": object{"name": name}, "data": data}
}

func lease(name string) object {
	return object{"metadata": object{"name": name}, "spec": object{"holderIdentity": "me", "leaseDurationSeconds": 40}}
}

// objectCases check creation and reading of any kind.
var objectCases = []scenario{
	{"create", func(c *C) {
		c.namespace()
		made := c.post(configMapsPath, configMap("a", object{"k": "v"}), 201)
		if made.uid() == "" || made.rv() == "" || made.str("metadata", "creationTimestamp") == "" || len(in(made.Body, "metadata")["managedFields"].([]any)) != 1 {
			c.Errorf("the server did not fill in the metadata: %s", made.Raw)
		}
		c.get(configMapsPath+"/a", 200)
		c.post(configMapsPath, configMap("a", nil), 409)
		c.get(configMapsPath+"/b", 404)
		c.get("/api/v1/namespaces/no-such-namespace/configmaps/a", 404)
		c.post("/api/v1/namespaces/no-such-namespace/configmaps", configMap("a", nil), 404)
		c.post(configMapsPath, object{"metadata": object{"name": "x", "namespace": "elsewhere"}}, 400)
		c.post(configMapsPath, object{"metadata": object{"name": "x", "resourceVersion": "7"}}, 500)
		c.post(configMapsPath+"/a", configMap("a", nil), 405)
		// Fields that only the server sets are not accepted from a client.
		c.post(configMapsPath, object{"metadata": object{
			"name": "forged", "uid": "11111111-1111-1111-1111-111111111111", "creationTimestamp": "2001-01-01T00:00:00Z",
			"deletionTimestamp": "2001-01-01T00:00:00Z", "deletionGracePeriodSeconds": 7, "selfLink": "/x",
		}}, 201)
	}},
	{"create-names", func(c *C) {
		c.namespace()
		for _, name := range []string{"", "Upper", "a_b", "-a", "a..b", "a/b", "ok.name-1", strings.Repeat("x", 253), strings.Repeat("x", 254)} {
			code := 422
			switch name {
			case "ok.name-1", strings.Repeat("x", 253):
				code = 201
			}
			c.post(configMapsPath, configMap(name, nil), code)
		}
		made := c.do(req{Method: "POST", Path: configMapsPath, Body: object{"metadata": object{"generateName": "gen-"}}, Code: 201, quiet: true})
		if n := made.str("metadata", "name"); len(n) != 9 || !strings.HasPrefix(n, "gen-") || made.str("metadata", "generateName") != "gen-" {
			c.Errorf("generated %q", n)
		}
		long := strings.Repeat("g", 100)
		made = c.do(req{Method: "POST", Path: configMapsPath, Body: object{"metadata": object{"generateName": long}}, Code: 201, quiet: true})
		if n := made.str("metadata", "name"); len(n) != 63 || !strings.HasPrefix(n, long[:58]) || made.str("metadata", "generateName") != long {
			c.Errorf("generated %q from a long prefix", n)
		}
		c.quiet("POST", configMapsPath, object{"metadata": object{"generateName": "Bad_"}}, 422)
		c.post(configMapsPath, object{"metadata": object{"name": "given", "generateName": "gen-"}}, 201)
	}},
	{"create-metadata", func(c *C) {
		c.namespace()
		meta := func(m object) object { m["name"] = "x"; return object{"metadata": m} }
		c.post(configMapsPath, meta(object{"labels": object{"bad key": "v"}}), 422)
		c.post(configMapsPath, meta(object{"labels": object{"k": "bad value"}}), 422)
		c.post(configMapsPath, meta(object{"labels": object{"k": strings.Repeat("v", 64)}}), 422)
		c.post(configMapsPath, meta(object{"labels": object{"example.com/": "v"}}), 422)
		c.post(configMapsPath, meta(object{"annotations": object{"bad key": "v"}}), 422)
		c.do(req{Method: "POST", Path: configMapsPath, Body: meta(object{"annotations": object{"k": strings.Repeat("v", 256<<10+1)}}), Code: 422})
		c.post(configMapsPath, meta(object{"finalizers": []any{"no-domain"}}), 422)
		c.post(configMapsPath, meta(object{"ownerReferences": []any{object{"apiVersion": "v1", "kind": "Node", "name": "n"}}}), 422)
		owner := object{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "22222222-2222-2222-2222-222222222222"}
		c.post(configMapsPath, meta(object{"ownerReferences": []any{owner, owner}}), 201)
		twice := object{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": true}
		other := object{"apiVersion": "v1", "kind": "Node", "name": "m", "uid": "w", "controller": true}
		c.post(configMapsPath, object{"metadata": object{"name": "y", "ownerReferences": []any{twice, other}}}, 422)
	}},
	{"create-bodies", func(c *C) {
		c.namespace()
		raw := func(body string, code int) { c.do(req{Method: "POST", Path: configMapsPath, Body: body, Code: code}) }
		raw(`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"x"}}`, 400)
		raw(`{"kind":"ConfigMap","apiVersion":"v2","metadata":{"name":"x"}}`, 400)
		raw(`{"kind":"ConfigMap","apiVersion":"apps/v1","metadata":{"name":"x"}}`, 400)
		raw(`{"metadata":{"name":"x"},"data":{"k":1}}`, 400)
		c.do(req{Method: "POST", Path: configMapsPath, Body: `{`, Code: 400, quiet: true})
		c.do(req{Method: "POST", Path: configMapsPath, Body: `{}`, Type: "text/csv", Code: 415})
		unknown := `{"metadata":{"name":"u1"},"data":{"k":"v"},"nonsense":1}`
		raw(unknown, 201)
		c.do(req{Method: "POST", Path: configMapsPath, Body: strings.ReplaceAll(unknown, "u1", "u2"), Query: "fieldValidation=Ignore", Code: 201})
		c.do(req{Method: "POST", Path: configMapsPath, Body: strings.ReplaceAll(unknown, "u1", "u3"), Query: "fieldValidation=Strict", Code: 400})
		c.do(req{Method: "POST", Path: configMapsPath, Body: `{"metadata":{"name":"u4"},"data":{"k":"v","k":"w"}}`, Query: "fieldValidation=Strict", Code: 400})
		c.do(req{Method: "POST", Path: configMapsPath, Body: configMap("x", nil), Query: "fieldValidation=Sometimes", Code: 422})
	}},
	{"paths", func(c *C) {
		c.namespace()
		c.get("/api/v1/nonsense", 404)
		c.get("/api/v1/namespaces/{NS}/nonsense/x", 404)
		c.get("/api/v7/pods", 404)
		c.get("/apis/coordination.k8s.io/v7/leases", 404)
		c.get(configMapsPath+"/a/status", 404)
		c.do(req{Method: "PUT", Path: configMapsPath, Body: configMap("a", nil), Code: 405})
		c.do(req{Method: "DELETE", Path: "/api/v1/nonsense", Code: 404})
		c.do(req{Path: configMapsPath, Accept: "text/csv", Code: 406})
	}},
	{"dry-run", func(c *C) {
		c.namespace()
		c.do(req{Method: "POST", Path: configMapsPath, Query: "dryRun=All", Body: configMap("d", object{"k": "v"}), Code: 201})
		c.get(configMapsPath+"/d", 404)
		made := c.post(configMapsPath, configMap("d", object{"k": "v"}), 201)
		c.do(req{Method: "POST", Path: configMapsPath, Query: "dryRun=All", Body: configMap("d", nil), Code: 409})
		c.do(req{Method: "PUT", Path: configMapsPath + "/d", Query: "dryRun=All", Body: made.with(func(m object) { in(m, "data")["k"] = "w" }), Code: 200})
		c.do(req{Method: "PATCH", Path: configMapsPath + "/d", Query: "dryRun=All", Type: mergePatch, Body: object{"data": object{"k": "x"}}, Code: 200})
		c.do(req{Method: "DELETE", Path: configMapsPath + "/d", Query: "dryRun=All", Code: 200})
		c.delete(configMapsPath+"/d", object{"dryRun": []any{"All"}}, 200)
		if again := c.get(configMapsPath+"/d", 200); again.rv() != made.rv() {
			c.Error("a dry run changed something")
		}
		c.do(req{Method: "POST", Path: configMapsPath, Query: "dryRun=Perhaps", Body: configMap("e", nil), Code: 422})
	}},
}
