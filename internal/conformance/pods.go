// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import ()

// pod returns a pod that is bound to a node, or to no node if node is empty.
func pod(name, node string, change ...func(object)) object {
	p := object{"metadata": object{"name": name}, "spec": object{"containers": []any{object{"name": "c", "image": "example.com/i:1"}}}}
	if node != "" {
		in(p, "spec")["nodeName"] = node
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func specOf(k string, v any) func(object) { return func(p object) { in(p, "spec")[k] = v } }

var podCases = []scenario{
	{"pod-create", func(c *C) {
		c.namespace()
		c.post(podsPath, pod("plain", ""), 201)
		c.post(podsPath, pod("bound", "n-pods", func(p object) {
			p["status"] = object{"phase": "Running"} // ignored on create
			in(p, "metadata")["generation"] = 7
		}), 201)
		container := func(image string, res object) []any {
			return []any{object{"name": "c", "image": image, "resources": res}}
		}
		both := object{"limits": object{"cpu": "1", "memory": "1Gi"}}
		c.post(podsPath, pod("guaranteed", "", specOf("containers", container("i:latest", both))), 201)
		c.post(podsPath, pod("burstable", "", specOf("containers", container("h/i", object{"requests": object{"cpu": "1"}}))), 201)
		c.post(podsPath, pod("never", "", specOf("restartPolicy", "Never"), specOf("terminationGracePeriodSeconds", 0), specOf("activeDeadlineSeconds", 5)), 201)
		c.post(podsPath, pod("bad", "", specOf("containers", nil)), 422)
		c.post(podsPath, pod("bad", "", specOf("containers", []any{object{"name": "Bad", "image": ""}, object{"name": "x", "image": "i"}, object{"name": "x", "image": "i"}})), 422)
		c.post(podsPath, pod("bad", "", specOf("restartPolicy", "Perhaps")), 422)
		c.post(podsPath, pod("bad", "Not_A_Node"), 422)
		c.post(podsPath, pod("bad", "", specOf("activeDeadlineSeconds", 0)), 422)
		for _, q := range []string{"spec.nodeName=n-pods", "spec.nodeName=", "status.phase=Pending", "spec.restartPolicy=Never", "spec.schedulerName=default-scheduler,spec.nodeName!=", "spec.hostNetwork=false", "status.podIP=1.2.3.4", "metadata.name=plain"} {
			c.lists(req{Path: podsPath, Query: "fieldSelector=" + q, Code: 200})
		}
		c.lists(req{Path: podsPath, Query: "fieldSelector=spec.nonsense=1", Code: 400})
	}},
	{"pod-update", func(c *C) {
		c.namespace()
		made := c.post(podsPath, pod("p", "n-pods", specOf("activeDeadlineSeconds", 100)), 201)
		path := podsPath + "/p"
		c.patch(path, strategicPatch, object{"spec": object{"containers": []any{object{"name": "c", "image": "example.com/i:2"}}}}, 200) // generation 2
		c.patch(path, mergePatch, object{"metadata": object{"labels": object{"l": "1"}}, "status": object{"phase": "Failed"}}, 200)      // same generation
		c.patch(path, mergePatch, object{"spec": object{"activeDeadlineSeconds": 50}}, 200)
		c.patch(path, mergePatch, object{"spec": object{"activeDeadlineSeconds": 60}}, 422)
		c.patch(path, mergePatch, object{"spec": object{"activeDeadlineSeconds": nil}}, 422)
		c.do(req{Method: "PATCH", Path: path, Type: mergePatch, Body: object{"spec": object{"nodeName": "other"}}, Code: 422, quiet: true})
		c.do(req{Method: "PATCH", Path: path, Type: mergePatch, Body: object{"spec": object{"terminationGracePeriodSeconds": 1}}, Code: 422, quiet: true})
		c.do(req{Method: "PATCH", Path: path, Type: strategicPatch, Body: object{"spec": object{"containers": []any{object{"name": "d", "image": "i"}}}}, Code: 422, quiet: true})
		c.patch(path, jsonPatch, []any{object{"op": "add", "path": "/spec/tolerations/-", "value": object{"key": "k", "operator": "Exists"}}}, 200)
		c.do(req{Method: "PATCH", Path: path, Type: jsonPatch, Body: []any{object{"op": "remove", "path": "/spec/tolerations/2"}}, Code: 422, quiet: true})
		// The tolerations for an absent node are added again.
		c.patch(path, mergePatch, object{"spec": object{"tolerations": []any{object{"key": "k", "operator": "Exists"}}}}, 0)
		c.put(path, made.Body, 409)
		c.get(path, 200)
	}},
	{"pod-delete", func(c *C) {
		c.namespace()
		p := c.post(podsPath, pod("p", "n-pods"), 201)
		path := podsPath + "/p"
		w := c.watch(req{Path: podsPath, Query: "resourceVersion=" + p.rv()})
		defer w.stop()
		c.delete(path, nil, 200) // the pod's own 30 s; the generation increases
		w.expect("MODIFIED")
		c.delete(path, nil, 200) // already being deleted
		c.delete(path, object{"gracePeriodSeconds": 60}, 200)
		w.silent()
		c.delete(path, object{"gracePeriodSeconds": 10}, 200) // a grace period can only become shorter
		w.expect("MODIFIED")
		c.delete(path, object{"gracePeriodSeconds": 0, "preconditions": object{"uid": "88888888-8888-8888-8888-888888888888"}}, 409)
		c.delete(path, object{"gracePeriodSeconds": 0, "preconditions": object{"uid": p.uid()}}, 200)
		w.expect("MODIFIED", "DELETED")
		w.silent()
		c.delete(path, nil, 404)
		c.patch(path+"/status", strategicPatch, object{"status": object{"phase": "Failed"}}, 404)
	}},
	{"pod-delete-at-once", func(c *C) {
		c.namespace()
		free := c.post(podsPath, pod("free", ""), 201)
		w := c.watch(req{Path: podsPath, Query: "resourceVersion=" + free.rv()})
		defer w.stop()
		c.delete(podsPath+"/free", nil, 200) // not bound to a node
		w.expect("MODIFIED", "DELETED")
		c.quiet("POST", podsPath, pod("done", "n-pods"), 201)
		w.expect("ADDED")
		c.do(req{Method: "PATCH", Path: podsPath + "/done/status", Type: strategicPatch, Body: object{"status": object{"phase": "Succeeded"}}, Code: 200, quiet: true})
		w.expect("MODIFIED")
		c.delete(podsPath+"/done", object{"gracePeriodSeconds": 30}, 200) // it has already ended
		w.expect("MODIFIED", "DELETED")
		c.quiet("POST", podsPath, pod("forced", "n-pods"), 201)
		c.delete(podsPath+"/forced", object{"gracePeriodSeconds": 0}, 200)
		w.expect("ADDED", "MODIFIED", "DELETED")
		c.quiet("POST", podsPath, pod("zero", "n-pods", specOf("terminationGracePeriodSeconds", 0)), 201)
		c.delete(podsPath+"/zero", nil, 200)
		w.expect("ADDED", "MODIFIED", "DELETED")
		c.quiet("POST", podsPath, pod("negative", "n-pods"), 201)
		c.delete(podsPath+"/negative", object{"gracePeriodSeconds": -7}, 0)
	}},
	{"pod-finalizer", func(c *C) {
		c.namespace()
		p := c.post(podsPath, pod("p", "n-pods", func(p object) { in(p, "metadata")["finalizers"] = []any{"example.com/f"} }), 201)
		path := podsPath + "/p"
		w := c.watch(req{Path: podsPath, Query: "resourceVersion=" + p.rv()})
		defer w.stop()
		c.delete(path, object{"gracePeriodSeconds": 10}, 200)
		w.expect("MODIFIED")
		c.delete(path, object{"gracePeriodSeconds": 0}, 200) // stays, with grace 0
		w.expect("MODIFIED")
		c.delete(path, object{"gracePeriodSeconds": 0}, 200) // has no effect
		w.silent()
		c.patch(path, mergePatch, object{"metadata": object{"finalizers": nil}}, 200)
		w.expect("DELETED")
		// With a grace period, the object outlives its last finalizer.
		c.quiet("POST", podsPath, pod("q", "n-pods", func(p object) { in(p, "metadata")["finalizers"] = []any{"example.com/f"} }), 201)
		c.delete(podsPath+"/q", object{"gracePeriodSeconds": 10}, 200)
		c.patch(podsPath+"/q", mergePatch, object{"metadata": object{"finalizers": nil}}, 200)
		c.get(podsPath+"/q", 200)
		c.delete(podsPath+"/q", object{"gracePeriodSeconds": 0}, 200)
		c.get(podsPath+"/q", 404)
	}},
}

var podStatusCases = []scenario{
	{"pod-status", func(c *C) {
		c.namespace()
		made := c.post(podsPath, pod("p", "n-pods", specOf("restartPolicy", "Never")), 201)
		path := podsPath + "/p/status"
		set := func(code int, status object) *answer {
			c.Helper()
			return c.patch(path, strategicPatch, object{"status": status}, code)
		}
		set(200, object{"phase": "Running", "podIP": "10.0.0.1", "observedGeneration": 1, "conditions": []any{object{"type": "Ready", "status": "True", "observedGeneration": 1}}})
		set(200, object{"podIP": "10.0.0.2", "podIPs": nil})
		set(422, object{"podIPs": []any{object{"ip": "10.0.0.2"}, object{"ip": "10.0.0.3"}}})
		set(422, object{"podIPs": []any{object{"$patch": "replace"}, object{"ip": "nonsense"}}, "podIP": "nonsense"})
		set(422, object{"qosClass": "Guaranteed"})
		set(422, object{"observedGeneration": -1})
		set(200, object{"observedGeneration": nil, "conditions": []any{object{"type": "Ready", "status": "False", "observedGeneration": nil}}}) // kept
		set(200, object{"phase": "Failed"})
		set(200, object{"phase": "Pending"}) // the server enforces no order of phases
		ended := object{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": object{"terminated": object{"exitCode": 0}}}
		running := object{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 1, "state": object{"running": object{}}}
		set(200, object{"containerStatuses": []any{running}})
		set(200, object{"containerStatuses": []any{ended}})
		set(422, object{"containerStatuses": []any{running}})
		set(422, object{"nominatedNodeName": "n-other"})
		// Labels and annotations may change; owners and the spec may not.
		c.patch(path, mergePatch, object{
			"metadata": object{"labels": object{"l": "1"}, "annotations": object{"a": "1"}, "finalizers": []any{"example.com/f"}, "ownerReferences": []any{object{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}}},
			"spec":     object{"activeDeadlineSeconds": 5},
		}, 200)
		c.put(path, made.with(func(m object) {
			delete(in(m, "metadata"), "resourceVersion")
			m["status"] = object{"phase": "Running"}
		}), 200)
		c.patch(path, mergePatch, object{"metadata": object{"uid": "99999999-9999-9999-9999-999999999999"}, "status": object{"phase": "Failed"}}, 422)
		c.get(path, 200)
	}},
	{"pod-status-restarts", func(c *C) {
		c.namespace()
		c.quiet("POST", podsPath, pod("always", "n-pods"), 201)
		c.quiet("POST", podsPath, pod("on-failure", "n-pods", specOf("restartPolicy", "OnFailure")), 201)
		state := func(name string, state object, code int) {
			c.Helper()
			c.patch(podsPath+"/"+name+"/status", strategicPatch, object{"status": object{"containerStatuses": []any{
				object{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state}}}}, code)
		}
		ended := func(code int) object { return object{"terminated": object{"exitCode": code}} }
		running := object{"running": object{}}
		state("always", ended(0), 200)
		state("always", running, 200)
		state("on-failure", ended(1), 200)
		state("on-failure", running, 200)
		state("on-failure", ended(0), 200)
		state("on-failure", running, 422)
		// Init containers that have ended stay so, unless they are sidecars, and ephemeral containers do.
		c.quiet("POST", podsPath, pod("never", "n-pods", specOf("restartPolicy", "Never"), specOf("initContainers", []any{
			object{"name": "side", "image": "i:1", "restartPolicy": "Always"}, object{"name": "init", "image": "i:1"}})), 201)
		other := func(list, name string, state object, code int) {
			c.Helper()
			c.do(req{Method: "PATCH", Path: podsPath + "/never/status", Type: strategicPatch, Code: code, quiet: true, Body: object{"status": object{list: []any{
				object{"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state}}}}})
		}
		other("initContainerStatuses", "side", ended(1), 200)
		other("initContainerStatuses", "side", running, 200)
		other("initContainerStatuses", "init", ended(1), 200)
		other("initContainerStatuses", "init", running, 422)
		other("ephemeralContainerStatuses", "debug", ended(0), 200)
		other("ephemeralContainerStatuses", "debug", running, 422)
	}},
}

var podSubresourceCases = []scenario{
	{"pod-binding", func(c *C) {
		c.namespace()
		p := c.post(podsPath, pod("p", ""), 201)
		w := c.watch(req{Path: podsPath, Query: "fieldSelector=spec.nodeName=n-bind&resourceVersion=" + p.rv()})
		defer w.stop()
		bind := func(meta object, node string, code int) {
			c.Helper()
			c.post(podsPath+"/p/binding", object{"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": object{"kind": "Node", "name": node}}, code)
		}
		bind(object{"name": "other"}, "n-bind", 400)
		bind(object{"name": "p", "uid": "99999999-9999-9999-9999-999999999999"}, "n-bind", 409)
		bind(object{"name": "p", "annotations": object{"a": "b"}}, "n-bind", 201)
		w.expect("ADDED")
		bind(object{"name": "p"}, "n-bind", 409)
		c.post(podsPath+"/absent/binding", object{"apiVersion": "v1", "kind": "Binding", "metadata": object{"name": "absent"}, "target": object{"kind": "Node", "name": "n"}}, 404)
	}},
	{"pod-eviction", func(c *C) {
		c.namespace()
		p := c.post(podsPath, pod("p", "n-pods"), 201)
		w := c.watch(req{Path: podsPath, Query: "resourceVersion=" + p.rv()})
		defer w.stop()
		evict := func(meta, opts object, code int) {
			c.Helper()
			c.post(podsPath+"/p/eviction", object{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta, "deleteOptions": opts}, code)
		}
		evict(object{"name": "other"}, nil, 400)
		evict(object{"name": "p"}, object{"preconditions": object{"uid": "99999999-9999-9999-9999-999999999999"}}, 409)
		evict(object{"name": "p"}, object{"gracePeriodSeconds": 20}, 201)
		w.expect("MODIFIED", "MODIFIED")
		evict(object{"name": "p"}, object{"gracePeriodSeconds": 0}, 201)
		w.expect("MODIFIED", "DELETED")
		evict(object{"name": "p"}, nil, 404)
	}},
	{"pod-parts", func(c *C) {
		c.namespace()
		c.post(podsPath, pod("p", "n-pods"), 201)
		path := podsPath + "/p"
		c.patch(path+"/ephemeralcontainers", strategicPatch, object{
			"metadata": object{"labels": object{"l": "1"}},
			"spec":     object{"activeDeadlineSeconds": 5, "ephemeralContainers": []any{object{"name": "debug", "image": "d"}}},
		}, 200)
		c.do(req{Method: "PATCH", Path: path + "/ephemeralcontainers", Type: strategicPatch, Body: object{"spec": object{"ephemeralContainers": []any{object{"name": "debug", "image": "e"}}}}, Code: 422, quiet: true})
		c.patch(path+"/resize", strategicPatch, object{
			"spec": object{"activeDeadlineSeconds": 5, "containers": []any{object{"name": "c", "image": "other", "resources": object{"requests": object{"cpu": "2"}}}}},
		}, 0)
		c.get(path, 200)
		c.do(req{Method: "PATCH", Path: path, Type: strategicPatch, Body: object{"spec": object{"ephemeralContainers": []any{object{"name": "x", "image": "d"}}}}, Code: 422, quiet: true})
	}},
	{"pod-part-checks", func(c *C) {
		c.namespace()
		cpu := func(n string) object { return object{"cpu": n} }
		patch := func(path string, spec object, code int) {
			c.Helper()
			c.do(req{Method: "PATCH", Path: podsPath + "/" + path, Query: "dryRun=All", Type: strategicPatch, Body: object{"spec": spec}, Code: code, quiet: true})
		}
		// No scheduler binds these pods: from 1.36 on, a bound pod can only be resized if its node exists and has room.
		waits := specOf("schedulerName", "none")
		c.quiet("POST", podsPath, pod("p", "", waits, specOf("containers", []any{
			object{"name": "c", "image": "i:1", "resources": object{"requests": cpu("1"), "limits": cpu("2")}}}), specOf("initContainers", []any{
			object{"name": "side", "image": "i:1", "restartPolicy": "Always", "resources": object{"requests": cpu("1")}}, object{"name": "init", "image": "i:1"}})), 201)
		resize := func(list, name string, resources object, code int) {
			c.Helper()
			patch("p/resize", object{list: []any{object{"name": name, "resources": resources}}}, code)
		}
		resize("containers", "c", object{"requests": cpu("2")}, 200)
		resize("containers", "c", object{"requests": cpu("5")}, 422)
		resize("containers", "c", object{"requests": cpu("-1")}, 422)
		resize("containers", "c", object{"limits": object{"cpu": nil}}, 422)
		resize("containers", "c", object{"requests": object{"example.com/d": "1"}, "limits": object{"example.com/d": "1"}}, 422)
		resize("containers", "more", object{}, 422)
		resize("initContainers", "side", object{"requests": cpu("1500m")}, 200)
		resize("initContainers", "side", object{"requests": object{"cpu": nil}}, 422)
		debug := func(more object, code int) {
			c.Helper()
			patch("p/ephemeralcontainers", object{"ephemeralContainers": []any{more}}, code)
		}
		debug(object{"name": "debug", "image": "d", "targetContainerName": "c"}, 200)
		debug(object{"name": "debug", "image": "d", "targetContainerName": "x"}, 422)
		debug(object{"name": "c", "image": "d"}, 422)
		debug(object{"name": "init", "image": "d"}, 422)
		debug(object{"name": "debug"}, 422)
		debug(object{"name": "debug", "image": "d", "ports": []any{object{"containerPort": 80}}}, 422)
		debug(object{"name": "debug", "image": "d", "resources": object{"limits": cpu("1")}}, 422)
		debug(object{"name": "debug", "image": "d", "livenessProbe": object{"exec": object{"command": []any{"x"}}}}, 422)
		gate := func(name string) []any { return []any{object{"name": name}} }
		in := func(zone string) object {
			return object{"nodeAffinity": object{"requiredDuringSchedulingIgnoredDuringExecution": object{"nodeSelectorTerms": []any{
				object{"matchExpressions": []any{object{"key": "zone", "operator": "In", "values": []any{zone}}}}}}}}
		}
		c.quiet("POST", podsPath, pod("free", "", waits), 201)
		patch("free", object{"schedulingGates": gate("example.com/late")}, 422)
		patch("free", object{"nodeSelector": object{"zone": "a"}}, 422)
		patch("free", object{"affinity": in("a")}, 422)
		c.quiet("POST", podsPath, pod("gated", "", waits, specOf("schedulingGates", gate("example.com/g")), specOf("nodeSelector", object{"disk": "ssd"})), 201)
		patch("gated", object{"schedulingGates": gate("example.com/late")}, 422)
		patch("gated", object{"nodeSelector": object{"zone": "a"}}, 200)
		patch("gated", object{"nodeSelector": object{"disk": "hdd"}}, 422)
		patch("gated", object{"affinity": in("a")}, 200)
		patch("gated", object{"affinity": object{"podAntiAffinity": object{"requiredDuringSchedulingIgnoredDuringExecution": []any{
			object{"topologyKey": "zone", "labelSelector": object{}}}}}}, 422)
	}},
}
