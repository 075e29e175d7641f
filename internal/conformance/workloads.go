// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import "maps"

const (
	deploymentsPath  = "/apis/apps/v1/namespaces/{NS}/deployments"
	replicaSetsPath  = "/apis/apps/v1/namespaces/{NS}/replicasets"
	statefulSetsPath = "/apis/apps/v1/namespaces/{NS}/statefulsets"
	daemonSetsPath   = "/apis/apps/v1/namespaces/{NS}/daemonsets"
	jobsPath         = "/apis/batch/v1/namespaces/{NS}/jobs"
	cronJobsPath     = "/apis/batch/v1/namespaces/{NS}/cronjobs"
	servicesPath     = "/api/v1/namespaces/{NS}/services"
	volumeClaimsPath = "/api/v1/namespaces/{NS}/persistentvolumeclaims"
)

// podTemplate is a template of pods with the label app=a.
func podTemplate(restart string) object {
	spec := object{"containers": []any{object{
		"name": "c", "image": "registry.example/i", "ports": []any{object{"containerPort": 80}},
		"resources": object{"limits": object{"cpu": "1"}}, "readinessProbe": object{"httpGet": object{"port": 80}},
	}}}
	if restart != "" {
		spec["restartPolicy"] = restart
	}
	return object{"metadata": object{"labels": object{"app": "a"}}, "spec": spec}
}

func selecting(app string, more object) object {
	spec := object{"selector": object{"matchLabels": object{"app": app}}, "template": podTemplate("")}
	for k, v := range more {
		spec[k] = v
	}
	return object{"metadata": object{"name": "a"}, "spec": spec}
}

// claimTemplate is a claim of a volume.
func claimTemplate(name string) object {
	return object{"metadata": object{"name": name}, "spec": object{"accessModes": []any{"ReadWriteOnce"}, "resources": object{"requests": object{"storage": "1Gi"}}}}
}

