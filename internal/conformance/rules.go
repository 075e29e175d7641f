// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubewright/kubewright/apitest"
)

// running reports a pod as running, and as ready or not.
func (c *C) running(name, ready string) {
	c.Helper()
	c.do(req{Method: "PATCH", Path: podsPath + "/" + name + "/status", Type: strategicPatch, Code: 200, quiet: true, Body: object{"status": object{
		"phase": "Running", "conditions": []any{object{"type": "Ready", "status": ready}}}}})
}

// ruleCases check the rules of kinds that change what a controller may do.
var ruleCases = []scenario{
	{"eviction-budgets", func(c *C) {
		c.namespace()
		labelled := func(name, label string) {
			c.quiet("POST", podsPath, pod(name, "n-pods", func(p object) { in(p, "metadata")["labels"] = object{"a": label} }), 201)
		}
		for _, name := range []string{"ready", "ready-2", "unready", "pending", "gone", "deleted"} {
			labelled(name, "b")
		}
		labelled("shared", "c")
		labelled("free", "d")
		c.running("ready", "True")
		c.running("ready-2", "True")
		c.running("unready", "False")
		c.running("deleted", "True")
		c.running("shared", "True")
		c.do(req{Method: "PATCH", Path: podsPath + "/gone/status", Type: mergePatch, Body: object{"status": object{"phase": "Succeeded"}}, Code: 200, quiet: true})
		c.quiet("DELETE", podsPath+"/deleted", nil, 200)
		b := object{"metadata": object{"name": "b"}, "spec": object{"minAvailable": 2, "selector": object{"matchLabels": object{"a": "b"}}}}
		c.quiet("POST", budgetsPath, b, 201)
		status := func(s object) {
			c.Helper()
			for k, v := range (object{"observedGeneration": 1, "currentHealthy": 2, "desiredHealthy": 2, "expectedPods": 4, "disruptionsAllowed": 0}) {
				if _, ok := s[k]; !ok {
					s[k] = v
				}
			}
			c.do(req{Method: "PATCH", Path: budgetsPath + "/b/status", Type: mergePatch, Body: object{"status": s}, Code: 200, quiet: true})
		}
		evict := func(name string, opts object, code int) {
			c.Helper()
			c.note("evict %s %v", name, opts)
			c.post(podsPath+"/"+name+"/eviction", object{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": object{"name": name}, "deleteOptions": opts}, code)
		}
		evict("ready", nil, 429) // the budget was not looked at by its controller
		status(object{})
		evict("ready", nil, 429)
		evict("ready", object{"dryRun": []any{"All"}}, 429)
		evict("ready", object{"gracePeriodSeconds": 0}, 429)
		evict("pending", nil, 201)
		evict("gone", nil, 201)
		evict("deleted", nil, 201)
		evict("unready", nil, 201) // enough others are healthy
		evict("free", nil, 201)
		labelled("unready-2", "b")
		c.running("unready-2", "False")
		status(object{"currentHealthy": 1})
		evict("unready-2", nil, 429)
		c.do(req{Method: "PATCH", Path: budgetsPath + "/b", Type: mergePatch, Body: object{"spec": object{"unhealthyPodEvictionPolicy": "AlwaysAllow"}}, Code: 200, quiet: true})
		evict("unready-2", nil, 201)
		evict("ready", nil, 429) // the budget has changed since its controller looked
		status(object{"observedGeneration": 2, "disruptionsAllowed": 1, "currentHealthy": 3})
		evict("ready", object{"dryRun": []any{"All"}}, 201)
		evict("ready", nil, 201)
		c.get(budgetsPath+"/b", 200)
		evict("ready-2", nil, 429)
		status(object{"observedGeneration": 2, "disruptionsAllowed": 0, "conditions": []any{object{"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "no controller", "lastTransitionTime": "2020-01-01T00:00:00Z"}}})
		evict("ready-2", nil, 429)
		evict("ready-2", nil, 0)
		for _, name := range []string{"c", "c2"} {
			c.quiet("POST", budgetsPath, object{"metadata": object{"name": name}, "spec": object{"maxUnavailable": 1, "selector": object{"matchLabels": object{"a": "c"}}}}, 201)
		}
		evict("shared", nil, 500)
	}},
	{"list-past", func(c *C) {
		c.several()
		rv := c.lists(req{Path: configMapsPath, Code: 200}).rv()
		c.quiet("DELETE", configMapsPath+"/b", nil, 200)
		c.quiet("POST", configMapsPath, configMap("bb", nil), 201)
		c.do(req{Method: "PATCH", Path: configMapsPath + "/a", Type: mergePatch, Body: object{"metadata": object{"labels": object{"even": "false"}}}, Code: 200, quiet: true})
		past := func(q string, code int) *answer {
			c.Helper()
			a := c.lists(req{Path: configMapsPath, Query: q, Code: code})
			c.note("of that version: %v, remaining %q", a.rv() == rv, a.str("metadata", "remainingItemCount"))
			return a
		}
		past("resourceVersion="+rv+"&resourceVersionMatch=Exact", 200)
		past("resourceVersion="+rv+"&resourceVersionMatch=Exact&labelSelector=even=true", 200)
		page := past("resourceVersion="+rv+"&resourceVersionMatch=Exact&limit=2", 200)
		past("limit=2&continue="+page.str("metadata", "continue"), 200)
		c.settleCache(configMapsPath)
		past("resourceVersion="+rv, 200)
		past("resourceVersion="+rv+"&resourceVersionMatch=NotOlderThan", 200)
		past("resourceVersion=0", 200)
		for _, q := range []string{"resourceVersion=" + rv + "&limit=2", "resourceVersion=" + rv + "&resourceVersionMatch=NotOlderThan&limit=2", "resourceVersion=0&limit=2", "resourceVersion=0&resourceVersionMatch=NotOlderThan&limit=2"} {
			page := past(q, 200)
			if token := page.str("metadata", "continue"); token != "" {
				past("limit=2&continue="+token, 200)
				c.lists(req{Path: configMapsPath, Query: "limit=2&resourceVersion=" + rv + "&continue=" + token})
				c.lists(req{Path: configMapsPath, Query: "limit=2&resourceVersion=0&continue=" + token})
				c.lists(req{Path: configMapsPath, Query: "limit=2&resourceVersionMatch=Exact&resourceVersion=" + rv + "&continue=" + token})
			}
		}
		c.do(req{Path: configMapsPath, Query: "resourceVersion=999999999&resourceVersionMatch=Exact"})
		c.do(req{Path: configMapsPath, Query: "resourceVersion=999999999&limit=1"})
		c.do(req{Path: configMapsPath + "/b", Query: "resourceVersion=" + rv, Code: 404})
	}},
	{"scale", func(c *C) {
		c.namespace()
		labels := object{"a": "b", "c": "d"}
		template := object{"metadata": object{"labels": labels}, "spec": object{"containers": []any{object{"name": "c", "image": "i"}}}}
		matching := object{"selector": object{"matchLabels": labels}, "template": template, "replicas": 1}
		controller := maps.Clone(matching)
		controller["selector"] = labels
		stateful := maps.Clone(matching)
		stateful["serviceName"] = "s"
		for _, k := range []struct {
			path string
			spec object
		}{
			{"/apis/apps/v1/namespaces/{NS}/deployments", matching},
			{"/apis/apps/v1/namespaces/{NS}/replicasets", matching},
			{"/apis/apps/v1/namespaces/{NS}/statefulsets", stateful},
			{"/api/v1/namespaces/{NS}/replicationcontrollers", controller},
		} {
			c.note("%s", k.path)
			path := k.path + "/x/scale"
			c.get(path, 404)
			c.quiet("POST", k.path, object{"metadata": object{"name": "x"}, "spec": k.spec}, 201)
			was := c.get(path, 200)
			c.put(path, was.with(func(m object) { in(m, "spec")["replicas"] = 3 }), 200)
			c.put(path, was.with(func(m object) { in(m, "spec")["replicas"] = 4 }), 409) // an old version
			unversioned := func(change func(object)) object {
				return was.with(func(m object) {
					delete(in(m, "metadata"), "resourceVersion")
					change(m)
				})
			}
			c.put(path, unversioned(func(m object) { in(m, "spec")["replicas"] = -1 }), 422)
			c.put(path, unversioned(func(m object) { in(m, "metadata")["uid"] = "other" }), 409)
			c.put(path, unversioned(func(m object) { in(m, "metadata")["name"] = "other" }), 400)
			c.patch(path, mergePatch, object{"spec": object{"replicas": 0}}, 200)
			c.patch(path, strategicPatch, object{"spec": object{"replicas": 5}}, 200)
			c.patch(path, mergePatch, object{"spec": object{"replicas": -5}}, 422)
			c.patch(k.path+"/absent/scale", mergePatch, object{"spec": object{"replicas": 5}}, 404)
			c.post(path, unversioned(func(object) {}), 405)
			c.delete(path, nil, 405)
			stored := c.do(req{Path: k.path + "/x", Code: 200, quiet: true})
			c.note("replicas %v, generation %v", in(stored.Body, "spec")["replicas"], in(stored.Body, "metadata")["generation"])
			c.quiet("DELETE", k.path+"/x", nil, 200)
		}
		c.get("/apis/apps/v1/namespaces/{NS}/daemonsets/x/scale", 404)
	}},
	{"generations", func(c *C) {
		c.namespace()
		labels := object{"matchLabels": object{"a": "b"}}
		template := object{"metadata": object{"labels": object{"a": "b"}}, "spec": object{"containers": []any{object{"name": "c", "image": "i"}}}}
		job := object{"metadata": object{}, "spec": object{"containers": []any{object{"name": "c", "image": "i"}}, "restartPolicy": "Never"}}
		for _, k := range []struct {
			path   string
			spec   object
			change object
		}{
			{"/apis/apps/v1/namespaces/{NS}/deployments", object{"selector": labels, "template": template}, object{"replicas": 2}},
			{"/apis/apps/v1/namespaces/{NS}/replicasets", object{"selector": labels, "template": template}, object{"replicas": 2}},
			{"/apis/apps/v1/namespaces/{NS}/statefulsets", object{"selector": labels, "template": template, "serviceName": "s"}, object{"replicas": 2}},
			{"/apis/apps/v1/namespaces/{NS}/daemonsets", object{"selector": labels, "template": template}, object{"minReadySeconds": 1}},
			{"/apis/batch/v1/namespaces/{NS}/jobs", object{"template": job}, object{"parallelism": 2}},
			{"/apis/batch/v1/namespaces/{NS}/cronjobs", object{"schedule": "0 0 * * *", "jobTemplate": object{"spec": object{"template": job}}}, object{"suspend": true}},
			{"/api/v1/namespaces/{NS}/replicationcontrollers", object{"selector": object{"a": "b"}, "template": template}, object{"replicas": 2}},
			{"/apis/networking.k8s.io/v1/namespaces/{NS}/ingresses", object{"defaultBackend": object{"service": object{"name": "s", "port": object{"number": 80}}}}, object{"ingressClassName": "c"}},
			{"/apis/autoscaling/v2/namespaces/{NS}/horizontalpodautoscalers", object{"maxReplicas": 2, "scaleTargetRef": object{"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}}, object{"maxReplicas": 3}},
			{budgetsPath, object{"maxUnavailable": 1, "selector": labels}, object{"maxUnavailable": 2}},
			{"/api/v1/namespaces/{NS}/persistentvolumeclaims", object{"accessModes": []any{"ReadWriteOnce"}, "resources": object{"requests": object{"storage": "1Gi"}}}, nil},
			{"/api/v1/namespaces/{NS}/resourcequotas", object{"hard": object{"pods": "1"}}, object{"hard": object{"pods": "2"}}},
			{"/api/v1/namespaces/{NS}/services", object{"ports": []any{object{"port": 80}}}, object{"sessionAffinity": "ClientIP"}},
			{"/api/v1/namespaces/{NS}/pods", object{"containers": []any{object{"name": "c", "image": "i"}}}, object{"activeDeadlineSeconds": 5}},
		} {
			kind := k.path[strings.LastIndex(k.path, "/")+1:]
			a := c.quiet("POST", k.path, object{"metadata": object{"name": "x", "labels": object{"l": "1"}}, "spec": k.spec}, 201)
			c.note("%s: generation %q", kind, a.str("metadata", "generation"))
			step := func(what, path string, body object) {
				c.Helper()
				a := c.do(req{Method: "PATCH", Path: path, Type: mergePatch, Body: body, quiet: true})
				m := in(a.Body, "metadata")
				delete(in(m, "annotations"), "deprecated.daemonset.template.generation")
				if fmt.Sprint(m["finalizers"]) == "[kubernetes.io/pvc-protection]" {
					delete(m, "finalizers") // of an admission plugin; only kube-controller-manager removes it again
				}
				c.note("  %s: %d, generation %q, labels %v, annotations %v, finalizers %v, owners %v", what, a.Code, a.str("metadata", "generation"), m["labels"], m["annotations"], m["finalizers"], m["ownerReferences"] != nil)
			}
			step("annotation", k.path+"/x", object{"metadata": object{"annotations": object{"x": "1"}}})
			step("label", k.path+"/x", object{"metadata": object{"labels": object{"l": "2"}}})
			if k.change != nil {
				step("spec", k.path+"/x", object{"spec": k.change})
			}
			step("status", k.path+"/x/status", object{"metadata": object{"labels": object{"l": "3"}, "annotations": object{"x": "2"}, "finalizers": []any{"example.com/f"},
				"ownerReferences": []any{object{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}}}})
			c.do(req{Method: "PATCH", Path: k.path + "/x", Type: mergePatch, Body: object{"metadata": object{"finalizers": nil}}, quiet: true})
			c.do(req{Method: "DELETE", Path: k.path + "/x", Body: object{"gracePeriodSeconds": 0, "propagationPolicy": "Background"}, quiet: true})
		}
	}},
	{"secret-types", func(c *C) {
		c.namespace()
		const path = "/api/v1/namespaces/{NS}/secrets"
		made := 0
		secret := func(typ string, data object, annotations object) {
			c.Helper()
			made++
			c.note("%s %v", typ, data)
			a := c.do(req{Method: "POST", Path: path, Body: object{"metadata": object{"name": fmt.Sprint("s-", made), "annotations": annotations}, "type": typ, "stringData": data}, quiet: true})
			c.note("  %d %s", a.Code, a.str("message"))
		}
		secret("kubernetes.io/tls", nil, nil)
		secret("kubernetes.io/tls", object{"tls.crt": "x"}, nil)
		secret("kubernetes.io/tls", object{"tls.crt": "x", "tls.key": ""}, nil)
		secret("kubernetes.io/dockercfg", nil, nil)
		secret("kubernetes.io/dockercfg", object{".dockercfg": "x"}, nil)
		secret("kubernetes.io/dockercfg", object{".dockercfg": "{}"}, nil)
		secret("kubernetes.io/dockerconfigjson", nil, nil)
		secret("kubernetes.io/dockerconfigjson", object{".dockerconfigjson": "{"}, nil)
		secret("kubernetes.io/dockerconfigjson", object{".dockerconfigjson": "{}"}, nil)
		secret("kubernetes.io/basic-auth", nil, nil)
		secret("kubernetes.io/basic-auth", object{"password": "p"}, nil)
		secret("kubernetes.io/ssh-auth", nil, nil)
		secret("kubernetes.io/ssh-auth", object{"ssh-privatekey": "p"}, nil)
		secret("kubernetes.io/service-account-token", nil, nil)
		secret("kubernetes.io/service-account-token", nil, object{"kubernetes.io/service-account.name": "absent"})
		secret("bootstrap.kubernetes.io/token", nil, nil)
		c.quiet("POST", path, object{"metadata": object{"name": "fixed"}, "stringData": object{"k": "v"}, "immutable": true}, 201)
		c.patch(path+"/fixed", mergePatch, object{"stringData": object{"k": "w"}}, 422)
		c.patch(path+"/fixed", mergePatch, object{"immutable": false}, 422)
	}},
	{"sizes", func(c *C) {
		c.namespace()
		const secrets = "/api/v1/namespaces/{NS}/secrets"
		size := func(what, path string, body object) {
			c.Helper()
			a := c.do(req{Method: "POST", Path: path, Body: body, quiet: true})
			message, _, _ := strings.Cut(a.str("message"), " (") // the exact size
			c.note("%s: %d %s %s", what, a.Code, a.str("reason"), message)
		}
		text := func(n int) string { return strings.Repeat("x", n) }
		const mib = 1 << 20
		size("secret of 1 MiB", secrets, object{"metadata": object{"name": "full"}, "stringData": object{"k": text(mib)}})
		size("secret of 1 MiB and one byte", secrets, object{"metadata": object{"name": "over"}, "stringData": object{"k": text(mib + 1)}})
		size("secret of two values", secrets, object{"metadata": object{"name": "two"}, "stringData": object{"k": text(mib), "l": "x"}})
		size("config map of 1 MiB", configMapsPath, configMap("full", object{"k": text(mib)}))
		size("config map of 1 MiB and one byte", configMapsPath, configMap("over", object{"k": text(mib + 1)}))
		size("annotations of 256 KiB", configMapsPath, object{"metadata": object{"name": "notes", "annotations": object{"a": text(256<<10 - 1)}}})
		size("annotations over 256 KiB", configMapsPath, object{"metadata": object{"name": "more", "annotations": object{"a": text(256 << 10)}}})
		const revisions = "/apis/apps/v1/namespaces/{NS}/controllerrevisions"
		size("object of 1.4 MiB", revisions, object{"metadata": object{"name": "big"}, "revision": 1, "data": object{"k": text(14 * mib / 10)}})
		size("object of 1.6 MiB", revisions, object{"metadata": object{"name": "bigger"}, "revision": 1, "data": object{"k": text(16 * mib / 10)}})
		size("object of 2.5 MiB", revisions, object{"metadata": object{"name": "biggest"}, "revision": 1, "data": object{"k": text(25 * mib / 10)}})
		size("request of more than 3 MiB", revisions, object{"metadata": object{"name": "request"}, "revision": 1, "data": object{"k": text(3 * mib)}})
		a := c.do(req{Method: "PATCH", Path: configMapsPath + "/full", Type: mergePatch, Body: object{"data": object{"k": text(3 * mib)}}, quiet: true})
		c.note("patch: %d %s %s", a.Code, a.str("reason"), a.str("message"))
		c.quiet("POST", configMapsPath, configMap("small", nil), 201)
		a = c.do(req{Method: "PATCH", Path: configMapsPath + "/small", Type: jsonPatch, Body: "[" + strings.TrimSuffix(strings.Repeat(`{"op":"test","path":"/kind","value":"ConfigMap"},`, 10001), ",") + "]", quiet: true})
		c.note("patch of 10,001 operations: %d %s %s", a.Code, a.str("reason"), a.str("message"))
	}},
	{"priorities", func(c *C) {
		c.namespace()
		const classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
		c.lists(req{Path: classes, Code: 200})
		c.get(classes+"/system-node-critical", 200)
		c.post(classes, object{"metadata": object{"name": "c-high"}, "value": 1000, "preemptionPolicy": "Never"}, 201)
		c.post(classes, object{"metadata": object{"name": "c-low"}, "value": -5}, 201)
		c.post(classes, object{"metadata": object{"name": "c-over"}, "value": 1000000001}, 0)
		c.post(classes, object{"metadata": object{"name": "system-mine"}, "value": 1}, 0)
		c.patch(classes+"/c-high", mergePatch, object{"value": 2}, 0)
		p := func(name string, change ...func(object)) {
			c.Helper()
			a := c.do(req{Method: "POST", Path: podsPath, Body: pod(name, "", change...), quiet: true})
			c.note("pod %s: %d %s%s %s %s", name, a.Code, a.str("message"), a.str("spec", "priority"), a.str("spec", "preemptionPolicy"), a.str("spec", "priorityClassName"))
		}
		c.settlePriority("c-high", 1000)
		c.settlePriority("c-low", -5)
		p("none")
		p("high", specOf("priorityClassName", "c-high"))
		p("low", specOf("priorityClassName", "c-low"))
		p("critical", specOf("priorityClassName", "system-node-critical"))
		p("unknown", specOf("priorityClassName", "c-absent"))
		p("number", specOf("priority", 5))
		p("zero", specOf("priority", 0))
		p("same", specOf("priorityClassName", "c-high"), specOf("priority", 1000))
		p("other", specOf("priorityClassName", "c-high"), specOf("priority", 5))
		p("policy", specOf("priorityClassName", "c-high"), specOf("preemptionPolicy", "PreemptLowerPriority"))
		c.post(classes, object{"metadata": object{"name": "c-default"}, "value": 7, "globalDefault": true}, 201)
		c.settlePriority("", 7)
		c.post(classes, object{"metadata": object{"name": "c-default-2"}, "value": 8, "globalDefault": true}, 0)
		p("defaulted")
		for _, name := range []string{"c-high", "c-low", "c-default", "c-default-2"} {
			c.do(req{Method: "DELETE", Path: classes + "/" + name, quiet: true})
		}
		c.settlePriority("", 0)
	}},
	{"pod-checks", func(c *C) {
		c.namespace()
		made := 0
		bad := func(change ...func(object)) {
			c.Helper()
			made++
			a := c.do(req{Method: "POST", Path: podsPath, Body: pod(fmt.Sprint("p-", made), "", change...), quiet: true})
			c.note("%d: %d %s", made, a.Code, a.str("message"))
		}
		container := func(fields object) func(object) {
			ct := object{"name": "c", "image": "i"}
			for k, v := range fields {
				ct[k] = v
			}
			return specOf("containers", []any{ct})
		}
		volumes := func(vs ...any) func(object) { return specOf("volumes", vs) }
		empty := object{"name": "v", "emptyDir": object{}}
		bad(volumes(object{"name": "v", "hostPath": object{"path": "/a/../b"}}))
		bad(volumes(object{"name": "v", "hostPath": object{"path": ""}}))
		bad(volumes(object{"name": "v", "hostPath": object{"path": "/a", "type": "Odd"}}))
		bad(volumes(object{"name": "v"}))
		bad(volumes(empty, empty))
		bad(volumes(object{"name": "V_", "emptyDir": object{}}))
		bad(volumes(object{"name": "v", "emptyDir": object{}, "hostPath": object{"path": "/a"}}))
		bad(volumes(object{"name": "v", "emptyDir": object{"sizeLimit": "-1"}}))
		bad(volumes(object{"name": "v", "secret": object{}}))
		bad(volumes(object{"name": "v", "configMap": object{}}))
		bad(volumes(object{"name": "v", "configMap": object{"name": "m", "items": []any{object{"key": "", "path": "../x"}}}}))
		bad(volumes(object{"name": "v", "secret": object{"secretName": "s", "items": []any{object{"key": "k", "path": "/x"}}, "defaultMode": 1000}}))
		bad(volumes(object{"name": "v", "persistentVolumeClaim": object{}}))
		bad(volumes(object{"name": "v", "projected": object{"sources": []any{object{"serviceAccountToken": object{"path": "", "expirationSeconds": 5}}}}}), specOf("serviceAccountName", "sa"))
		bad(volumes(object{"name": "v", "downwardAPI": object{"items": []any{object{"path": "p", "fieldRef": object{"fieldPath": "spec.nonsense"}}}}}))
		mount := func(fields object) object {
			return object{"volumeMounts": []any{fields}}
		}
		bad(container(mount(object{"name": "absent", "mountPath": "/m"})))
		bad(volumes(empty), container(mount(object{"name": "v", "mountPath": ""})))
		bad(volumes(empty), container(mount(object{"name": "v", "mountPath": "/m:n"})))
		bad(volumes(empty), container(mount(object{"name": "v", "mountPath": "/m", "subPath": "../x"})))
		bad(volumes(empty), container(mount(object{"name": "v", "mountPath": "/m", "subPath": "/x"})))
		bad(volumes(empty), container(object{"volumeMounts": []any{object{"name": "v", "mountPath": "/m"}, object{"name": "v", "mountPath": "/m"}}}))
		bad(container(object{"ports": []any{object{"containerPort": 70000}}}))
		bad(container(object{"ports": []any{object{"containerPort": 0}}}))
		bad(container(object{"ports": []any{object{"containerPort": 80, "hostPort": 70000, "protocol": "ICMP"}}}))
		bad(container(object{"ports": []any{object{"containerPort": 80, "name": "a--b"}, object{"containerPort": 81, "name": "Web"}}}))
		bad(container(object{"ports": []any{object{"containerPort": 80, "name": "web"}, object{"containerPort": 81, "name": "web"}}}))
		bad(container(object{"ports": []any{object{"containerPort": 80, "hostPort": 80}, object{"containerPort": 81, "hostPort": 80}}}))
		bad(container(object{"env": []any{object{"name": "A=B", "value": "x"}}}))
		bad(container(object{"env": []any{object{"name": "", "value": "x"}}}))
		bad(container(object{"env": []any{object{"name": "A", "value": "x", "valueFrom": object{"fieldRef": object{"fieldPath": "metadata.name"}}}}}))
		bad(container(object{"env": []any{object{"name": "A", "valueFrom": object{"fieldRef": object{"fieldPath": "metadata.nonsense"}}}}}))
		bad(container(object{"env": []any{object{"name": "A", "valueFrom": object{"secretKeyRef": object{"name": "s", "key": ""}}}}}))
		bad(container(object{"env": []any{object{"name": "A", "valueFrom": object{}}}}))
		bad(container(object{"envFrom": []any{object{}}}))
		bad(container(object{"resources": object{"requests": object{"cpu": "-1"}}}))
		bad(container(object{"resources": object{"limits": object{"memory": "-1"}}}))
		bad(container(object{"resources": object{"requests": object{"cpu": "2"}, "limits": object{"cpu": "1"}}}))
		bad(container(object{"resources": object{"requests": object{"odd": "1"}}}))
		bad(container(object{"resources": object{"limits": object{"example.com/gpu": "1.5"}}}))
		bad(container(object{"resources": object{"requests": object{"example.com/gpu": "1"}}}))
		bad(container(object{"resources": object{"limits": object{"example.com/gpu": "1"}}}))
		bad(container(object{"livenessProbe": object{}}))
		bad(container(object{"livenessProbe": object{"httpGet": object{"port": 70000}, "periodSeconds": -1}}))
		bad(container(object{"livenessProbe": object{"exec": object{}, "tcpSocket": object{"port": 1}}}))
		bad(container(object{"livenessProbe": object{"exec": object{"command": []any{"x"}}, "successThreshold": 2}}))
		bad(container(object{"lifecycle": object{"preStop": object{}}}))
		bad(container(object{"imagePullPolicy": "Sometimes"}))
		bad(container(object{"terminationMessagePolicy": "Sometimes"}))
		bad(container(object{"image": " i"}))
		bad(container(object{"securityContext": object{"runAsUser": -1}}))
		bad(container(object{"securityContext": object{"privileged": true, "allowPrivilegeEscalation": false}}))
		bad(container(object{"restartPolicy": "Always"}))
		bad(specOf("initContainers", []any{object{"name": "i", "image": "i", "restartPolicy": "Never"}}))
		bad(specOf("initContainers", []any{object{"name": "c", "image": "i"}}))
		bad(specOf("initContainers", []any{object{"name": "i", "image": "i", "readinessProbe": object{"exec": object{"command": []any{"x"}}}}}))
		bad(specOf("ephemeralContainers", []any{object{"name": "e", "image": "i"}}))
		bad(specOf("dnsPolicy", "Odd"))
		bad(specOf("dnsPolicy", "None"))
		bad(specOf("hostAliases", []any{object{"ip": "x", "hostnames": []any{"a"}}}))
		bad(specOf("hostname", "A_b"))
		bad(specOf("nodeSelector", object{"a b": "c"}))
		bad(specOf("tolerations", []any{object{"operator": "Odd", "key": "k"}}))
		bad(specOf("tolerations", []any{object{"operator": "Equal"}}))
		bad(specOf("tolerations", []any{object{"key": "k", "operator": "Exists", "value": "v"}}))
		bad(specOf("tolerations", []any{object{"key": "k", "effect": "NoSchedule", "tolerationSeconds": 5}}))
		bad(specOf("hostNetwork", true), container(object{"ports": []any{object{"containerPort": 80, "hostPort": 81}}}))
		bad(specOf("hostNetwork", true), container(object{"ports": []any{object{"containerPort": 80}}}))
		bad(specOf("schedulerName", "a b"))
		bad(specOf("serviceAccountName", "A B"))
		bad(specOf("imagePullSecrets", []any{object{"name": ""}}))
		bad(specOf("overhead", object{"cpu": "1"}))
		bad(specOf("readinessGates", []any{object{"conditionType": "a b"}}))
		bad(specOf("topologySpreadConstraints", []any{object{"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "Odd"}}))
		bad(specOf("affinity", object{"nodeAffinity": object{"requiredDuringSchedulingIgnoredDuringExecution": object{"nodeSelectorTerms": []any{}}}}))
		bad(specOf("schedulingGates", []any{object{"name": "a b"}}))
		bad(specOf("os", object{"name": "plan9"}))
		bad(specOf("resourceClaims", []any{object{"name": "r"}}))
		bad(container(object{"resources": object{"claims": []any{object{"name": "absent"}}}}))
		bad(specOf("securityContext", object{"sysctls": []any{object{"name": "a b", "value": "1"}}}))
		bad(specOf("terminationGracePeriodSeconds", -5))
	}},
	{"claim-devices", func(c *C) {
		c.namespace()
		const path = "/apis/resource.k8s.io/v1/namespaces/{NS}/resourceclaims"
		c.quiet("POST", path, object{"metadata": object{"name": "c"}, "spec": object{"devices": object{"requests": []any{object{"name": "r", "exactly": object{"deviceClassName": "k"}}}}}}, 201)
		status := func(s object, code int) {
			c.Helper()
			a := c.do(req{Method: "PATCH", Path: path + "/c/status", Type: mergePatch, Body: object{"status": s}, Code: code, quiet: true})
			what := fmt.Sprint(s)
			c.note("%s -> %d %s", what[:min(len(what), 300)], a.Code, a.str("message"))
		}
		dev := func(fields object) object {
			d := object{"driver": "d.example.com", "pool": "p", "device": "one"}
			for k, v := range fields {
				d[k] = v
			}
			return object{"devices": []any{d}}
		}
		status(dev(nil), 0) // not allocated
		status(object{"reservedFor": []any{object{"resource": "pods", "name": "p", "uid": "u"}}}, 0)
		status(object{"allocation": object{"devices": object{"results": []any{object{"request": "absent", "driver": "d.example.com", "pool": "p", "device": "one"}}}}}, 0)
		status(object{"allocation": object{"devices": object{"results": []any{object{"request": "r", "driver": "D_", "pool": "p//q", "device": "One"}}}}}, 0)
		status(object{"allocation": object{"devices": object{"results": []any{object{"request": "r", "driver": "d.example.com", "pool": "p", "device": "one"}, object{"request": "r", "driver": "d.example.com", "pool": "p", "device": "two"}}}}}, 0)
		status(dev(nil), 0)
		status(dev(object{"device": "three"}), 0)
		status(object{"devices": []any{dev(nil)["devices"].([]any)[0], dev(nil)["devices"].([]any)[0]}}, 0)
		network := func(n object) { c.Helper(); status(dev(object{"networkData": n}), 0) }
		network(object{"interfaceName": "eth0", "ips": []any{"10.0.0.1/24", "fd00::1/64"}, "hardwareAddress": "ea:9f:cb:40:b7:9b"})
		network(object{"ips": []any{"10.0.0.1"}})
		network(object{"ips": []any{"10.0.0.1/33"}})
		network(object{"ips": []any{"010.0.0.1/24"}})
		network(object{"ips": []any{"10.0.0.0/24"}})
		network(object{"ips": []any{"::ffff:10.0.0.1/120"}})
		network(object{"ips": []any{"fd00:0::1/64"}})
		network(object{"ips": []any{"x", ""}})
		network(object{"ips": []any{"10.0.0.1/24", "10.0.0.1/24"}})
		network(object{"interfaceName": strings.Repeat("i", 257)})
		network(object{"hardwareAddress": strings.Repeat("i", 129)})
		var ips []any
		for i := range 17 {
			ips = append(ips, fmt.Sprintf("10.0.0.%d/24", i+1))
		}
		network(object{"ips": ips})
		status(dev(object{"data": object{"k": "v"}}), 0)
		status(dev(object{"data": []any{1}}), 0)
		status(dev(object{"data": object{"k": strings.Repeat("x", 10<<10)}}), 0)
		condition := func(typ string) object {
			return object{"type": typ, "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "2020-01-01T00:00:00Z"}
		}
		status(dev(object{"conditions": []any{condition("A"), condition("B")}}), 0)
		status(dev(object{"conditions": []any{condition("A"), condition("A")}}), 0)
		status(dev(object{"conditions": []any{object{"type": "a b", "status": "Odd", "reason": "r r"}}}), 0)
		var many []any
		for i := range 9 {
			many = append(many, condition(fmt.Sprint("C", i)))
		}
		status(dev(object{"conditions": many}), 0)
		status(dev(object{"shareID": "x"}), 0)
		status(dev(object{"driver": "", "pool": "", "device": ""}), 0)
		status(object{"reservedFor": []any{object{"resource": "pods", "name": "p", "uid": "u"}}}, 0)
		status(object{"reservedFor": []any{object{"resource": "pods", "name": "p", "uid": "u"}, object{"resource": "pods", "name": "q", "uid": "u"}}}, 0)
		status(object{"reservedFor": []any{object{"resource": "", "name": "", "uid": ""}}}, 0)
		status(object{"allocation": nil}, 0)
		status(object{"allocation": nil, "reservedFor": nil}, 0)
		status(object{"allocation": nil, "reservedFor": nil, "devices": nil}, 0)
		c.get(path+"/c", 200)
		c.quiet("DELETE", path+"/c", nil, 200)
	}},
	{"tokens", func(c *C) {
		c.namespace()
		const accounts = "/api/v1/namespaces/{NS}/serviceaccounts"
		const reviews = "/apis/authentication.k8s.io/v1/tokenreviews"
		account := c.quiet("POST", accounts, object{"metadata": object{"name": "sa"}}, 201)
		owner := c.quiet("POST", podsPath, pod("p", "n-tokens", specOf("serviceAccountName", "sa"),
			// A node may request tokens only for the audiences that its pods mount.
			specOf("volumes", []any{object{"name": "t", "projected": object{"sources": []any{object{"serviceAccountToken": object{"path": "token"}}}}}})), 201)
		token := func(as apitest.User, spec object) string {
			c.Helper()
			a := c.do(req{As: as, Method: "POST", Path: accounts + "/sa/token", Body: object{"spec": spec}, quiet: true})
			t := a.str("status", "token")
			c.note("token %v -> %d %s%s %s expires %s, %d parts", c.norm.text(fmt.Sprint(spec)), a.Code, c.norm.text(a.str("message")), a.str("kind"), c.norm.text(fmt.Sprint(a.Body["spec"])), when(a.str("status", "expirationTimestamp")), strings.Count(t, ".")+1)
			return t
		}
		review := func(token string, audiences ...any) {
			c.Helper()
			a := c.do(req{Method: "POST", Path: reviews, Body: object{"spec": object{"token": token, "audiences": audiences}}, quiet: true})
			status := in(a.Body, "status")
			c.note("review for %v -> %d %s authenticated %v as %s uid %v %v, extra %v, audiences %v, error %q", audiences, a.Code, a.str("message"), status["authenticated"],
				str(status, "user", "username"), str(status, "user", "uid") == account.str("metadata", "uid"), in(status, "user")["groups"], keysOf(in(status, "user")["extra"]), status["audiences"], c.norm.text(str(status, "error")))
		}
		plain := token(apitest.User{}, object{})
		review(plain)
		other := token(apitest.User{}, object{"audiences": []any{"a", "b"}, "expirationSeconds": 600})
		review(other)
		review(other, "b", "c")
		review(other, "c")
		bound := token(apitest.User{}, object{"audiences": []any{"a"}, "boundObjectRef": object{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner.str("metadata", "uid")}})
		review(bound, "a")
		review("nonsense")
		review("")
		token(apitest.User{}, object{"expirationSeconds": 599})
		token(apitest.User{}, object{"expirationSeconds": int64(1) << 33})
		token(apitest.User{}, object{"boundObjectRef": object{"apiVersion": "v1", "kind": "Pod", "name": "absent"}})
		token(apitest.User{}, object{"boundObjectRef": object{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}})
		token(apitest.User{}, object{"boundObjectRef": object{"apiVersion": "v1", "kind": "ConfigMap", "name": "p"}})
		c.do(req{Method: "POST", Path: accounts + "/absent/token", Body: object{"spec": object{}}, Code: 404})
		c.do(req{Path: accounts + "/sa/token", Code: 405})
		node := apitest.NodeUser("n-tokens")
		c.settleToken(node, accounts+"/sa/token", owner.str("metadata", "uid"))
		token(node, object{})
		token(node, object{"boundObjectRef": object{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner.str("metadata", "uid")}})
		token(node, object{"boundObjectRef": object{"apiVersion": "v1", "kind": "Pod", "name": "p"}})
		token(node, object{"boundObjectRef": object{"apiVersion": "v1", "kind": "Pod", "name": "other", "uid": "u"}})
		token(node, object{"boundObjectRef": object{"apiVersion": "v1", "kind": "Secret", "name": "p", "uid": "u"}})
		token(apitest.NodeUser("n-other"), object{"boundObjectRef": object{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner.str("metadata", "uid")}})
		// The real server remembers for some seconds that a token was good, so reviews
		// after the pod or the account has gone can't be compared.
	}},
	{"self-reviews", func(c *C) {
		const path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
		for _, as := range []apitest.User{{Name: "system:serviceaccount:ns:sa", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:ns"}}, {Name: "alice", Groups: []string{"devs"}}, apitest.NodeUser("n-self")} {
			a := c.do(req{As: as, Method: "POST", Path: path, Body: object{}, quiet: true})
			c.note("%s: %d %s %s %v", as.Name, a.Code, a.str("kind"), a.str("status", "userInfo", "username"), in(a.Body, "status", "userInfo")["groups"])
		}
		c.do(req{Path: path, Code: 405})
		c.do(req{Method: "DELETE", Path: path, Code: 405})
	}},
	{"ownership", func(c *C) {
		path := nodesPath + "/n-owned"
		write := func(what, method, path, query, media string, body any) *answer {
			c.Helper()
			a := c.do(req{Method: method, Path: path, Query: query, Type: media, Body: body, quiet: true})
			c.note("%s: %d", what, a.Code)
			c.owners(a)
			return a
		}
		write("create", "POST", nodesPath, "fieldManager=registrar", "", object{"metadata": object{"name": "n-owned", "labels": object{"l": "1"}}, "spec": object{"taints": []any{object{"key": "k", "effect": "NoSchedule"}}}})
		write("strategic patch of the status", "PATCH", path+"/status", "fieldManager=reporter", strategicPatch, object{"status": object{
			"capacity": object{"cpu": "1"}, "conditions": []any{object{"type": "Ready", "status": "True"}}, "addresses": []any{object{"type": "Hostname", "address": "n"}}}})
		write("another condition", "PATCH", path+"/status", "fieldManager=detector", strategicPatch, object{"status": object{"conditions": []any{object{"type": "Problem", "status": "False"}}}})
		write("the condition of the other", "PATCH", path+"/status", "fieldManager=detector", strategicPatch, object{"status": object{"conditions": []any{object{"type": "Ready", "status": "False"}}}})
		a := write("merge patch", "PATCH", path, "fieldManager=labeller", mergePatch, object{"metadata": object{"labels": object{"m": "1"}, "annotations": object{"a": "1"}}})
		write("update", "PUT", path, "fieldManager=updater", "", a.with(func(m object) {
			in(m, "metadata", "labels")["l"] = "2"
			in(m, "spec")["unschedulable"] = true
		}))
		write("update of the status", "PUT", path+"/status", "fieldManager=updater", "", c.do(req{Path: path, quiet: true}).with(func(m object) {
			in(m, "status", "capacity")["memory"] = "1Gi"
		}))
		write("removal", "PATCH", path, "fieldManager=labeller", mergePatch, object{"metadata": object{"labels": object{"l": nil, "m": nil}}})
		write("JSON patch", "PATCH", path, "fieldManager=json", jsonPatch, []any{object{"op": "replace", "path": "/metadata/annotations/a", "value": "2"}})
		write("nothing", "PATCH", path, "fieldManager=idle", mergePatch, object{})
		write("without a manager", "PATCH", path, "", mergePatch, object{"metadata": object{"labels": object{"n": "1"}}})
		write("managedFields reset", "PATCH", path, "fieldManager=reset", mergePatch, object{"metadata": object{"managedFields": []any{object{}}}})
		write("after the reset", "PATCH", path, "fieldManager=labeller", mergePatch, object{"metadata": object{"labels": object{"o": "1"}}})
		c.quiet("DELETE", path, nil, 200)
	}},
}

// keysOf returns the sorted keys of an object.
func keysOf(v any) []string {
	m, _ := v.(object)
	return slices.Sorted(maps.Keys(m))
}
