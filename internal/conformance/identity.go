// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"github.com/kubewright/kubewright/apitest"
)

const nodeLeases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

// identityCases check the permissions of a kubelet's identity: the Node
// authorizer and the NodeRestriction admission plugin.
var identityCases = []scenario{
	{"node-own", func(c *C) {
		me := apitest.NodeUser("n-own")
		as := func(method, path string, body any, code int) *answer {
			c.Helper()
			return c.do(req{As: me, Method: method, Path: path, Body: body, Code: code})
		}
		patch := func(path string, body any, code int) *answer {
			c.Helper()
			return c.do(req{As: me, Method: "PATCH", Path: path, Type: strategicPatch, Body: body, Code: code})
		}
		path := nodesPath + "/n-own"
		as("GET", path, nil, 404) // a kubelet may get its own Node before it exists
		labelled := func(k string) object {
			n := node("n-own")
			in(n, "metadata", "labels")[k] = "v"
			return n
		}
		as("POST", nodesPath, labelled("node-restriction.kubernetes.io/x"), 403)
		as("POST", nodesPath, labelled("kubernetes.io/x"), 403)
		as("POST", nodesPath, labelled("sub.k8s.io/x"), 403)
		as("POST", nodesPath, node("n-other"), 403)
		made := as("POST", nodesPath, labelled("topology.kubernetes.io/zone"), 201)
		as("GET", path, nil, 200)
		as("GET", path+"/status", nil, 403)
		as("GET", nodesPath, nil, 403)
		as("GET", nodesPath+"/n-other", nil, 403)
		c.do(req{As: me, Path: nodesPath, Query: "fieldSelector=metadata.name=n-own", Code: 200})
		c.do(req{As: me, Path: nodesPath, Query: "fieldSelector=metadata.name=n-other", Code: 403})
		patch(path+"/status", object{"status": object{"conditions": []any{object{"type": "Ready", "status": "False"}}}}, 200)
		patch(path+"/status", object{"metadata": object{"labels": object{"kubernetes.io/x": "v"}}}, 403)
		patch(path+"/status", object{"spec": object{"taints": nil}}, 403)
		patch(path, object{"metadata": object{"labels": object{"x.kubelet.kubernetes.io/x": "v", "x.node.kubernetes.io/x": "v", "example.com/x": "v", "kubernetes.io/os": "linux"}}}, 200)
		patch(path, object{"metadata": object{"labels": object{"kubernetes.io/x": "v", "node-restriction.kubernetes.io/x": "v"}}}, 403)
		patch(path, object{"metadata": object{"ownerReferences": []any{object{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}}}}, 403)
		patch(path, object{"spec": object{"taints": []any{object{"key": "example.com/more", "effect": "NoSchedule"}}}}, 403)
		patch(path, object{"spec": object{"unschedulable": true}}, 200)
		patch(nodesPath+"/n-other/status", object{"status": object{}}, 0)
		as("PUT", path, made.with(func(m object) {
			delete(in(m, "metadata"), "resourceVersion")
			delete(in(m, "spec"), "taints")
		}), 403)
		as("DELETE", path, nil, 403)
		c.quiet("DELETE", path, nil, 200)
	}},
	{"node-leases", func(c *C) {
		me := apitest.NodeUser("n-lease")
		as := func(method, path string, body any, code int) *answer {
			c.Helper()
			return c.do(req{As: me, Method: method, Path: path, Body: body, Code: code})
		}
		path := nodeLeases + "/n-lease"
		as("GET", path, nil, 404)
		as("POST", nodeLeases, lease("n-other"), 403)
		made := as("POST", nodeLeases, lease("n-lease"), 201)
		as("PUT", path, made.with(func(m object) { in(m, "spec")["leaseDurationSeconds"] = 41 }), 200)
		c.do(req{As: me, Method: "PATCH", Path: path, Type: mergePatch, Body: object{"spec": object{"leaseDurationSeconds": 42}}, Code: 200})
		as("GET", nodeLeases, nil, 403)
		c.do(req{As: me, Path: nodeLeases, Query: "fieldSelector=metadata.name=n-lease", Code: 403})
		c.do(req{As: me, Path: nodeLeases, Query: "watch=true&fieldSelector=metadata.name=n-lease", Code: 403})
		as("GET", nodeLeases+"/n-other", nil, 403)
		as("PUT", nodeLeases+"/n-other", lease("n-other"), 403)
		as("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/n-lease", nil, 403)
		as("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", lease("n-lease"), 403)
		as("GET", "/apis/coordination.k8s.io/v1/leases", nil, 403)
		as("DELETE", path, nil, 200)
		as("PUT", path, made.Body, 409)
		as("PUT", path, lease("n-lease"), 201) // creates
		as("DELETE", path, nil, 200)
	}},
	{"node-pods", func(c *C) {
		c.namespace()
		me := apitest.NodeUser("n-podder")
		as := func(method, path string, body any, code int) *answer {
			c.Helper()
			return c.do(req{As: me, Method: method, Path: path, Body: body, Code: code})
		}
		status := func(path string, body object, code int) {
			c.Helper()
			c.do(req{As: me, Method: "PATCH", Path: path + "/status", Type: strategicPatch, Body: body, Code: code})
		}
		n := c.quiet("POST", nodesPath, node("n-podder"), 201)
		mine := c.quiet("POST", podsPath, pod("mine", "n-podder"), 201)
		c.quiet("POST", podsPath, pod("other", "n-elsewhere"), 201)
		c.settleRead(me, podsPath+"/mine")
		eviction := func(pod string) object {
			return object{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": object{"name": pod}}
		}
		for _, name := range []string{"mine", "other"} {
			c.settle("the admission to know the pod", req{As: me, Method: "POST", Path: podsPath + "/" + name + "/eviction", Query: "dryRun=All", Body: eviction(name)}, func(a *answer) bool { return a.Code != 404 })
		}
		as("GET", podsPath, nil, 403)
		c.do(req{As: me, Path: "/api/v1/pods", Query: "watch=true", Code: 403})
		c.lists(req{As: me, Path: podsPath, Query: "fieldSelector=spec.nodeName=n-podder", Code: 200})
		c.lists(req{As: me, Path: podsPath, Query: "fieldSelector=spec.nodeName=n-elsewhere", Code: 403})
		as("GET", podsPath+"/other", nil, 403)
		as("GET", podsPath+"/absent", nil, 403)
		status(podsPath+"/mine", object{"status": object{"phase": "Running"}}, 200)
		status(podsPath+"/mine", object{"metadata": object{"labels": object{"l": "1"}}}, 403)
		status(podsPath+"/mine", object{"metadata": object{"annotations": object{"a": "1"}}}, 200)
		status(podsPath+"/mine", object{"metadata": object{"uid": "99999999-9999-9999-9999-999999999999"}}, 422)
		status(podsPath+"/other", object{"status": object{"phase": "Running"}}, 403)
		status(podsPath+"/absent", object{"status": object{"phase": "Running"}}, 404)
		c.do(req{As: me, Method: "PATCH", Path: podsPath + "/mine", Type: mergePatch, Body: object{"metadata": object{"annotations": object{"a": "2"}}}, Code: 403})
		as("PUT", podsPath+"/mine", mine.Body, 403)
		as("POST", podsPath, pod("new", "n-podder"), 403)
		mirror := func(change ...func(object)) object {
			return pod("mirror", "n-podder", append([]func(object){func(p object) {
				in(p, "metadata")["annotations"] = object{"kubernetes.io/config.mirror": "x"}
				in(p, "metadata")["ownerReferences"] = []any{object{"apiVersion": "v1", "kind": "Node", "name": "n-podder", "uid": n.uid(), "controller": true}}
			}}, change...)...)
		}
		owner := func(k string, v any) func(object) {
			return func(p object) { in(p, "metadata")["ownerReferences"].([]any)[0].(object)[k] = v }
		}
		c.settle("the admission to know the node", req{As: me, Method: "POST", Path: podsPath, Query: "dryRun=All", Body: mirror()}, func(a *answer) bool { return a.Code == 201 })
		as("POST", podsPath, mirror(owner("uid", "99999999-9999-9999-9999-999999999999")), 403)
		as("POST", podsPath, mirror(owner("controller", false)), 403)
		as("POST", podsPath, mirror(func(p object) { delete(in(p, "metadata"), "ownerReferences") }), 403)
		as("POST", podsPath, mirror(specOf("nodeName", "n-elsewhere")), 403)
		as("POST", podsPath, mirror(specOf("volumes", []any{object{"name": "v", "secret": object{"secretName": "s"}}})), 403)
		as("POST", podsPath, mirror(), 201)
		as("POST", podsPath+"/other/eviction", eviction("other"), 403)
		as("DELETE", podsPath+"/other", nil, 403)
		as("DELETE", podsPath+"/absent", nil, 404)
		as("DELETE", podsPath, nil, 403)
		as("DELETE", podsPath+"/mine", object{"gracePeriodSeconds": 0, "preconditions": object{"uid": "99999999-9999-9999-9999-999999999999"}}, 409)
		as("DELETE", podsPath+"/mine", object{"gracePeriodSeconds": 0, "preconditions": object{"uid": mine.uid()}}, 200)
		c.quiet("DELETE", nodesPath+"/n-podder", nil, 200)
	}},
	{"node-references", func(c *C) {
		c.namespace()
		me := apitest.NodeUser("n-reader")
		as := func(path, query string, code int) {
			c.Helper()
			c.do(req{As: me, Path: path, Query: query, Code: code})
		}
		const secrets = "/api/v1/namespaces/{NS}/secrets"
		for _, name := range []string{"mine", "other"} {
			c.quiet("POST", configMapsPath, configMap(name, nil), 201)
			c.quiet("POST", secrets, named(name), 201)
		}
		c.quiet("POST", podsPath, pod("p", "n-reader", specOf("volumes", []any{
			object{"name": "a", "configMap": object{"name": "mine"}}, object{"name": "b", "secret": object{"secretName": "mine"}}})), 201)
		c.settleRead(me, configMapsPath+"/mine")
		as(configMapsPath+"/mine", "", 200)
		as(configMapsPath+"/other", "", 403)
		as(configMapsPath, "", 403)
		c.lists(req{As: me, Path: configMapsPath, Query: "fieldSelector=metadata.name=mine", Code: 200})
		as(configMapsPath, "fieldSelector=metadata.name=other", 403)
		as(secrets+"/mine", "", 200)
		as(secrets+"/other", "", 403)
		c.do(req{As: me, Method: "PUT", Path: configMapsPath + "/mine", Body: configMap("mine", nil), Code: 403})
		c.lists(req{As: me, Path: "/api/v1/namespaces/{NS}/services", Code: 200})
		as("/api/v1/namespaces/{NS}/serviceaccounts", "", 403)
		as("/apis/resource.k8s.io/v1/namespaces/{NS}/resourceclaims", "", 403)
		as("/apis/coordination.k8s.io/v1beta1/namespaces/{NS}/leasecandidates", "", 403)
		as("/api/v1/namespaces/{NS}", "", 403)
	}},
	{"node-storage", func(c *C) {
		c.namespace()
		me := apitest.NodeUser("n-storage")
		as := func(method, path string, body any, code int) {
			c.Helper()
			c.do(req{As: me, Method: method, Path: path, Body: body, Code: code, quiet: true})
		}
		const claims, csiNodes = "/api/v1/namespaces/{NS}/persistentvolumeclaims", "/apis/storage.k8s.io/v1/csinodes"
		for _, name := range []string{"mine", "other", "p-scratch"} {
			claim := named(name)
			claim["spec"] = object{"accessModes": []any{"ReadWriteOnce"}, "storageClassName": "", "resources": object{"requests": object{"storage": "1Gi"}}}
			c.quiet("POST", claims, claim, 201)
		}
		c.quiet("POST", "/api/v1/namespaces/{NS}/secrets", named("key"), 201)
		template := object{"spec": object{"accessModes": []any{"ReadWriteOnce"}, "resources": object{"requests": object{"storage": "1Gi"}}}}
		c.quiet("POST", podsPath, pod("p", "n-storage", specOf("volumes", []any{
			object{"name": "v", "persistentVolumeClaim": object{"claimName": "mine"}}, object{"name": "scratch", "ephemeral": object{"volumeClaimTemplate": template}}})), 201)
		c.do(req{Method: "PATCH", Path: podsPath + "/p/ephemeralcontainers", Type: strategicPatch, Code: 200, quiet: true, Body: object{"spec": object{"ephemeralContainers": []any{
			object{"name": "debug", "image": "d", "envFrom": []any{object{"secretRef": object{"name": "key"}}}}}}}})
		for _, path := range []string{claims + "/mine", claims + "/p-scratch", "/api/v1/namespaces/{NS}/secrets/key"} {
			c.settleRead(me, path)
			as("GET", path, nil, 200)
		}
		as("GET", claims+"/other", nil, 403)
		as("GET", claims, nil, 403)
		as("DELETE", claims+"/mine", nil, 403)
		for _, path := range []string{"/apis/storage.k8s.io/v1/csidrivers", "/apis/node.k8s.io/v1/runtimeclasses"} {
			as("GET", path, nil, 200)
			as("POST", path, named("x"), 403)
		}
		csiNode := func(name string) object {
			n := named(name)
			n["spec"] = object{"drivers": []any{}}
			return n
		}
		as("GET", csiNodes+"/n-storage", nil, 404)
		as("POST", csiNodes, csiNode("n-other"), 403)
		as("POST", csiNodes, csiNode("n-storage"), 201)
		as("GET", csiNodes+"/n-storage", nil, 200)
		as("GET", csiNodes+"/n-other", nil, 403)
		as("GET", csiNodes, nil, 403)
		as("DELETE", csiNodes+"/n-storage", nil, 200)
	}},
	{"node-slices", func(c *C) {
		me := apitest.NodeUser("n-slicer")
		as := func(method, path, query string, body any, code int) *answer {
			c.Helper()
			return c.do(req{As: me, Method: method, Path: path, Query: query, Body: body, Code: code})
		}
		as("POST", slicesPath, "", slice("mine", "n-elsewhere"), 403)
		all := slice("mine", "")
		in(all, "spec")["allNodes"] = true
		as("POST", slicesPath, "", all, 403)
		made := as("POST", slicesPath, "", slice("mine", "n-slicer"), 201)
		c.quiet("POST", slicesPath, slice("other", "n-elsewhere"), 201)
		c.settleRead(me, slicesPath+"/mine")
		as("PUT", slicesPath+"/mine", "", made.with(func(m object) { in(m, "spec", "pool")["generation"] = 2 }), 200)
		as("GET", slicesPath+"/other", "", nil, 403)
		as("GET", slicesPath+"/absent", "", nil, 403)
		as("DELETE", slicesPath+"/other", "", nil, 403)
		as("GET", slicesPath, "", nil, 403)
		as("GET", slicesPath, "fieldSelector=spec.nodeName=n-elsewhere", nil, 403)
		c.lists(req{As: me, Path: slicesPath, Query: "fieldSelector=spec.nodeName=n-slicer", Code: 200})
		c.lists(req{As: me, Path: slicesPath, Query: "fieldSelector=spec.nodeName=n-slicer,spec.driver=d.example.com", Code: 200})
		as("DELETE", slicesPath, "", nil, 403)
		as("DELETE", slicesPath, "fieldSelector=spec.nodeName=n-slicer", nil, 200)
		c.lists(req{Path: slicesPath, Query: "fieldSelector=spec.nodeName=n-slicer", Code: 200})
		c.quiet("DELETE", slicesPath+"/other", nil, 200)
	}},
	{"node-events", func(c *C) {
		c.namespace()
		me := apitest.NodeUser("n-events")
		const path = "/api/v1/namespaces/{NS}/events"
		ev := object{"metadata": object{"name": "e"}, "involvedObject": object{"kind": "Pod", "name": "p", "namespace": c.NS}, "reason": "R", "type": "Normal"}
		c.do(req{As: me, Method: "POST", Path: path, Body: ev, Code: 201})
		c.do(req{As: me, Method: "PATCH", Path: path + "/e", Type: mergePatch, Body: object{"count": 2}, Code: 200})
		c.do(req{As: me, Path: path, Code: 403})
		c.do(req{As: me, Path: path + "/e", Code: 403})
		c.do(req{As: me, Method: "DELETE", Path: path + "/e", Code: 403})
	}},
}
