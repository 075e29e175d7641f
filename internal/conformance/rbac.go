// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"github.com/kubewright/kubewright/apitest"
)

// roles are the permissions of the user of rbacCases; {NS} is the case's
// namespace.
const roles = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: c-rbac}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [get, create]}
- {apiGroups: [""], resources: [nodes/status], resourceNames: [n-rbac], verbs: [patch]}
- {apiGroups: [""], resources: ["*/eviction"], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: c-rbac-everything}
rules:
- {apiGroups: ["coordination.k8s.io"], resources: ["*"], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: c-rbac}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: c-rbac}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: conformance}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: c-rbac, namespace: "{NS}"}
rules:
- {apiGroups: [""], resources: [configmaps], resourceNames: [one], verbs: [get, list, watch, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: c-rbac, namespace: "{NS}"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: c-rbac}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: conformers}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: c-rbac-everything, namespace: "{NS}"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: c-rbac-everything}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: conformance}]
`

// rbacCases check the permissions that roles and their bindings give to a user
// that is not a node.
var rbacCases = []scenario{
	{"rbac", func(c *C) {
		c.namespace()
		c.server.Grant(c.expand(roles))
		me := apitest.User{Name: "conformance", Groups: []string{"conformers", "system:authenticated"}}
		as := func(method, path, query string, body any, code int) {
			c.Helper()
			c.do(req{As: me, Method: method, Path: path, Query: query, Body: body, Code: code})
		}
		c.quiet("POST", configMapsPath, configMap("one", nil), 201)
		c.quiet("POST", podsPath, pod("p", ""), 201)
		// The authorizer learns of roles and of bindings, in namespaces and of the cluster, from four watches.
		for _, path := range []string{configMapsPath + "/one", nodesPath + "/n-rbac", leasesPath} {
			c.settleRead(me, path)
		}
		as("POST", nodesPath, "", named("n-rbac"), 201)
		as("GET", nodesPath+"/n-rbac", "", nil, 200)
		as("GET", nodesPath, "", nil, 403)
		as("GET", nodesPath, "fieldSelector=metadata.name=n-rbac", nil, 403)
		as("DELETE", nodesPath+"/n-rbac", "", nil, 403)
		status := func(path string, code int) {
			c.Helper()
			c.do(req{As: me, Method: "PATCH", Path: path, Type: mergePatch, Body: object{"metadata": object{"labels": object{"l": "1"}}}, Code: code})
		}
		status(nodesPath+"/n-rbac/status", 200)
		status(nodesPath+"/n-other/status", 403)
		status(nodesPath+"/n-rbac", 403)
		as("GET", configMapsPath+"/two", "", nil, 403)
		as("GET", configMapsPath, "", nil, 403)
		as("GET", configMapsPath, "fieldSelector=metadata.name=one", nil, 200)
		as("GET", configMapsPath, "fieldSelector=metadata.name=two", nil, 403)
		as("GET", configMapsPath, "watch=true&fieldSelector=metadata.name=two", nil, 403)
		as("GET", "/api/v1/configmaps", "", nil, 403)
		as("GET", "/api/v1/namespaces/default/configmaps/one", "", nil, 403)
		as("POST", configMapsPath, "", configMap("one", nil), 403)
		as("PUT", leasesPath+"/l", "", lease("l"), 201)
		as("GET", leasesPath, "", nil, 200)
		as("DELETE", leasesPath+"/l", "", nil, 200)
		as("GET", "/apis/coordination.k8s.io/v1/leases", "", nil, 403)
		as("PUT", configMapsPath+"/one", "", configMap("one", nil), 200)
		as("POST", podsPath+"/p/eviction", "", object{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": object{"name": "p"}}, 201)
		c.quiet("DELETE", nodesPath+"/n-rbac", nil, 200)
	}},
}
