// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"slices"
	"strings"

	"github.com/kubewright/kubewright/apitest"
)

// ours lists the resources that both servers have.
var ours = []string{
	"bindings", "configmaps", "events", "namespaces", "namespaces/finalize", "namespaces/status", "nodes", "nodes/status",
	"pods", "pods/binding", "pods/ephemeralcontainers", "pods/eviction", "pods/resize", "pods/status", "secrets", "serviceaccounts", "services", "services/status",
	"leases", "leasecandidates", "deviceclasses", "resourceclaims", "resourceclaims/status", "resourceclaimtemplates", "resourceslices",
}

var discoveryCases = []scenario{
	{"discovery", func(c *C) {
		for _, path := range []string{"/api/v1", "/apis/coordination.k8s.io/v1", "/apis/coordination.k8s.io/v1beta1", "/apis/events.k8s.io/v1", "/apis/resource.k8s.io/v1", "/apis/resource.k8s.io/v1beta1", "/apis/resource.k8s.io/v1beta2"} {
			a := c.do(req{Path: path, Code: 200, quiet: true})
			c.note("%s %s %s", path, a.str("kind"), a.str("groupVersion"))
			list, _ := a.Body["resources"].([]any)
			for _, r := range list {
				r := r.(object)
				if name := str(r, "name"); slices.Contains(ours, name) && name != "bindings" {
					c.note("  %s namespaced=%v kind=%v %v verbs=%v", name, r["namespaced"], r["kind"], str(r, "group")+"/"+str(r, "version"), r["verbs"])
				}
			}
		}
		for _, path := range []string{"/apis/coordination.k8s.io", "/apis/resource.k8s.io", "/apis/events.k8s.io"} {
			c.get(path, 200)
		}
		c.get("/apis/no.such.group", 404)
		if v := c.do(req{Path: "/version", Code: 200, quiet: true}); v.str("major") != "1" || !strings.HasPrefix(v.str("gitVersion"), "v1.") {
			c.Errorf("version: %s", v.Raw)
		}
		for _, as := range []apitest.User{{}, apitest.NodeUser("n-discovers")} {
			groups, resources, err := c.clientset(as).Discovery().ServerGroupsAndResources()
			if err != nil {
				c.Fatal(err)
			}
			var names []string
			for _, g := range groups {
				if slices.Contains([]string{"", "coordination.k8s.io", "resource.k8s.io", "events.k8s.io"}, g.Name) {
					names = append(names, g.Name+"="+g.PreferredVersion.Version)
				}
			}
			slices.Sort(names)
			c.note("as %s: %v", cmp.Or(as.Name, "kubernetes-admin"), names)
			var have []string
			for _, list := range resources {
				for _, r := range list.APIResources {
					if slices.Contains(ours, r.Name) && r.Name != "bindings" {
						switch gv := list.GroupVersion; {
						case gv == "v1", strings.HasPrefix(gv, "coordination.k8s.io/"), strings.HasPrefix(gv, "resource.k8s.io/"), strings.HasPrefix(gv, "events.k8s.io/"):
							have = append(have, gv+" "+r.Name)
						}
					}
				}
			}
			slices.Sort(have)
			c.note("%v", have)
		}
	}},
}
