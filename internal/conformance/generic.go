// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"slices"
	"strings"
)

const (
	budgetsPath = "/apis/policy/v1/namespaces/{NS}/poddisruptionbudgets"
	widgetsPath = "/apis/c.example.com/v1/namespaces/{NS}/widgets"
)

func budget(name string) object {
	return object{"metadata": object{"name": name}, "spec": object{"maxUnavailable": 1, "selector": object{"matchLabels": object{"a": "b"}}}, "status": object{"currentHealthy": 7}}
}

// genericCases check kinds for which apitest has no special rules.
var genericCases = []scenario{
	{"generic", func(c *C) {
		c.namespace()
		made := c.post(budgetsPath, budget("b"), 201) // the status is dropped
		c.post(budgetsPath, budget("b"), 409)
		c.post(budgetsPath, budget("Bad"), 201) // the only kind whose names are not validated
		now := c.put(budgetsPath+"/b", made.with(func(m object) {
			in(m, "spec")["maxUnavailable"] = 2
			in(m, "status")["currentHealthy"] = 8
		}), 200) // new generation, old status
		c.put(budgetsPath+"/b", made.Body, 409)
		c.put(budgetsPath+"/absent", now.with(func(m object) { m["metadata"] = object{"name": "absent"} }), 404)
		c.put(budgetsPath+"/b/status", now.with(func(m object) {
			in(m, "spec")["maxUnavailable"] = 3
			m["status"] = object{"observedGeneration": 2, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1, "disruptionsAllowed": 0}
		}), 200)
		c.patch(budgetsPath+"/b/status", mergePatch, object{"spec": object{"maxUnavailable": 4}, "status": object{"currentHealthy": 0}}, 200)
		c.patch(budgetsPath+"/b", mergePatch, object{"metadata": object{"labels": object{"l": "v"}}}, 200) // same generation
		c.lists(req{Path: budgetsPath, Query: "labelSelector=l=v", Code: 200})
		c.lists(req{Path: budgetsPath, Query: "fieldSelector=metadata.name=b", Code: 200})
		c.lists(req{Path: budgetsPath, Query: "fieldSelector=spec.maxUnavailable=2", Code: 400})
		w := c.watch(req{Path: budgetsPath, Query: "fieldSelector=metadata.name=b"})
		defer w.stop()
		w.expect("ADDED")
		c.patch(budgetsPath+"/b", mergePatch, object{"metadata": object{"finalizers": []any{"example.com/f"}}}, 200)
		c.delete(budgetsPath+"/b", nil, 200)
		c.patch(budgetsPath+"/b", mergePatch, object{"metadata": object{"finalizers": nil}}, 200)
		w.expect("MODIFIED", "MODIFIED", "DELETED")
		c.get(budgetsPath+"/b", 404)
	}},
	{"generic-kinds", func(c *C) {
		c.namespace()
		const roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/{NS}/roles"
		c.post(roles, object{"metadata": object{"name": "system:with:colons"}}, 201)
		c.delete(roles+"/system:with:colons", nil, 200)
		c.put(roles+"/by-put", object{"metadata": object{"name": "by-put"}}, 201)
		const revisions = "/apis/apps/v1/namespaces/{NS}/controllerrevisions"
		c.post(revisions, object{"metadata": object{"name": "r"}, "data": object{"k": "v"}, "revision": 1}, 201)
		c.get(revisions+"/r/status", 404)
		c.delete(revisions+"/r", nil, 200)
		const classes = "/apis/node.k8s.io/v1/runtimeclasses"
		c.post(classes, object{"metadata": object{"name": "c-class"}, "handler": "h"}, 201)
		c.delete(classes+"/c-class", nil, 200)
		const limits = "/api/v1/namespaces/{NS}/limitranges"
		c.put(limits+"/l", object{"metadata": object{"name": "l"}}, 201)
		c.delete(limits+"/l", nil, 200)
		const slices = "/apis/discovery.k8s.io/v1/namespaces/{NS}/endpointslices"
		c.post(slices, object{"metadata": object{"name": "s"}, "addressType": "IPv4"}, 201)
		c.patch(slices+"/s", mergePatch, object{"metadata": object{"labels": object{"l": "v"}}}, 200)
		c.delete(slices+"/s", nil, 200)
		const quotas = "/api/v1/namespaces/{NS}/resourcequotas"
		c.post(quotas, object{"metadata": object{"name": "q"}, "spec": object{"hard": object{"pods": "1"}}, "status": object{"hard": object{"pods": "2"}}}, 201)
		c.patch(quotas+"/q", mergePatch, object{"spec": object{"hard": object{"pods": "2"}}}, 200)
		c.delete(quotas+"/q", nil, 200)
	}},
	{"custom-resources", func(c *C) {
		c.namespace()
		c.quiet("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", object{
			"metadata": object{"name": "widgets.c.example.com"},
			"spec": object{"group": "c.example.com", "scope": "Namespaced", "names": object{"plural": "widgets", "kind": "Widget"}, "versions": []any{object{
				"name": "v1", "served": true, "storage": true, "subresources": object{"status": object{}},
				"selectableFields": []any{object{"jsonPath": ".spec.size"}},
				"schema": object{"openAPIV3Schema": object{"type": "object", "properties": object{
					"spec":   object{"type": "object", "properties": object{"size": object{"type": "integer"}}},
					"status": object{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
				}}},
			}}},
		}, 201)
		c.settleKind(widgetsPath)
		widget := func(name string, size int) object {
			return object{"apiVersion": "c.example.com/v1", "kind": "Widget", "metadata": object{"name": name}, "spec": object{"size": size}, "status": object{"ready": true}}
		}
		made := c.post(widgetsPath, widget("w", 1), 201)
		now := c.put(widgetsPath+"/w", made.with(func(m object) { in(m, "spec")["size"] = 2; in(m, "status")["ready"] = true }), 200)
		c.put(widgetsPath+"/w", made.Body, 409)
		c.put(widgetsPath+"/w", widget("w", 3), 422) // without a resourceVersion
		c.put(widgetsPath+"/absent", widget("absent", 3), 404)
		c.put(widgetsPath+"/w/status", now.with(func(m object) {
			in(m, "spec")["size"] = 9
			in(m, "metadata", "labels")["l"] = "v"
			in(m, "status")["ready"] = true
		}), 200)
		c.patch(widgetsPath+"/w", mergePatch, object{"spec": object{"size": 3}}, 200)
		c.patch(widgetsPath+"/w", strategicPatch, object{"spec": object{"size": 3}}, 415)
		c.lists(req{Path: widgetsPath, Query: "fieldSelector=spec.size=3", Code: 200})
		c.lists(req{Path: widgetsPath, Query: "fieldSelector=spec.size=4", Code: 200})
		c.lists(req{Path: widgetsPath, Query: "fieldSelector=spec.colour=4", Code: 400})
		c.do(req{Path: widgetsPath + "/w", Accept: "application/vnd.kubernetes.protobuf", Code: 406})
		c.do(req{Path: widgetsPath + "/w", Accept: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", Code: 200})
		w := c.watch(req{Path: widgetsPath})
		defer w.stop()
		w.expect("ADDED")
		c.delete(widgetsPath+"/w", nil, 200)
		w.expect("DELETED")
		c.quiet("DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.c.example.com", nil, 200)
	}},
	{"node-status-checks", func(c *C) {
		c.quiet("POST", nodesPath, named("n-checks"), 201)
		path := nodesPath + "/n-checks/status"
		status := func(code int, status object) {
			c.Helper()
			c.patch(path, mergePatch, object{"status": status}, code)
		}
		address := func(typ, a string) object { return object{"type": typ, "address": a} }
		status(200, object{"addresses": []any{address("Hostname", "n"), address("InternalIP", "10.0.0.1")}})
		status(422, object{"addresses": []any{address("Hostname", "n"), address("InternalIP", "10.0.0.1"), address("Hostname", "n")}})
		status(200, object{"declaredFeatures": []any{"A", "A/b", "B"}})
		status(422, object{"declaredFeatures": []any{"B", "A"}})
		status(422, object{"declaredFeatures": []any{"A", "A"}})
		status(422, object{"declaredFeatures": []any{"a", "b_c"}})
		c.post(nodesPath, object{"metadata": object{"name": "n-checks-2"}, "status": object{"addresses": []any{address("Hostname", "n"), address("Hostname", "n")}}}, 201)
	}},
}

const applyPatch = "application/apply-patch+yaml"

// apply sends a server-side apply and records which manager owns which fields.
func (c *C) apply(path, manager, query string, body any, code int) *answer {
	c.Helper()
	q := "fieldManager=" + manager
	if manager == "" {
		q = ""
	}
	if query != "" {
		q += "&" + query
	}
	a := c.do(req{Method: "PATCH", Path: path, Type: applyPatch, Query: q, Body: body, Code: code})
	c.owners(a)
	return a
}

// owners records which manager owns which fields. The server sorts its entries by
// operation, time and manager, and times are whole seconds of its clock.
func (c *C) owners(a *answer) {
	entries, _ := in(a.Body, "metadata")["managedFields"].([]any)
	for _, e := range slices.SortedFunc(slices.Values(entries), func(a, b any) int {
		return cmp.Or(strings.Compare(str(a.(object), "operation"), str(b.(object), "operation")), strings.Compare(str(a.(object), "manager"), str(b.(object), "manager")))
	}) {
		e := e.(object)
		c.note("%s %s %s %s %v", str(e, "manager"), str(e, "operation"), str(e, "apiVersion"), str(e, "subresource"), e["fieldsV1"])
	}
}

// applyCases check server-side apply.
var applyCases = []scenario{
	{"apply", func(c *C) {
		c.namespace()
		config := func(data object) object {
			return object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "a", "labels": object{"l": "v"}}, "data": data}
		}
		path := configMapsPath + "/a"
		made := c.apply(path, "one", "", config(object{"a": "1", "b": "1"}), 201)
		if again := c.apply(path, "one", "", config(object{"a": "1", "b": "1"}), 200); again.rv() != made.rv() {
			c.Error("an apply that changes nothing writes")
		}
		c.apply(path, "two", "", config(object{"a": "1", "c": "2"}), 200) // shared
		c.apply(path, "two", "", config(object{"a": "2", "c": "2"}), 409)
		c.apply(path, "two", "force=true", config(object{"a": "2", "c": "2"}), 200)
		c.apply(path, "one", "", config(object{}), 200) // fields that only this manager owned are removed
		c.apply(path, "one", "dryRun=All", config(object{"d": "1"}), 200)
		c.owners(c.patch(path, mergePatch, object{"data": object{"c": "3"}}, 200))
		c.apply(path, "two", "", config(object{"a": "2", "c": "2"}), 409)
		c.apply(path, "three", "", "apiVersion: v1\nkind: ConfigMap\ndata:\n  e: \"5\"\n", 200)
		c.owners(c.put(path, object{"metadata": object{"name": "a"}, "data": object{"z": "1"}}, 200))
	}},
	{"apply-after-updates", func(c *C) {
		c.namespace()
		path := configMapsPath + "/a"
		c.do(req{Method: "POST", Path: configMapsPath, Query: "fieldManager=creator", Body: configMap("a", object{"a": "1", "b": "1", "c": "1"}), Code: 201, quiet: true})
		c.do(req{Method: "PATCH", Path: path, Type: mergePatch, Query: "fieldManager=updater", Body: object{"data": object{"b": "2"}}, Code: 200, quiet: true})
		c.do(req{Method: "PATCH", Path: path, Type: mergePatch, Query: "fieldManager=creator", Body: object{"data": object{"c": "2", "d": "2"}}, Code: 200, quiet: true})
		want := object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "a"}, "data": object{"b": "9", "d": "2"}}
		c.apply(path, "applier", "", want, 409)
		want["data"] = object{"a": "9", "d": "2"}
		c.apply(path, "applier", "", want, 409)
		want["data"] = object{"a": "9", "b": "9", "d": "2"}
		c.apply(path, "applier", "force=true", want, 200)
	}},
	{"apply-status", func(c *C) {
		c.namespace()
		path := budgetsPath + "/b"
		b := object{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": object{"name": "b"}, "spec": object{"maxUnavailable": 1, "selector": object{"matchLabels": object{"a": "b"}}}}
		c.apply(path, "owner", "", b, 201)
		status := object{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": object{"name": "b"}, "status": object{
			"conditions": []any{object{"type": "DisruptionAllowed", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "2020-01-01T00:00:00Z"}}}}
		c.apply(path+"/status", "controller", "", status, 200)
		c.apply(budgetsPath+"/absent/status", "controller", "", object{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": object{"name": "absent"}}, 404)
	}},
	{"apply-bad", func(c *C) {
		c.namespace()
		c.quiet("POST", configMapsPath, configMap("a", object{"k": "v"}), 201)
		path := configMapsPath + "/a"
		body := func(change func(m object)) object {
			m := object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "a"}, "data": object{"l": "v"}}
			change(m)
			return m
		}
		c.apply(path, "", "", body(func(object) {}), 422)
		c.apply(path, "m", "", body(func(m object) { in(m, "metadata")["name"] = "b" }), 400)
		c.apply(path, "m", "", body(func(m object) { in(m, "metadata")["namespace"] = "elsewhere" }), 400)
		c.apply(path, "m", "", body(func(m object) { m["apiVersion"] = "v2" }), 400)
		c.apply(path, "m", "", body(func(m object) { m["kind"] = "Secret" }), 400)
		c.apply(path, "m", "", body(func(m object) { delete(m, "kind") }), 400)
		c.apply(path, "m", "", body(func(m object) { in(m, "metadata")["managedFields"] = []any{object{"manager": "x"}} }), 400)
		c.apply(path, "m", "", body(func(m object) { in(m, "metadata")["resourceVersion"] = "1" }), 409)
		c.apply(path, "m", "", body(func(m object) { m["data"] = object{"k": 1} }), 0)
		c.apply(path, "m", "", body(func(m object) { m["nonsense"] = true }), 0)
		c.apply(path, "m", "", "a: [", 400)
		c.apply(path, "m", "", "", 400)
		c.apply(configMapsPath+"/absent", "m", "", body(func(m object) { m["metadata"] = object{"name": "absent", "uid": "u"} }), 409)
	}},
}
