// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import ()

// node returns a node as a kubelet registers it.
func node(name string) object {
	return object{
		"metadata": object{"name": name, "labels": object{"kubernetes.io/hostname": name}},
		"spec":     object{"taints": []any{object{"key": "example.com/new", "effect": "NoSchedule"}}},
		"status": object{
			"capacity":   object{"cpu": "4", "memory": "8Gi"},
			"conditions": []any{object{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": "2020-01-01T00:00:00Z", "lastTransitionTime": "2020-01-01T00:00:00Z"}},
			"addresses":  []any{object{"type": "InternalIP", "address": "10.0.0.1"}},
		},
	}
}

var nodeCases = []scenario{
	{"nodes", func(c *C) {
		path := nodesPath + "/n-nodes"
		made := c.post(nodesPath, node("n-nodes"), 201) // create accepts a status
		c.post(nodesPath, node("n-nodes"), 409)
		c.post(nodesPath, node("Bad_Name"), 422)
		c.do(req{Path: path + "/status", Code: 200})
		// A write of the object does not change its status, and a write of the
		// status does not change the spec. Both change metadata.
		c.put(path, made.with(func(m object) {
			in(m, "status")["phase"] = "Running"
			in(m, "status")["conditions"] = nil
			in(m, "metadata", "labels")["main"] = "1"
		}), 200)
		c.patch(path+"/status", strategicPatch, object{
			"metadata": object{"labels": object{"by-status": "1"}, "annotations": object{"by-status": "1"}},
			"spec":     object{"unschedulable": true},
			"status":   object{"conditions": []any{object{"type": "MemoryPressure", "status": "False"}}},
		}, 200)
		c.patch(path, mergePatch, object{"spec": object{"unschedulable": true}, "status": object{"conditions": nil}}, 200)
		// Addresses are merged by type, so each type has one entry.
		c.patch(path+"/status", strategicPatch, object{"status": object{"addresses": []any{
			object{"type": "InternalIP", "address": "10.0.0.2"}, object{"type": "Hostname", "address": "h"}}}}, 200)
		c.patch(path+"/status", strategicPatch, object{"status": object{"addresses": []any{
			object{"$patch": "replace"}, object{"type": "InternalIP", "address": "10.0.0.3"}, object{"type": "InternalIP", "address": "10.0.0.4"}}}}, 200)
		c.patch(path+"/status", strategicPatch, object{"status": object{"conditions": []any{object{"type": "MemoryPressure", "$patch": "delete"}}}}, 200)
		c.patch(path+"/status", strategicPatch, object{"metadata": object{"uid": "77777777-7777-7777-7777-777777777777"}}, 422)
		c.quiet("DELETE", path, nil, 200)
		c.put(path, made.Body, 404)
		c.put(path+"/status", made.Body, 404)
		c.patch(path+"/status", strategicPatch, object{"status": object{}}, 404)
	}},
	{"node-fields", func(c *C) {
		path := nodesPath + "/n-fields"
		c.post(nodesPath, object{"metadata": object{"name": "n-fields"}}, 201)
		c.patch(path, mergePatch, object{"spec": object{"providerID": "fake://1"}}, 200)
		c.patch(path, mergePatch, object{"spec": object{"providerID": "fake://2"}}, 422)
		c.patch(path, mergePatch, object{"spec": object{"podCIDR": "10.1.0.0/24", "podCIDRs": []any{"10.1.0.0/24"}}}, 200)
		c.patch(path, mergePatch, object{"spec": object{"podCIDR": "10.2.0.0/24", "podCIDRs": []any{"10.2.0.0/24"}}}, 422)
		c.patch(path, mergePatch, object{"spec": object{"externalID": "x"}}, 422)
		c.patch(path, mergePatch, object{"spec": object{"taints": []any{object{"key": "a", "effect": "Nonsense"}}}}, 422)
		c.patch(path, mergePatch, object{"spec": object{"taints": []any{object{"key": "a", "effect": "NoExecute"}, object{"key": "a", "effect": "NoExecute"}}}}, 422)
		c.patch(path, mergePatch, object{"spec": object{"taints": []any{object{"key": "a", "effect": "NoExecute"}}}}, 200)
		c.patch(path, mergePatch, object{"spec": object{"configSource": object{"configMap": object{"name": "x", "namespace": "y", "kubeletConfigKey": "z"}}}}, 200)
		c.patch(path+"/status", mergePatch, object{"status": object{"config": object{"error": "x"}}}, 200)
		c.lists(req{Path: nodesPath, Query: "fieldSelector=metadata.name=n-fields,spec.unschedulable=false", Code: 200})
		c.lists(req{Path: nodesPath, Query: "fieldSelector=spec.providerID=x", Code: 400})
	}},
}
