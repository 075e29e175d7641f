// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"time"

	"github.com/kubewright/kubewright/apitest"
)

// settle repeats r until ok accepts the answer. The transcript shows neither the requests nor their number.
//
// Authorizers, admission plugins and caches of the real server learn of writes from watches, some time after the client
// has the answer. A case whose next answer depends on one of its writes in this way must settle first, with a request
// that the same part of the server decides and that changes nothing.
func (c *C) settle(what string, r req, ok func(*answer) bool) {
	c.Helper()
	r.quiet = true
	for until := time.Now().Add(patience); !ok(c.do(r)); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			c.Fatalf("waited in vain for %s", what)
		}
	}
}

// settleRead waits until the server's authorizer lets the user read path.
func (c *C) settleRead(u apitest.User, path string) {
	c.Helper()
	c.settle("the authorizer to allow "+path, req{As: u, Path: path}, func(a *answer) bool { return a.Code != 403 })
}

// settlePriority waits until the admission of pods and of priority classes knows the priority of a class, or without a
// class the default.
func (c *C) settlePriority(class string, want int) {
	c.Helper()
	p := pod("settle", "")
	if class != "" {
		specOf("priorityClassName", class)(p)
	}
	c.settle("the priority of "+class, req{Method: "POST", Path: podsPath, Query: "dryRun=All", Body: p}, func(a *answer) bool {
		return a.str("spec", "priority") == fmt.Sprint(want)
	})
}

// settleToken waits until the server's authorizer and admission know that the pod belongs to the node.
func (c *C) settleToken(node apitest.User, path, uid string) {
	c.Helper()
	body := object{"spec": object{"boundObjectRef": object{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid}}}
	c.settle("the authorizer to know the pod", req{As: node, Method: "POST", Path: path, Body: body}, func(a *answer) bool { return a.Code == 201 })
}

// settleCache waits until lists from the server's cache show all writes to the resource.
func (c *C) settleCache(path string) {
	c.Helper()
	latest := c.do(req{Path: path, Code: 200, quiet: true}).rv()
	c.do(req{Path: path, Query: "resourceVersionMatch=NotOlderThan&resourceVersion=" + latest, Code: 200, quiet: true})
}

// settleKind waits until the server serves a kind of a CustomResourceDefinition.
func (c *C) settleKind(path string) {
	c.Helper()
	c.settle("the kind of "+path, req{Path: path}, func(a *answer) bool { return a.Code == 200 })
}
