// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"regexp"
)

// continued is a token in a query.
var continued = regexp.MustCompile(`continue=ey[^ &]*`)

func (c *C) several() {
	c.namespace()
	for i, name := range []string{"a", "b", "c", "d", "e"} {
		c.quiet("POST", configMapsPath, object{"metadata": object{"name": name, "labels": object{"n": fmt.Sprint(i), "even": fmt.Sprint(i%2 == 0)}}}, 201)
	}
}

// names returns the names of the objects in a list.
func (a *answer) names() (out []string) {
	items, _ := a.Body["items"].([]any)
	for _, it := range items {
		out = append(out, str(it.(object), "metadata", "name"))
	}
	return out
}

// lists sends r and writes only the names in the list into the transcript.
func (c *C) lists(r req) *answer {
	c.Helper()
	r.quiet = true
	a := c.do(r)
	q := continued.ReplaceAllString(c.norm.text(r.Query), "continue=<some>")
	if str(a.Body, "metadata", "continue") != "" {
		q += " (more)"
	}
	c.note("%s %s -> %d %v %v", r.Path, q, a.Code, a.names(), a.str("message"))
	return a
}

var listCases = []scenario{
	{"list", func(c *C) {
		c.several()
		c.get(configMapsPath, 200)
		for _, q := range []string{
			"labelSelector=even=true", "labelSelector=even!=true", "labelSelector=n in (1,3)", "labelSelector=!even", "labelSelector=even,n notin (0)",
			"fieldSelector=metadata.name=b", "fieldSelector=metadata.name!=b", "fieldSelector=metadata.name=b,metadata.namespace={NS}",
			"fieldSelector=metadata.name=b,metadata.name=c", "fieldSelector=metadata.namespace=other", "labelSelector=even=true&fieldSelector=metadata.name=a",
		} {
			c.lists(req{Path: configMapsPath, Query: q, Code: 200})
		}
		for _, q := range []string{
			"labelSelector=a b", "labelSelector=k in (", "fieldSelector=spec.x=1", "fieldSelector=metadata.uid=1", "fieldSelector=nonsense",
			"limit=nonsense", "resourceVersion=nonsense", "resourceVersionMatch=Exact", "resourceVersion=0&resourceVersionMatch=Exact",
			"resourceVersion=1&resourceVersionMatch=Nonsense", "sendInitialEvents=true",
		} {
			c.do(req{Path: configMapsPath, Query: q})
		}
		c.lists(req{Path: "/api/v1/configmaps", Query: "fieldSelector=metadata.namespace={NS}", Code: 200})
	}},
	{"list-pages", func(c *C) {
		c.several()
		a := c.lists(req{Path: configMapsPath, Query: "limit=2", Code: 200})
		if a.str("metadata", "remainingItemCount") != "3" {
			c.Errorf("remainingItemCount %q", a.str("metadata", "remainingItemCount"))
		}
		c.quiet("DELETE", configMapsPath+"/e", nil, 200)
		c.quiet("POST", configMapsPath, configMap("bb", nil), 201)
		// All pages show the state at the time of the first.
		q := "limit=2&continue=" + a.str("metadata", "continue")
		b := c.do(req{Path: configMapsPath, Query: q, Code: 200, quiet: true})
		c.note("second page: %v", b.names())
		last := c.do(req{Path: configMapsPath, Query: "limit=2&continue=" + b.str("metadata", "continue"), Code: 200, quiet: true})
		c.note("third page: %v %q", last.names(), last.str("metadata", "continue"))
		if b.rv() != a.rv() || last.rv() != a.rv() {
			c.Errorf("pages of %s, %s and %s", a.rv(), b.rv(), last.rv())
		}
		c.lists(req{Path: configMapsPath, Query: "limit=10", Code: 200})
		sel := c.lists(req{Path: configMapsPath, Query: "limit=1&labelSelector=even=true", Code: 200})
		c.note("remaining with a selector: %q", sel.str("metadata", "remainingItemCount"))
		c.do(req{Path: configMapsPath, Query: "continue=nonsense", quiet: true, Code: 400})
	}},
	{"list-versions", func(c *C) {
		c.several()
		list := c.lists(req{Path: configMapsPath, Code: 200})
		for _, q := range []string{"resourceVersion=0", "resourceVersion=" + list.rv(), "resourceVersion=" + list.rv() + "&resourceVersionMatch=NotOlderThan", "resourceVersion=" + list.rv() + "&resourceVersionMatch=Exact"} {
			c.lists(req{Path: configMapsPath, Query: q, Code: 200})
		}
		c.do(req{Path: configMapsPath, Query: "resourceVersion=999999999", Code: 504})
		c.do(req{Path: configMapsPath + "/a", Query: "resourceVersion=999999999", Code: 504})
		c.do(req{Path: configMapsPath + "/a", Query: "resourceVersion=0", Code: 200})
	}},
}