// workloadCases check the kinds that operators own: what the server fills in, and what may not change.
var workloadCases = []scenario{
	{"workloads", func(c *C) {
		c.namespace()
		c.post(deploymentsPath, selecting("a", nil), 201)
		c.patch(deploymentsPath+"/a", mergePatch, object{"spec": object{"strategy": object{"type": "Recreate", "rollingUpdate": nil}}}, 200)
		c.post(replicaSetsPath, selecting("a", nil), 201)
		c.post(daemonSetsPath, selecting("a", nil), 201)
		c.post(cronJobsPath, object{"metadata": object{"name": "a"}, "spec": object{"schedule": "0 0 * * *", "jobTemplate": object{"spec": object{"template": podTemplate("Never")}}}}, 201)
		// The plugin that adds a finalizer to claims is not part of apitest, nor is its controller.
		if claim := c.quiet("POST", volumeClaimsPath, claimTemplate("a"), 201); claim.str("spec", "volumeMode") != "Filesystem" || claim.str("status", "phase") != "Pending" {
			c.Errorf("the claim has no defaults: %s", claim.Raw)
		}
		c.patch(daemonSetsPath+"/a", mergePatch, object{"spec": object{"minReadySeconds": 1, "template": object{"metadata": object{"labels": object{"more": "v"}}}}}, 200)
		for _, path := range []string{deploymentsPath, replicaSetsPath, daemonSetsPath} {
			c.do(req{Method: "PATCH", Path: path + "/a", Type: mergePatch, Body: object{"spec": object{"selector": object{"matchLabels": object{"app": "b"}}}}, Code: 422, quiet: true})
		}
		for _, path := range []string{deploymentsPath, replicaSetsPath, statefulSetsPath, daemonSetsPath} {
			c.quiet("POST", path, object{"metadata": object{"name": "b"}, "spec": object{"template": podTemplate("")}}, 422) // no selector
			c.quiet("POST", path, selecting("b", nil), 422)                                                                  // which selects other pods
			c.quiet("POST", path, selecting("a", object{"template": podTemplate("Never")}), 422)
			c.quiet("POST", path, selecting("a", object{"template": object{"metadata": object{"labels": object{"app": "a"}}}}), 422) // no containers
		}
		c.quiet("POST", jobsPath, object{"metadata": object{"name": "a"}, "spec": object{"template": podTemplate("")}}, 422) // restarts always
	}},
	{"services", func(c *C) {
		c.namespace()
		service := func(name string, spec object) object { return object{"metadata": object{"name": name}, "spec": spec} }
		ports := []any{object{"port": 80}}
		c.post(servicesPath, service("headless", object{"clusterIP": "None", "ports": ports, "selector": object{"app": "a"}}), 201)
		c.post(servicesPath, service("external", object{"type": "ExternalName", "externalName": "example.com"}), 201)
		// The server draws addresses and ports, so the answers are not in the transcript.
		made := c.quiet("POST", servicesPath, service("a", object{"ports": ports}), 201)
		ip := made.str("spec", "clusterIP")
		if ip == "" || made.str("spec", "ipFamilyPolicy") != "SingleStack" || made.str("spec", "internalTrafficPolicy") != "Cluster" || len(in(made.Body, "spec")["clusterIPs"].([]any)) != 1 {
			c.Errorf("the Service has no defaults: %s", made.Raw)
		}
		if kept := c.quiet("PUT", servicesPath+"/a", service("a", object{"ports": []any{object{"port": 81}}}), 200); kept.str("spec", "clusterIP") != ip {
			c.Errorf("a PUT without the address %s: %s", ip, kept.Raw)
		}
		c.do(req{Method: "PATCH", Path: servicesPath + "/a", Type: mergePatch, Body: object{"spec": object{"clusterIP": "None", "clusterIPs": []any{"None"}}}, Code: 422, quiet: true})
		node := c.do(req{Method: "PATCH", Path: servicesPath + "/a", Type: mergePatch, Body: object{"spec": object{"type": "NodePort"}}, Code: 200, quiet: true})
		if port, _ := in(node.Body, "spec")["ports"].([]any)[0].(object)["nodePort"].(float64); port < 30000 || node.str("spec", "externalTrafficPolicy") != "Cluster" {
			c.Errorf("no port on the nodes: %s", node.Raw)
		}
	}},
	{"statefulsets", func(c *C) {
		c.namespace()
		c.post(statefulSetsPath, selecting("a", object{"serviceName": "s", "volumeClaimTemplates": []any{claimTemplate("data")}, "updateStrategy": object{"type": "OnDelete"}}), 201)
		c.patch(statefulSetsPath+"/a", mergePatch, object{"spec": object{"replicas": 2, "minReadySeconds": 5}}, 200)
		// The messages, and the default of maxUnavailable, depend on the version.
		for _, change := range []object{{"serviceName": "t"}, {"volumeClaimTemplates": []any{}}, {"podManagementPolicy": "Parallel"}, {"selector": object{"matchLabels": object{"app": "b"}}}} {
			c.do(req{Method: "PATCH", Path: statefulSetsPath + "/a", Type: mergePatch, Body: object{"spec": change}, Code: 422, quiet: true})
		}
		// A container mounts a claim, or a volume with the name of one.
		for name, more := range map[string]object{"mounts": nil, "hides": {"volumes": []any{object{"name": "data", "emptyDir": object{}}}}} {
			template := podTemplate("")
			in(template, "spec")["containers"].([]any)[0].(object)["volumeMounts"] = []any{object{"name": "data", "mountPath": "/data"}}
			maps.Copy(in(template, "spec"), more)
			set := selecting("a", object{"serviceName": "s", "template": template, "volumeClaimTemplates": []any{claimTemplate("data")}})
			in(set, "metadata")["name"] = name
			c.quiet("POST", statefulSetsPath, set, 201)
		}
		rolling := selecting("a", nil)
		in(rolling, "metadata")["name"] = "rolling"
		if made := c.quiet("POST", statefulSetsPath, rolling, 201); in(made.Body, "spec", "updateStrategy", "rollingUpdate")["partition"] != float64(0) {
			c.Errorf("the strategy has no defaults: %s", made.Raw)
		}
	}},
	{"jobs", func(c *C) {
		c.namespace()
		c.post(jobsPath, object{"metadata": object{"name": "a"}, "spec": object{"template": podTemplate("Never")}}, 201)
		c.patch(jobsPath+"/a", mergePatch, object{"spec": object{"parallelism": 2, "backoffLimit": 3}}, 200)
		c.patch(jobsPath+"/a", mergePatch, object{"spec": object{"completions": 2}}, 422)
		c.patch(jobsPath+"/a", mergePatch, object{"spec": object{"completionMode": "Indexed"}}, 422)
		for _, change := range []object{
			{"selector": object{"matchLabels": object{"app": "b"}}},
			{"template": object{"metadata": object{"labels": object{"app": "b"}}}},
			{"template": object{"spec": object{"activeDeadlineSeconds": 7}}},
		} {
			c.do(req{Method: "PATCH", Path: jobsPath + "/a", Type: mergePatch, Body: object{"spec": change}, Code: 422, quiet: true})
		}
		c.post(jobsPath, object{"metadata": object{"name": "indexed", "labels": object{"own": "label"}}, "spec": object{
			"completions": 3, "parallelism": 1, "completionMode": "Indexed", "backoffLimitPerIndex": 1, "template": podTemplate("Never"),
		}}, 201)
		c.patch(jobsPath+"/indexed", mergePatch, object{"spec": object{"completions": 4, "parallelism": 4}}, 200)
	}},
}
